//! Figures of the summary and of `vprof report --json`.
//!
//! [`Report`] serializes to exactly the object that docs/json.md describes; a test compares the two.

mod annotate;
mod by;
mod charged;
mod code;
pub(crate) mod command;
mod exact;
mod filter;
mod host;
mod listing;
mod memory;
mod number_map;
mod quality;
mod read;
mod recording;
mod serial;
mod shares;
mod stacks;
mod states;
pub(crate) mod subtree;
mod sums;
pub(crate) mod tables;
mod tick_log;
mod tree;
mod trips;
mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statistics::estimate;

pub use annotate::{Annotation, Hit, MOST_CODE, Target};
pub use by::{Breakdown, By, KeyName, Row};
pub use command::CommandTimes;
pub use exact::{
    ChildrenStates, CpuPart, CpuParts, DelayBucket, DurationSummary, ExactCost, ExactReport, ExactVcpu,
    InterruptSource, InterruptTime, OffCpu, SoftInterrupt, StateTime, Task, TaskDelay, TaskRun, TaskStates,
    Timehist, Wakeup,
};
pub use filter::{Filter, ModeGroup, Sort, is_called};
pub(crate) use filter::{is_process, no_such};
pub use host::{HostFunction, HostReport, PlaceTime, PlacedTick};
pub use listing::{CodeAddress, CodeLine, FunctionListing, ShownLines};
pub use memory::{HolderHistory, MemoryReport, WholeMemory};
pub use quality::{StackWalks, UserCode, UserFile, WalkEnds, WalkFailure};
pub use read::FullReport;
pub use recording::{
    About, FrameEntry, Owner, RecordedFile, RecordedFrame, RecordedFunction, RecordedMapping,
    RecordedProcess, RecordedSample, RecordedVcpu, Recording, RecordingRequest, SourceLine, StackNode,
};
pub(crate) use serial::is_serial_driver;
pub use shares::{ShareKey, Shares, SharesBy};
pub use states::{ScanStatistics, SourceChoice, StateReport, StateSource, TaskStateTimes, TimeInState};
pub use subtree::COMMAND;
pub use tree::{CallTree, MOST_MODULES, TreeNode, TreeRequest};
pub use trips::{
    CallStack, TripArgument, TripCall, TripCaller, TripCost, TripFunction, TripOwner, TripReport, TripValue,
    call_stacks, for_each_call,
};

pub use crate::calls::{Direction, LEAST_PART};
pub use crate::rows::ThreadPlace;
use crate::rows::VcpuState;
use crate::store::ProfileError;

/// Part of a report besides the summary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Request {
    /// None.
    #[default]
    Summary,
    /// Samples, grouped by one key or several together, the first of which is that of [`Breakdown::by`].
    /// Without a key all are outside.
    By(Vec<By>),
    /// Callers or callees of a function.
    Tree(TreeRequest),
}

/// Estimate from samples: share of all time in the guest that is not idle, and the time itself, each with its
/// 95 % interval (docs/statistics.md). Shares of vCPUs count by the exact time of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Samples that fell into the guest.
    pub samples: u64,
    /// Share of all non-idle time in the guest.
    pub share: f64,
    /// Lower end of the share's interval.
    pub share_low: f64,
    /// Upper end of the share's interval.
    pub share_high: f64,
    /// Time, s.
    pub time_s: f64,
    /// Lower end of the time's interval, s.
    pub time_low_s: f64,
    /// Upper end of the time's interval, s.
    pub time_high_s: f64,
}

impl Estimate {
    pub(crate) fn new(samples: u64, share: estimate::Share, time: estimate::Time) -> Self {
        Self {
            samples,
            share: share.share,
            share_low: share.low,
            share_high: share.high,
            time_s: time.ns / 1e9,
            time_low_s: time.low_ns / 1e9,
            time_high_s: time.high_ns / 1e9,
        }
    }

    /// Returns the share with its interval.
    pub fn interval(&self) -> estimate::Share {
        estimate::Share { share: self.share, low: self.share_low, high: self.share_high }
    }
}

/// Numbers of samples by the vCPU's state at the tick. Only those in the guest show how its time divides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickCounts {
    /// Executing the guest.
    pub guest: u64,
    /// Halted, or not yet started.
    pub halted: u64,
    /// Out of KVM_RUN.
    pub vmm: u64,
    /// Due while the vCPU's thread lacked a CPU of the host, or was stopped. Unknown states count here as
    /// well.
    pub waiting: u64,
}

impl TickCounts {
    fn count(&mut self, vcpu_state: Option<VcpuState>) {
        let count = match vcpu_state {
            Some(VcpuState::Guest) => &mut self.guest,
            Some(VcpuState::Halted) => &mut self.halted,
            Some(VcpuState::Vmm) => &mut self.vmm,
            Some(VcpuState::Waiting) | None => &mut self.waiting,
        };
        *count += 1;
    }
}

/// Error of making a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The profile could not be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Nothing has this name.
    #[error("the profile has no {what} {wanted}: {advice}")]
    NoSuch {
        /// Kind of thing, like "process".
        what: &'static str,
        /// Requested name.
        wanted: String,
        /// Nearest names, or the command that lists all.
        advice: String,
    },
    /// Several functions have this name.
    #[error(
        "several functions are called {wanted}: {found}; choose with --module, or give the address instead"
    )]
    Ambiguous {
        /// Requested name.
        wanted: String,
        /// Some of the functions.
        found: String,
    },
    /// The profile has no exact data.
    #[error("the profile has no exact data: {0}")]
    NoExact(String),
    /// The profile has no calls of watched functions.
    #[error("the profile has no watched functions: {0}")]
    NoTrips(String),
    /// The profile has no states of tasks.
    #[error("the profile has no states of tasks: {0}")]
    NoStates(String),
    /// The profile has no stacks of the host.
    #[error("the profile has no stacks of the host: record with `vprof attach --host-stacks`")]
    NoHost,
    /// The profile has no readings of the guest's memory.
    #[error("the profile has no readings of the guest's memory in this time: record with --memory-use")]
    NoMemory,
    /// A virtual machine or a host was named, and the profile is of one.
    #[error("the profile is of one virtual machine: `vprof merge` makes one profile of several")]
    NotMerged,
    /// No such vCPU.
    #[error("the profile has no vCPU {vcpu}: it has {count}, counted from 0")]
    NoSuchVcpu {
        /// Requested vCPU.
        vcpu: u16,
        /// Number of vCPUs.
        count: usize,
    },
    /// The time range is outside of the run.
    #[error("the time range begins after the end of the run, which lasted {0:.3} s")]
    AfterEnd(f64),
    /// The time range ends before it begins.
    #[error("the time range ends before it begins")]
    EmptyRange,
}

/// A report over one profile, or a part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// vprof's version that wrote the profile.
    pub version: String,
    /// `kvm`, `portable`, or `unknown`.
    pub host: String,
    /// The guest's kernel release.
    pub kernel: Option<String>,
    /// False if the run was cut short (killed, or still in progress).
    pub complete: bool,
    /// Start of the run, seconds since 1970.
    pub started_unix_s: f64,
    /// Length of the run, s.
    pub duration_s: f64,
    /// Mean rate that was requested, per vCPU.
    pub rate_hz: f64,
    /// Ticks served per second and vCPU.
    pub measured_rate_hz: f64,
    /// Time in which a vCPU was not sampled because sampling was stopped, s; the longest of all vCPUs. Shares
    /// and estimated times leave it out.
    pub unsampled_s: f64,
    /// `uniform`, `exponential` or `fixed`.
    pub clock: String,
    /// True if intervals are valid: not under a fixed clock, which a program can be in step with.
    pub intervals_valid: bool,
    /// Seed of the clock.
    pub seed: u64,
    /// Samples of the chosen vCPUs and time.
    pub samples: u64,
    /// Their numbers by the vCPU's state at the tick.
    pub ticks: TickCounts,
    /// Samples in the guest that are not idle: all shares refer to them, unless the filter makes them
    /// relative.
    pub busy_samples: u64,
    /// Busy samples that the whole filter chooses.
    pub chosen_samples: u64,
    /// Samples in the guest that are not idle and without a stack because of how they were taken: those with
    /// stacks stand for them in what stacks show. Not in `busy_samples` if the filter has a function.
    pub flat_samples: u64,
    /// Samples lost in the whole run.
    pub lost: u64,
    /// Part of the profile that the report covers.
    pub filter: Filter,
    /// Cost of sampling.
    pub overhead: Overhead,
    /// Lateness of ticks.
    pub lateness: Lateness,
    /// One row per vCPU.
    pub vcpus: Vec<Vcpu>,
    /// Times of the run's own command.
    pub command: Option<CommandTimes>,
    /// Programs, and what is charged to none: all instances of one are one row. Shares add up as those of
    /// `processes`.
    pub programs: Vec<Program>,
    /// Factor by which a run has to be longer for half the interval of the largest share of `processes`.
    pub needed_for_half: Option<f64>,
    /// Processes and what is not charged to any; shares add up to 1 without a process filter.
    pub processes: Vec<Process>,
    /// The innermost functions, inlined ones too; shares add up to 1 without a process filter.
    pub functions: Vec<Function>,
    /// Ends of the walks over stacks.
    pub stacks: StackWalks,
    /// Part of the user code that has a name.
    pub user_code: UserCode,
    /// Time in which the kernel wrote to a serial port, as for its console: with the port's driver on the
    /// stack. Part of the chosen samples, like `functions`.
    pub serial: Estimate,
    /// The samples, grouped, if requested.
    pub by: Option<Breakdown>,
    /// Callers or callees, if requested.
    pub tree: Option<CallTree>,
    /// Data of the guest that could not be read.
    pub missing: Vec<String>,
    /// Events of the run.
    pub events: Vec<Event>,
    /// All other keys of table `meta`.
    pub meta: BTreeMap<String, String>,
}

/// Cost of sampling, over the whole run and all vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Time in the sampler, from an exit to the next entry, s.
    pub sampler_s: f64,
    /// Time executing the guest, s.
    pub guest_s: f64,
    /// Wall time of all vCPUs, s.
    pub wall_s: f64,
    /// `sampler_s / wall_s`.
    pub share: f64,
}

/// Lateness of ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Median, ns, to three digits.
    pub median_ns: u64,
    /// 99th percentile, ns, to three digits.
    pub p99_ns: u64,
    /// Largest, ns, to three digits.
    pub max_ns: u64,
    /// Samples served more than 1 ms late.
    pub over_1ms: u64,
}

/// One vCPU. The five fractions are of its samples in the guest or halted, and add up to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vcpu {
    /// Number in the profile: 0 and up.
    pub id: u16,
    /// Name of its virtual machine in a merged profile.
    pub vm: Option<String>,
    /// Number in its virtual machine; `id` unless the profile is merged.
    pub number: u16,
    /// Samples in the chosen time.
    pub samples: u64,
    /// Samples lost in the whole run.
    pub lost: u64,
    /// At CPL 3.
    pub user: f64,
    /// In the kernel outside of interrupts; also early boot and unknown modes.
    pub kernel: f64,
    /// In hard interrupts and NMIs.
    pub hardirq: f64,
    /// In soft interrupts.
    pub softirq: f64,
    /// Halted, in the idle task, or not started.
    pub idle: f64,
    /// Samples during work of the VMM. They and `waiting_samples` are not part of the five fractions above,
    /// which add up to 1.
    pub vmm_samples: u64,
    /// Samples that came late since the vCPU lacked a CPU of the host.
    pub waiting_samples: u64,
    /// Its time in the chosen part of the run, by what the guest did.
    pub times: ModeTimes,
    /// Executing the guest, whole run, s. This and the next six add up to `wall_s`.
    pub guest_s: f64,
    /// Halted, s.
    pub halted_s: f64,
    /// Ready to run without a CPU of the host, s.
    pub waiting_s: f64,
    /// Entering and leaving KVM_RUN with a halted guest, s.
    pub kvm_s: f64,
    /// Serving exits, s.
    pub vmm_s: f64,
    /// In the sampler, s.
    pub sampler_s: f64,
    /// Held by vprof, s.
    pub paused_s: f64,
    /// Wall time, s.
    pub wall_s: f64,
    /// Returns of KVM_RUN.
    pub exits: u64,
}

/// Time of a vCPU that was executing the guest or halted, by mode. The shares are of that time and add up to
/// 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ModeTimes {
    /// At CPL 3.
    pub user: Estimate,
    /// In the kernel outside of interrupts; also early boot and unknown modes.
    pub kernel: Estimate,
    /// In hard interrupts.
    pub hardirq: Estimate,
    /// In soft interrupts.
    pub softirq: Estimate,
    /// In NMIs.
    pub nmi: Estimate,
    /// Halted, which is known exactly, or in the idle task.
    pub idle: Estimate,
}

/// Kind of a row of [`Report::processes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// A process.
    Process,
    /// A kernel thread.
    KernelThread,
    /// Hard or soft interrupts, whichever process they hit.
    Interrupt,
    /// The kernel before it has tasks.
    Boot,
    /// The process could not be read.
    Unknown,
}

/// All instances of a program, or a pseudo-row for another owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Program name, or a name in brackets for a pseudo-row.
    pub comm: String,
    /// Kind of the row.
    pub kind: ProcessKind,
    /// Instances that were hit; 0 for a pseudo-row.
    pub instances: u64,
    /// Process id, if one instance was hit.
    pub pid: Option<i32>,
    /// Time that is charged to them.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The part of the share in their user code.
    pub user_share: f64,
    /// The rest of the share.
    pub kernel_share: f64,
}

/// One instance of a process, or a pseudo-row for another owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Program name, or a name in brackets for a pseudo-row.
    pub comm: String,
    /// Process id; 0 for a pseudo-row.
    pub pid: i32,
    /// Instance number; 0 for a pseudo-row.
    pub instance: u32,
    /// Name of its virtual machine in a merged profile; `None` for a pseudo-row.
    pub vm: Option<String>,
    /// Kind of the row.
    pub kind: ProcessKind,
    /// Time that is charged to it.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The part of the share in its user code.
    pub user_share: f64,
    /// The rest of the share.
    pub kernel_share: f64,
    /// Process id of the parent.
    pub parent_pid: Option<i32>,
    /// Command line.
    pub command: Option<String>,
    /// Path of the program.
    pub exe: Option<String>,
    /// Path of the control group.
    pub cgroup: Option<String>,
    /// systemd unit of the control group.
    pub unit: Option<String>,
    /// Container of the control group.
    pub container: Option<String>,
    /// Threads that were hit, most samples first.
    pub threads: Vec<Thread>,
}

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Thread id.
    pub tid: i32,
    /// The thread's own name.
    pub comm: Option<String>,
    /// Time that is charged to it.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// A function of kernel or user code. Code without a name counts by its module, or as `[user]` by its
/// program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Symbol; `[module]`, `[user]` or an address where none covers it.
    pub symbol: String,
    /// Kernel module, or file name of user code; the program's name for `[user]`.
    pub module: Option<String>,
    /// `user`, `kernel`, `hardirq`, `softirq`, `nmi`, `boot` or `unknown`.
    pub mode: String,
    /// Estimate of its time.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// An event of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the run's start.
    pub time_s: f64,
    /// Kind, like `kernel` or `lost`.
    pub kind: String,
    /// One sentence.
    pub text: String,
}

/// Values by which programs and processes are ordered.
struct OwnerOrder<'a> {
    comm: &'a str,
    pid: Option<i32>,
    estimate: &'a Estimate,
    user_share: f64,
    kernel_share: f64,
}

impl<'a> From<&'a Program> for OwnerOrder<'a> {
    fn from(Program { comm, pid, estimate, user_share, kernel_share, .. }: &'a Program) -> Self {
        Self { comm, pid: *pid, estimate, user_share: *user_share, kernel_share: *kernel_share }
    }
}

impl<'a> From<&'a Process> for OwnerOrder<'a> {
    fn from(Process { comm, pid, estimate, user_share, kernel_share, .. }: &'a Process) -> Self {
        Self { comm, pid: Some(*pid), estimate, user_share: *user_share, kernel_share: *kernel_share }
    }
}

/// True for hosts that QEMU emulates: ticks wait for the end of a block of code.
pub(crate) fn is_emulated(host: &str) -> bool {
    matches!(host, "portable" | "tcg")
}

/// Share of the vCPUs' time in the sampler from which reports warn. An emulated host on a quiet machine takes
/// 18 % at 1,000 Hz.
const MUCH_OVERHEAD: f64 = 0.3;
/// Share of the guest's CPU time on a serial port from which reports warn.
const MUCH_SERIAL: f64 = 0.1;

impl Report {
    /// True if the host was emulated, so that times are not those of a real machine.
    pub fn is_emulated(&self) -> bool {
        is_emulated(&self.host)
    }

    /// True if sampling took so much of the vCPUs' time that the guest was a slower one.
    pub fn is_slowed(&self) -> bool {
        self.overhead.share >= MUCH_OVERHEAD
    }

    /// True if writing to a serial port took so much of the guest's time that the profile is one of its
    /// console.
    pub fn has_much_serial(&self) -> bool {
        // A relative share is not one of the guest's time.
        self.serial.share >= MUCH_SERIAL && !self.filter.relative
    }

    /// True if nothing was recorded: the run has just begun, or could not write.
    pub fn is_empty(&self) -> bool {
        self.samples == 0 && self.vcpus.is_empty() && self.filter.vcpu.is_none()
    }

    /// Orders programs, processes, functions and the rows of [`Self::by`]. By own samples means by the
    /// share that they represent. Rows that tie are ordered by shares, by samples, then by names.
    pub fn sort(&mut self, by: Sort) {
        if let Some(breakdown) = &mut self.by {
            breakdown.sort(by);
        }
        let shares = |a: f64, b: f64| b.total_cmp(&a);
        let most = |a: &Estimate, b: &Estimate| shares(a.share, b.share).then(b.samples.cmp(&a.samples));
        let owners = |a: OwnerOrder<'_>, b: OwnerOrder<'_>| {
            let main = match by {
                Sort::Samples | Sort::Total => most(a.estimate, b.estimate),
                Sort::Name => a.comm.cmp(b.comm),
                Sort::Pid => a.pid.cmp(&b.pid),
                Sort::User => shares(a.user_share, b.user_share),
                Sort::Kernel => shares(a.kernel_share, b.kernel_share),
            };
            main.then(most(a.estimate, b.estimate)).then_with(|| a.comm.cmp(b.comm))
        };
        self.processes.sort_by(|a, b| {
            let rest = |p: &Process| (p.pid, p.instance);
            owners(a.into(), b.into()).then(rest(a).cmp(&rest(b)))
        });
        self.programs.sort_by(|a, b| owners(a.into(), b.into()).then(a.kind.cmp(&b.kind)));
        self.functions.sort_by(|a, b| {
            let user = |f: &Function| f.mode == "user";
            let main = match by {
                Sort::Samples | Sort::Total | Sort::Pid => most(&a.estimate, &b.estimate),
                Sort::Name => a.symbol.cmp(&b.symbol),
                Sort::User => user(b).cmp(&user(a)),
                Sort::Kernel => user(a).cmp(&user(b)),
            };
            main.then(most(&a.estimate, &b.estimate))
                .then_with(|| (&a.symbol, &a.module, &a.mode).cmp(&(&b.symbol, &b.module, &b.mode)))
        });
    }
}

#[cfg(test)]
mod tests;
