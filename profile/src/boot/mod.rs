//! Phases of a guest's boot, from its first instruction on, by its samples alone, with the kernel's calls in
//! them, units and processes.
//!
//! ```text
//!  0 ── decompression ──┬── early ──┬── initcalls ──┬── initrd ──┬── userspace ──▶ condition, or end of run
//!                       └──────── kernel ───────────┘
//! ```
//!
//! A phase begins with its first sample and ends with the first one of the next. The exact time between two
//! samples is not known; [`Phase::within_s`] has its uncertainty. The kernel's calls follow from the outer
//! frames of its stacks: functions that `start_kernel` and `do_one_initcall` called (init/main.c, Linux
//! 6.12).

mod chart;
mod clocked;
mod evidence;
mod places;
mod read;
mod systemd;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use statistics::estimate::Estimate;

pub use chart::{Chart, ChartPiece};
pub use evidence::{BlockedTask, Evidence, LastOf};
pub use systemd::{ChainLink, FailedUnit, StartupTimes, Systemd, Target};

/// Key of `meta`: `read`, or the reason why systemd's journal was not read.
pub const SYSTEMD_JOURNAL: &str = "systemd_journal";
/// Keys of `meta`: times that the kernel, the initrd and the rest of a boot took according to systemd, ns.
pub const STARTUP_TIMES: [&str; 3] = ["systemd_kernel_ns", "systemd_initrd_ns", "systemd_userspace_ns"];
/// Value of `until` in `meta`, and the condition's name on the command line, for systemd's "StartupTimes
/// finished".
pub const STARTED: &str = "started";
/// Key of `meta`: the condition at which a run ends.
pub(crate) const UNTIL: &str = "until";

/// Names of phases, in the order of time; `kernel` is `early` and `initcalls` together, `total` all of them.
pub const PHASES: [&str; 7] =
    ["total", "decompression", "kernel", "early", "initcalls", "initrd", "userspace"];

/// True for a phase that is a part of `kernel`, and not of the sum of all.
pub fn is_part_of_kernel(phase: &str) -> bool {
    matches!(phase, "early" | "initcalls")
}

/// A boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// The guest's kernel release, if it was found.
    pub kernel: Option<String>,
    /// `kvm` or `portable`.
    pub host: String,
    /// Time of the guest's first instruction, s since the run's start. All other times count from it.
    pub began_s: f64,
    /// Time at which the condition of `vprof boot --until` was met, s.
    pub reached_s: Option<f64>,
    /// Start of sampling, s, if the guest had run before: the phases other than `total` are not known then.
    pub sampled_from_s: Option<f64>,
    /// Phases that were reached, in the order of [`PHASES`].
    pub phases: Vec<Phase>,
    /// Functions that `start_kernel` called, in the order of time.
    pub early: Vec<Call>,
    /// Initcalls of the kernel, and of its modules, in the order of time.
    pub initcalls: Vec<Call>,
    /// Programs of the first process, in the order of time.
    pub init: Vec<Program>,
    /// Control groups in which processes ran from the first process on, in the order of time.
    pub units: Vec<Unit>,
    /// Programs that ran from the first process on, those with the most time first.
    pub processes: Vec<Unit>,
    /// Messages of systemd.
    pub systemd: Systemd,
}

/// A part of the boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// One of [`PHASES`].
    pub name: String,
    /// Its beginning, s.
    pub from_s: f64,
    /// Its end, s.
    pub to_s: f64,
    /// Its length, s.
    pub wall_s: f64,
    /// Sum of the uncertainties of both ends, s: the gaps between the samples around them.
    pub within_s: f64,
    /// Time in which vCPUs executed the guest during the phase, s.
    pub guest_s: f64,
    /// Samples in it.
    pub samples: u64,
    /// True if it had ended at the end of the run, or when the condition was met.
    pub ended: bool,
}

/// A function that the kernel called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Name of the function. A function that ends by calling another may leave only the name of that one.
    pub function: String,
    /// Its module; `None` for the kernel itself.
    pub module: Option<String>,
    /// First sample in it, s.
    pub from_s: f64,
    /// Last sample in it, s.
    pub to_s: f64,
    /// CPU time.
    pub time: CpuEstimate,
}

/// CPU time by samples, s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuEstimate {
    /// Samples.
    pub samples: u64,
    /// Estimate.
    pub s: f64,
    /// Lower end of its 95 % interval.
    pub low_s: f64,
    /// Upper end.
    pub high_s: f64,
}

impl From<Estimate> for CpuEstimate {
    fn from(estimate: Estimate) -> Self {
        let Estimate { samples, time, .. } = estimate;
        let [s, low_s, high_s] = [time.ns, time.low_ns, time.high_ns].map(|ns| ns / 1e9);
        Self { samples, s, low_s, high_s }
    }
}

/// A program of the first process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Time of its first sample, s.
    pub from_s: f64,
    /// Its path.
    pub path: String,
    /// File system of the program, like `rootfs` (the initrd) or `ext4`.
    pub filesystem: String,
}

/// A control group or program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// systemd unit, path of another control group, or program.
    pub name: String,
    /// First sample, s.
    pub from_s: f64,
    /// Last sample, s.
    pub to_s: f64,
    /// Processes that were sampled.
    pub processes: u64,
    /// CPU time.
    pub time: CpuEstimate,
}

impl Boot {
    /// Returns the phase of this name, if the boot has reached it.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}
