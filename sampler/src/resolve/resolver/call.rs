//! Context and stack of a call of a watched function.

use guest_linux::StackCopy;

use super::{SampleResolver, StackOwner};
use crate::record::SampleRecord;
use profile::rows::{Batch, Mode};

/// Context of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallPlace {
    pub mode: Mode,
    /// Instance of the current task's process; `None` if the task could not be read.
    pub instance: Option<u32>,
    pub tid: Option<i32>,
    /// Row id of the stack.
    pub stack: Option<u32>,
}

impl SampleResolver {
    /// Returns the context of a call, at which a record was read. Adds rows to `batch` for everything that it
    /// is the first to mention. A call is not a sample: it counts for nothing else.
    pub(crate) fn call(
        &mut self,
        record: &SampleRecord,
        stack: Option<&StackCopy>,
        batch: &mut Batch,
    ) -> CallPlace {
        let mode = self.classifier.classify(record);
        let task = record.current.and_then(|current| current.task);
        let owner = task.map(|task| StackOwner { instance: self.task(&task, record.time_ns, batch), task });
        let walked = stack.and_then(|stack| self.walk(stack, owner, batch));
        let stack =
            walked.and_then(|(_, ids)| self.stacks.intern(ids.iter().rev().copied(), &mut batch.stacks));
        let (instance, tid) = (owner.map(|owner| owner.instance), task.map(|task| task.tid));
        CallPlace { mode, instance, tid, stack }
    }
}
