//! What a profiler sees of an attached vCPU. The counterpart of [`vmm::Observer`] for a machine that is another's.

use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};
use symbols::PhysicalMemory;
use vmm::Activity;

use crate::thread::ThreadId;

/// CR0.PE, protected mode (Intel SDM vol. 3, 2.5).
pub(crate) const CR0_PE: u64 = 1;
/// EFER.LMA, long mode active (Intel SDM vol. 3, 2.2.1).
pub(crate) const EFER_LMA: u64 = 1 << 10;

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

impl<M> Tick<'_, M> {
    /// What the vCPU is doing, where its instruction pointer is one that a halted vCPU may have. KVM cannot be asked from
    /// outside of the VMM, so it is told by where the thread stands: KVM blocks in KVM_RUN only while the guest is halted,
    /// and before it does it may poll for a while.
    pub fn activity(&self) -> Option<Activity> {
        match () {
            () if self.sregs.cr0 & CR0_PE == 0 && (self.blocked || self.halted == Some(true)) => {
                Some(Activity::NotStarted)
            }
            () if self.blocked || self.halted == Some(true) => Some(Activity::Halted),
            () if self.halted == Some(false) => Some(Activity::Running),
            // Behind a HLT, as far as its code can be read: only tables of long mode are walked.
            () if self.sregs.efer & EFER_LMA != 0 => Some(Activity::Halted),
            () => Some(Activity::Running),
        }
    }
}

/// Why a tick has no registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// The thread ran, or wanted to run, in the VMM.
    InVmm,
    /// The thread was blocked in the VMM: it serves an exit, or the machine is paused.
    BlockedInVmm,
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

    /// The vCPU stands still, or is halted. Returns the time from [`Tick::now_ns`] to the next tick, `None` to stop ticking.
    fn ticked<M: PhysicalMemory>(&mut self, tick: &Tick<'_, M>) -> Option<Duration>;

    /// The tick that was due then has no registers. Returns the time from `now_ns` to the next tick, `None` to stop ticking.
    fn missed(&mut self, why: Missed, due_ns: u64, now_ns: u64) -> Option<Duration>;

    /// The vCPU's thread was kept from running between these times, CLOCK_MONOTONIC ns.
    fn held(&mut self, from_ns: u64, to_ns: u64) {
        let _ = (from_ns, to_ns);
    }

    /// Called once at the end.
    fn stopped(&mut self) {}
}
