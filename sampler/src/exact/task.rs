//! From tasks as they are read to tasks as the accounts know them.

use linux::{RunState, SchedState, TaskSnapshot};

use super::state::{Doing, Left, TaskId, Who};
use crate::collector::resolver::Resolver;
use profile::rows::Batch;
use profile::rows::{TaskState, WaitReason};

/// The task as the accounts name it; `None` for an idle task.
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

/// What became of a task that does not run any more.
pub(super) fn left(task: &SchedState, wait_reason: WaitReason, stack: u32) -> Left {
    let state = match task.run_state() {
        RunState::Gone => return Left::Gone,
        RunState::Runnable => return Left::In(Doing::plain(TaskState::Runnable)),
        RunState::Zombie => return Left::In(Doing::plain(TaskState::Zombie)),
        RunState::Interruptible => TaskState::Sleep,
        RunState::Uninterruptible => TaskState::Disk,
        RunState::Stopped => TaskState::Stopped,
    };
    Left::In(Doing { state, wait_reason, stack })
}
