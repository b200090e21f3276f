//! Numbers of the database as Rust's, and ratios.

use rusqlite::Row;

/// Returns nanoseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "shown to a person: 53 bits suffice")]
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns k / n; 0 if n is 0.
#[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
pub(crate) fn part(k: u64, n: u64) -> f64 {
    if n == 0 { 0.0 } else { k as f64 / n as f64 }
}

/// Reads a column as an unsigned number; a negative one is 0.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.max(0).cast_unsigned())
}
