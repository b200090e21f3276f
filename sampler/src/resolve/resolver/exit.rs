//! Code and owner of the guest's code that an exit has interrupted.

use guest_linux::{CodeAddr, StackCopy};
use symbols::Registers;

use super::{SampleResolver, StackOwner};
use crate::record::SampleRecord;
use crate::resolve::mode::refined;
use profile::rows::{Batch, Mode};

/// Code and owner of an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ExitPlace {
    pub mode: Mode,
    /// Instance of the current task's process; `None` if the task could not be read.
    pub instance: Option<u32>,
    /// Row id of the frame.
    pub frame: u32,
}

impl SampleResolver {
    /// Returns the place of an exit, at which a record was read. Adds rows to `batch` for everything that it
    /// is the first to mention.
    pub(crate) fn exit_place(&mut self, record: &SampleRecord, batch: &mut Batch) -> ExitPlace {
        let mode = match self.classifier.classify(record) {
            // Before the kernel is found, nothing shows that it boots.
            Mode::Boot if record.current.is_none() => Mode::Unknown,
            mode => mode,
        };
        let task = record.current.and_then(|current| current.task);
        let owner = task.map(|task| StackOwner { instance: self.task(&task, record.time_ns, batch), task });
        let instance = owner.map(|owner| owner.instance);
        if mode == Mode::User {
            let frame = self.user_frame(record, owner, batch);
            return ExitPlace { mode, instance, frame };
        }
        let frame = self.kernel_frame(record, batch);
        let part = self.frames.part(frame);
        let mode = refined(mode, record, std::iter::once(part), || None);
        ExitPlace { mode, instance, frame }
    }

    /// Returns the frame of user code of a record without a stack.
    pub(super) fn user_frame(
        &mut self,
        record: &SampleRecord,
        owner: Option<StackOwner>,
        batch: &mut Batch,
    ) -> u32 {
        self.steps.clear();
        let frame = owner.and_then(|owner| self.user_leaf(record, owner, batch));
        frame.unwrap_or_else(|| {
            let instance = owner.map(|owner| owner.instance);
            self.frames.user(CodeAddr::exact(record.rip), instance, false, &mut batch.frames)
        })
    }

    /// Returns the frame of user code, if stacks are walked.
    fn user_leaf(&mut self, record: &SampleRecord, owner: StackOwner, batch: &mut Batch) -> Option<u32> {
        let walker = self.walker.as_mut()?;
        let copy = self.exit_copy.get_or_insert_with(|| Box::new(StackCopy::with_room(0)));
        copy.set_user(Registers { rip: record.rip.0, ..Registers::default() }, record.cr3);
        let mut steps = std::mem::take(&mut self.steps);
        steps.clear();
        walker.walk(copy, Some(owner), &mut steps, batch);
        let frame = steps.first().map(|step| self.step(step, Some(owner), batch));
        self.steps = steps;
        frame
    }
}
