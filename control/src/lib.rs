//! The control socket of a run, by which its owner views and steers it; docs/control.md is for users. For
//! example, `vprof ctl mark here` sends `{"do":"mark","text":"here"}`, and the server passes a
//! [`SessionChange`] to the run. The crate is apart from the run because a client needs neither KVM nor the
//! recorder.
//!
//! ```text
//!  vprof top ─┐                       ┌─ live tables ◀── batches of the run
//!  vprof ctl ─┼── JSON lines ── server┤
//!  scripts ───┘                       └─▶ SessionChange ──▶ the run, here or in the portable host
//! ```

pub mod client;
pub mod message;
pub mod place;
pub mod server;
mod socket;
pub mod viewer;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use display::clean::escaped;
use display::message::{Reason, Shown};
use display::units;
use profile::conditions::RunTrigger;
use profile::session::SessionStatus;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

pub use socket::Owner;

/// Events that a run's runtime takes at once: it waits for a few descriptors. The default takes 12 KiB.
const EVENTS: usize = 32;

/// Makes the runtime of one end of a run, or of a view on a terminal.
///
/// # Errors
/// No descriptors are left.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_io_events_per_tick(EVENTS).build()
}

/// Phase of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Before the guest: what is being done.
    Preparing(String),
    /// The guest runs.
    Running(SessionStatus),
}

/// Change of a running session, by the control socket or by a view of this process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum SessionChange {
    /// Sample, or do not.
    Sampling(bool),
    /// Wait for something.
    Wait(RunTrigger),
    /// Mean ticks per second and vCPU.
    Rate(f64),
    /// A row of table `event`.
    Mark(String),
    /// Write what was recorded.
    Write,
}

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
    /// It takes or sends nothing, or not to the end.
    #[error("the run does not answer: after {} there is no complete answer", units::duration(*.0))]
    Silent(Duration),
    /// Its answer does not end.
    #[error("the run's answer is not understood: it is longer than {}", units::bytes(*.0 as u64))]
    LongAnswer(usize),
    /// Its answer is not JSON, or not what was asked for.
    #[error("the run's answer is not understood: {}", brief(.0))]
    Answer(serde_json::Error),
    /// Somebody else answers, or can put a socket there.
    #[error(
        "{} belongs to {owner}, who can imitate a run there: vprof trusts sockets of root and its own user; \
         `sudo -u '#{uid}' vprof` talks to a run of that user",
        Shown(.path), uid = .owner.0
    )]
    Stranger {
        /// The socket, its directory, or the socket whose server it is.
        path: PathBuf,
        /// Owner.
        owner: Owner,
    },
    /// It refused; its own sentence.
    #[error("{}", escaped(.0))]
    Refused(String),
}

/// Longest part of a parser's message that is shown, in characters: it may quote the answer.
const MOST_SHOWN: usize = 200;

/// Returns the message of a parser on one line.
fn brief(error: &serde_json::Error) -> String {
    let text: String = error.to_string().chars().take(MOST_SHOWN).collect();
    escaped(&text).into_owned()
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
