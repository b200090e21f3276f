//! The control socket of a run: the run's owner views and steers it while it runs. docs/control.md describes
//! it for users.
//!
//! ```text
//!  vprof top ─┐                       ┌─ live tables ◀── batches of the run
//!  vprof ctl ─┼── JSON lines ── server┤
//!  scripts ───┘                       └─▶ Control ──▶ the run, here or in the portable host
//! ```

pub mod client;
pub mod place;
pub mod server;
pub mod viewer;

use std::io;
use std::path::PathBuf;

use text::clean::escaped;
use text::message::{Reason, Shown};

/// Why a run can't be talked to, or refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is none.
    #[error("no `vprof run` of this user is running")]
    NoRun,
    /// There are several.
    #[error("which run? {0}")]
    Which(Running),
    /// The named process or socket is not a run.
    #[error("{} is not a run in progress: {running}", escaped(.wanted))]
    NotARun {
        /// Process id or socket.
        wanted: String,
        /// Those that there are.
        running: Running,
    },
    /// Its socket can't be used.
    #[error("can't connect to {}: {}", Shown(.path), Reason(.source))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The connection failed.
    #[error("can't talk to the run: {}", Reason(.0))]
    Talk(#[from] io::Error),
    /// The run has ended.
    #[error("can't talk to the run: the run has ended")]
    Ended,
    /// Its answer is not JSON, or not what was asked for.
    #[error("the run's answer is not understood: {0}")]
    Answer(serde_json::Error),
    /// It refused; its own sentence.
    #[error("{}", escaped(.0))]
    Refused(String),
}

/// Process ids of the runs of this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running(pub Vec<String>);

impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("no `vprof run` of this user is running"),
            pids => write!(f, "these are running: {} (`vprof ctl list` shows more)", pids.join(", ")),
        }
    }
}
