//! The physical memory that the kernel itself believes to have: the top level of `/proc/iomem`.

use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use symbols::PhysAddr;

/// Entries of the list that are read, at most; a machine has some dozens.
const MOST: usize = 4_096;
/// Name of RAM (arch/x86/kernel/e820.c, `e820_type_to_string`, Linux 6.12).
const RAM: &str = "System RAM";
/// Longer than that name.
const NAME: usize = 16;

impl Kernel {
    /// Returns the first and last physical address of each range of RAM, in the kernel's order, read now; at
    /// most 4,096.
    ///
    /// # Errors
    /// The reason why they cannot be found; also where the list cannot be read to its end, since its rest
    /// counts.
    pub fn system_ram(&self, memory: &impl PhysicalMemory) -> Result<Vec<(PhysAddr, PhysAddr)>, Missing> {
        let layout = self.layouts.as_ref().map_err(Clone::clone)?.resource.clone()?;
        let view = self.view(memory);
        let unreadable = || Missing::Unreadable("iomem_resource".to_owned());
        let word = |at: u64, member: usize| view.u64(at, member).ok_or_else(unreadable);
        let mut ranges = Vec::new();
        let mut at = word(self.symbol("iomem_resource")?, layout.child)?;
        for _ in 0..MOST {
            if at == 0 {
                return Ok(ranges);
            }
            let name = word(at, layout.name)?;
            if name != 0 && view.text::<NAME>(name).as_deref() == Some(RAM) {
                ranges.push((PhysAddr(word(at, layout.start)?), PhysAddr(word(at, layout.end)?)));
            }
            at = word(at, layout.sibling)?;
        }
        Err(unreadable())
    }
}
