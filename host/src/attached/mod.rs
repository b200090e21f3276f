//! The attach half: the process that profiles a machine of another VMM, inside a sandbox.
//!
//! ```text
//!  vprof attach                                     vprof attach-half
//!  terminal, profile,    <-- frames: FoundVm, --    threads that tick, watcher, sampler
//!  control socket            FromHost               descriptors of the VMM and of disks
//!                        --- frames: ToHost  -->
//!
//!  vprof mem             <-- FoundVm, MemoryAnswer --    vprof attach-half
//! ```
//!
//! The half finds the machine, opens all that it reads of the VMM later, and starts the guard. Then it enters
//! the sandbox, before it reads a byte of the guest's memory or of a disk.

mod child;
mod memory;
mod run;
mod tables;
mod vm;

pub use child::main;
pub use memory::{AttachedMemoryUse, HostMemory, MemoryAnswer};
pub use run::{AttachHalf, AttachedError, HalfStart, StartedHalf};
pub use vm::LoweredRate;

use std::os::fd::RawFd;
use std::time::Duration;

use attach::{RunningMachine, TargetChoice};
use profile::conditions::RunTrigger;
use sampler::RecordingConfig;
use sandbox::SyscallPolicy;
use serde::{Deserialize, Serialize};

use crate::spec::DiskSpec;

/// Name of the hidden command that starts an attach half. Its argument is the number of a descriptor with an
/// `AttachJob`.
pub const COMMAND: &str = "attach-half";

/// Step of an attachment that is ready to [take over](attach::TargetChoice::takes_over), as
/// [`About::preparing`](control::message::About::preparing) has it.
pub const AWAITS: &str = "waiting for the end of the recording before";

/// Everything about an attachment but its open files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttachSpec {
    /// The machine.
    pub target: AttachTarget,
    /// Purpose of the attachment.
    pub purpose: AttachPurpose,
    /// Fate of system calls that the half is not known to make.
    pub policy: SyscallPolicy,
}

/// Purpose of an attachment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AttachPurpose {
    /// A profile.
    Profile(Box<ProfileSpec>),
    /// The guest's memory by holder, once.
    Memory {
        /// Rows of each kind of holder, at most.
        rows: usize,
    },
}

/// Everything about a run of `vprof attach` but its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileSpec {
    /// Configuration of the recording.
    pub recording: RecordingConfig,
    /// The run ends after this time.
    pub duration: Option<Duration>,
    /// Conditions that are waited for from the start on.
    pub waits: Vec<RunTrigger>,
    /// A rate that is lowered is in the profile alone.
    pub quiet: bool,
}

/// A machine to be profiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachTarget {
    /// A machine on KVM.
    Process(ChosenVm, TargetChoice),
    /// The machine with a GDB stub at this address.
    Stub(String),
}

/// Process of a machine on KVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChosenVm {
    /// The process with this id, or what it has started.
    Pid(i32),
    /// The one whose machine has this name.
    Name(String),
    /// The only one of this host.
    Only,
}

/// Job of an attach half, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct AttachJob {
    spec: AttachSpec,
    /// The guest's disks, and their descriptors for reading.
    disks: Vec<(DiskSpec, RawFd)>,
    /// The pipe for the report of a refused system call.
    report: RawFd,
    /// Tables that halves have in common.
    tables: Option<TableFiles>,
}

/// Descriptors of files with tables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TableFiles {
    /// Those of other halves, for reading.
    known: Vec<RawFd>,
    /// File in memory for those of this half.
    new: RawFd,
}

/// First message of an attach half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoundVm {
    /// The machine is found, and the sandbox is entered.
    Found(AttachedVm),
    /// No machine was chosen, and these are there: none, or several.
    Unchosen(Vec<RunningMachine>),
    /// There is no machine that can be profiled; the reason in a sentence.
    Refused(String),
}

/// A machine that an attach half has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedVm {
    /// Its name.
    pub label: String,
    /// Sentences for a person.
    pub sentences: Vec<String>,
}
