//! Stacks of vCPUs' threads in the host.

use serde::{Deserialize, Serialize};

use crate::rows::{FrameKind, VcpuState};

/// A row of table `host_frame`: an address on a stack of the host, or a reason instead of frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFrameRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// Code of the host's kernel, user code of the VMM, or a reason.
    pub kind: FrameKind,
    /// Virtual address in the host's kernel or in the VMM's process; 0 for a reason.
    pub address: u64,
    /// A return address: the call is right before it.
    pub call: bool,
    /// Symbol's name, or the reason; `None` if no symbol covers the address.
    pub symbol: Option<String>,
    /// Kernel module; file name of the VMM's code; `None` for the kernel image and for code without a file.
    pub module: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: u64,
}

/// A row of table `host_sample`: a tick that has found the thread of an attached vCPU outside of the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSampleRow {
    /// vCPU.
    pub vcpu: u8,
    /// Time since the run's start, ns: that of the row of table `sample` of the same tick, if there is one.
    pub time_ns: u64,
    /// State that the clock of the vCPU counts the time as; [`VcpuState::Guest`] is KVM's work between two
    /// stays in the guest.
    pub state: VcpuState,
    /// The thread was on a CPU.
    pub on_cpu: bool,
    /// Row id of the innermost frame of its stack, in table `host_stack`; `None` beyond the profile's limit.
    pub stack: Option<u32>,
}
