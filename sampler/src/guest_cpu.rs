//! Which of the guest kernel's CPUs a vCPU is.

/// CPU of the guest's kernel, which knows its CPUs by their APIC ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuestCpu {
    /// The one with this APIC id.
    ApicId(usize),
    /// The one with the nth lowest APIC id, from 0: a GDB stub does not show the ids. QEMU numbers its vCPUs in
    /// the order of their APIC ids (`possible_cpus`, hw/i386/x86-common.c, 9.2).
    Nth(usize),
}

impl GuestCpu {
    /// Returns its APIC id; `ids` are those of the kernel's CPUs, ascending.
    #[inline]
    pub(crate) fn apic_id(self, mut ids: impl Iterator<Item = usize>) -> Option<usize> {
        match self {
            Self::ApicId(id) => Some(id),
            Self::Nth(n) => ids.nth(n),
        }
    }
}
