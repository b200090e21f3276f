//! What tasks can be in, and how they and interrupts are called.

use profile::rows::{TaskState, WaitReason};

/// A state, and in what it is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Doing {
    pub state: TaskState,
    pub wait_reason: WaitReason,
    /// Stack row id of a sleep; 0 for none.
    pub stack: u32,
}

impl Doing {
    pub(crate) fn plain(state: TaskState) -> Self {
        Self { state, ..Self::default() }
    }
}

/// A task as the sums name it: instance row id (0 for idle tasks) and thread id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Who {
    pub instance: u32,
    pub tid: i32,
}

/// A task as events name it. An address is used again once its task is gone, hence the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TaskId {
    /// Of its task_struct.
    pub address: u64,
    pub who: Who,
}

/// Who wakes somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Waker {
    /// A task, or the idle task.
    Task(Who),
    /// A hard interrupt, an NMI included.
    Hard,
    /// A soft interrupt.
    Soft,
}

/// What became of the task that was switched from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It is in this state now.
    In(Doing),
    /// It has ended, and nobody waits for it.
    Gone,
}

/// Time, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sum {
    pub ns: u64,
    pub count: u64,
}

/// From when to when a task was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub who: Who,
    pub from_ns: u64,
    pub to_ns: u64,
    pub ended: bool,
}

/// What raised a hard interrupt, as far as its handler's beginning tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) enum Source {
    /// Not known.
    #[default]
    Unknown,
    /// The vector whose entry function the handler was called from: an address in it.
    Entry(u64),
    /// A device, by this vector.
    Vector(u8),
}

/// Times of handlers of hard interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Handled {
    pub sum: Sum,
    /// The longest, ns.
    pub max_ns: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, ns: u64) {
        self.ns += ns;
        self.count += 1;
    }
}

impl Handled {
    pub(crate) fn add(&mut self, other: &Self) {
        self.sum.ns += other.sum.ns;
        self.sum.count += other.sum.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}
