//! Directories of the images, and the lock for writing there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Returns the root of the workspace that this crate was built from.
pub(crate) fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Returns `target/guest` of the workspace, the directory of all images. The directory may not exist yet.
pub fn guest_directory() -> PathBuf {
    workspace().join("target/guest")
}

/// Lock for changes in a directory, released when dropped, or when the process dies.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    directory: PathBuf,
    #[expect(dead_code, reason = "held, not read: closing the file unlocks it")]
    file: File,
}

impl DirectoryLock {
    /// Creates the guest directory if it is missing, and waits until no other process changes it.
    pub(crate) fn take() -> Result<Self> {
        Self::take_in(&guest_directory())
    }

    /// Creates a directory if it is missing, and waits until no other process changes it.
    pub(crate) fn take_in(directory: &Path) -> Result<Self> {
        make_directory(directory)?;
        let path = directory.join(".lock");
        let file =
            File::options().create(true).truncate(false).write(true).open(&path).with_context(|| {
                format!(
                    "cannot write {}: it belongs to another user; remove {} or build as that user",
                    path.display(),
                    directory.display()
                )
            })?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { directory: directory.to_owned(), file })
    }

    /// Creates an empty directory in the locked one for unfinished files. It is removed when dropped.
    pub(crate) fn stage(&self) -> Result<TempDir> {
        const PREFIX: &str = ".stage-";
        let directory = &self.directory;
        let fail = || format!("cannot make a directory in {}", directory.display());
        // This process holds the lock, so the processes that made these directories were killed.
        for entry in fs::read_dir(directory).with_context(fail)?.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                fs::remove_dir_all(entry.path())
                    .with_context(|| format!("cannot remove {}", entry.path().display()))?;
            }
        }
        tempfile::Builder::new().prefix(PREFIX).tempdir_in(directory).with_context(fail)
    }
}

/// Creates a directory and its parents.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create the directory {}", path.display()))
}

/// Writes a file so that no reader ever sees half of it.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let fresh = path.with_added_extension("new");
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::rename(&fresh, path).with_context(|| format!("cannot write {}", path.display()))
}
