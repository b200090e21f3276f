//! What a profiler sees of an attached vCPU. The counterpart of [`vmm::Observer`] for a machine that is another's.

use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};
use linux::{AddressSpace, PhysicalMemory, VirtAddr};
use vmm::{Activity, stands_at_reset};

use crate::memory::CR4_LA57;
use crate::thread::ThreadId;

/// CR0.PE, protected mode (Intel SDM vol. 3, 2.5).
pub(crate) const CR0_PE: u64 = 1;
/// EFER.LMA, long mode active (Intel SDM vol. 3, 2.2.1).
pub(crate) const EFER_LMA: u64 = 1 << 10;
/// Opcode of HLT (Intel SDM vol. 2).
const OPCODE_HLT: u8 = 0xf4;

/// Whether the instruction before the next one is a HLT, as far as the tables of long mode and memory can be read.
pub(crate) fn behind_halt(regs: &kvm_regs, sregs: &kvm_sregs, memory: &impl PhysicalMemory) -> bool {
    if sregs.efer & EFER_LMA == 0 {
        return false;
    }
    let space = AddressSpace::new(sregs.cr3, sregs.cr4 & CR4_LA57 != 0);
    let at = space.translate(memory, VirtAddr(regs.rip.wrapping_sub(1)));
    let mut code = [0];
    at.and_then(|at| memory.read(at.phys, &mut code)).is_some() && code == [OPCODE_HLT]
}

/// A tick at which the guest's registers are known: its vCPU was in the guest, or halted.
#[derive(Debug)]
pub struct Tick<'a, M> {
    /// When it was due, CLOCK_MONOTONIC ns.
    pub due_ns: u64,
    /// When the vCPU stood still, CLOCK_MONOTONIC ns.
    pub now_ns: u64,
    /// General registers; those of an earlier look at the same idle loop where the vCPU was found blocked.
    pub regs: &'a kvm_regs,
    /// Segment and control registers, likewise.
    pub sregs: &'a kvm_sregs,
    /// The guest's physical memory.
    pub memory: &'a M,
    /// The thread is blocked in KVM_RUN and was not stopped.
    pub blocked: bool,
    /// Whether the vCPU is halted, where whoever stopped it knows.
    pub halted: Option<bool>,
}

impl<M: PhysicalMemory> Tick<'_, M> {
    /// What the vCPU is doing, where its instruction pointer is one that a halted vCPU may have. KVM cannot be asked from
    /// outside of the VMM, so it is told by where the thread stands: KVM blocks in KVM_RUN only while the guest is halted,
    /// before it does it may poll for a while, and a thread that was just let go has to come to its block again.
    pub fn activity(&self) -> Option<Activity> {
        match () {
            () if self.sregs.cr0 & CR0_PE == 0 && (self.blocked || self.halted == Some(true)) => {
                Some(Activity::NotStarted)
            }
            () if self.blocked || self.halted == Some(true) => Some(Activity::Halted),
            () if self.halted == Some(false) => Some(Activity::Running),
            () if stands_at_reset(self.regs, self.sregs) => Some(Activity::NotStarted),
            // Memory that is not known to lie anywhere says nothing of a halt: the thread runs.
            () if behind_halt(self.regs, self.sregs, self.memory) => Some(Activity::Halted),
            () => Some(Activity::Running),
        }
    }
}

/// Why a tick has no registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// The thread ran, or wanted to run, in the VMM.
    InVmm,
    /// The thread was blocked in the VMM: it serves an exit.
    BlockedInVmm,
    /// The machine stands still: its VMM has paused it, or a signal has stopped that.
    Paused,
    /// The thread has not run since the tick before: the sample would be the same again.
    NotRun,
    /// Another tracer has the thread.
    Traced,
}

/// Watches one attached vCPU. Every method is called on a thread of its own, which belongs to this vCPU.
pub trait Observer: Send + 'static {
    /// Called once, with the vCPU's thread where that is known. Returns the time to the first tick, `None` for no ticks.
    fn started(&mut self, thread: Option<ThreadId>) -> Option<Duration>;

    /// A tick is due. Returns the time to the next where this one is not wanted.
    fn pass(&mut self, now_ns: u64) -> Option<Duration> {
        let _ = now_ns;
        None
    }

    /// The vCPU stands still, or is halted. Returns the time to the next tick, counted from [`Tick::now_ns`] without the time
    /// for which the vCPU is kept standing; `None` to stop ticking.
    fn ticked<M: PhysicalMemory>(&mut self, tick: &Tick<'_, M>) -> Option<Duration>;

    /// The tick that was due then has no registers. Returns the time to the next tick, counted likewise from `now_ns`; `None` to
    /// stop ticking.
    fn missed(&mut self, why: Missed, due_ns: u64, now_ns: u64) -> Option<Duration>;

    /// The vCPU's thread was kept from running between these times, CLOCK_MONOTONIC ns.
    fn held(&mut self, from_ns: u64, to_ns: u64) {
        let _ = (from_ns, to_ns);
    }

    /// Called once at the end.
    fn stopped(&mut self) {}
}

#[cfg(test)]
mod tests {
    use linux::PhysAddr;

    use super::*;

    /// One page each of tables, which map the first GiB as it is, and a HLT at 0x5000.
    struct Memory(bool);

    impl PhysicalMemory for Memory {
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

    #[test]
    fn a_thread_that_runs_is_halted_only_behind_a_halt_that_was_read() {
        let activity = |known: bool, rip: u64, blocked: bool, efer: u64| {
            let regs = kvm_regs { rip, ..Default::default() };
            let sregs = kvm_sregs { cr0: CR0_PE, cr3: 0x1000, efer, ..Default::default() };
            let memory = &Memory(known);
            let (regs, sregs) = (&regs, &sregs);
            Tick { due_ns: 0, now_ns: 0, regs, sregs, memory, blocked, halted: None }.activity()
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
            let (regs, sregs, memory) = (&regs, &sregs, &Memory(false));
            Tick { due_ns: 0, now_ns: 0, regs, sregs, memory, blocked, halted }.activity()
        };
        for blocked in [true, false] {
            assert_eq!(activity(0xfff0, blocked, None), Some(Activity::NotStarted), "{blocked}");
        }
        assert_eq!(activity(0xfff0, false, Some(false)), Some(Activity::Running), "a stub knows");
        assert_eq!(activity(0xfff5, false, None), Some(Activity::Running), "firmware");
    }
}
