//! CPU time by the guest's own accounting, next to measured CPU time.
//!
//! [`Rusage`] serializes to exactly the object that docs/json.md describes; a test compares the two.

mod accounting;
mod children;
mod read;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use statistics::estimate::{Time, Z_95};
use statistics::significance::{holm, two_sided};

use crate::diff::LEVEL;
use crate::report::{ReportError, is_process, no_such};

/// Reported and measured CPU time of processes, threads and CPUs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rusage {
    /// vprof's version that wrote the profile.
    pub version: String,
    /// `kvm`, `portable`, or `unknown`.
    pub host: String,
    /// The guest's kernel release.
    pub kernel: Option<String>,
    /// Length of the run, s.
    pub duration_s: f64,
    /// Time in which a vCPU was not sampled because sampling was stopped, s; the longest of all vCPUs.
    /// Reported times include it, measured times do not.
    pub unsampled_s: f64,
    /// True if the sampling clock has valid intervals: not under a fixed one.
    pub intervals_valid: bool,
    /// Every process whose accounting was read, most time first.
    pub processes: Vec<ProcessRusage>,
    /// Threads of processes with several, most time first.
    pub threads: Vec<ThreadRusage>,
    /// Every CPU.
    pub cpus: Vec<CpuRusage>,
}

/// Reported and measured times of one process, between the first and the last reading of its accounting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRusage {
    /// Program name.
    pub comm: String,
    /// Process id.
    pub pid: i32,
    /// Instance number.
    pub instance: u32,
    /// Time of the first reading, s since the run's start, for a process that existed before vprof. All other
    /// times are since then, except `before_user_ns` and `before_system_ns`.
    pub since_s: Option<f64>,
    /// Time of the last reading, s since the run's start.
    pub read_s: f64,
    /// User time that getrusage and `/proc/PID/stat` report, ns.
    pub reported_user_ns: u64,
    /// System time that they report, ns.
    pub reported_system_ns: u64,
    /// User time that they reported at `since_s`, ns.
    pub before_user_ns: u64,
    /// System time that they reported at `since_s`, ns.
    pub before_system_ns: u64,
    /// The scheduler's run time (`sum_exec_runtime`), ns.
    pub runtime_ns: u64,
    /// Time on the guest's run queues, of living threads, ns.
    pub run_delay_ns: u64,
    /// Context switches, both kinds.
    pub switches: u64,
    /// Number of samples from which the measured time is estimated.
    pub samples: u64,
    /// CPU time in the guest, user and system, without interrupts that hit the process, and without the time
    /// that the host, the VMM and vprof took, ns.
    pub measured_cpu_ns: u64,
    /// Lower end of its 95 % interval.
    pub measured_low_ns: u64,
    /// Upper end of its 95 % interval.
    pub measured_high_ns: u64,
    /// The part of `measured_cpu_ns` in user code.
    pub measured_user_ns: u64,
    /// Interrupts that hit the process, which most kernels charge to it, ns.
    pub interrupted_ns: u64,
    /// Reported less measured time, ns.
    pub difference_ns: i64,
    /// True if the reported time differs from the measured one by more than chance explains, in all rows
    /// together.
    pub outside: bool,
    /// Children that it has waited for; `None` if neither the guest nor vprof knows of any.
    pub children: Option<ChildrenRusage>,
}

/// Children of a process that it has waited for, and theirs, as getrusage(RUSAGE_CHILDREN) sums them: those
/// that were waited for between the first and the last reading of the accounting of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildrenRusage {
    /// Number of processes in `measured_cpu_ns`: children, and children that they waited for.
    pub processes: u64,
    /// True if exact mode has recorded which process waited for which. If false, these are the processes that
    /// have ended, assigned to their parents as they were read, which may be too many or too few.
    pub seen: bool,
    /// User time that getrusage returns, ns.
    pub reported_user_ns: u64,
    /// System time that getrusage returns, ns.
    pub reported_system_ns: u64,
    /// Context switches, both kinds, by the guest's accounting.
    pub switches: u64,
    /// Page faults without I/O, by the guest's accounting.
    pub minor_faults: u64,
    /// Page faults with I/O, by the guest's accounting.
    pub major_faults: u64,
    /// Number of samples from which the measured time is estimated.
    pub samples: u64,
    /// CPU time of these processes, user and system, without interrupts that hit them, ns.
    pub measured_cpu_ns: u64,
    /// Lower end of its 95 % interval.
    pub measured_low_ns: u64,
    /// Upper end of its 95 % interval.
    pub measured_high_ns: u64,
    /// Reported less measured time, ns.
    pub difference_ns: i64,
}

/// Reported and measured times of one thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadRusage {
    /// The thread's name, if it is known.
    pub comm: Option<String>,
    /// Process id.
    pub pid: i32,
    /// Instance number of its process.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// Time of the first reading, as for a process.
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
    /// True if `utime + stime` differs from the measured time by more than chance explains, in all rows
    /// together.
    pub outside: bool,
}

/// Times of a CPU that `/proc/stat` reports, and measured ones, ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuRusage {
    /// Number of its vCPU: in a guest whose APIC ids are not 0, 1, 2 ..., not always that in `/proc/stat`.
    pub cpu: u32,
    /// Time of the first reading, s since the run's start; all times but `before` are since then.
    pub since_s: Option<f64>,
    /// Time of the last reading, s since the run's start.
    pub read_s: f64,
    /// Reported times.
    pub reported: CpuTimes,
    /// Times reported at `since_s`.
    pub before: CpuTimes,
    /// Measured times.
    pub measured: CpuTimes,
    /// Lower ends of the 95 % intervals of the measured times. Times of states are exact, but known in
    /// segments of a fifth of a second: their ends differ by the uncertainty from the first and the last of
    /// them.
    pub low: CpuTimes,
    /// Upper ends of the intervals.
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

/// Returns reported less measured time, ns. The reported time is a guest's and may be any number.
pub fn difference(reported_ns: u64, measured_ns: u64) -> i64 {
    let difference = i128::from(reported_ns) - i128::from(measured_ns);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

impl Rusage {
    /// Keeps only the processes of this name, process id or `name#instance`, with their threads.
    ///
    /// # Errors
    /// [`ReportError::NoSuch`], with the nearest names.
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
    /// Returns the growth since an earlier reading.
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

    /// Returns names and values, in the order of the fields.
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

/// Returns the largest chance of a reported time as far from an estimate as this, if it is right. The guest's
/// accounting is up to a tick old, at the last reading and, for a time since a first one, at that as well.
fn chance(reported_ns: u64, since_first: bool, measured: &Time) -> f64 {
    let (reported, unaccounted) = (as_f64(reported_ns), if since_first { TICK_NS } else { 0.0 });
    let (apart, half) = match reported > measured.ns {
        true => (reported - unaccounted - measured.ns, measured.high_ns - measured.ns),
        false => (measured.ns - TICK_NS - reported, measured.ns - measured.low_ns),
    };
    if apart <= 0.0 { 1.0 } else { two_sided(apart / half * Z_95) }
}

/// Returns which of many rows are reported wrongly. By chance, none of them is in 95 of 100 profiles (Holm).
fn outside(chances: &[f64]) -> impl Iterator<Item = bool> {
    holm(chances).into_iter().map(|chance| chance <= LEVEL)
}

/// The longest tick of Linux on x86, ns (`CONFIG_HZ_100`): the accounting of a running task may lack this
/// much.
const TICK_NS: f64 = 10e6;

#[expect(clippy::cast_precision_loss, reason = "times of less than 2^53 ns (104 days)")]
fn as_f64(ns: u64) -> f64 {
    ns as f64
}
