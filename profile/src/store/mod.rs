//! The profile file: one SQLite database that is written while the guest runs and stays readable whatever
//! happens.
//!
//! The schema is in `schema.sql`. The file is created in SQLite's rollback mode, so that its first page
//! identifies it from the beginning. Then it is written in WAL mode, one transaction per batch: after a kill
//! everything that was committed is in the write-ahead log next to the file, where the next reader finds it.
//! A run that ends properly folds the log back and leaves one file.

mod edit;
mod error;
mod guard;
mod limit;
mod open;
mod query;
mod whole;
mod writer;

pub(crate) use edit::{CodeFile, Editor};
pub use error::{CreateError, EditError, ProfileError, QueryError};
pub(crate) use open::snapshot;
pub use open::{Profile, Snapshot};
pub use query::{Table, Value};
pub(crate) use whole::WholeProfile;
pub use writer::ProfileWriter;
pub(crate) use writer::explain as unwritable;

/// `PRAGMA user_version`: the version of the schema. Each release whose tables differ from those of the
/// release before has a larger one.
pub const SCHEMA_VERSION: u32 = 11;
/// `PRAGMA application_id`: "vprf".
pub const APPLICATION_ID: u32 = 0x7670_7266;
/// The tables and views.
pub const SCHEMA: &str = include_str!("schema.sql");

#[cfg(test)]
mod tests;
