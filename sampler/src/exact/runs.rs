//! Runs of tasks on CPUs, and waits for a CPU: what the switches show besides the sums of states.
//!
//! ```text
//!   run n ends                   wake-up               switch to             switch from: run n + 1 ends
//!   ────┼──── sleep, disk, stopped ──┼──── runnable ───────┼──── running ────────┼────
//!       │          wait_ns           │      delay_ns       │ running, interrupted, sampler
//! ```
//!
//! Each run is a row; waits for a CPU are counted by their length, so that the profile has the longest ones
//! of every task however many runs it leaves out.

use std::collections::HashMap;

use profile::histogram::bucket_low_ns;
use profile::rows::TaskState;

use crate::task_state::{TaskActivity, TaskKey};

/// Times of a task since its last run, ns: those of its states add up to these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RunTimes {
    /// Asleep or stopped.
    pub wait_ns: u64,
    /// Runnable.
    pub delay_ns: u64,
    pub running_ns: u64,
    pub interrupted_ns: u64,
    pub sampler_ns: u64,
}

impl RunTimes {
    pub(super) fn add(&mut self, state: TaskState, ns: u64) {
        let time = match state {
            TaskState::Sleep | TaskState::Disk | TaskState::Stopped => &mut self.wait_ns,
            TaskState::Runnable => &mut self.delay_ns,
            TaskState::Running => &mut self.running_ns,
            TaskState::Interrupted => &mut self.interrupted_ns,
            TaskState::Sampler => &mut self.sampler_ns,
            TaskState::Zombie | TaskState::Unknown => return,
        };
        *time = time.saturating_add(ns);
    }
}

/// A run of a task on a CPU, with the waits before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskRun {
    pub who: TaskKey,
    pub cpu: usize,
    /// Time of the switch to the task.
    pub from_ns: u64,
    pub times: RunTimes,
    /// State after the run.
    pub then: TaskActivity,
}

/// Key of the waits of a task for a CPU that count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DelayKey {
    pub who: TaskKey,
    /// The wait began with a wake-up.
    pub woken: bool,
    /// Shortest wait of the bucket, ns.
    pub low_ns: u64,
}

/// Waits for a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DelaySum {
    pub count: u64,
    pub ns: u64,
    /// The longest, and its begin.
    pub max_ns: u64,
    pub max_from_ns: u64,
}

/// Waits for a CPU since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Delays(pub HashMap<DelayKey, DelaySum>);

impl Delays {
    /// Counts a wait from `from_ns` to `to_ns`.
    pub(super) fn count(&mut self, who: TaskKey, woken: bool, (from_ns, to_ns): (u64, u64)) {
        let ns = to_ns.saturating_sub(from_ns);
        let sum = self.0.entry(DelayKey { who, woken, low_ns: bucket_low_ns(ns) }).or_default();
        if sum.count == 0 || ns > sum.max_ns {
            (sum.max_ns, sum.max_from_ns) = (ns, from_ns);
        }
        sum.count += 1;
        sum.ns = sum.ns.saturating_add(ns);
    }
}
