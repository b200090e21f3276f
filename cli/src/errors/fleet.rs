//! Errors of `vprof agent` and `vprof fleet`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use display::message::{Reason, Shown};
use sandbox::SandboxError;
use upload::SinkError;

use super::{Error, ExitCode};

/// Failure of a command for many hosts.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// There is no lake.
    #[error("{} has no directory v1/samples: `vprof agent --to DIR` writes a lake, and --lake names it", Shown(.0))]
    NoLake(PathBuf),
    /// The program of an engine is not there.
    #[error(
        "{0} is not in a directory of PATH: install it, or give the SQL of `--engine print` to another client"
    )]
    NoEngine(&'static str),
    /// An engine has failed: its name and its words, escaped.
    #[error("{0} has failed: {1}")]
    EngineFailed(&'static str, String),
    /// An engine has answered something else than rows.
    #[error("{0} has not answered in JSON: give the SQL of `--engine print` to it by hand")]
    EngineAnswer(&'static str),
    /// A difference without two sides.
    #[error(
        "a difference has two sides: --before kernel=6.1.0-25-amd64 --after kernel=6.1.0-26-amd64, for example"
    )]
    NoSides,
    /// An option that a question has no use for.
    #[error("{0} does not go with this question: see `vprof fleet --help`")]
    NotOfQuestion(&'static str),
    /// A sink has not taken a window.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A worker cannot give up what it does not need.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Another agent runs on this host; the file that it has locked.
    #[error("another `vprof agent` runs on this host: it has locked {}", Shown(.0))]
    SecondAgent(PathBuf),
    /// Counters cannot be served.
    #[error("cannot serve counters at {address}: {}", Reason(.source))]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

impl FleetError {
    /// Returns the exit code for the error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoSides | Self::NotOfQuestion(_) => ExitCode::Usage,
            _ => ExitCode::Failed,
        }
    }
}

impl From<SinkError> for Error {
    fn from(error: SinkError) -> Self {
        Self::Fleet(error.into())
    }
}

impl From<SandboxError> for Error {
    fn from(error: SandboxError) -> Self {
        Self::Fleet(error.into())
    }
}
