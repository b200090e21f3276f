//! Time of vCPUs: states, exits, interrupts that devices raised, KVM's counters.

use serde::{Deserialize, Serialize};

use crate::rows::{Microstates, Mode};

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
    /// Time in each state.
    pub states: Microstates,
}

/// A row of table `microstate`: time of a vCPU in each state, in one segment of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicrostateRow {
    /// vCPU id.
    pub vcpu: u8,
    /// End of the segment, ns since the run's start.
    pub time_ns: u64,
    /// Its parts, which add up to its length.
    pub states: Microstates,
}

/// A row of table `rate`: a change of a vCPU's sampling rate, for the first one from `meta.rate_hz`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RateRow {
    /// vCPU id.
    pub vcpu: u8,
    /// Start of this rate, ns since the run's start.
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
    /// Reason, like `port write`.
    pub reason: String,
    /// Port, guest physical address, or the number of another reason.
    pub address: Option<u64>,
    /// The device that answers there.
    pub device: Option<String>,
    /// Number of exits.
    pub count: u64,
    /// From the exits to the next entries, ns.
    pub total_ns: u64,
    /// Longest, ns.
    pub max_ns: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Shortest time of a bucket in ns and the number of exits in it, in rising order.
    pub times: Vec<(u64, u64)>,
}

/// A row of table `exit_site`: exits for one reason from one place in the guest, up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ExitSiteRow {
    /// Row id of the exits, table `exit`.
    pub exit: u32,
    /// Mode of the code.
    pub mode: Mode,
    /// Row id of the process that had the vCPU; 0 if it is not known.
    pub instance: u32,
    /// Row id of the frame; 0 for all exits that share a row.
    pub frame: u32,
    /// Number of exits that were noted.
    pub noted: u64,
    /// Number of exits that the notes are for.
    pub count: u64,
    /// Their time from the exit to the next entry, ns.
    pub total_ns: u64,
    /// Standard error of `count`; 0 if all exits were noted.
    pub count_error: f64,
    /// Standard error of `total_ns`.
    pub total_error_ns: f64,
}

// An error is never NaN.
impl Eq for ExitSiteRow {}

/// A row of table `kvm_counter`: one of KVM's own counters of a vCPU, at its latest value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmCounterRow {
    /// vCPU id.
    pub vcpu: u8,
    /// KVM's name.
    pub name: String,
    /// Value; ns where the name ends in `_ns`.
    pub value: u64,
    /// True if the counter only grows, so that differences have a meaning.
    pub grows: bool,
}

/// A row of table `host_wait`: waits of a vCPU's thread for a CPU that one process of the host had, up to
/// now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostWaitRow {
    /// vCPU id.
    pub vcpu: u8,
    /// The process; 0 for all that share one row.
    pub pid: u32,
    /// Its name; empty for all that share one row.
    pub name: String,
    /// Number of waits.
    pub count: u64,
    /// Length of the waits, ns.
    pub total_ns: u64,
}

/// A row of table `injected`: interrupts that a device has raised, up to now. A batch with any of these rows
/// has all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectedRow {
    /// The device.
    pub device: String,
    /// The guest's interrupt vector; `None` for a line of the I/O APIC.
    pub vector: Option<u8>,
    /// Number of interrupts.
    pub count: u64,
}
