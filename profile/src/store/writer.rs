//! Writes a profile.
//!
//! A profile in which something was recorded is never removed. The writer alone knows whether that is so: its
//! destructor removes a file that it has created and in which nothing was recorded, and no other.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use display::message::Reason;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi, params};
use tempfile::{Builder, TempPath};

use super::guard::check_journal;
use super::limit::SizeLimit;
use super::open::probe;
use super::{APPLICATION_ID, CreateError, SCHEMA, SCHEMA_VERSION};
use crate::rows::{Batch, Mode, Sink, SinkError};

/// Time for which a write waits for another process that has locked the file, which only a reader's
/// checkpoint does.
const BUSY: Duration = Duration::from_secs(5);
/// Pages of a profile in memory, where they are to be few.
const FEW_PAGES: i32 = 10;
/// Permissions of a profile: it holds the arguments of the guest's programs.
pub(super) const PRIVATE: u32 = 0o600;

/// Writer of batches into a profile file.
#[derive(Debug)]
pub struct ProfileWriter {
    connection: Connection,
    path: PathBuf,
    place: Place,
    /// Something was recorded, or the run is complete: the file stays.
    kept: bool,
    limit: SizeLimit,
    /// Name under which the profile that this one replaces stays.
    older: Option<PathBuf>,
    /// Few pages of it stay in memory.
    has_few_pages: bool,
}

/// Location of the rows.
#[derive(Debug)]
enum Place {
    /// Under the profile's name, in the file with this identity (device, inode).
    Own((u64, u64)),
    /// In another file next to an older profile, whose place it takes with the first row that is recorded.
    Beside(TempPath),
    /// In a file that must stay where it is.
    Left,
}

/// Files that SQLite keeps next to a database.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

pub(super) fn companion(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn remove_companions(path: &Path) -> io::Result<()> {
    for suffix in COMPANIONS {
        match fs::remove_file(companion(path, suffix)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Renames a profile. The log of a file of its new name must not be taken for its own.
fn keep(path: &Path, name: &Path) -> io::Result<()> {
    remove_companions(name)?;
    fs::rename(path, name)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

impl ProfileWriter {
    /// Creates the profile. With `force` it takes the place of a regular file of that name, not before the
    /// first row is recorded; without, such a file is an error.
    ///
    /// A writer that is dropped before anything was recorded removes its file.
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
            Ok(_) => return Self::beside(path),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        // Claims the name: of two runs that start at the same time only one gets it.
        let claimed = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path);
        drop(claimed.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => CreateError::Exists(path.to_owned()),
            _ => io(error),
        })?);
        let place = Place::Own(identity(path).map_err(io)?);
        // The log of a killed run must not be taken for the new profile's log.
        let connection = remove_companions(path)
            .map_err(io)
            .and_then(|()| prepare(path).and_then(logged).map_err(|error| Self::refused(path, &error)));
        // Without a schema the file is not a profile.
        let connection = connection.inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(Self::new(connection, path, place))
    }

    /// Begins a profile that is to take the place of an older one.
    fn beside(path: &Path) -> Result<Self, CreateError> {
        let io = |error| CreateError::Io { path: path.to_owned(), error };
        fold_log(path)?;
        let file = Builder::new().prefix(".vprof-").tempfile_in(directory(path)).map_err(io)?;
        let file = file.into_temp_path();
        let connection = prepare(&file)
            // It is synchronized as a whole before it gets its name.
            .and_then(|connection| connection.pragma_update(None, "synchronous", "OFF").map(|()| connection))
            .map_err(|error| Self::refused(path, &error))?;
        Ok(Self::new(connection, path, Place::Beside(file)))
    }

    fn new(connection: Connection, path: &Path, place: Place) -> Self {
        // A guest must not fill the file system of its host.
        let limit = free(directory(path)).map_or(u64::MAX, |free| free / 2);
        Self {
            connection,
            path: path.to_owned(),
            place,
            kept: false,
            limit: SizeLimit::new(limit),
            older: None,
            has_few_pages: false,
        }
    }

    /// Limits the profile to about this many bytes. Beyond it samples continue, and new stacks are cut to the
    /// innermost frame. Without a call the limit is half of what the file system has free at the start.
    #[must_use]
    pub fn limited_to(mut self, bytes: u64) -> Self {
        self.limit = SizeLimit::new(bytes);
        self
    }

    /// Keeps only a few pages of the profile in memory, 40 KiB in place of 2 MB, and no room for small
    /// allocations (48 KB): for a process of which there are many, and that writes rarely.
    ///
    /// # Errors
    /// SQLite refuses the setting.
    pub fn keeping_few_pages(mut self) -> Result<Self, SinkError> {
        self.has_few_pages = true;
        self.limit_pages()?;
        Ok(self)
    }

    fn limit_pages(&self) -> Result<(), SinkError> {
        if !self.has_few_pages {
            return Ok(());
        }
        // SQLite has allocated 20 pages at once, which it gives back when it has none in use.
        let set = self.connection.pragma_update(None, "cache_size", FEW_PAGES);
        let set = set.and_then(|()| self.connection.execute_batch("PRAGMA shrink_memory"));
        set.map_err(|error| self.error(&error))?;
        // SAFETY: the connection is open; SQLite allocates no memory of no bytes in its place, and refuses a
        // change while that room is in use, which then remains.
        let _unchanged: i32 = unsafe {
            ffi::sqlite3_db_config(
                self.connection.handle(),
                ffi::SQLITE_DBCONFIG_LOOKASIDE,
                ptr::null_mut::<libc::c_void>(),
                0,
                0,
            )
        };
        Ok(())
    }

    /// Keeps the profile that this one replaces under another name, where it replaces a file of that name.
    #[must_use]
    pub fn keeping_older(mut self, name: PathBuf) -> Self {
        self.older = Some(name);
        self
    }

    fn refused(path: &Path, error: &rusqlite::Error) -> CreateError {
        CreateError::Database { path: path.to_owned(), reason: explain(path, error) }
    }

    /// Gives the new profile its name, where it does not have it yet. The older one is replaced as a whole.
    fn take_place(&mut self) -> Result<(), SinkError> {
        let Place::Beside(file) = std::mem::replace(&mut self.place, Place::Left) else { return Ok(()) };
        let placed = self.replace_older(&file);
        match placed {
            Ok(connection) => {
                self.connection = connection;
                // It has the profile's name now.
                drop(file.keep());
                self.limit_pages()
            }
            Err(reason) => {
                let stays = file.to_path_buf();
                // A failure leaves the file under its name, too.
                drop(file.keep());
                Err(SinkError(format!(
                    "cannot replace {}: {reason}; what was recorded is in {}",
                    self.path.display(),
                    stays.display()
                )))
            }
        }
    }

    fn insert(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let transaction = self.connection.transaction();
        let written = transaction.and_then(|transaction| {
            batch.insert(&transaction)?;
            transaction.commit()
        });
        written.map_err(|error| self.error(&error))
    }

    /// Replaces the older profile by the new one, and opens it. The error is the reason alone.
    fn replace_older(&mut self, file: &Path) -> Result<Connection, SinkError> {
        let nothing = Connection::open_in_memory().map_err(|error| SinkError(error.to_string()))?;
        drop(std::mem::replace(&mut self.connection, nothing));
        fold_log(&self.path).map_err(|error| SinkError(error.to_string()))?;
        File::open(file)
            .and_then(|file| file.sync_all())
            .and_then(|()| remove_companions(&self.path))
            .and_then(|()| self.older.as_deref().map_or(Ok(()), |older| keep(&self.path, older)))
            .and_then(|()| fs::rename(file, &self.path))
            .map_err(|error| SinkError(Reason(&error).to_string()))?;
        open(&self.path).and_then(logged).map_err(|error| SinkError(explain(&self.path, &error)))
    }

    fn error(&self, error: &rusqlite::Error) -> SinkError {
        SinkError(format!("cannot write {}: {}", self.path.display(), explain(&self.path, error)))
    }
}

impl Drop for ProfileWriter {
    fn drop(&mut self) {
        if self.kept {
            // Everything is in the log, if that fails.
            drop(self.finish());
            return;
        }
        // Closed before its file is removed, so that it removes nothing of a file that comes after.
        if let Ok(nothing) = Connection::open_in_memory() {
            drop(std::mem::replace(&mut self.connection, nothing));
        }
        // The file next to an older profile is removed with its name.
        if let Place::Own(own) = self.place
            && identity(&self.path).is_ok_and(|found| found == own)
        {
            // The next run finds and reports a file that remains.
            drop(fs::remove_file(&self.path).and_then(|()| remove_companions(&self.path)));
        }
    }
}

/// Moves what a killed run has left in its log into its profile, so that the log can go. A profile that is
/// being recorded has an owner, and is refused.
pub(super) fn fold_log(path: &Path) -> Result<(), CreateError> {
    // A journal that names another file makes SQLite remove that file.
    if !companion(path, "-wal").exists() || check_journal(path).is_err() {
        return Ok(());
    }
    let folded = open(path).and_then(|connection| {
        connection.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get::<_, String>(0))
    });
    match folded {
        Ok(mode) if mode == "wal" => Err(CreateError::InUse(path.to_owned())),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            Err(CreateError::InUse(path.to_owned()))
        }
        // Nobody can read it as it is, either.
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a database that exists, under its own name: a link in its place is an error.
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    // SQLite would refuse a link in the directory's name as well.
    let real =
        directory(path).canonicalize().ok().zip(path.file_name()).map(|(parent, name)| parent.join(name));
    Connection::open_with_flags(real.as_deref().unwrap_or(path), flags)
}

/// Creates the tables in an empty file.
pub(super) fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let mut connection = open(path)?;
    connection.busy_timeout(BUSY)?;
    let transaction = connection.transaction()?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.execute_batch(SCHEMA)?;
    for mode in Mode::ALL {
        transaction.execute("INSERT INTO mode VALUES (?, ?)", params![mode.id(), mode.name()])?;
    }
    transaction.commit()?;
    connection.set_prepared_statement_cache_capacity(Batch::TABLES);
    Ok(connection)
}

/// Has a database that is complete on the disk written by a log from now on.
fn logged(connection: Connection) -> rusqlite::Result<Connection> {
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // In WAL mode a kill loses nothing that was committed; NORMAL risks the last commits only when power
    // fails.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // The first read makes the log: by it others see that the profile has a writer.
    probe(&connection)?;
    connection.set_prepared_statement_cache_capacity(Batch::TABLES);
    Ok(connection)
}

/// Returns the reason in plain words, above all for a full disk. SQLite reports only some of those cases as
/// such.
pub(crate) fn explain(path: &Path, error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        Some(ErrorCode::SystemIoFailure) if no_room(path) => "the disk is full".to_owned(),
        Some(ErrorCode::SystemIoFailure) => format!("the disk does not accept more data ({error})"),
        _ => error.to_string(),
    }
}

/// True if the file system of `path` has less free space than a batch takes, 1 MiB.
fn no_room(path: &Path) -> bool {
    free(path).is_some_and(|bytes| bytes < 1 << 20)
}

/// Returns what a user has free on the file system of `path`, bytes.
fn free(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `name` is NUL-terminated and `stat` has room for the structure; both outlive the call.
    if unsafe { libc::statvfs(name.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: statvfs has succeeded and so filled the structure.
    let stat = unsafe { stat.assume_init() };
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

impl Sink for ProfileWriter {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let cut = self.limit.cut(batch);
        self.insert(cut.as_ref().unwrap_or(batch))?;
        if !self.kept && (batch.is_recorded() || batch.is_complete()) {
            self.kept = true;
            self.take_place()?;
        }
        match self.limit.reached(&self.path, batch) {
            Some(event) => self.insert(&Batch { events: vec![event], ..Batch::default() }),
            None => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::SampleRow;

    #[test]
    fn few_pages_stay_in_memory_also_once_an_older_profile_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.vprof");
        let batch = Batch { samples: vec![SampleRow::default()], ..Batch::default() };
        let pages = |writer: &ProfileWriter| -> i32 {
            writer.connection.query_row("PRAGMA cache_size", [], |row| row.get(0)).unwrap()
        };
        let mut older = ProfileWriter::create(&path, false).unwrap();
        older.write(&batch).unwrap();
        assert_ne!(pages(&older), FEW_PAGES);
        drop(older);
        let mut writer = ProfileWriter::create(&path, true).unwrap().keeping_few_pages().unwrap();
        assert_eq!(pages(&writer), FEW_PAGES);
        writer.write(&batch).unwrap();
        assert!(matches!(writer.place, Place::Left), "it has the older one's name");
        assert_eq!(pages(&writer), FEW_PAGES);
        let (mut used, mut most) = (0, 0);
        // SAFETY: the connection is open, and both numbers are this test's.
        let known = unsafe {
            let connection = writer.connection.handle();
            ffi::sqlite3_db_status(connection, ffi::SQLITE_DBSTATUS_CACHE_USED, &mut used, &mut most, 0)
        };
        assert!(known == ffi::SQLITE_OK && used < 64 << 10, "{used} bytes of pages");
    }
}
