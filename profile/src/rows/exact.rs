//! Exact mode: states of tasks, who woke whom, interrupts.

use serde::{Deserialize, Serialize};

use crate::rows::{TaskState, WaitReason};

/// A row of table `task_state`: time that a task has spent in a state since the row before; rows of one key add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStateRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// What it did.
    pub state: TaskState,
    /// What it slept for.
    pub wait_reason: WaitReason,
    /// Stack row id of what it slept in; 0 for none.
    pub stack: u32,
    /// Time, ns.
    pub ns: u64,
    /// How often the state began.
    pub count: u64,
}

/// A row of table `task_life`: from when to when a task was followed. Rows of one task are joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLifeRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// Since the run's start, ns.
    pub from_ns: u64,
    /// Since the run's start, ns.
    pub to_ns: u64,
    /// Nothing is left of it.
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

/// A row of table `wakeup`: how often somebody has woken somebody since the row before; rows of one key add up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeupRow {
    /// `task`, `hard` or `soft` (interrupt).
    pub by: String,
    /// Instance row id of the waker; 0 for an idle task or an interrupt.
    pub waker: u32,
    /// Its thread id.
    pub waker_tid: i32,
    /// Instance row id of the woken.
    pub woken: u32,
    /// Its thread id.
    pub woken_tid: i32,
    /// How often.
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
    /// How many interrupts.
    pub count: u64,
}

/// A row of table `interrupt_source`: time in handlers of hard interrupts since the row before; rows of one key add up.
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
    /// How many interrupts.
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
    /// Switches by the kernel's own count, once the tripwires were taken away.
    pub guest_switches: Option<u64>,
    /// Time in which the CPU had nothing to run, ns.
    pub idle_ns: u64,
    /// Sleeps whose stack was not copied: all boxes were under way.
    pub stacks_missed: u64,
    /// Time from the events' exits to the next entries, ns.
    pub cost_ns: u64,
}
