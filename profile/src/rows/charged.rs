//! Who a sample is charged to.

use super::Mode;

/// Who is charged for a sample.
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
    /// Name of what is no process; a process that is not known is `[unknown]`.
    pub fn name(self) -> &'static str {
        match self {
            Self::HardIrq => "[hard interrupts]",
            Self::SoftIrq => "[soft interrupts]",
            Self::Boot => "[early boot]",
            Self::Unknown | Self::Instance(_) => "[unknown]",
        }
    }

    /// `None` for idleness. Interrupts are not charged to the process that they hit; soft interrupts that a CPU's ksoftirqd
    /// serves are its own work, as in the kernel's books.
    pub fn of(mode: Mode, instance: Option<u32>, is_ksoftirqd: impl FnOnce(u32) -> bool) -> Option<Self> {
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

/// Whether a task is the kernel's thread that serves a CPU's soft interrupts (kernel/softirq.c, Linux 6.12): `ksoftirqd/N`.
/// A process that calls itself so is none.
pub fn is_ksoftirqd(comm: &str, kernel_thread: bool) -> bool {
    kernel_thread && comm.starts_with("ksoftirqd/")
}
