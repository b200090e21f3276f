//! Protection of the reader of a profile that somebody else has made.
//!
//! A profile is data. A file that holds anything else, such as a view instead of a table, a trigger or a
//! generated column, is refused before its first row is read. SQLite's settings for hostile files are on, and
//! the work of a reader is bounded by the size of the file: pages that lead to each other have no end.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, Row};

use super::writer::companion;
use super::{ProfileError, SCHEMA};

/// Longest value and row, bytes. The longest of a profile are functions' code and the texts of a query.
const LONGEST: i32 = 16 << 20;
/// Steps of SQLite's machine between two checks of the budget.
const STEPS: i32 = 100_000;
/// Steps for a profile of any size.
const LEAST_STEPS: u64 = 100_000_000;
/// More steps for each byte of a profile. A row takes at least ten bytes, and one statement some 50 steps for
/// it; a report has some 50 statements.
const STEPS_PER_BYTE: u64 = 1_000;
/// The end of a journal that belongs to a transaction over several files (sqlite.org/fileformat.html, 3).
const SUPER_JOURNAL: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// Steps that are left to the readers of a profile.
#[derive(Debug)]
pub(super) struct StepBudget {
    left: AtomicU64,
    lifted: AtomicBool,
}

impl StepBudget {
    /// Lifts the bound.
    pub(super) fn lift(&self) {
        self.lifted.store(true, Ordering::Relaxed);
    }
}

/// Sets up a new connection before its first read of a file of this many bytes.
pub(super) fn protect(connection: &mut Connection, bytes: u64) -> rusqlite::Result<Arc<StepBudget>> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    let left = STEPS_PER_BYTE.saturating_mul(bytes).saturating_add(LEAST_STEPS);
    let budget = Arc::new(StepBudget { left: AtomicU64::new(left), lifted: AtomicBool::new(false) });
    let own = Arc::clone(&budget);
    connection.progress_handler(
        STEPS,
        Some(move || {
            let steps = u64::from(STEPS.unsigned_abs());
            let spend = |left: u64| left.checked_sub(steps);
            !own.lifted.load(Ordering::Relaxed)
                && own.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err()
        }),
    )?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    Ok(budget)
}

/// Returns the size of a profile and its log, bytes.
pub(super) fn size(path: &Path) -> u64 {
    let length = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    length(path).saturating_add(length(&companion(path, "-wal")))
}

/// A table, view, index or trigger.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    kind: String,
    name: String,
    table: String,
    sql: String,
}

fn objects(connection: &Connection, most: i64) -> rusqlite::Result<Vec<Object>> {
    let mut statement =
        connection.prepare("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema LIMIT ?")?;
    let object = |row: &Row<'_>| {
        let sql: String = row.get(3)?;
        Ok(Object { kind: row.get(0)?, name: row.get(1)?, table: row.get(2)?, sql: tokens(&sql) })
    };
    let mut found = statement.query_map([most], object)?.collect::<rusqlite::Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

/// Returns a statement with one space instead of all space and comments: these differ between versions
/// of vprof that write the same tables.
fn tokens(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql.chars().peekable();
    let mut quote = None;
    while let Some(c) = rest.next() {
        if quote.is_some() {
            text.push(c);
            if Some(c) == quote {
                quote = None;
            }
            continue;
        }
        let comment = c == '-' && rest.peek() == Some(&'-');
        if comment {
            rest.by_ref().find(|&c| c == '\n');
        }
        if comment || c.is_ascii_whitespace() {
            if !text.ends_with(' ') {
                text.push(' ');
            }
            continue;
        }
        quote = match c {
            '\'' | '"' | '`' => Some(c),
            '[' => Some(']'),
            _ => None,
        };
        text.push(c);
    }
    text
}

/// Checks that the file has the tables and views of a profile, and nothing else.
pub(super) fn check_schema(path: &Path, connection: &Connection) -> Result<(), ProfileError> {
    static EXPECTED: LazyLock<rusqlite::Result<Vec<Object>>> = LazyLock::new(|| {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(SCHEMA)?;
        objects(&connection, i64::MAX)
    });
    let damaged = |reason: &str| ProfileError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
    let expected = EXPECTED.as_ref().map_err(|error| damaged(&error.to_string()))?;
    // One more is enough to differ.
    let most = i64::try_from(expected.len()).unwrap_or(i64::MAX).saturating_add(1);
    let found = objects(connection, most).map_err(|error| super::open::explain(path, &error))?;
    if found == *expected { Ok(()) } else { Err(damaged("its tables are not those that vprof writes")) }
}

/// Refuses a journal that names another file: to follow it SQLite would remove that file. No transaction of
/// vprof is over several files.
pub(super) fn check_journal(path: &Path) -> Result<(), ProfileError> {
    let last = || {
        let mut journal = File::open(companion(path, "-journal"))?;
        journal.seek(SeekFrom::End(-8))?;
        let mut last = [0; 8];
        journal.read_exact(&mut last).map(|()| last)
    };
    // Without a journal, or with a shorter one, there is nothing to follow.
    if last().is_ok_and(|last: [u8; 8]| last == SUPER_JOURNAL) {
        return Err(ProfileError::Damaged {
            path: path.to_owned(),
            reason: "its journal belongs to another file".to_owned(),
        });
    }
    Ok(())
}
