//! What can go wrong with a profile; each message is one sentence for the user.

use std::io;
use std::path::PathBuf;

use super::SCHEMA_VERSION;

/// Why a profile could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The file exists and overwriting was not asked for.
    #[error("{0} exists already: choose another name or pass --force")]
    Exists(PathBuf),
    /// The path is a directory, a device or the like, which is never overwritten.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// The operating system refused.
    #[error("cannot create {path}: {error}")]
    Io {
        /// The profile.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// SQLite failed.
    #[error("cannot create {path}: {reason}")]
    Database {
        /// The profile.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Why a profile could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// There is no such file.
    #[error("{0} does not exist")]
    NotFound(PathBuf),
    /// The file is something else.
    #[error("{0} is not a vprof profile")]
    NotAProfile(PathBuf),
    /// The file has no content, as when a run was killed before it began.
    #[error("{0} is empty: the run that should have written it never began")]
    Empty(PathBuf),
    /// The profile was written by a newer vprof.
    #[error(
        "{path} has version {found} of the profile format, and this vprof reads version {SCHEMA_VERSION}: use a newer vprof"
    )]
    Newer {
        /// The profile.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The profile was written by an older vprof.
    #[error(
        "{path} has version {found} of the profile format, and this vprof reads version {SCHEMA_VERSION}: record again, or use the vprof that wrote it"
    )]
    Older {
        /// The profile.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The end of the file is missing.
    #[error("{path} is cut off: it has {bytes} of {expected} bytes")]
    CutOff {
        /// The profile.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size it should have.
        expected: u64,
    },
    /// The content contradicts itself.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The profile.
        path: PathBuf,
        /// What SQLite found.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot read {path}: {error}")]
    Io {
        /// The profile.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// SQLite failed otherwise.
    #[error("cannot read {path}: {reason}")]
    Database {
        /// The profile.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Why a profile could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// It could not even be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Nobody may write to the file, or not this user.
    #[error("{0} is read-only: make it writable, or work on a copy")]
    ReadOnly(PathBuf),
    /// Another process holds the file, such as the run that writes it.
    #[error("{0} is in use, as by a run that goes on: try again when that has ended")]
    InUse(PathBuf),
    /// SQLite failed to write.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The profile.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The statement would change the profile.
    #[error("a profile is only read, and this statement would change it")]
    Writes,
    /// More than one statement, or none.
    #[error("give exactly one SQL statement")]
    NotOne,
    /// SQLite does not accept the statement.
    #[error("the query is wrong: {0}")]
    Sql(String),
    /// The profile could not be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}
