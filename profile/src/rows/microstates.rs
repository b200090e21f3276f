//! Exact time of a vCPU by state.

use serde::{Deserialize, Serialize};

/// Nanoseconds of one vCPU by state. At any moment it is in exactly one of them, so they add up to its wall time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Microstates {
    /// Executing the guest, with KVM's handling of exits that it serves itself.
    pub guest: u64,
    /// The guest has executed HLT, or waits for its start: the thread is blocked in KVM_RUN, or polls for a wake-up.
    pub halted: u64,
    /// The thread is ready to run and has no CPU of the host.
    pub waiting: u64,
    /// In KVM_RUN, on a CPU, while the guest was halted all along: what it costs to enter and leave.
    pub kvm: u64,
    /// IrqContext an exit: devices, ports, registers.
    pub vmm: u64,
    /// Reading samples and exact events, from the exit to the next entry.
    pub sampler: u64,
    /// Held between two entries on vprof's own behalf.
    pub paused: u64,
}

impl Microstates {
    /// Names and values, in the order of the fields.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        let Self { guest, halted, waiting, kvm, vmm, sampler, paused } = *self;
        [
            ("guest", guest),
            ("halted", halted),
            ("waiting", waiting),
            ("kvm", kvm),
            ("vmm", vmm),
            ("sampler", sampler),
            ("paused", paused),
        ]
    }

    /// The vCPU's wall time.
    pub fn wall(&self) -> u64 {
        self.named().iter().fold(0, |sum, (_, ns)| sum.saturating_add(*ns))
    }

    /// Time in KVM_RUN.
    pub fn in_run(&self) -> u64 {
        [self.halted, self.waiting, self.kvm].iter().fold(self.guest, |sum, ns| sum.saturating_add(*ns))
    }

    /// Each field by `with`.
    fn zip(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            guest: with(self.guest, other.guest),
            halted: with(self.halted, other.halted),
            waiting: with(self.waiting, other.waiting),
            kvm: with(self.kvm, other.kvm),
            vmm: with(self.vmm, other.vmm),
            sampler: with(self.sampler, other.sampler),
            paused: with(self.paused, other.paused),
        }
    }

    /// Each field's.
    #[must_use]
    pub fn map(&self, with: impl Fn(u64) -> u64) -> Self {
        self.zip(self, |ns, _| with(ns))
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }
}
