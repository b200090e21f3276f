//! Exact mode: states of tasks, who woke whom, interrupts.

use serde::{Deserialize, Serialize};

use crate::rows::{TaskState, WaitReason};

/// A row of table `task_state`: time that a task has spent in a state since the row before; rows of one key
/// add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStateRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// State.
    pub state: TaskState,
    /// Wait reason.
    pub wait_reason: WaitReason,
    /// Row id of the stack that it slept in; 0 for none.
    pub stack: u32,
    /// Time, ns.
    pub ns: u64,
    /// Number of times that the state began.
    pub count: u64,
}

/// A row of table `task_run`: a run of a task on a vCPU, with its waits since the run before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRunRow {
    /// vCPU.
    pub vcpu: u8,
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// Begin of the run, ns since the run's start.
    pub from_ns: u64,
    /// Asleep or stopped before, ns.
    pub wait_ns: u64,
    /// Runnable before, ns.
    pub delay_ns: u64,
    /// On the vCPU, without the next two, ns.
    pub running_ns: u64,
    /// In handlers of hard interrupts, ns.
    pub interrupted_ns: u64,
    /// Taken by vprof, ns.
    pub sampler_ns: u64,
    /// State after the run.
    pub state: TaskState,
    /// Its wait reason.
    pub wait_reason: WaitReason,
}

/// A row of table `task_delay`: waits of a task for a CPU since the row before, of lengths in one bucket of
/// [`histogram`](crate::histogram); rows of one key add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDelayRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// True for waits that began with a wake-up or the task's start.
    pub woken: bool,
    /// Shortest wait of the bucket, ns.
    pub low_ns: u64,
    /// Number of waits.
    pub count: u64,
    /// Their time, ns.
    pub ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Its begin, ns since the run's start.
    pub max_from_ns: u64,
}

/// A row of table `task_life`: the time from start to end of following a task. Rows of one task are joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLifeRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// Start, ns since the run's start.
    pub from_ns: u64,
    /// End, ns since the run's start.
    pub to_ns: u64,
    /// True if the task has exited and is reaped.
    pub ended: bool,
}

/// A row of table `reaped`: a process has waited for a child that had ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapedRow {
    /// Instance row id of the child.
    pub child: u32,
    /// Instance row id of the process that waited.
    pub parent: u32,
    /// Since the run's start, ns.
    pub time_ns: u64,
}

/// A row of table `wakeup`: number of times one task or interrupt has woken a task since the row before; rows
/// of one key add up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeupRow {
    /// `task`, `hard` or `soft` (interrupt).
    pub by: String,
    /// Instance row id of the waker; 0 for an idle task or an interrupt.
    pub waker: u32,
    /// Its thread id.
    pub waker_tid: i32,
    /// Instance row id of the task that was woken.
    pub woken: u32,
    /// Its thread id.
    pub woken_tid: i32,
    /// Number of times.
    pub count: u64,
}

/// A row of table `interrupt_time`: time in hard interrupts since the row before; rows of one key add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptTimeRow {
    /// vCPU.
    pub vcpu: u8,
    /// Instance row id of the interrupted task; 0 for an idle task.
    pub instance: u32,
    /// Its thread id.
    pub tid: i32,
    /// Time, ns.
    pub ns: u64,
    /// Number of interrupts.
    pub count: u64,
}

/// A row of table `interrupt_source`: time in handlers of hard interrupts since the row before; rows of one
/// key add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptSourceRow {
    /// vCPU.
    pub vcpu: u8,
    /// Interrupt row id.
    pub interrupt: u32,
    /// A device's vector; 0 for an interrupt of the machine itself.
    pub vector: u8,
    /// Time, ns.
    pub ns: u64,
    /// Number of interrupts.
    pub count: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

/// A row of table `exact_vcpu`; replaces the earlier of the same vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactVcpuRow {
    /// vCPU.
    pub vcpu: u8,
    /// Exits for events.
    pub probe_exits: u64,
    /// Events that were lost because the ring was full.
    pub lost: u64,
    /// Switches among the events.
    pub switches: u64,
    /// Switches by the kernel's own count, read when the probes are removed.
    pub guest_switches: Option<u64>,
    /// Time in which the CPU had nothing to run, ns.
    pub idle_ns: u64,
    /// Sleeps whose stack was not copied: all stack buffers were in use.
    pub stacks_missed: u64,
    /// Time from the events' exits to the next entries, ns.
    pub cost_ns: u64,
}
