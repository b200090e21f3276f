//! CPU accounting of the guest's own kernel.

use serde::{Deserialize, Serialize};
use statistics::cpu_accounting::{ChildCpuTimes, CpuStat};

/// A row of table `rusage`: CPU time and counts that the guest's kernel kept of a process, at the first or
/// the last reading. A row replaces the earlier one of the same instance and kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RusageRow {
    /// Instance row id.
    pub instance: u32,
    /// True for the first reading, of a process that existed then.
    pub first: bool,
    /// Time of the reading, ns since the run's start.
    pub time_ns: u64,
    /// User time that getrusage and `/proc/PID/stat` report, ns.
    pub user_ns: u64,
    /// System time that they report, ns.
    pub system_ns: u64,
    /// `utime` of all threads, before the kernel scales it.
    pub tick_user_ns: u64,
    /// `stime` of all threads.
    pub tick_system_ns: u64,
    /// `sum_exec_runtime` of all threads.
    pub runtime_ns: u64,
    /// Time of the living threads on the guest's run queues.
    pub run_delay_ns: u64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
    /// Children that it has waited for.
    pub children: ChildCpuTimes,
}

/// A row of table `thread_time`: CPU time that the guest's kernel kept of a thread of a process with several.
/// First readings cover all threads: a process may become one with several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTimeRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// See [`RusageRow::first`].
    pub first: bool,
    /// Time of the reading, ns since the run's start.
    pub time_ns: u64,
    /// `utime`, ns.
    pub tick_user_ns: u64,
    /// `stime`, ns.
    pub tick_system_ns: u64,
    /// `sum_exec_runtime`, ns.
    pub runtime_ns: u64,
}

/// A row of table `cpu_time`: times that the guest's kernel kept of a CPU, at the first or the last reading,
/// as in `/proc/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimeRow {
    /// See [`RusageRow::first`].
    pub first: bool,
    /// Time of the reading, ns since the run's start.
    pub time_ns: u64,
    /// The times; its `cpu` is the number of the vCPU.
    pub stat: CpuStat,
}
