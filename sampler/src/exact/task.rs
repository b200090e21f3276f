//! From tasks as they are read to tasks as the accounts know them.

use linux::{Rest, TaskSnapshot, TaskState};

use super::state::{Doing, Left, TaskId, Who};
use crate::collector::resolver::Resolver;
use profile::rows::Batch;
use profile::rows::{Cause, State};

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
pub(super) fn left(task: &TaskState, cause: Cause, stack: u32) -> Left {
    let state = match task.rest() {
        Rest::Gone => return Left::Gone,
        Rest::Queue => return Left::In(Doing::plain(State::Queue)),
        Rest::Zombie => return Left::In(Doing::plain(State::Zombie)),
        Rest::Interruptible => State::Sleep,
        Rest::Uninterruptible => State::Disk,
        Rest::Stopped => State::Stopped,
    };
    Left::In(Doing { state, cause, stack })
}
