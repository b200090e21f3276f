//! Stacks of vCPUs' threads in the host.

use serde::{Deserialize, Serialize};

use crate::rows::FrameKind;

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

/// Place of a vCPU's thread at a tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThreadPlace {
    /// In the guest.
    #[default]
    Guest,
    /// In KVM, between two stays in the guest. The vCPU's clock counts this as time in the guest.
    Kvm,
    /// In the VMM, on a CPU or blocked; also in KVM_RUN while the host gets a page of the guest's memory.
    Vmm,
    /// Without a CPU of the host, which it waits for.
    Waiting,
    /// The guest is halted, or has not been started.
    Halted,
}

impl ThreadPlace {
    /// All places, in the order of reports.
    pub const ALL: [Self; 5] = [Self::Guest, Self::Kvm, Self::Vmm, Self::Waiting, Self::Halted];

    /// Returns the place of this name in column `host_sample.place`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.name() == name)
    }

    /// Returns the name in column `host_sample.place` and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Kvm => "kvm",
            Self::Vmm => "vmm",
            Self::Waiting => "waiting",
            Self::Halted => "halted",
        }
    }

    /// Returns the name of the owner of samples there, in exports.
    pub fn owner(self) -> String {
        format!("[host: {}]", self.name())
    }
}

/// A row of table `host_sample`: a tick of the thread of an attached vCPU, with its stack in the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSampleRow {
    /// vCPU.
    pub vcpu: u8,
    /// Time since the run's start, ns: that of the row of table `sample` of the same tick, if there is one.
    pub time_ns: u64,
    /// Place of the thread.
    pub place: ThreadPlace,
    /// The thread was on a CPU.
    pub on_cpu: bool,
    /// Row id of the innermost frame of its stack, in table `host_stack`; `None` beyond the profile's limit.
    pub stack: Option<u32>,
}
