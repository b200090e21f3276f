//! What a Linux kernel counts about CPU time: the numbers behind getrusage, `/proc/PID/stat` and
//! `/proc/stat`.
//!
//! They are here, and not beside the code that reads them from a guest, because a report needs them too: a
//! program that only reads profiles then compiles without the reader of guests. For example, a profile keeps
//! a thread's ticks, and [`CpuTime::reported`] divides its run time by them, as the kernel does for `ps`.

use serde::{Deserialize, Serialize};

/// CPU time as a kernel keeps it of a thread, or of all threads of a process, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// `utime`: by the tick, unless the kernel accounts precisely.
    pub user_ns: u64,
    /// `stime`.
    pub system_ns: u64,
    /// `sum_exec_runtime`: by the scheduler's clock.
    pub runtime_ns: u64,
    /// Time on a run queue without a CPU of the guest, of living threads, where the kernel keeps it.
    pub run_delay_ns: u64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
}

impl CpuTime {
    /// Adds another thread's time.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.user_ns, other.user_ns),
            (&mut self.system_ns, other.system_ns),
            (&mut self.runtime_ns, other.runtime_ns),
            (&mut self.run_delay_ns, other.run_delay_ns),
            (&mut self.voluntary, other.voluntary),
            (&mut self.involuntary, other.involuntary),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
    }

    /// Returns user and system time as the kernel reports them, ns: the scheduler's run time, divided in the
    /// proportion of the ticks (`cputime_adjust`, kernel/sched/cputime.c, 4.11 to 6.18). Neither is less than
    /// what was reported before.
    pub fn reported(&self, (user_before, system_before): (u64, u64)) -> (u64, u64) {
        let Self { user_ns, system_ns, runtime_ns, .. } = *self;
        if user_before.saturating_add(system_before) >= runtime_ns {
            return (user_before, system_before);
        }
        let system = match (user_ns, system_ns) {
            (_, 0) => 0,
            (0, _) => runtime_ns,
            _ => {
                let scaled = u128::from(system_ns) * u128::from(runtime_ns)
                    / (u128::from(system_ns) + u128::from(user_ns));
                u64::try_from(scaled).unwrap_or(runtime_ns)
            }
        };
        let system = system.max(system_before);
        let user = runtime_ns.saturating_sub(system);
        if user < user_before {
            return (user_before, runtime_ns.saturating_sub(user_before));
        }
        (user, system)
    }
}

/// CPU times of the children that a process has waited for, and of theirs, as getrusage(RUSAGE_CHILDREN)
/// returns them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildCpuTimes {
    /// User time, ns: what getrusage had returned for each child.
    pub user_ns: u64,
    /// System time, ns.
    pub system_ns: u64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
}

/// Times of one CPU as `/proc/stat` reports them, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuStat {
    /// The CPU's APIC id; its number in the guest where the kernel does not show that.
    pub cpu: u32,
    /// User code.
    pub user_ns: u64,
    /// User code of processes with a positive nice value.
    pub nice_ns: u64,
    /// Kernel code outside of interrupts.
    pub system_ns: u64,
    /// Soft interrupts.
    pub softirq_ns: u64,
    /// Hard interrupts.
    pub irq_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// Idle while I/O was waited for.
    pub iowait_ns: u64,
    /// Taken by the host, as far as the guest knows.
    pub steal_ns: u64,
}
