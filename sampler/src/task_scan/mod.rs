//! The lists: what every task of the guest is doing at random scans, read from guest memory while the guest runs. It
//! estimates what exact mode measures, on any kernel whose tasks can be read, and costs the vCPUs nothing.
//!
//! ```text
//!  thread "lists": waits for a random scan, walks the list of tasks (crate `symbols`)
//!    └─ what has changed since the scan before, and the stacks of new sleeps ──channel──┐
//!                                                                                         ▼
//!                                              collector: TaskStateCollector, one row for each change
//! ```
//!
//! What is written grows with the changes, not with the tasks: a guest of 100,000 tasks that sleep costs 100,000 rows once.

mod collector;
mod scanner;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use linux::{StackCopy, TaskSnapshot};

use crate::record::Readers;
use profile::rows::TaskState;

pub(crate) use collector::TaskStateCollector;

/// What a lists is to be like.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Mean scans per second, a positive number.
    pub hz: f64,
    /// Seed of the scans.
    pub seed: u64,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Copiers of stacks, once they are there.
    pub readers: Arc<OnceLock<Readers>>,
    /// CLOCK_MONOTONIC ns at the start of the run.
    pub zero_ns: u64,
}

/// The most of one CPU that the lists may take, as a part: in a guest of many tasks scans become fewer.
const MOST_COST: f64 = 0.02;
/// TaskScans are at most this many doublings of the mean interval apart.
const MAX_BACKOFF: u8 = 7;

/// What the thread tells the collector.
#[derive(Debug)]
pub(crate) enum ScanEvent {
    /// The lists begins, at this scan (CLOCK_MONOTONIC ns).
    Begins(u64),
    /// One scan.
    TaskScan(TaskScan),
    /// It is not possible, or ends here: why.
    Missing(String),
}

/// What has changed between two scans.
#[derive(Debug)]
pub(crate) struct TaskScan {
    /// When, CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// How late it came.
    pub late: Duration,
    /// The mean interval before it was the plan's times 2 to the power of this.
    pub backoff: u8,
    pub changes: Vec<Change>,
    /// What the lists has cost and met since it began.
    pub bill: ScanCost,
}

/// What the lists has cost and met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ScanCost {
    /// CPU time of its thread, ns.
    pub cost_ns: u64,
    /// Tasks that were looked at.
    pub looks: u64,
    /// Tasks that were switched while they were read, again and again.
    pub torn: u64,
    /// TaskScans that do not count: the list of tasks changed under the walk, again and again.
    pub missed: u64,
    /// TaskScans at which there were more tasks, or more new ones, than are told of.
    pub full: u64,
}

/// A task that does something else than at the scan before.
#[derive(Debug)]
pub(crate) struct Change {
    pub task: TaskSnapshot,
    /// `None`: it is there no more.
    pub seen: Option<Seen>,
}

/// What a task is doing.
#[derive(Debug)]
pub(crate) struct Seen {
    pub state: TaskState,
    /// It sleeps where it did at the scan before: what for is known.
    pub same_sleep: bool,
    /// What it sleeps in, where that is new and could be copied.
    pub stack: Option<Box<StackCopy>>,
}
