//! Changes of names in a finished profile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Row, TransactionBehavior, params};

use super::guard::{check_journal, check_schema, protect, size};
use super::open::{check_header, explain as unreadable, probe, uri};
use super::writer::explain as unwritable;
use super::{EditError, ProfileError};
use crate::rows::{FrameKind, FrameRow, InlinedRow};

/// Time for which a change waits for other readers of the profile.
const BUSY: Duration = Duration::from_secs(5);

/// A file of the guest that contains frames.
#[derive(Debug)]
pub(crate) struct CodeFile {
    /// Row id.
    pub id: u32,
    /// Path in the guest.
    pub path: String,
    /// GNU build-id, hexadecimal.
    pub build_id: Option<String>,
    /// Source of its bytes, or the reason why they were not read.
    pub read_from: Option<String>,
}

/// A finished profile whose frames are renamed.
#[derive(Debug)]
pub(crate) struct Editor {
    connection: Connection,
    path: PathBuf,
}

impl Editor {
    /// Opens a profile that no run is writing, and folds the log that a killed run has left.
    pub(crate) fn open(path: &Path) -> Result<Self, EditError> {
        check_header(path)?;
        check_journal(path)?;
        let io = |error| ProfileError::Io { path: path.to_owned(), error };
        // The superuser can write to any file; a missing write permission is deliberate.
        if fs::metadata(path).map_err(io)?.permissions().readonly() {
            return Err(EditError::ReadOnly(path.to_owned()));
        }
        let connection = connect(path).map_err(|error| explain(path, &error, unreadable))?;
        check_schema(path, &connection)?;
        let editor = Self { connection, path: path.to_owned() };
        // SQLite falls back to reading if the operating system permits only that.
        if editor.connection.is_readonly(MAIN_DB).map_err(|error| editor.error(&error))? {
            return Err(EditError::ReadOnly(path.to_owned()));
        }
        let mode: String = editor
            .connection
            .query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))
            .map_err(|error| editor.error(&error))?;
        if mode == "delete" { Ok(editor) } else { Err(EditError::InUse(editor.path)) }
    }

    /// Returns the files that contain frames.
    pub(crate) fn files(&self) -> Result<Vec<CodeFile>, EditError> {
        let sql = "SELECT id, path, build_id, read_from FROM file \
                   WHERE id IN (SELECT file FROM frame WHERE kind = ?) ORDER BY id";
        let read = || {
            let mut statement = self.connection.prepare(sql)?;
            let file = |row: &Row<'_>| {
                Ok(CodeFile {
                    id: row.get(0)?,
                    path: row.get(1)?,
                    build_id: row.get(2)?,
                    read_from: row.get(3)?,
                })
            };
            statement.query_map([FrameKind::User.name()], file)?.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|error| self.error(&error))
    }

    /// Returns the frames in a file.
    pub(crate) fn frames(&self, file: u32) -> Result<Vec<FrameRow>, EditError> {
        let sql = "SELECT id, address, call, symbol, module, offset, source, line FROM frame \
                   WHERE file = ? AND kind = ? ORDER BY address";
        let read = || {
            let mut statement = self.connection.prepare(sql)?;
            let frame = |row: &Row<'_>| {
                Ok(FrameRow {
                    id: row.get(0)?,
                    address: row.get::<_, i64>(1)?.cast_unsigned(),
                    call: row.get(2)?,
                    kind: FrameKind::User,
                    instance: None,
                    file: Some(file),
                    symbol: row.get(3)?,
                    module: row.get(4)?,
                    offset: row.get::<_, i64>(5)?.cast_unsigned(),
                    source: row.get(6)?,
                    line: row.get(7)?,
                })
            };
            statement
                .query_map(params![file, FrameKind::User.name()], frame)?
                .collect::<rusqlite::Result<_>>()
        };
        read().map_err(|error| self.error(&error))
    }

    /// Stores the names of frames of a file, the functions that are inlined there and the source of the
    /// file's names. Stores all or nothing.
    pub(crate) fn rename(
        &mut self,
        file: u32,
        named_by: &str,
        frames: &[(FrameRow, Vec<InlinedRow>)],
    ) -> Result<(), EditError> {
        let written = write(&mut self.connection, file, named_by, frames);
        written.map_err(|error| {
            explain(&self.path, &error, |path, error| match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) | None => unreadable(path, error),
                _ => ProfileError::Database { path: path.to_owned(), reason: unwritable(path, error) },
            })
        })
    }

    fn error(&self, error: &rusqlite::Error) -> EditError {
        explain(&self.path, error, unreadable)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let mut connection = Connection::open_with_flags(uri(path, ""), flags)?;
    connection.busy_timeout(BUSY)?;
    protect(&mut connection, size(path))?;
    probe(&connection)?;
    Ok(connection)
}

fn write(
    connection: &mut Connection,
    file: u32,
    named_by: &str,
    frames: &[(FrameRow, Vec<InlinedRow>)],
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("UPDATE file SET named_by = ? WHERE id = ?", params![named_by, file])?;
    {
        let mut name = transaction
            .prepare("UPDATE frame SET symbol = ?, offset = ?, source = ?, line = ? WHERE id = ?")?;
        let mut forget = transaction.prepare("DELETE FROM inlined WHERE frame = ?")?;
        let mut inline = transaction.prepare("INSERT INTO inlined VALUES (?, ?, ?, ?, ?)")?;
        for (frame, inlined) in frames {
            let offset = frame.offset.cast_signed();
            name.execute(params![frame.symbol, offset, frame.source, frame.line, frame.id])?;
            forget.execute([frame.id])?;
            for row in inlined {
                inline.execute(params![row.frame, row.depth, row.symbol, row.source, row.line])?;
            }
        }
    }
    transaction.commit()
}

/// Returns the error that keeps a profile from being changed, rather than damage of the profile itself.
fn explain(
    path: &Path,
    error: &rusqlite::Error,
    otherwise: impl Fn(&Path, &rusqlite::Error) -> ProfileError,
) -> EditError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => EditError::InUse(path.to_owned()),
        // SQLite also reports this for a directory that accepts no journal.
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            EditError::ReadOnly(path.to_owned())
        }
        _ => match otherwise(path, error) {
            ProfileError::Database { path, reason } => EditError::Write { path, reason },
            other => EditError::Profile(other),
        },
    }
}
