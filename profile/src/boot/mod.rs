//! How a guest came up, from its first instruction on, by its samples alone: phases, what the kernel did in them, units
//! and processes.
//!
//! ```text
//!  0 ── decompression ──┬── early ──┬── initcalls ──┬── initrd ──┬── userspace ──▶ what was waited for, or the end
//!                       └──────── kernel ───────────┘
//! ```
//!
//! A phase begins with the first sample of it and ends with the first one of the next: where exactly between two
//! samples is not known, and told as [`Phase::within_s`]. What the kernel did is told by the outer frames of its stacks:
//! what `start_kernel` called, and what `do_one_initcall` called (init/main.c, Linux 6.12).

mod chart;
pub(crate) mod clocked;
mod evidence;
mod places;
mod read;
mod systemd;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use chart::{Chart, Piece};
pub use evidence::{Blocked, Evidence, LastOf};
pub use systemd::{FailedUnit, Link, Startup, Systemd, Target};

/// Key of `meta`: `read`, or why systemd's journal was not read.
pub const SYSTEMD_JOURNAL: &str = "systemd_journal";
/// Keys of `meta`: what systemd says that the kernel, the initrd and the rest of a boot took, ns.
pub const STARTUP_TIMES: [&str; 3] = ["systemd_kernel_ns", "systemd_initrd_ns", "systemd_userspace_ns"];
/// Value of `until` in `meta`, and the condition's name on the command line: the run waited for systemd's "Startup finished".
pub const STARTED: &str = "started";
/// Key of `meta`: what a run waits for, at whose end it ends.
pub(crate) const UNTIL: &str = "until";

/// Names of phases, in the order of time; `kernel` is `early` and `initcalls` together, `total` all of them.
pub const PHASES: [&str; 7] =
    ["total", "decompression", "kernel", "early", "initcalls", "initrd", "userspace"];

/// A boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// The guest's kernel release, once it was found.
    pub kernel: Option<String>,
    /// `kvm` or `portable`.
    pub host: String,
    /// The guest's first instruction, s since the run's start. All other times count from it.
    pub began_s: f64,
    /// When what was waited for was seen (`vprof boot --until`), s.
    pub reached_s: Option<f64>,
    /// What there was of it, in the order of [`PHASES`].
    pub phases: Vec<Phase>,
    /// What `start_kernel` called, in the order of time.
    pub early: Vec<Call>,
    /// Initcalls of the kernel, and of its modules, in the order of time.
    pub initcalls: Vec<Call>,
    /// Programs of the first process, in the order of time.
    pub init: Vec<Program>,
    /// Control groups in which processes ran from the first process on, in the order of time.
    pub units: Vec<Unit>,
    /// Programs that ran from the first process on, those with the most time first.
    pub processes: Vec<Unit>,
    /// What systemd says of it.
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
    /// Its ends are known to within this together, s: the gaps between the samples around them.
    pub within_s: f64,
    /// Time in which vCPUs executed the guest meanwhile, s.
    pub guest_s: f64,
    /// Samples in it.
    pub samples: u64,
    /// It had ended when the run did, or what was waited for was seen.
    pub ended: bool,
}

/// What the kernel called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The function. One that ends by calling another may have left only that one's name.
    pub function: String,
    /// Its module; `None` for the kernel itself.
    pub module: Option<String>,
    /// First sample in it, s.
    pub from_s: f64,
    /// Last sample in it, s.
    pub to_s: f64,
    /// CPU time.
    pub time: Estimated,
}

/// CPU time by samples, s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimated {
    /// Samples.
    pub samples: u64,
    /// Estimate.
    pub s: f64,
    /// Lower end of its 95 % interval.
    pub low_s: f64,
    /// Upper end.
    pub high_s: f64,
}

/// What the first process ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Seen first, s.
    pub from_s: f64,
    /// Its path.
    pub path: String,
    /// What it lay on, like `rootfs` (the initrd) or `ext4`.
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
    pub time: Estimated,
}

impl Boot {
    /// The phase of this name, if the boot has come to it.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}
