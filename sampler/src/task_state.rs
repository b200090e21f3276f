//! States of tasks, and keys of tasks and interrupts: plain data that exact mode and task-state sampling
//! share.

use profile::rows::{TaskState, WaitReason};

/// State of a task, with its wait reason and stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct TaskActivity {
    pub state: TaskState,
    pub wait_reason: WaitReason,
    /// Stack row id of a sleep; 0 for none.
    pub stack: u32,
}

impl TaskActivity {
    pub(crate) fn plain(state: TaskState) -> Self {
        Self { state, ..Self::default() }
    }
}

/// Key of a task in sums: instance row id (0 for idle tasks) and thread id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct TaskKey {
    pub instance: u32,
    pub tid: i32,
}

/// Identity of a task in events. An address is used again once its task is gone, hence the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TaskId {
    /// Address of the task_struct.
    pub address: u64,
    pub who: TaskKey,
}

/// Source of a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WakeSource {
    /// A task, or the idle task.
    Task(TaskKey),
    /// A hard interrupt, or an NMI.
    Hard,
    /// A soft interrupt.
    Soft,
}

/// State of a task after a switch from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SwitchOutcome {
    /// The task is in this state now.
    In(TaskActivity),
    /// The task has ended, and no process waits for it.
    Gone,
}

/// Sum of times, and their count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TimeSum {
    pub ns: u64,
    pub count: u64,
}

/// Period in which a task was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskLife {
    pub who: TaskKey,
    pub from_ns: u64,
    pub to_ns: u64,
    pub ended: bool,
}

/// Source of a hard interrupt, as far as its handler's start shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) enum InterruptSource {
    /// The handler's start was not seen.
    #[default]
    Unknown,
    /// The vector whose entry function the handler was called from: an address in it.
    Entry(u64),
    /// A device, by this vector.
    Vector(u8),
}

/// Times of handlers of hard interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HandlerTimes {
    pub sum: TimeSum,
    /// The longest, ns.
    pub max_ns: u64,
}

impl TimeSum {
    pub(crate) fn add(&mut self, ns: u64) {
        self.ns += ns;
        self.count += 1;
    }
}

impl HandlerTimes {
    pub(crate) fn add(&mut self, other: &Self) {
        self.sum.ns += other.sum.ns;
        self.sum.count += other.sum.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}
