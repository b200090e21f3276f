//! Activity of a foreign vCPU, inferred from its thread and its registers.

use guest_linux::{AddressSpace, PhysicalMemory, VirtAddr};
use kvm_bindings::{kvm_regs, kvm_sregs};
use vmm::x86::{CR0_PE, CR4_LA57, EFER_LMA, OPCODE_HLT};
use vmm::{Activity, ActivitySource, TickContext, is_at_reset};

/// Returns true if the previous instruction is a HLT. Returns false outside of long mode and where memory
/// cannot be read.
pub(crate) fn is_after_halt(regs: &kvm_regs, sregs: &kvm_sregs, memory: &impl PhysicalMemory) -> bool {
    if sregs.efer & EFER_LMA == 0 {
        return false;
    }
    let space = AddressSpace::new(sregs.cr3, sregs.cr4 & CR4_LA57 != 0);
    let instruction = space.translate(memory, VirtAddr(regs.rip.wrapping_sub(1)));
    let mut code = [0];
    instruction.and_then(|found| memory.read(found.phys, &mut code)).is_some() && code == [OPCODE_HLT]
}

/// Source of the activity of a foreign vCPU whose instruction pointer is one that a halted vCPU may have.
///
/// KVM cannot be asked from outside of the VMM. But KVM blocks in KVM_RUN only while the guest is halted.
/// Before that it may poll for a while, and a thread that has just been resumed has to reach its block again.
#[derive(Debug)]
pub(crate) struct InferredActivity<'a, M> {
    /// Context of the tick.
    pub context: TickContext<'a, M>,
    /// The thread is blocked in KVM_RUN and was not stopped.
    pub blocked: bool,
    /// True if the vCPU is halted; `None` if the engine does not report that.
    pub halted: Option<bool>,
    /// The registers are those of a guest of the guest.
    pub nested: bool,
}

impl<M: PhysicalMemory + std::fmt::Debug> ActivitySource for InferredActivity<'_, M> {
    fn activity(&self) -> Option<Activity> {
        let TickContext { regs, sregs, memory, .. } = self.context;
        let is_halted = self.blocked || self.halted == Some(true);
        Some(if is_halted && sregs.cr0 & CR0_PE == 0 {
            Activity::NotStarted
        } else if is_halted {
            Activity::Halted
        } else if self.halted == Some(false) {
            Activity::Running
        } else if is_at_reset(regs, sregs) {
            Activity::NotStarted
        } else if is_after_halt(regs, sregs, memory) {
            Activity::Halted
        } else {
            // Also where memory cannot be read: the thread runs, and nothing indicates a halt.
            Activity::Running
        })
    }

    fn in_nested_guest(&self) -> bool {
        self.nested
    }
}

#[cfg(test)]
mod tests {
    use guest_linux::PhysAddr;

    use super::*;

    /// Memory with page tables that identity-map the first GiB, and a HLT at 0x5000. It can be read if the
    /// field is true.
    #[derive(Debug)]
    struct TestMemory(bool);

    impl PhysicalMemory for TestMemory {
        fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
            // Present, and in the second table a page of 1 GiB (Intel SDM vol. 3, 4.5).
            let word: u64 = match at.0 & !7 {
                0x1000 => 0x2001,
                0x2000 => 0x81,
                0x5000 => OPCODE_HLT.into(),
                _ => 0,
            };
            let from = usize::try_from(at.0 & 7).ok()?;
            into.copy_from_slice(word.to_le_bytes().get(from..from + into.len())?);
            self.0.then_some(())
        }
    }

    fn infer(
        registers: (&kvm_regs, &kvm_sregs),
        memory: &TestMemory,
        blocked: bool,
        halted: Option<bool>,
    ) -> Option<Activity> {
        let (regs, sregs) = registers;
        let context = TickContext { due_ns: 0, now_ns: 0, in_run: true, regs, sregs, memory };
        InferredActivity { context, blocked, halted, nested: false }.activity()
    }

    #[test]
    fn a_thread_that_runs_is_halted_only_after_a_halt_that_was_read() {
        let activity = |known: bool, rip: u64, blocked: bool, efer: u64| {
            let regs = kvm_regs { rip, ..Default::default() };
            let sregs = kvm_sregs { cr0: CR0_PE, cr3: 0x1000, efer, ..Default::default() };
            infer((&regs, &sregs), &TestMemory(known), blocked, None)
        };
        assert_eq!(activity(true, 0x5001, false, EFER_LMA), Some(Activity::Halted));
        assert_eq!(activity(true, 0x5002, false, EFER_LMA), Some(Activity::Running));
        assert_eq!(activity(false, 0x5001, false, EFER_LMA), Some(Activity::Running), "nothing can be read");
        assert_eq!(activity(true, 0x5001, false, 0), Some(Activity::Running), "no tables of long mode");
        assert_eq!(activity(false, 0x5002, true, EFER_LMA), Some(Activity::Halted), "KVM has blocked it");
    }

    #[test]
    fn a_vcpu_that_has_executed_nothing_is_not_started_wherever_its_thread_is() {
        let activity = |rip: u64, blocked: bool, halted: Option<bool>| {
            let regs = kvm_regs { rip, ..Default::default() };
            let mut sregs = kvm_sregs::default();
            sregs.cs.base = 0xffff_0000;
            infer((&regs, &sregs), &TestMemory(false), blocked, halted)
        };
        for blocked in [true, false] {
            assert_eq!(activity(0xfff0, blocked, None), Some(Activity::NotStarted), "{blocked}");
        }
        assert_eq!(activity(0xfff0, false, Some(false)), Some(Activity::Running), "reported by a stub");
        assert_eq!(activity(0xfff5, false, None), Some(Activity::Running), "firmware");
    }
}
