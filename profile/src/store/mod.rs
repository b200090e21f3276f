//! The profile file: one SQLite database that is written while the guest runs and stays readable whatever happens.
//!
//! The schema stands in `schema.sql`. The file is created in SQLite's rollback mode, so that its first page tells from
//! the beginning what it is, and then written in WAL mode, one transaction per batch: after a kill everything that was
//! committed is in the write-ahead log beside it, and the next reader finds it there. A run that ends properly folds
//! the log back and leaves one file.

mod edit;
mod error;
mod open;
mod query;
mod writer;

pub(crate) use edit::{CodeFile, Editor};
pub use error::{CreateError, EditError, ProfileError, QueryError};
pub(crate) use open::snapshot;
pub use open::{Profile, Snapshot};
pub use query::{Table, Value};
pub use writer::ProfileWriter;

use crate::rows::Mode;

/// `PRAGMA user_version`: the version of the schema. It grows with every release whose tables differ from the last one's.
pub const SCHEMA_VERSION: u32 = 5;
/// `PRAGMA application_id`: "vprf".
pub const APPLICATION_ID: u32 = 0x7670_7266;
/// The tables and views.
pub const SCHEMA: &str = include_str!("schema.sql");

/// All modes with their ids in table `mode`.
pub(crate) const MODES: [(Mode, &str); 8] = [
    (Mode::User, "user"),
    (Mode::Kernel, "kernel"),
    (Mode::HardIrq, "hardirq"),
    (Mode::SoftIrq, "softirq"),
    (Mode::Nmi, "nmi"),
    (Mode::Idle, "idle"),
    (Mode::Boot, "boot"),
    (Mode::Unknown, "unknown"),
];

/// The id of `mode` in table `mode`: its place in [`MODES`].
pub(crate) fn mode_id(mode: Mode) -> i64 {
    MODES.iter().zip(0..).find(|((other, _), _)| *other == mode).map_or(-1, |(_, id)| id)
}

#[cfg(test)]
mod tests;
