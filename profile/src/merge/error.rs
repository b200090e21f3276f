//! Errors of a merge; each message is one sentence for the user.

use std::path::{Path, PathBuf};

use crate::store::{CreateError, ProfileError};

/// Error of a merge.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A profile cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The merged profile cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A source is the output.
    #[error("{0} is both a source and the output: give another name with -o")]
    OutputIsSource(PathBuf),
    /// A source is merged.
    #[error("{0} is merged already: name the profiles that it was made of")]
    Merged(PathBuf),
    /// Two sources are of the same run.
    #[error("{0} and {1} are of the same run: name it once")]
    SameRun(PathBuf, PathBuf),
    /// The start of a run is not known.
    #[error("{0} has no time at which its run started: record again")]
    NotStarted(PathBuf),
    /// Times are out of the range of a profile, 292 years.
    #[error("{0} has impossible times: its run is too long, or too far from the others")]
    Times(PathBuf),
    /// A source has changed.
    #[error("{0} was replaced while it was merged: try again")]
    Changed(PathBuf),
    /// There are more rows than a profile can number.
    #[error("the profiles have too many {what}, more than {most}: merge fewer profiles")]
    TooMany {
        /// Rows, in the plural.
        what: &'static str,
        /// The limit.
        most: u32,
    },
    /// SQLite failed to write.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The merged profile.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

impl MergeError {
    /// Returns the error of writing the merged profile.
    pub(super) fn write(path: &Path, error: &rusqlite::Error) -> Self {
        Self::Write { path: path.to_owned(), reason: crate::store::unwritable(path, error) }
    }
}
