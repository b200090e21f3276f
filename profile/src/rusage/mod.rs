//! The guest's own books of CPU time next to the truth.
//!
//! [`Rusage`] serializes to exactly the object that docs/json.md describes; a test compares the two.

mod accounting;
mod children;
mod read;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::diff::LEVEL;
use crate::diff::significance::{holm, two_sided};
use crate::estimate::{Time, Z_95};
use crate::report::{ReportError, is_process, no_such};

/// The books of processes, threads and CPUs, next to the truth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rusage {
    /// vprof's version that wrote the profile.
    pub version: String,
    /// `kvm`, `portable`, or `unknown`.
    pub host: String,
    /// The guest's kernel release.
    pub kernel: Option<String>,
    /// Length of the run, s.
    pub duration_s: f64,
    /// Time in which a vCPU was not sampled, since sampling was stopped, s; the longest of all vCPUs. What the guest tells
    /// holds it, the truth does not.
    pub unsampled_s: f64,
    /// The sampling clock has valid intervals: not under a fixed one.
    pub intervals_valid: bool,
    /// Every process whose books were read, most time first.
    pub processes: Vec<ProcessRusage>,
    /// Threads of processes with several, most time first.
    pub threads: Vec<ThreadRusage>,
    /// Every CPU.
    pub cpus: Vec<CpuRusage>,
}

/// What is told of one process, and what was so, between the first and the last reading of its books.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRusage {
    /// Program name.
    pub comm: String,
    /// Process id.
    pub pid: i32,
    /// Instance number.
    pub instance: u32,
    /// Of a process that was there before vprof: when its books were first read, s since the run's start. All that follows
    /// is of the time since then, except `before_user_ns` and `before_system_ns`.
    pub since_s: Option<f64>,
    /// When the books were last read, s since the run's start.
    pub read_s: f64,
    /// User time as getrusage and `/proc/PID/stat` tell it, ns.
    pub reported_user_ns: u64,
    /// System time as they tell it, ns.
    pub reported_system_ns: u64,
    /// User time that they told at `since_s`, ns.
    pub before_user_ns: u64,
    /// System time that they told then, ns.
    pub before_system_ns: u64,
    /// The scheduler's run time (`sum_exec_runtime`), ns.
    pub runtime_ns: u64,
    /// Time on the guest's run queues, of living threads, ns.
    pub run_delay_ns: u64,
    /// Context switches, both kinds.
    pub switches: u64,
    /// Samples that the truth is made of.
    pub samples: u64,
    /// CPU time in the guest, user and system, without interrupts that hit the process, and without what the host, the VMM and
    /// vprof took meanwhile, ns.
    pub measured_cpu_ns: u64,
    /// Lower end of its 95 % interval.
    pub measured_low_ns: u64,
    /// Upper end of its 95 % interval.
    pub measured_high_ns: u64,
    /// The part of `measured_cpu_ns` in user code.
    pub measured_user_ns: u64,
    /// Interrupts that hit the process, which most kernels charge to it, ns.
    pub interrupted_ns: u64,
    /// What is told less what is true, ns.
    pub difference_ns: i64,
    /// What is told is further from the estimate than chance explains, in all rows together.
    pub outside: bool,
    /// Children that it has waited for; `None` where neither the guest nor vprof knows of any.
    pub children: Option<ChildrenRusage>,
}

/// Children of a process that it has waited for, and theirs, as getrusage(RUSAGE_CHILDREN) sums them: what was waited for
/// between the first and the last reading of the books of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildrenRusage {
    /// Processes that `measured_cpu_ns` is of: children, and children that they waited for.
    pub processes: u64,
    /// Exact mode has seen who waited for whom. Else these are the processes that have ended, by their parents as they were
    /// read, which may be too many or too few.
    pub seen: bool,
    /// User time as getrusage returns it, ns.
    pub reported_user_ns: u64,
    /// System time as it returns it, ns.
    pub reported_system_ns: u64,
    /// Context switches, both kinds, by the guest's books.
    pub switches: u64,
    /// Page faults without I/O, by the guest's books.
    pub minor_faults: u64,
    /// Page faults with I/O, by the guest's books.
    pub major_faults: u64,
    /// Samples that the truth is made of.
    pub samples: u64,
    /// CPU time of these processes, user and system, without interrupts that hit them, ns.
    pub measured_cpu_ns: u64,
    /// Lower end of its 95 % interval.
    pub measured_low_ns: u64,
    /// Upper end of its 95 % interval.
    pub measured_high_ns: u64,
    /// What is reported less what is true, ns.
    pub difference_ns: i64,
}

/// What is told of one thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadRusage {
    /// The thread's name, where it is known.
    pub comm: Option<String>,
    /// Process id.
    pub pid: i32,
    /// Instance number of its process.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// As of a process.
    pub since_s: Option<f64>,
    /// `utime`, ns.
    pub reported_user_ns: u64,
    /// `stime`, ns.
    pub reported_system_ns: u64,
    /// The scheduler's run time, ns.
    pub runtime_ns: u64,
    /// CPU time, ns.
    pub measured_cpu_ns: u64,
    /// Lower end of its 95 % interval.
    pub measured_low_ns: u64,
    /// Upper end of its 95 % interval.
    pub measured_high_ns: u64,
    /// `utime + stime` is further from the estimate than chance explains, in all rows together.
    pub outside: bool,
}

/// What `/proc/stat` tells of a CPU, and what was so, ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuRusage {
    /// Number of the CPU in the guest, and of its vCPU.
    pub cpu: u32,
    /// When its books were first read, s since the run's start; all times but `before` are since then.
    pub since_s: Option<f64>,
    /// When they were last read, s since the run's start.
    pub read_s: f64,
    /// What is told.
    pub reported: CpuTimes,
    /// What was told at `since_s`.
    pub before: CpuTimes,
    /// What was so.
    pub measured: CpuTimes,
    /// StateBounds of the 95 % intervals of the same times. Times of states are exact, but known in segments of a fifth of a
    /// second: their ends differ by what the first and the last of them leave open.
    pub low: CpuTimes,
    /// See `low`.
    pub high: CpuTimes,
}

/// A CPU's time, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// User code, niced or not.
    pub user_ns: u64,
    /// Kernel code outside of interrupts.
    pub system_ns: u64,
    /// Hard interrupts.
    pub irq_ns: u64,
    /// Soft interrupts.
    pub softirq_ns: u64,
    /// Idle, with I/O waited for or not: halted, or in the idle task.
    pub idle_ns: u64,
    /// Not given to the guest: the vCPU waited for a host CPU, or was served by vprof.
    pub steal_ns: u64,
}

/// What a guest tells less what is true, ns; what it tells may be any number.
pub fn difference(reported_ns: u64, measured_ns: u64) -> i64 {
    let difference = i128::from(reported_ns) - i128::from(measured_ns);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

impl Rusage {
    /// Keeps only the processes of this name, process id or `name#instance`, with their threads.
    ///
    /// # Errors
    /// [`ReportError::NoSuch`], with the names that are near.
    pub fn retain(&mut self, wanted: &str) -> Result<(), ReportError> {
        let is = |p: &ProcessRusage| is_process((&p.comm, p.pid, p.instance), wanted);
        if !self.processes.iter().any(is) {
            let names = self.processes.iter().map(|p| p.comm.as_str()).collect();
            return Err(no_such("process", wanted, names, "--by instance -n 0"));
        }
        self.processes.retain(is);
        let kept: Vec<_> = self.processes.iter().map(|p| (p.pid, p.instance)).collect();
        self.threads.retain(|thread| kept.contains(&(thread.pid, thread.instance)));
        Ok(())
    }
}

impl CpuTimes {
    /// What has grown since an earlier reading.
    fn since(&self, first: &Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(first.user_ns),
            system_ns: self.system_ns.saturating_sub(first.system_ns),
            irq_ns: self.irq_ns.saturating_sub(first.irq_ns),
            softirq_ns: self.softirq_ns.saturating_sub(first.softirq_ns),
            idle_ns: self.idle_ns.saturating_sub(first.idle_ns),
            steal_ns: self.steal_ns.saturating_sub(first.steal_ns),
        }
    }

    /// Names and values, in the order of the fields.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        let Self { user_ns, system_ns, irq_ns, softirq_ns, idle_ns, steal_ns } = *self;
        [
            ("user", user_ns),
            ("system", system_ns),
            ("hard interrupts", irq_ns),
            ("soft interrupts", softirq_ns),
            ("idle", idle_ns),
            ("steal", steal_ns),
        ]
    }
}

/// Chance that a right time is told as far from an estimate as this, at most: what the guest keeps is up to a tick old, at
/// the last reading and, if the time is told since a first one, at that as well.
fn chance(reported_ns: u64, since_first: bool, measured: &Time) -> f64 {
    let (reported, unaccounted) = (as_f64(reported_ns), if since_first { TICK_NS } else { 0.0 });
    let (apart, half) = match reported > measured.ns {
        true => (reported - unaccounted - measured.ns, measured.high_ns - measured.ns),
        false => (measured.ns - TICK_NS - reported, measured.ns - measured.low_ns),
    };
    if apart <= 0.0 { 1.0 } else { two_sided(apart / half * Z_95) }
}

/// Which of many rows are told other than they were, where by chance none is in 95 of 100 profiles (Holm).
fn outside(chances: &[f64]) -> impl Iterator<Item = bool> {
    holm(chances).into_iter().map(|chance| chance <= LEVEL)
}

/// The longest tick of Linux on x86, ns (`CONFIG_HZ_100`): so much of what runs now is not booked yet.
const TICK_NS: f64 = 10e6;

#[expect(clippy::cast_precision_loss, reason = "times of less than 2^53 ns (104 days)")]
fn as_f64(ns: u64) -> f64 {
    ns as f64
}
