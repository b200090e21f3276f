//! What somebody who looks at a run sees: plain data, the same on the control socket and on the screen.

use serde::{Deserialize, Serialize};

use crate::estimate::Share;

/// One look at a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the run's start, s.
    pub time_s: f64,
    /// Length of the time that the tables speak of, s.
    pub span_s: f64,
    /// The guest's kernel release, once it was found.
    pub kernel: Option<String>,
    /// `kvm`, `portable`, or `unknown`.
    pub host: String,
    /// How the run is sampled.
    pub sampling: Sampling,
    /// Every vCPU.
    pub vcpus: Vec<VcpuShare>,
    /// What the samples hit.
    pub modes: ModeShares,
    /// Who had the guest's time that was not idle, most first.
    pub processes: Vec<ProcessShare>,
    /// Functions, by samples of their own first.
    pub functions: Vec<FunctionShare>,
    /// What tasks did, the busiest first: measured in exact mode, else as the task_scans saw it.
    pub tasks: Vec<TaskShare>,
    /// Exact mode is on.
    pub exact: bool,
    /// Exits to vprof, those that took longest first.
    pub exits: Vec<ExitRate>,
    /// What has happened, the latest last.
    pub events: Vec<Note>,
    /// The last lines of the console, without what steers a terminal.
    pub console: Vec<String>,
}

/// How a run is sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// The vCPUs are sampled; else sampling was stopped.
    pub on: bool,
    /// Mean ticks per second and vCPU while it is on.
    pub rate_hz: f64,
    /// `uniform`, `exponential` or `fixed`.
    pub clock: String,
    /// Samples so far.
    pub samples: u64,
    /// Lost so far.
    pub lost: u64,
    /// Samples that the tables are made of.
    pub counted: u64,
}

/// Where a vCPU's time went; parts of the wall time of the span, which add up to 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuShare {
    /// 0 and up.
    pub id: u8,
    /// Parts by state, in the order of [`crate::rows::Microstates::named`]. All 0 where nothing is known yet.
    pub states: Vec<(String, f64)>,
    /// The same of the last stretch of about half a second, for bars over time.
    pub now: Vec<(String, f64)>,
    /// How the samples that fell into the guest or found it halted divide.
    pub modes: ModeShares,
}

/// Parts of the samples that fell into the guest or found it halted.
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

/// A process, or what is charged in place of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessShare {
    /// Program's name, or a name in brackets.
    pub comm: String,
    /// Process id; 0 for what is no process.
    pub pid: i32,
    /// Number of the instance among those of its name.
    pub instance: u32,
    /// A kernel thread.
    pub kernel_thread: bool,
    /// Samples.
    pub samples: u64,
    /// Part of all samples that were not idle, with the 95 % interval of independent samples.
    pub share: Share,
    /// Part of its own samples that hit user code.
    pub user: f64,
}

/// A function in a mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionShare {
    /// Its name.
    pub symbol: String,
    /// Kernel module, or the program or library; `None` for the kernel image.
    pub module: Option<String>,
    /// Samples that hit it.
    pub samples: u64,
    /// Part of all samples that were not idle and hit it.
    pub own: Share,
    /// The same of those that had it on their stack.
    pub total: Share,
}

/// A thread: parts of the time of the span that was told of it, which add up to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskShare {
    /// Its process's name.
    pub comm: String,
    /// Process id.
    pub pid: i32,
    /// Thread id.
    pub tid: i32,
    /// Time that was told of it, s.
    pub time_s: f64,
    /// Parts by state, named as in table `task_state`.
    pub states: Vec<(String, f64)>,
}

/// Exits for one reason, of all vCPUs, over the last second or so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExitRate {
    /// Like `port write`.
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

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Time since the run's start, s.
    pub time_s: f64,
    /// Like `kernel`, `missing`, `mark`.
    pub kind: String,
    /// One sentence.
    pub text: String,
}
