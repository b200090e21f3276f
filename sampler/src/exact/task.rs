//! Conversion of tasks as read from memory to tasks of the accounts.

use linux::{RunState, SchedState, TaskSnapshot};

use crate::task_state::{Doing, Left, TaskId, Who};
use crate::resolve::resolver::Resolver;
use profile::rows::Batch;
use profile::rows::{TaskState, WaitReason};

/// Returns the identity of the task; `None` for an idle task.
pub(super) fn who(
    task: &TaskSnapshot,
    time_ns: u64,
    resolver: &mut Resolver,
    batch: &mut Batch,
) -> Option<TaskId> {
    if task.pid == 0 {
        return None;
    }
    let instance = resolver.task(task, time_ns, batch);
    Some(TaskId { address: task.task, who: Who { instance, tid: task.tid } })
}

/// Returns the state of a task that no longer runs.
pub(super) fn left(task: &SchedState, wait_reason: WaitReason, stack: u32) -> Left {
    let state = match task.rest() {
        RunState::Gone => return Left::Gone,
        RunState::Runnable => return Left::In(Doing::plain(TaskState::Runnable)),
        RunState::Zombie => return Left::In(Doing::plain(TaskState::Zombie)),
        RunState::Interruptible => TaskState::Sleep,
        RunState::Uninterruptible => TaskState::Disk,
        RunState::Stopped => TaskState::Stopped,
    };
    Left::In(Doing { state, wait_reason, stack })
}
