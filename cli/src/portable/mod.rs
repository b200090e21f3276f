//! The portable host: a software-emulated machine with a real /dev/kvm, for where there is none that can be used.
//!
//! ```text
//!   vprof run (outer)                            QEMU, TCG with SVM
//!   +-------------------------+  port: messages  +--------------------------------------+
//!   | profile, terminal,      | <--------------- | Linux + kvm-amd.ko                   |
//!   | signals, watchdog       | ---------------> |   vprof as /init (inner): run::guest |
//!   +-------------------------+                  |     /dev/kvm: the guest              |
//!                                                +--------------------------------------+
//! ```
//!
//! Both halves are the same program. The inner one is told what to run by a file in its initial file system, runs it
//! as `--host kvm` does, and sends what it would write and print. [`outer`] only moves messages.

pub mod bundle;
pub mod exe;
mod initrd;
pub mod inner;
mod log;
mod message;
pub mod outer;
pub mod qemu;

use std::io;
use std::time::Duration;

use text::units;

use crate::errors::ExitCode;
use text::message::Reason;

/// Why the portable host could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum PortableError {
    /// A part of it could not be made.
    #[error("the portable host can't be started: can't {action}: {}", Reason(.source))]
    Start {
        /// Like "start QEMU".
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// This program can't be its init.
    #[error("this vprof can't run inside the portable host: {0}")]
    Program(String),
    /// The guest is larger than this machine.
    #[error(
        "a guest of {} does not fit: this machine has {} of memory and swap; give less with --memory",
        units::bytes(*.asked),
        units::bytes(*.have)
    )]
    Memory {
        /// What the guest and the host around it take, bytes.
        asked: u64,
        /// RAM and swap, bytes.
        have: u64,
    },
    /// It said nothing for too long.
    #[error("the portable host froze {when}: silent for {}{}{}", units::duration(*.silent), Restarts(*.restarts), Log(.log))]
    Frozen {
        /// At what point.
        when: &'static str,
        /// For how long it was silent.
        silent: Duration,
        /// How often it had been started anew.
        restarts: u32,
        /// The guest had not started yet.
        before_guest: bool,
        /// The end of its own log.
        log: String,
    },
    /// It ended before the guest did.
    #[error("the portable host ended {when} ({status}){}", Log(.log))]
    Died {
        /// At what point.
        when: &'static str,
        /// The guest had not started yet.
        before_guest: bool,
        /// QEMU's exit status.
        status: String,
        /// The end of its own log.
        log: String,
    },
    /// It does not speak this program's language.
    #[error("the portable host sent {0}; this is a bug in vprof")]
    Protocol(String),
    /// What it was asked to run failed in it.
    #[error("{0}")]
    Inside(String),
}

impl PortableError {
    /// The exit code that goes with the error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Start { .. }
            | Self::Program(_)
            | Self::Frozen { before_guest: true, .. }
            | Self::Died { before_guest: true, .. } => ExitCode::NoHypervisor,
            _ => ExitCode::Failed,
        }
    }
}

struct Restarts(u32);

impl std::fmt::Display for Restarts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(", also after a restart"),
            n => write!(f, ", also after {n} restarts"),
        }
    }
}

struct Log<'a>(&'a str);

impl std::fmt::Display for Log<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        f.write_str("; its last words:")?;
        self.0.lines().try_for_each(|line| write!(f, "\n  {}", text::clean::escaped(line)))
    }
}

fn start_error(action: &'static str) -> impl Fn(io::Error) -> PortableError {
    move |source| PortableError::Start { action, source }
}
