//! Snapshots of a run: plain data, the same on the control socket and on the screen.

use serde::{Deserialize, Serialize};
use statistics::estimate::Share;

use super::detail::Detail;
use crate::rows::MemoryKind;

/// State of a run at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the run's start, s.
    pub time_s: f64,
    /// Length of the time that the tables cover, s.
    pub span_s: f64,
    /// The guest's kernel release, if it was found.
    pub kernel: Option<String>,
    /// `kvm`, `portable`, or `unknown`.
    pub host: String,
    /// Sampling of the run.
    pub sampling: Sampling,
    /// Every vCPU.
    pub vcpus: Vec<VcpuShare>,
    /// Parts of the samples by mode.
    pub modes: ModeShares,
    /// Programs by their part of the guest's non-idle time, most first: all instances of a name together.
    #[serde(default)]
    pub programs: Vec<ProgramShare>,
    /// Processes by their part of the guest's non-idle time, most first.
    pub processes: Vec<ProcessShare>,
    /// Functions, those with most own samples first.
    pub functions: Vec<FunctionShare>,
    /// States of tasks, the busiest first: measured in exact mode, otherwise from scans.
    pub tasks: Vec<TaskShare>,
    /// True in exact mode.
    pub exact: bool,
    /// Exits to vprof, those that took longest first.
    pub exits: Vec<ExitRate>,
    /// The guest's memory at the last reading, if it is read: by kind, those with the most memory first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryShare>,
    /// Events of the run, the latest last.
    pub events: Vec<Note>,
    /// The last lines of the console, without control sequences.
    pub console: Vec<String>,
    /// The table of a part of the samples that the view selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
}

/// State of the sampling of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// True while the vCPUs are sampled; false while sampling is stopped.
    pub on: bool,
    /// Mean ticks per second and vCPU while it is on.
    pub rate_hz: f64,
    /// `uniform`, `exponential` or `fixed`.
    pub clock: String,
    /// Samples so far.
    pub samples: u64,
    /// Samples lost so far.
    pub lost: u64,
    /// Number of samples in the tables.
    pub counted: u64,
}

/// Time of a vCPU by state, as parts of the wall time of the span, which add up to 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuShare {
    /// 0 and up.
    pub id: u8,
    /// Parts by state, in the order of [`crate::rows::Microstates::named`]. All 0 if nothing is known yet.
    pub states: Vec<(String, f64)>,
    /// Parts in the last segment of about half a second, for bars over time.
    pub now: Vec<(String, f64)>,
    /// Parts of its samples in the guest or halted by mode.
    pub modes: ModeShares,
    /// Parts over time, in columns of equal length up to now, the latest last; all 0 where nothing is known.
    /// Parts of a column are in the order of `states`. Empty if it is not requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Vec<f64>>,
}

/// Parts of the samples in the guest or halted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ModeShares {
    /// User code.
    pub user: f64,
    /// Kernel code for a task, and early boot.
    pub kernel: f64,
    /// Hard interrupts and NMIs.
    pub hardirq: f64,
    /// Soft interrupts.
    pub softirq: f64,
    /// Idle, halted or not.
    pub idle: f64,
}

/// All instances of a program, or another owner of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramShare {
    /// Program's name, or a name in brackets.
    pub comm: String,
    /// A kernel thread.
    pub kernel_thread: bool,
    /// Instances that were hit; 0 for another owner.
    pub instances: u64,
    /// Process id, if one instance was hit.
    pub pid: Option<i32>,
    /// Samples.
    pub samples: u64,
    /// Part of all samples that were not idle, with the 95 % interval of independent samples.
    pub share: Share,
    /// Part of their own samples in user code.
    pub user: f64,
}

/// A process, or another owner of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessShare {
    /// Program's name, or a name in brackets.
    pub comm: String,
    /// Process id; 0 for another owner.
    pub pid: i32,
    /// Instance number.
    pub instance: u32,
    /// A kernel thread.
    pub kernel_thread: bool,
    /// Samples.
    pub samples: u64,
    /// Part of all samples that were not idle, with the 95 % interval of independent samples.
    pub share: Share,
    /// Part of its own samples in user code.
    pub user: f64,
}

/// A function in a mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionShare {
    /// Name.
    pub symbol: String,
    /// Kernel module, or the program or library; `None` for the kernel image.
    pub module: Option<String>,
    /// Samples in it.
    pub samples: u64,
    /// Its own part of all samples that were not idle.
    pub own: Share,
    /// Part of all samples that were not idle and had it on their stack.
    pub total: Share,
}

/// A thread: parts of the known time of the span, which add up to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskShare {
    /// Its process's name.
    pub comm: String,
    /// Process id.
    pub pid: i32,
    /// Instance number of its process.
    #[serde(default)]
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// Time of which its state is known, s.
    pub time_s: f64,
    /// Parts by state, named as in table `task_state`.
    pub states: Vec<(String, f64)>,
}

/// Exits for one reason, of all vCPUs, over the last second or so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExitRate {
    /// Reason, like `port write`.
    pub reason: String,
    /// The device that answers.
    pub device: Option<String>,
    /// Port, guest physical address, or the number of another reason.
    pub address: Option<u64>,
    /// Exits per second.
    pub per_s: f64,
    /// Mean time from the exit to the next entry, ns.
    pub mean_ns: f64,
    /// Part of one vCPU's time that they took.
    pub share: f64,
}

/// A holder of the guest's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryShare {
    /// Kind.
    pub kind: MemoryKind,
    /// Name, as in table `memory_use`.
    pub name: String,
    /// Id of a process; 0 for others.
    pub pid: i32,
    /// Memory, bytes.
    pub bytes: u64,
    /// Growth since the reading before, bytes; 0 for one that was not among the largest of its kind.
    pub growth: i64,
    /// Part of the whole memory.
    pub share: f64,
}

/// An event of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Time since the run's start, s.
    pub time_s: f64,
    /// Kind, like `kernel`, `missing`, `mark`.
    pub kind: String,
    /// One sentence.
    pub text: String,
}
