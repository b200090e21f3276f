//! The portable host: a software-emulated machine with a real /dev/kvm, for where there is none that can be
//! used.
//!
//! ```text
//!   vprof run (outer)                            QEMU, TCG with SVM
//!   +-------------------------+  port: messages  +--------------------------------------+
//!   | profile, terminal,      | <--------------- | Linux + kvm-amd.ko                   |
//!   | signals, watchdog       | ---------------> |   vprof as /init (inner): guest      |
//!   +-------------------------+                  |     /dev/kvm: the guest              |
//!                                                +--------------------------------------+
//! ```
//!
//! Both halves are the same program. The inner one reads its job from a file in its initial file system, runs
//! it as `--host kvm` does, and sends what it would write and print. [`outer`] only moves messages.

pub mod bundle;
pub mod exe;
mod initrd;
pub mod inner;
pub(crate) mod log;
pub mod memory;
pub mod outer;
pub mod qemu;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use disk_images::ImageError;
use display::message::{Reason, Shown};
use display::units;
use profile::store::CreateError;
use sandbox::SandboxError;

use crate::network::NetworkError;
use crate::protocol::FrameError;
use crate::stage::Stage;

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
    /// QEMU's rights can't be limited.
    #[error("the portable host can't be started: {0}")]
    Sandbox(#[from] SandboxError),
    /// This program can't be its init.
    #[error("this vprof can't run inside the portable host: {0}")]
    Program(#[from] ProgramError),
    /// Its files can't be read.
    #[error("can't read {}: {}", Shown(.path), Reason(.source))]
    Bundle {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The guest's network can't be used.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A disk can't be opened again.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The profile can't be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The run was ended before there was anything to profile.
    #[error("stopped before the guest ran: there is no profile")]
    Stopped,
    /// The guest is larger than this machine.
    #[error(
        "a guest of {} does not fit: this machine has {} of memory and swap; give less with --memory",
        units::bytes(*.asked),
        units::bytes(*.have)
    )]
    Memory {
        /// Memory of the guest and the host around it, bytes.
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
        /// Number of restarts before.
        restarts: u32,
        /// The guest had not started yet.
        before_guest: bool,
        /// The end of its own log.
        log: String,
    },
    /// The guest in it made no progress.
    #[error("the emulated host stalled after {}: {sign}; {KNOWN}, which `--retry` answers by a new run", units::duration(*.after))]
    Stalled {
        /// Run time of the guest.
        after: Duration,
        /// The sign of it.
        sign: String,
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
    Protocol(ProtocolError),
    /// Its job failed in it.
    #[error("{sentence}")]
    Inside {
        /// The stage of the run in which it failed.
        stage: Stage,
        /// The reason.
        sentence: String,
    },
}

/// Why what the portable host sent is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// It is not a message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It is another version's.
    #[error("version {0}")]
    Version(String),
}

/// Why this program can't be an init.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A file of it can't be read.
    #[error("can't read {}: {}", .path.display(), Reason(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not an ELF file that can be read.
    #[error("its ELF headers can't be read: {0}")]
    Elf(goblin::error::Error),
    /// Its job can't be encoded.
    #[error(transparent)]
    Job(#[from] serde_json::Error),
}

impl PortableError {
    /// Returns the fault of the emulation as a sentence, if it is one.
    fn fault(&self) -> Option<String> {
        match self {
            Self::Frozen { when, silent, .. } => Some(format!(
                "the emulated host froze {when}, silent for {}: {KNOWN}",
                units::duration(*silent)
            )),
            Self::Stalled { after, sign } => {
                Some(format!("the emulated host stalled after {}: {sign}: {KNOWN}", units::duration(*after)))
            }
            // One that ends before the guest lacks something.
            Self::Died { before_guest: false, status, .. } => {
                Some(format!("the emulated host ended while the guest ran ({status}): {KNOWN}"))
            }
            _ => None,
        }
    }

    /// The stage of the run in which it failed.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Start { .. }
            | Self::Sandbox(_)
            | Self::Program(_)
            | Self::Frozen { before_guest: true, .. }
            | Self::Died { before_guest: true, .. } => Stage::Hypervisor,
            Self::Bundle { .. } | Self::Image(_) | Self::Stopped => Stage::BeforeGuest,
            Self::Inside { stage, .. } => *stage,
            // With these there may be another run's profile instead of this one's.
            Self::Network(_) | Self::Create(_) | Self::Memory { .. } => Stage::Guest,
            Self::Frozen { .. } | Self::Stalled { .. } | Self::Died { .. } | Self::Protocol(_) => {
                Stage::Guest
            }
        }
    }
}

/// Explanation of a fault of the emulation.
const KNOWN: &str = "a known fault of QEMU's SVM emulation (docs/limits.md)";

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
        self.0.lines().try_for_each(|line| write!(f, "\n  {}", display::clean::escaped(line)))
    }
}

fn start_error(action: &'static str) -> impl Fn(io::Error) -> PortableError {
    move |source| PortableError::Start { action, source }
}
