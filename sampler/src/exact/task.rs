//! Conversion of tasks as read from memory to tasks of the accounts.

use guest_linux::{RunState, SchedState, TaskSnapshot};

use crate::resolve::resolver::SampleResolver;
use crate::task_state::{SwitchOutcome, TaskActivity, TaskId, TaskKey};
use profile::rows::Batch;
use profile::rows::{TaskState, WaitReason};

/// Returns the identity of the task; `None` for an idle task.
pub(super) fn task_id(
    task: &TaskSnapshot,
    time_ns: u64,
    resolver: &mut SampleResolver,
    batch: &mut Batch,
) -> Option<TaskId> {
    if task.pid == 0 {
        return None;
    }
    let instance = resolver.task(task, time_ns, batch);
    Some(TaskId { address: task.task, who: TaskKey { instance, tid: task.tid } })
}

/// Returns the state of a task that no longer runs.
pub(super) fn outcome(task: &SchedState, wait_reason: WaitReason, stack: u32) -> SwitchOutcome {
    let state = match task.run_state() {
        RunState::Gone => return SwitchOutcome::Gone,
        RunState::Runnable => return SwitchOutcome::In(TaskActivity::plain(TaskState::Runnable)),
        RunState::Zombie => return SwitchOutcome::In(TaskActivity::plain(TaskState::Zombie)),
        RunState::Interruptible => TaskState::Sleep,
        RunState::Uninterruptible => TaskState::Disk,
        RunState::Stopped => TaskState::Stopped,
    };
    SwitchOutcome::In(TaskActivity { state, wait_reason, stack })
}
