//! What the guest's own books say.

use linux::{ChildCpuTimes, CpuStat};
use serde::{Deserialize, Serialize};

/// A row of table `rusage`: what the guest's kernel kept of a process when it was first or last read. A row replaces the
/// earlier one of the same instance and kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RusageRow {
    /// Instance row id.
    pub instance: u32,
    /// Of a process that was there when the guest's books were first read: what they said then.
    pub first: bool,
    /// When it was read, ns since the run's start.
    pub time_ns: u64,
    /// User time as getrusage and `/proc/PID/stat` tell it, ns.
    pub user_ns: u64,
    /// System time as they tell it, ns.
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

/// A row of table `thread_time`: what the guest's kernel kept of a thread of a process with several. First readings are of
/// all threads: a process may become one with several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTimeRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// See [`RusageRow::first`].
    pub first: bool,
    /// When it was read, ns since the run's start.
    pub time_ns: u64,
    /// `utime`, ns.
    pub tick_user_ns: u64,
    /// `stime`, ns.
    pub tick_system_ns: u64,
    /// `sum_exec_runtime`, ns.
    pub runtime_ns: u64,
}

/// A row of table `cpu_time`: what the guest's kernel kept of a CPU when it was first or last read, as in `/proc/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimeRow {
    /// See [`RusageRow::first`].
    pub first: bool,
    /// When it was read, ns since the run's start.
    pub time_ns: u64,
    /// What was kept.
    pub books: CpuStat,
}
