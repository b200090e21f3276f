//! Samples.

use serde::{Deserialize, Serialize};

use crate::rows::PageFaultKind;

/// Lateness above which samples are counted as late, 1 ms in ns: a busy host, or an emulated one.
pub const LATE_NS: u64 = 1_000_000;

/// Kind of code that a sample found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// CPL 3.
    User,
    /// Kernel code on behalf of a task.
    Kernel,
    /// Hard interrupt: its entry, handler and exit.
    HardIrq,
    /// Soft interrupt handler.
    SoftIrq,
    /// Non-maskable interrupt handler.
    Nmi,
    /// Halted, or in the idle task outside of interrupts, or not yet started.
    Idle,
    /// Before the kernel has set up its tasks (decompressor, early boot).
    Boot,
    /// In the kernel's address range, but neither task nor interrupt depth could be read.
    #[default]
    Unknown,
}

impl Mode {
    /// All modes, in the order of their ids in table `mode`.
    pub const ALL: [Self; 8] = [
        Self::User,
        Self::Kernel,
        Self::HardIrq,
        Self::SoftIrq,
        Self::Nmi,
        Self::Idle,
        Self::Boot,
        Self::Unknown,
    ];

    /// Returns the id in table `mode`, which is the position in [`Self::ALL`].
    pub(crate) fn id(self) -> u8 {
        self as u8
    }

    /// Returns the mode with this id, [`Mode::Unknown`] for an id that table `mode` does not have.
    pub(crate) fn from_id(id: u8) -> Self {
        Self::ALL.get(usize::from(id)).copied().unwrap_or_default()
    }

    /// Returns the name in table `mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
            Self::HardIrq => "hardirq",
            Self::SoftIrq => "softirq",
            Self::Nmi => "nmi",
            Self::Idle => "idle",
            Self::Boot => "boot",
            Self::Unknown => "unknown",
        }
    }
}

/// Key in table `meta` of the bits that count hard interrupts in a preempt count. A sample in mode `hardirq`
/// without any of them is in the interrupt's entry or exit.
pub const HARDIRQ_BITS: &str = "hardirq_bits";

/// A row of table `interrupt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptRow {
    /// Row id; 1 and up.
    pub id: u32,
    /// `hard`, `soft` or `nmi`.
    pub kind: String,
    /// Name, like `virtio0-req.0`, `sysvec_apic_timer_interrupt` or `NET_RX`.
    pub name: String,
}

/// A row of table `sample`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleRow {
    /// vCPU.
    pub vcpu: u8,
    /// Time since the run's start, ns, when the tick was served.
    pub time_ns: u64,
    /// Lateness of the tick, ns.
    pub late_ns: u64,
    /// Kind of code that it found.
    pub mode: Mode,
    /// HLT (or not started) as KVM's run state says.
    pub halted: bool,
    /// State of the vCPU when the tick was due.
    pub vcpu_state: VcpuState,
    /// Frame row id.
    pub frame: u32,
    /// Stack pointer; 0 if it is not known.
    pub rsp: u64,
    /// CPL 0 to 3.
    pub cpl: u8,
    /// CR3.
    pub cr3: u64,
    /// RFLAGS.IF; `None` if it is not known.
    pub interrupts_on: Option<bool>,
    /// Raw preempt count; `None` when it could not be read.
    pub preempt_count: Option<u32>,
    /// Instance row id.
    pub instance: Option<u32>,
    /// Thread id, when the task could be read.
    pub tid: Option<i32>,
    /// Stack row id of the innermost frame; `None` when no stack was taken.
    pub stack: Option<u32>,
    /// Number of the system call that the task was in.
    pub syscall: Option<u32>,
    /// Interrupt row id of the interrupt that was served.
    pub interrupt: Option<u32>,
    /// Kind of the page fault that was served, if it is known.
    pub fault: Option<PageFaultKind>,
}

/// State of a vCPU when a tick was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum VcpuState {
    /// Executing the guest: only these samples show how the guest's time divides.
    #[default]
    Guest,
    /// Halted, or not yet started.
    Halted,
    /// Out of KVM_RUN.
    Vmm,
    /// Without a CPU of the host, or stopped with its whole process, when the tick was due.
    Waiting,
}

impl VcpuState {
    /// Returns the state of this name in column `sample.vcpu_state`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Guest, Self::Halted, Self::Vmm, Self::Waiting]
            .into_iter()
            .find(|vcpu_state| vcpu_state.name() == name)
    }

    /// Returns the name in column `sample.vcpu_state`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Halted => "halted",
            Self::Vmm => "vmm",
            Self::Waiting => "waiting",
        }
    }
}
