//! Writes a profile.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, params};

use super::{APPLICATION_ID, CreateError, SCHEMA, SCHEMA_VERSION};
use crate::rows::{Batch, Mode, Sink, SinkError};

/// Time for which a write waits for another process that has locked the file, which only a reader's
/// checkpoint does.
const BUSY: Duration = Duration::from_secs(5);

/// Writer of batches into a profile file.
#[derive(Debug)]
pub struct ProfileWriter {
    connection: Connection,
    path: PathBuf,
}

/// Files that SQLite keeps next to a database.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

pub(super) fn companion(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl ProfileWriter {
    /// Creates the profile. With `force` a regular file of that name is replaced; without, it is an error.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create(path: &Path, force: bool) -> Result<Self, CreateError> {
        let io = |error| CreateError::Io { path: path.to_owned(), error };
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() && !meta.is_symlink() => {
                return Err(CreateError::NotAFile(path.to_owned()));
            }
            Ok(_) if !force => return Err(CreateError::Exists(path.to_owned())),
            Ok(_) => fs::remove_file(path).map_err(io)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        // The log of a killed run must not be taken for the new profile's log.
        for suffix in COMPANIONS {
            match fs::remove_file(companion(path, suffix)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(error)),
                _ => {}
            }
        }
        // Claims the name: of two runs that start at the same time only one gets it.
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => CreateError::Exists(path.to_owned()),
            _ => io(error),
        })?;
        let connection = prepare(path).map_err(|error| {
            let reason = explain(path, &error);
            CreateError::Database { path: path.to_owned(), reason }
        });
        // Without a schema the file is not a profile.
        let connection = connection.inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(Self { connection, path: path.to_owned() })
    }

    fn error(&self, error: &rusqlite::Error) -> SinkError {
        SinkError(format!("cannot write {}: {}", self.path.display(), explain(&self.path, error)))
    }
}

fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    let transaction = connection.transaction()?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.execute_batch(SCHEMA)?;
    for mode in Mode::ALL {
        transaction.execute("INSERT INTO mode VALUES (?, ?)", params![mode.id(), mode.name()])?;
    }
    transaction.commit()?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // In WAL mode a kill loses nothing that was committed; NORMAL risks the last commits only when power
    // fails.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(Batch::TABLES);
    Ok(connection)
}

/// Returns the reason in plain words, above all for a full disk. SQLite reports only some of those cases as
/// such.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        Some(ErrorCode::SystemIoFailure) if no_room(path) => "the disk is full".to_owned(),
        Some(ErrorCode::SystemIoFailure) => format!("the disk does not accept more data ({error})"),
        _ => error.to_string(),
    }
}

/// True if the file system of `path` has less free space than a batch takes, 1 MiB.
fn no_room(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(name) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `name` is NUL-terminated and `stat` has room for the structure; both outlive the call.
    if unsafe { libc::statvfs(name.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: statvfs has succeeded and so filled the structure.
    let stat = unsafe { stat.assume_init() };
    stat.f_bavail.saturating_mul(stat.f_frsize) < 1 << 20
}

impl Sink for ProfileWriter {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let transaction = self.connection.transaction();
        let written = transaction.and_then(|transaction| {
            batch.insert(&transaction)?;
            transaction.commit()
        });
        written.map_err(|error| self.error(&error))
    }

    /// Folds the write-ahead log into the file. While the file has readers, the log stays next to it.
    fn finish(&mut self) -> Result<(), SinkError> {
        let folded = self
            .connection
            .busy_timeout(Duration::from_secs(1))
            .and_then(|()| self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
            .and_then(|()| self.connection.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())));
        match folded {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
            other => other.map_err(|error| self.error(&error)),
        }
    }
}
