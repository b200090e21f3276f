//! The profile's file. It replaces another file only on request.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use profile::store::APPLICATION_ID;

use crate::args::RecordingArgs;
use crate::errors::Error;
use crate::output::SQLITE_MAGIC;

/// Checks, before a guest is started, that the profile of a recording can be created: its path is free, or
/// has a profile that is to be replaced or kept under another name.
pub fn check(args: &RecordingArgs) -> Result<(), Error> {
    if args.older.is_none() {
        return check_path(&args.output, args.force);
    }
    // Another file under the default name is the user's.
    if !is_profile(&args.output)? {
        return Err(Error::OutputExists(args.output.clone()));
    }
    match check_path(&older_name(&args.output), true) {
        Err(Error::OutputForeign(path)) => Err(Error::OlderForeign(path)),
        checked => checked,
    }
}

/// Returns the name under which a profile stays that the next one replaces.
pub fn older_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

/// Checks that a profile can be created: the path is free, or has a profile and `force` is given.
pub fn check_path(path: &Path, force: bool) -> Result<(), Error> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return directory(path),
        Err(source) => return Err(Error::file("read", path, source)),
        Ok(metadata) => metadata,
    };
    if path.is_dir() {
        return Err(Error::OutputDirectory(path.to_owned()));
    }
    if !force {
        return Err(Error::OutputExists(path.to_owned()));
    }
    if !metadata.is_file() || !is_profile(path)? {
        return Err(Error::OutputForeign(path.to_owned()));
    }
    Ok(())
}

/// Returns true for a profile. An empty file is one, too: a run leaves it if it is killed right after its
/// start.
fn is_profile(path: &Path) -> Result<bool, Error> {
    let fail = |source| Error::file("read", path, source);
    let mut head = Vec::new();
    // The application's id is in bytes 68 to 71 (sqlite.org/fileformat.html, 1.3).
    File::open(path).map_err(fail)?.take(72).read_to_end(&mut head).map_err(fail)?;
    let is_ours = head.get(68..72) == Some(&APPLICATION_ID.to_be_bytes());
    Ok(head.is_empty() || head.starts_with(SQLITE_MAGIC) && is_ours)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_profiles_are_replaced_and_only_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.vprof");
        check_path(&path, false).unwrap();
        let mut head = [0; 100];
        head[..16].copy_from_slice(SQLITE_MAGIC);
        head[68..72].copy_from_slice(&APPLICATION_ID.to_be_bytes());
        std::fs::write(&path, head).unwrap();
        assert!(matches!(check_path(&path, false), Err(Error::OutputExists(_))));
        check_path(&path, true).unwrap();
        // The database of another program.
        head[68] ^= 1;
        for other in [&head[..], b"SQLite format 3\0", b"my thesis"] {
            std::fs::write(&path, other).unwrap();
            assert!(matches!(check_path(&path, true), Err(Error::OutputForeign(_))));
            assert_eq!(std::fs::read(&path).unwrap(), other);
        }
    }

    #[test]
    fn a_missing_directory_is_reported_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let error = check_path(&directory.path().join("no/p.vprof"), false).unwrap_err();
        assert!(error.to_string().contains("no such file or directory"), "{error}");
        assert!(check_path(directory.path(), true).is_err());
    }
}
