//! Owner of a sample's time.

use super::Mode;

/// Owner that a sample is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Charged {
    /// A process: its row id of table `instance`.
    Instance(u32),
    /// Hard interrupts and NMIs.
    HardIrq,
    /// Soft interrupts outside of ksoftirqd.
    SoftIrq,
    /// The kernel before its first task.
    Boot,
    /// A task that could not be read.
    Unknown,
}

impl Charged {
    /// Returns the name of an owner that is not a process; `[unknown]` for a process without a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::HardIrq => "[hard interrupts]",
            Self::SoftIrq => "[soft interrupts]",
            Self::Boot => "[early boot]",
            Self::Unknown | Self::Instance(_) => "[unknown]",
        }
    }

    /// Returns the owner; `None` for idle time. Interrupts are not charged to the process that they hit. Soft
    /// interrupts that a CPU's ksoftirqd serves are its own work, as in the kernel's accounting.
    pub fn from_mode(
        mode: Mode,
        instance: Option<u32>,
        is_ksoftirqd: impl FnOnce(u32) -> bool,
    ) -> Option<Self> {
        match (mode, instance) {
            (Mode::Idle, _) => None,
            (Mode::SoftIrq, Some(instance)) if is_ksoftirqd(instance) => Some(Self::Instance(instance)),
            (Mode::HardIrq | Mode::Nmi, _) => Some(Self::HardIrq),
            (Mode::SoftIrq, _) => Some(Self::SoftIrq),
            (Mode::Boot, _) => Some(Self::Boot),
            (Mode::User | Mode::Kernel, Some(instance)) => Some(Self::Instance(instance)),
            (Mode::User | Mode::Kernel | Mode::Unknown, _) => Some(Self::Unknown),
        }
    }
}

/// True for the kernel's thread that serves a CPU's soft interrupts (kernel/softirq.c, Linux 6.12):
/// `ksoftirqd/N`. A process of that name does not count.
pub fn is_ksoftirqd(comm: &str, kernel_thread: bool) -> bool {
    kernel_thread && comm.starts_with("ksoftirqd/")
}
