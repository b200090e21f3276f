//! Opens a profile for reading.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, ffi};
use tempfile::TempDir;

use super::guard::{StepBudget, check_journal, check_schema, protect, size};
use super::writer::companion;
use super::{APPLICATION_ID, ProfileError, SCHEMA_VERSION};

/// Time for which a read waits for a writer that recovers or folds its log.
const BUSY: Duration = Duration::from_secs(5);

/// A profile that is read, finished or still being written. Reading never changes it.
#[derive(Debug)]
pub struct Profile {
    pub(super) connection: Connection,
    /// Bound of the work that its content can cause.
    pub(super) budget: Arc<StepBudget>,
    path: PathBuf,
    /// A copy that is read instead of a profile in a directory without write permission.
    _copy: Option<TempDir>,
}

impl Profile {
    /// Opens a profile. Finds everything that was committed, also while the run that writes it is in
    /// progress, or after it was killed and its write-ahead log is next to the file.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn open(path: &Path) -> Result<Self, ProfileError> {
        check_header(path)?;
        check_journal(path)?;
        let ((connection, budget), copy) = connect(path).map_err(|error| explain(path, &error))?;
        check_schema(path, &connection)?;
        Ok(Self { connection, budget, path: path.to_owned(), _copy: copy })
    }

    /// Returns the path of the profile.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Freezes the content for all reads until the snapshot is dropped, also while a run writes the profile.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn snapshot(&self) -> Result<Snapshot<'_>, ProfileError> {
        snapshot(&self.connection).map_err(|error| self.error(&error))
    }

    /// Returns true if the profile is merged: it is of several virtual machines.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn is_merged(&self) -> Result<bool, ProfileError> {
        let found = self.connection.query_row("SELECT EXISTS (SELECT 1 FROM vm)", [], |row| row.get(0));
        found.map_err(|error| self.error(&error))
    }

    /// Refuses a merged profile, which has no such data.
    pub(crate) fn has_one_vm(&self, what: &'static str) -> Result<(), ProfileError> {
        match self.is_merged()? {
            true => Err(ProfileError::Merged { path: self.path.clone(), what }),
            false => Ok(()),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn error(&self, error: &rusqlite::Error) -> ProfileError {
        explain(&self.path, error)
    }
}

/// A frozen state of a profile, see [`Profile::snapshot`].
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// `None` within another snapshot, which has frozen the state already.
    _transaction: Option<Transaction<'a>>,
}

/// Begins a read transaction, unless one is open.
pub(crate) fn snapshot(connection: &Connection) -> rusqlite::Result<Snapshot<'_>> {
    let alone = connection.is_autocommit();
    Ok(Snapshot { _transaction: alone.then(|| connection.unchecked_transaction()).transpose()? })
}

/// Checks the first 100 bytes of an SQLite file (sqlite.org/fileformat2.html, 1.3).
pub(super) fn check_header(path: &Path) -> Result<(), ProfileError> {
    let io = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => ProfileError::NotFound(path.to_owned()),
        _ => ProfileError::Io { path: path.to_owned(), error },
    };
    let foreign = || ProfileError::NotAProfile(path.to_owned());
    // Checked before opening: opening a FIFO would wait for its other end.
    let meta = fs::metadata(path).map_err(io)?;
    if !meta.is_file() {
        return Err(foreign());
    }
    if meta.len() == 0 {
        return Err(ProfileError::Empty(path.to_owned()));
    }
    let mut header = [0; 100];
    File::open(path).and_then(|mut file| file.read_exact(&mut header)).map_err(|error| {
        match error.kind() {
            ErrorKind::UnexpectedEof => foreign(),
            _ => io(error),
        }
    })?;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if !header.starts_with(b"SQLite format 3\0") || number(68) != APPLICATION_ID {
        return Err(foreign());
    }
    let found = number(60);
    if found > SCHEMA_VERSION {
        return Err(ProfileError::Newer { path: path.to_owned(), found });
    }
    if found < SCHEMA_VERSION {
        return Err(ProfileError::Older { path: path.to_owned(), found });
    }
    // The page count is valid if it was written together with the change counter. Pages that are not in the
    // file may be in the log; SQLite then compares the two itself.
    let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    let expected = u64::from(number(28)) * page_bytes;
    let log = fs::metadata(companion(path, "-wal")).is_ok_and(|log| log.len() > 0);
    if !log && number(24) == number(92) && meta.len() < expected {
        return Err(ProfileError::CutOff { path: path.to_owned(), bytes: meta.len(), expected });
    }
    Ok(())
}

/// A connection that is protected from its file.
type Reader = (Connection, Arc<StepBudget>);

fn connect(path: &Path) -> rusqlite::Result<(Reader, Option<TempDir>)> {
    let error = match read_only(path, "") {
        Ok(connection) => return Ok((connection, None)),
        Err(error) => error,
    };
    match error.sqlite_error() {
        // A run that was killed at its very end: the rollback journal has to be replayed first.
        Some(e) if e.extended_code == ffi::SQLITE_READONLY_ROLLBACK => {
            let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            protect(&mut connection, size(path))?;
            probe(&connection)?;
            drop(connection);
            Ok((read_only(path, "")?, None))
        }
        // The index of the log cannot be created in a directory without write permission.
        Some(e) if matches!(e.code, ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
            without_index(path, error)
        }
        _ => Err(error),
    }
}

/// Opens a profile where SQLite cannot create its index of the log. Without a log the file alone is complete;
/// otherwise file and log are copied to a directory where an index can be created.
fn without_index(path: &Path, error: rusqlite::Error) -> rusqlite::Result<(Reader, Option<TempDir>)> {
    let log = companion(path, "-wal");
    if fs::metadata(&log).map_or(0, |meta| meta.len()) == 0 {
        return Ok((read_only(path, "immutable=1")?, None));
    }
    let copied = || -> io::Result<(PathBuf, TempDir)> {
        let directory = tempfile::tempdir()?;
        let copy = directory.path().join("copy.vprof");
        fs::copy(path, &copy)?;
        fs::copy(&log, companion(&copy, "-wal"))?;
        Ok((copy, directory))
    };
    match copied() {
        Ok((copy, directory)) => Ok((read_only(&copy, "")?, Some(directory))),
        Err(_) => Err(error),
    }
}

fn read_only(path: &Path, parameters: &str) -> rusqlite::Result<Reader> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let mut connection = Connection::open_with_flags(uri(path, parameters), flags)?;
    connection.busy_timeout(BUSY)?;
    let budget = protect(&mut connection, size(path))?;
    connection.pragma_update(None, "query_only", true)?;
    probe(&connection)?;
    Ok((connection, budget))
}

/// Makes the first read: recovers the log, compares the file's size with its page count, and parses the
/// schema.
pub(super) fn probe(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
}

/// Returns the `file:` URI of a path (sqlite.org/uri.html), with every byte escaped that might have a
/// meaning.
pub(super) fn uri(path: &Path, parameters: &str) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    if !parameters.is_empty() {
        uri.push('?');
        uri.push_str(parameters);
    }
    uri
}

pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> ProfileError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => ProfileError::NotAProfile(path),
        Some(ErrorCode::DatabaseCorrupt) => {
            ProfileError::Damaged { path, reason: "its content is inconsistent".to_owned() }
        }
        Some(ErrorCode::OperationInterrupted) => {
            ProfileError::Damaged { path, reason: "reading it has no end".to_owned() }
        }
        Some(ErrorCode::TooBig) => ProfileError::Damaged { path, reason: "a value is too long".to_owned() },
        // The header is a profile's: a missing table or column was destroyed.
        Some(ErrorCode::Unknown) => ProfileError::Damaged { path, reason: error.to_string() },
        Some(_) => ProfileError::Database { path, reason: error.to_string() },
        // A value of another type than in the schema.
        None => ProfileError::Damaged { path, reason: error.to_string() },
    }
}
