//! A profile that gets its name once it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::{Builder, TempPath};

use super::CreateError;
use super::writer::{PRIVATE, directory, explain, fold_log, prepare, remove_companions};

/// Memory for pages of the profile that is written, KiB.
const CACHE_KIB: i32 = 16 << 10;

/// A profile that is written as a whole, in a file next to its place, which is removed on drop.
#[derive(Debug)]
pub(crate) struct WholeProfile {
    connection: Connection,
    file: TempPath,
    path: PathBuf,
    force: bool,
}

impl WholeProfile {
    /// Creates the tables. With `force` the profile will take the place of a regular file of this name.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub(crate) fn create(path: &Path, force: bool) -> Result<Self, CreateError> {
        let io = |error| CreateError::Io { path: path.to_owned(), error };
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() && !meta.is_symlink() => {
                return Err(CreateError::NotAFile(path.to_owned()));
            }
            Ok(_) if !force => return Err(CreateError::Exists(path.to_owned())),
            Ok(_) => fold_log(path)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        let file = Builder::new().prefix(".vprof-").tempfile_in(directory(path)).map_err(io)?;
        let file = file.into_temp_path();
        let database = |error| CreateError::Database { path: path.to_owned(), reason: explain(path, &error) };
        let connection = prepare(&file).map_err(database)?;
        // A file that is not complete is removed: nothing has to be undone in it.
        let faster = || {
            connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
            connection.pragma_update(None, "synchronous", "OFF")?;
            connection.pragma_update(None, "cache_size", -CACHE_KIB)
        };
        faster().map_err(database)?;
        Ok(Self { connection, file, path: path.to_owned(), force })
    }

    /// Returns the connection that writes it.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Gives the profile its name.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub(crate) fn place(self) -> Result<(), CreateError> {
        let Self { connection, file, path, force } = self;
        let failed = |error: &rusqlite::Error| CreateError::Database {
            path: path.clone(),
            reason: explain(&path, error),
        };
        connection.close().map_err(|(_, error)| failed(&error))?;
        let placed = File::open(&file).and_then(|file| file.sync_all()).and_then(|()| {
            if !force {
                // Claims the name: what is next to a file of another must stay.
                drop(OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&path)?);
            }
            // The log of a killed run must not be taken for the new profile's log.
            remove_companions(&path)?;
            file.persist(&path).map_err(io::Error::from)
        });
        placed.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => CreateError::Exists(path.clone()),
            _ => CreateError::Io { path: path.clone(), error },
        })
    }
}
