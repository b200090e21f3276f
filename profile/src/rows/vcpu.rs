//! Where the time of vCPUs went: states, exits, interrupts that devices raised, KVM's counters.

use serde::{Deserialize, Serialize};

use crate::rows::Microstates;

/// A row of table `vcpu`: the whole run up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuRow {
    /// 0 and up.
    pub id: u8,
    /// Samples recorded.
    pub samples: u64,
    /// Ticks whose sample was lost because the ring was full.
    pub lost: u64,
    /// Returns of KVM_RUN.
    pub exits: u64,
    /// Where its time went.
    pub states: Microstates,
}

/// A row of table `microstate`: where a vCPU's time went in one stretch of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicrostateRow {
    /// vCPU id.
    pub vcpu: u8,
    /// End of the stretch, ns since the run's start.
    pub time_ns: u64,
    /// Its parts, which add up to its length.
    pub states: Microstates,
}

/// A row of table `rate`: another sampling rate of a vCPU than before, and than `meta.rate_hz` for the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RateRow {
    /// vCPU id.
    pub vcpu: u8,
    /// Since when, ns since the run's start.
    pub time_ns: u64,
    /// Mean ticks per second; 0 for none.
    pub rate_hz: f64,
}

// A rate is never NaN.
impl Eq for RateRow {}

/// A row of table `exit`: exits of one vCPU for one reason, up to now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRow {
    /// Row id; 1 and up. A row with a known id replaces the earlier.
    pub id: u32,
    /// vCPU id.
    pub vcpu: u8,
    /// Like `port write`.
    pub reason: String,
    /// Port, guest physical address, or the number of another reason.
    pub address: Option<u64>,
    /// The device that answers there.
    pub device: Option<String>,
    /// How many.
    pub count: u64,
    /// From the exits to the next entries, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Shortest time of a bucket in ns, and how many fell into it, in rising order.
    pub times: Vec<(u64, u64)>,
}

/// A row of table `kvm_counter`: one of KVM's own counters of a vCPU, as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmCounterRow {
    /// vCPU id.
    pub vcpu: u8,
    /// KVM's name.
    pub name: String,
    /// Value; ns where the name ends in `_ns`.
    pub value: u64,
    /// Only grows, so that differences have a meaning.
    pub grows: bool,
}

/// A row of table `injected`: interrupts that a device has raised, up to now. A batch with any has them all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectedRow {
    /// The device.
    pub device: String,
    /// The guest's interrupt vector; `None` for a line of the I/O APIC.
    pub vector: Option<u8>,
    /// How many.
    pub count: u64,
}
