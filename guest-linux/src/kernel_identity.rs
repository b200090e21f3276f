//! Location of a kernel, which a stopped vCPU's page tables are compared with.

use crate::memory::PhysicalMemory;
use crate::paging::{AddressSpace, roots};
use symbols::{PhysAddr, VirtAddr};

/// Location of a kernel's banner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelIdentity {
    at: VirtAddr,
    phys: PhysAddr,
}

impl KernelIdentity {
    pub(crate) fn new(at: VirtAddr, phys: PhysAddr) -> Self {
        Self { at, phys }
    }

    /// Returns the virtual address of the banner.
    pub(crate) fn address(&self) -> VirtAddr {
        self.at
    }

    /// Returns true if these page tables of a vCPU that is stopped in kernel code map the kernel where it was
    /// found. A guest that has started another kernel (kexec) maps that one. Call this while the vCPU is
    /// stopped: the tables of a process that has ended since may hold anything. No allocation; two walks at
    /// most.
    pub fn is_mapped(&self, memory: &impl PhysicalMemory, cr3: u64, five_level: bool) -> bool {
        // Under PTI entry code runs on the process's own tables still, which map but a part of the kernel.
        roots(cr3).any(|cr3| {
            let found = AddressSpace::new(cr3, five_level).translate(memory, self.at);
            found.is_some_and(|found| found.phys == self.phys)
        })
    }
}
