//! Numbers of the database as Rust's.

use rusqlite::Row;

/// Returns nanoseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "shown to a person: 53 bits suffice")]
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Reads a column as an unsigned number; a negative one is 0.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.max(0).cast_unsigned())
}
