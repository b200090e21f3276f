//! Scans of all tasks.

use serde::{Deserialize, Serialize};

use crate::rows::{TaskState, WaitReason};

/// A row of table `task_scan`: one pass over all tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskScanRow {
    /// 1 and up.
    pub id: u64,
    /// Since the run's start, ns.
    pub time_ns: u64,
    /// How late it came, ns.
    pub late_ns: u64,
    /// Exponent of the back-off: the mean interval before this scan was 2 to the power of this / `task_scan_hz`.
    pub backoff: u8,
}

/// A row of table `task_scan_state`: state of a task from one scan to its next row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskScanStateRow {
    /// Instance row id.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// `task_scan.id`.
    pub scan: u64,
    /// Its state; `None`: the task has exited.
    pub state: Option<TaskState>,
    /// Wait reason.
    pub wait_reason: WaitReason,
    /// Row id of the stack that it slept in; 0 for none.
    pub stack: u32,
}

impl TaskScanStateRow {
    /// The state as in the table.
    pub fn state_name(&self) -> &'static str {
        self.state.map_or("gone", TaskState::name)
    }
}
