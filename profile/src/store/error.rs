//! Errors of profiles; each message is one sentence for the user.

use std::io;
use std::path::PathBuf;

use display::message::Reason;

use super::SCHEMA_VERSION;

/// Error of creating a profile.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The file exists and overwriting was not requested.
    #[error("{0} exists already: choose another name or pass --force")]
    Exists(PathBuf),
    /// The path is a directory, a device or the like, which is never overwritten.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// It was to be replaced, and another process has it open, such as the run that writes it.
    #[error(
        "{0} is in use, for example by a run in progress: choose another name, or try again after the run"
    )]
    InUse(PathBuf),
    /// The operating system refused.
    #[error("can't create {path}: {}", Reason(.error))]
    Io {
        /// The profile.
        path: PathBuf,
        /// Reason.
        error: io::Error,
    },
    /// SQLite failed.
    #[error("can't create {path}: {reason}")]
    Database {
        /// The profile.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

/// Error of reading a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// There is no such file.
    #[error("{0} does not exist")]
    NotFound(PathBuf),
    /// The file is something else.
    #[error("{0} is not a vprof profile")]
    NotAProfile(PathBuf),
    /// The file has no content, as when a run was killed before it began.
    #[error("{0} is empty: its run did not start")]
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
        /// Size of the file.
        bytes: u64,
        /// Size that its header requires.
        expected: u64,
    },
    /// The content is inconsistent.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The profile.
        path: PathBuf,
        /// SQLite's finding.
        reason: String,
    },
    /// The profile is merged, and the data is of one virtual machine.
    #[error("{path} is merged, and has no {what}: use the profile of one virtual machine")]
    Merged {
        /// The profile.
        path: PathBuf,
        /// The data.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("cannot read {path}: {error}")]
    Io {
        /// The profile.
        path: PathBuf,
        /// Reason.
        error: io::Error,
    },
    /// SQLite failed otherwise.
    #[error("cannot read {path}: {reason}")]
    Database {
        /// The profile.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

/// Error of changing a profile.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The profile cannot even be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The file is read-only, for everyone or for this user.
    #[error("{0} is read-only: make it writable, or work on a copy")]
    ReadOnly(PathBuf),
    /// Another process has the file open, such as the run that writes it.
    #[error("{0} is in use, for example by a run in progress: try again after the run")]
    InUse(PathBuf),
    /// SQLite failed to write.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The profile.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

/// Error of a query.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The statement would change the profile.
    #[error("this statement would change the profile: use one that only reads")]
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
