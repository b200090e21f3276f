//! Statistics of one vCPU: written by its thread, read by the collector.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use vmm::CounterSum;

use super::clock::StateClock;
use super::exits::ExitTable;
use super::foreign::TickCounts;
use crate::guest_cpu::GuestCpu;
use crate::sampling_rate::SamplingRate;
use profile::rows::{Microstates, VcpuRow};

/// Statistics that a vCPU's thread publishes for the collector. Each field has one writer and is independent,
/// so relaxed stores suffice. A separate cache line keeps the vCPUs from disturbing each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct VcpuStats {
    /// Samples recorded.
    pub samples: AtomicU64,
    /// Samples lost.
    pub lost: AtomicU64,
    /// Exits served.
    pub exit_count: AtomicU64,
    /// Time in KVM_RUN on a CPU while the guest was halted, without polling, ns.
    pub kvm_ns: AtomicU64,
    /// The guest's CPU that this vCPU is, once its thread is known.
    pub cpu: OnceLock<GuestCpu>,
    /// Sampling rate.
    pub pace: SamplingRate,
    /// Clock of the thread's states.
    pub clock: StateClock,
    /// Served exits.
    pub exits: ExitTable,
    /// Counts of ticks by their finding, if the thread is another process'.
    pub seen: TickCounts,
    /// Time for which KVM has polled for a wake-up of the halted guest, if KVM counts it.
    pub polls: OnceLock<CounterSum>,
}

impl VcpuStats {
    pub(crate) fn row(&self, id: u8, states: Microstates) -> VcpuRow {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        VcpuRow {
            id,
            samples: load(&self.samples),
            lost: load(&self.lost),
            exits: load(&self.exit_count),
            states,
        }
    }

    pub(crate) fn kvm_ns(&self) -> u64 {
        self.kvm_ns.load(Ordering::Relaxed)
    }

    /// Returns the samples recorded, and lost.
    pub(crate) fn samples(&self) -> (u64, u64) {
        (self.samples.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }

    pub(crate) fn add(counter: &AtomicU64) {
        Self::add_ns(counter, 1);
    }

    pub(crate) fn add_ns(counter: &AtomicU64, ns: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(ns), Ordering::Relaxed);
    }
}
