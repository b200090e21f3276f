//! What can go wrong, as a person reads it, and the exit code that goes with it.
//!
//! Each part of the program has an error enum of its own whose messages are whole sentences: what was wrong, where,
//! and what to do. [`Error`] joins them and maps them to exit codes.

use std::io;
use std::path::{Path, PathBuf};

use host::{ControlError, GuestError, HostError, NetworkError, PortableError, Stage, TcgError, VsockError};
use images::ImageError;
use profile::report::ReportError;
use profile::store::{CreateError, EditError, ProfileError, QueryError};
use text::message::{Reason, Shown};

/// How `vprof` ends, as documented in its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// Done.
    Done,
    /// Failed.
    Failed,
    /// The command line was wrong.
    Usage,
    /// What was expected on the command line was not met.
    Expectation,
    /// No hypervisor can be used here.
    NoHypervisor,
    /// The guest's command ended with this code.
    Guest(u8),
}

impl ExitCode {
    /// The number for `exit(2)`.
    pub fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Expectation => 3,
            Self::NoHypervisor => 4,
            Self::Guest(code) => code,
        }
    }
}

/// Any failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line was wrong in a way that only its use shows.
    #[error("{0}")]
    Usage(String),
    /// An image, kernel or initrd can't be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// No host for the guest.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The guest's network can't be had.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The guest's sockets can't be had.
    #[error(transparent)]
    Vsock(#[from] VsockError),
    /// The portable host failed.
    #[error(transparent)]
    Portable(#[from] PortableError),
    /// A guest can't be run in QEMU.
    #[error(transparent)]
    Tcg(#[from] TcgError),
    /// The profile can't be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The profile has no such part. Names of the guest stand in its message.
    #[error("{}", text::clean::escaped(&.0.to_string()))]
    Report(#[from] ReportError),
    /// The profile can't be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The profile can't be changed.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The profile holds nothing of the guest's own CPU times.
    #[error(
        "{} has no CPU times of the guest: its kernel was not found, or does not tell where they are \
         (`vprof report` says what is missing)", .0.display()
    )]
    NoBooks(PathBuf),
    /// A query has no answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A run that goes on can't be talked to, or refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The run was given up at the user's second request.
    #[error("given up; the profile has what was recorded so far")]
    Interrupted,
    /// The output stands in the way.
    #[error(
        "{} exists already: give another name with -o, or --force to replace it",
        Shown(.0)
    )]
    OutputExists(PathBuf),
    /// An existing output is not a profile and is left alone.
    #[error("{} exists and is not a profile: --force replaces profiles only", Shown(.0))]
    OutputForeign(PathBuf),
    /// Runs can't be compared. Names of the guest stand in its message.
    #[error("{}", text::clean::escaped(&.0.to_string()))]
    Diff(#[from] profile::diff::DiffError),
    /// A file is no baseline of boots, or not of boots like these.
    #[error("{0}")]
    Baseline(String),
    /// An export would replace a file.
    #[error("{} exists already: give another name with -o, or --force to replace it", Shown(.0))]
    ExportExists(PathBuf),
    /// An export would replace a profile.
    #[error("{} is a profile, or another database, and is left alone: give another name with -o", Shown(.0))]
    ExportOverProfile(PathBuf),
    /// An export failed. Names of the guest stand in its message.
    #[error("{}", text::clean::escaped(&.0.to_string()))]
    Export(#[from] ::export::ExportError),
    /// A guest could not be run to its end.
    #[error(transparent)]
    Run(#[from] GuestError),
    /// A virtual machine can't be attached to.
    #[error(transparent)]
    Attach(#[from] attach::AttachError),
    /// The guest or its processor failed.
    #[error("the guest failed: {0}")]
    Guest(String),
    /// The profile could not be written to its end.
    #[error("{0}; what was written before can be read")]
    Sink(String),
    /// An operation on a file failed.
    #[error("can't {action} {}: {}", Shown(.path), Reason(.source))]
    File {
        /// Like "read" or "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An operation on the system failed.
    #[error("can't {action}: {}", Reason(.source))]
    System {
        /// Like "wait for signals".
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// A failed operation on a file.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    /// The exit code that goes with the error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Diff(profile::diff::DiffError::Uneven { .. }) => ExitCode::Usage,
            error if error.stage() == Stage::Hypervisor => ExitCode::NoHypervisor,
            _ => ExitCode::Failed,
        }
    }

    /// The stage of a run in which it failed: before the guest there is no profile worth keeping.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Host(error) => error.stage(),
            Self::Portable(error) => error.stage(),
            Self::Tcg(error) => error.stage(),
            Self::Run(error) => error.stage(),
            Self::Attach(_) | Self::Image(_) | Self::Vsock(_) | Self::File { .. } => Stage::BeforeGuest,
            _ => Stage::Guest,
        }
    }

    /// True when standard output was closed by whoever read it, like `head`: no failure worth a message.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
