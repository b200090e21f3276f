//! The profile's file. It replaces another file only on request.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::errors::Error;

/// First bytes of every SQLite database (sqlite.org/fileformat.html, 1.3).
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Checks, before a guest is started, that the profile can be created: its path is free, or with `force` has
/// a profile.
pub fn check(path: &Path, force: bool) -> Result<(), Error> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return directory(path),
        Err(source) => return Err(Error::file("read", path, source)),
        Ok(metadata) => metadata,
    };
    if !force {
        return Err(Error::OutputExists(path.to_owned()));
    }
    if !metadata.is_file() || !is_profile(path)? {
        return Err(Error::OutputForeign(path.to_owned()));
    }
    Ok(())
}

/// Removes a profile in which nothing was recorded, with its journal, so that the next run finds its path
/// free.
pub fn remove(path: &Path) {
    for file in
        [path.to_owned(), with_suffix(path, "-wal"), with_suffix(path, "-shm"), with_suffix(path, "-journal")]
    {
        // The next run finds and reports a file that is left.
        let _ = std::fs::remove_file(file);
    }
}

/// Returns true for a profile. An empty file is one, too: a run leaves it if it is killed right after its
/// start.
fn is_profile(path: &Path) -> Result<bool, Error> {
    let fail = |source| Error::file("read", path, source);
    let mut head = Vec::new();
    File::open(path).map_err(fail)?.take(16).read_to_end(&mut head).map_err(fail)?;
    Ok(head.is_empty() || head == SQLITE_MAGIC)
}

/// Checks that the directory exists, before a guest is started.
fn directory(path: &Path) -> Result<(), Error> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::metadata(parent) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::file("create the profile in", parent, ErrorKind::NotADirectory.into())),
        Err(source) => Err(Error::file("create the profile in", parent, source)),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_profiles_are_replaced_and_only_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.vprof");
        check(&path, false).unwrap();
        std::fs::write(&path, b"SQLite format 3\0...").unwrap();
        std::fs::write(with_suffix(&path, "-wal"), b"journal").unwrap();
        assert!(matches!(check(&path, false), Err(Error::OutputExists(_))));
        check(&path, true).unwrap();
        remove(&path);
        assert!(!path.exists() && !with_suffix(&path, "-wal").exists());
        std::fs::write(&path, b"my thesis").unwrap();
        assert!(matches!(check(&path, true), Err(Error::OutputForeign(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"my thesis");
    }

    #[test]
    fn a_missing_directory_is_reported_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let error = check(&directory.path().join("no/p.vprof"), false).unwrap_err();
        assert!(error.to_string().contains("no such file or directory"), "{error}");
        assert!(check(directory.path(), true).is_err());
    }
}
