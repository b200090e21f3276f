//! The census: what every task of the guest is doing at random moments, read from guest memory while the guest runs. It
//! estimates what exact mode measures, on any kernel whose tasks can be read, and costs the vCPUs nothing.
//!
//! ```text
//!  thread "census": waits for a random moment, walks the list of tasks (crate `symbols`)
//!    └─ what has changed since the moment before, and the stacks of new sleeps ──channel──┐
//!                                                                                         ▼
//!                                              collector: Notes, one row for each change
//! ```
//!
//! What is written grows with the changes, not with the tasks: a guest of 100,000 tasks that sleep costs 100,000 rows once.

mod notes;
mod taker;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use linux::{StackCopy, TaskSnapshot};

use crate::record::Readers;
use profile::rows::State;

pub(crate) use notes::Notes;

/// What a census is to be like.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Mean moments per second, a positive number.
    pub hz: f64,
    /// Seed of the moments.
    pub seed: u64,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Copiers of stacks, once they are there.
    pub readers: Arc<OnceLock<Readers>>,
    /// CLOCK_MONOTONIC ns at the start of the run.
    pub zero_ns: u64,
}

/// The most of one CPU that the census may take, as a part: in a guest of many tasks moments become fewer.
const MOST_COST: f64 = 0.02;
/// Moments are at most this many doublings of the mean interval apart.
const MOST_STRETCH: u8 = 7;

/// What the thread tells the collector.
#[derive(Debug)]
pub(crate) enum Told {
    /// The census begins, at this moment (CLOCK_MONOTONIC ns).
    Begins(u64),
    /// One moment.
    Moment(Moment),
    /// It is not possible, or ends here: why.
    Missing(String),
}

/// What has changed between two moments.
#[derive(Debug)]
pub(crate) struct Moment {
    /// When, CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// How late it came.
    pub late: Duration,
    /// The mean interval before it was the plan's times 2 to the power of this.
    pub stretch: u8,
    pub changes: Vec<Change>,
    /// What the census has cost and met since it began.
    pub bill: Bill,
}

/// What the census has cost and met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bill {
    /// CPU time of its thread, ns.
    pub cost_ns: u64,
    /// Tasks that were looked at.
    pub looks: u64,
    /// Tasks that were switched while they were read, again and again.
    pub torn: u64,
    /// Moments that do not count: the list of tasks changed under the walk, again and again.
    pub missed: u64,
    /// Moments at which there were more tasks, or more new ones, than are told of.
    pub full: u64,
}

/// A task that does something else than at the moment before.
#[derive(Debug)]
pub(crate) struct Change {
    pub task: TaskSnapshot,
    /// `None`: it is there no more.
    pub seen: Option<Seen>,
}

/// What a task is doing.
#[derive(Debug)]
pub(crate) struct Seen {
    pub state: State,
    /// It sleeps where it did at the moment before: what for is known.
    pub same_sleep: bool,
    /// What it sleeps in, where that is new and could be copied.
    pub stack: Option<Box<StackCopy>>,
}
