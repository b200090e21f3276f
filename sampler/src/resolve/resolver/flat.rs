//! Samples that have only some registers, and so no stack.

use vmm::KnownRegisters;

use super::{ResolvedStack, SampleResolver, StackOwner, StackStep};
use crate::record::SampleRecord;
use crate::resolve::mode::refined;
use crate::resolve::walker::ReasonSubject;
use profile::rows::{Batch, Mode};

/// Reason of a stack with one frame.
const NO_STACK: &str = "no stack was taken";

/// Returns true if no stack was taken of a sample because of how it was taken.
pub(super) fn is_flat(record: &SampleRecord) -> bool {
    record.registers != KnownRegisters::All && !record.halted && !record.nested
}

impl SampleResolver {
    /// Returns the mode of a sample by the guest's counts and its privilege level.
    pub(super) fn mode(&mut self, record: &SampleRecord) -> Mode {
        match self.classifier.classify(record) {
            // It may be user code as well.
            Mode::Kernel if record.registers == KnownRegisters::Task => Mode::Unknown,
            mode => mode,
        }
    }

    /// Stores the only frame of a flat sample, `leaf` in the kernel.
    pub(super) fn place_flat(
        &mut self,
        leaf: Option<u32>,
        owner: Option<StackOwner>,
        mode: Mode,
        record: &SampleRecord,
        batch: &mut Batch,
    ) -> ResolvedStack {
        let frame = match leaf {
            Some(leaf) => {
                if record.registers == KnownRegisters::Code {
                    self.hot.kernel(record.rip);
                }
                leaf
            }
            None => self.user_frame(record, owner, batch),
        };
        if let (None, Some(StackStep::File { at, file })) = (leaf, self.steps.first()) {
            self.hot.file(file, at.address);
        }
        let reason = self.frames.reason(ReasonSubject::Flat, NO_STACK, &mut batch.frames);
        ResolvedStack {
            mode: refined(mode, record, std::iter::once(self.frames.part(frame)), || None),
            frame: Some(frame),
            stack: self.stacks.intern([reason, frame].into_iter(), &mut batch.stacks),
            ..ResolvedStack::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use guest_linux::{CurrentContext, IrqContext, TaskSnapshot, VirtAddr};
    use profile::rows::FLAT;

    use super::*;

    /// Returns the row of a record, with the symbol and the module of its frame and of the caller.
    fn resolved(record: SampleRecord) -> (profile::rows::SampleRow, [Option<String>; 2], Option<String>) {
        let (mut resolver, mut batch) = (SampleResolver::new(0), Batch::default());
        resolver.sample(0, &record, None, &mut batch);
        let row = batch.samples.remove(0);
        let frame = |id: u32| batch.frames.iter().find(|frame| frame.id == id).unwrap().clone();
        let stack = |id: u32| *batch.stacks.iter().find(|stack| stack.id == id).unwrap();
        let own = frame(row.frame);
        let below = row.stack.map(|id| {
            assert_eq!(stack(id).frame, row.frame);
            frame(stack(stack(id).parent.unwrap()).frame).module.unwrap()
        });
        (row, [own.symbol, own.module], below)
    }

    fn record(registers: KnownRegisters, cpl: u8, serving: IrqContext) -> SampleRecord {
        let task = Some(TaskSnapshot { pid: 7, tid: 8, ..TaskSnapshot::default() });
        let current = Some(CurrentContext { serving, task, ..CurrentContext::default() });
        let rip = if registers == KnownRegisters::Task { 0 } else { 0xffff_ffff_8100_0000 };
        SampleRecord {
            registers,
            cpl,
            current,
            rip: VirtAddr(rip),
            long_mode: true,
            ..SampleRecord::default()
        }
    }

    #[test]
    fn a_flat_sample_has_its_own_frame_and_no_callers() {
        let (row, _, below) = resolved(record(KnownRegisters::Code, 0, IrqContext::Task));
        assert_eq!((row.mode, row.interrupts_on, row.tid), (Mode::Kernel, None, Some(8)));
        assert_eq!((below.as_deref(), row.syscall), (Some(FLAT), None));
        let user =
            SampleRecord { rip: VirtAddr(0x40_1000), ..record(KnownRegisters::Code, 3, IrqContext::Task) };
        let (row, _, below) = resolved(user);
        assert_eq!((row.mode, below.as_deref()), (Mode::User, Some(FLAT)));
        let whole = record(KnownRegisters::All, 0, IrqContext::Task);
        let (row, _, below) = resolved(whole);
        assert_eq!((row.interrupts_on, below), (Some(false), None));
        let halted = SampleRecord { halted: true, ..record(KnownRegisters::Code, 0, IrqContext::Task) };
        assert_eq!(resolved(halted).2, None, "not of the guest's time");
    }

    #[test]
    fn a_sample_without_an_address_counts_for_no_code() {
        let (row, [symbol, module], below) = resolved(record(KnownRegisters::Task, 0, IrqContext::Task));
        assert_eq!((row.mode, row.tid, below.as_deref()), (Mode::Unknown, Some(8), Some(FLAT)));
        assert_eq!((symbol.as_deref(), module), (Some("[code without an address]"), None));
        let (row, ..) = resolved(record(KnownRegisters::Task, 0, IrqContext::HardIrq));
        assert_eq!(row.mode, Mode::HardIrq, "by the guest's count");
    }
}
