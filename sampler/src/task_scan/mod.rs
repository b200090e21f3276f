//! Task-state sampling: scans of all tasks of the guest at random times, read from guest memory while the
//! guest runs. It estimates what exact mode measures, on any kernel whose tasks can be read, and costs the
//! vCPUs nothing.
//!
//! ```text
//! thread "scanner": waits for a random time, walks the list of tasks (crate `guest-linux`)
//!   └─ changes since the last scan, and the stacks of new sleeps ─────────channel──────┐
//!                                                                                       ▼
//!                                            collector: TaskStateCollector, one row for each change
//! ```
//!
//! The rows grow with the changes, not with the tasks: a guest of 100,000 sleeping tasks costs 100,000 rows
//! once.

mod collector;
mod scanner;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use guest_linux::{StackCopy, TaskSnapshot};

use crate::record::GuestReaders;
use profile::rows::TaskState;

pub(crate) use collector::TaskStateCollector;

/// Configuration of the task scanner.
#[derive(Debug, Clone)]
pub(crate) struct ScanConfig {
    /// Mean scans per second, a positive number.
    pub hz: f64,
    /// Seed of the scan times.
    pub seed: u64,
    /// Copiers of stacks, once they are available.
    pub readers: Arc<OnceLock<GuestReaders>>,
    /// CLOCK_MONOTONIC ns at the start of the run.
    pub zero_ns: u64,
}

/// Part of one CPU that the scanner may use: in a guest of many tasks, scans become fewer.
const MOST_COST: f64 = 0.02;
/// Doublings of the mean interval between scans, at most.
const MAX_BACKOFF: u8 = 7;

/// Events that the scanner sends to the collector.
#[derive(Debug)]
pub(crate) enum ScanEvent {
    /// The first scan will follow this time (CLOCK_MONOTONIC ns).
    Begins(u64),
    /// One scan.
    TaskScan(TaskScan),
    /// Scans are not possible, or end here, for this reason.
    Missing(String),
}

/// Changes between two scans.
#[derive(Debug)]
pub(crate) struct TaskScan {
    /// Time of the scan, CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// Delay of the scan.
    pub late: Duration,
    /// Back-off: the mean interval before this scan was the configured one times 2 to the power of this.
    pub backoff: u8,
    pub changes: Vec<TaskChange>,
    /// Cost of all scans so far.
    pub cost: ScanCost,
}

/// Cost of the scans, and counts of what they met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ScanCost {
    /// CPU time of the scanner's thread, ns.
    pub cost_ns: u64,
    /// Tasks that were read.
    pub tasks: u64,
    /// Inconsistent reads: tasks that were switched during every attempt to read them.
    pub inconsistent: u64,
    /// Scans that do not count: the list of tasks changed during each walk.
    pub missed: u64,
    /// Scans that found more tasks, or more new ones, than are reported.
    pub truncated: u64,
}

/// A task whose state changed since the previous scan.
#[derive(Debug)]
pub(crate) struct TaskChange {
    pub task: TaskSnapshot,
    /// State of the task; `None`: the task has exited.
    pub seen: Option<TaskSighting>,
}

/// State of a task at a scan.
#[derive(Debug)]
pub(crate) struct TaskSighting {
    pub state: TaskState,
    /// True if the task is in the same sleep as at the last scan: its wait reason is known.
    pub same_sleep: bool,
    /// Stack of a new sleep, if it could be copied.
    pub stack: Option<Box<StackCopy>>,
}
