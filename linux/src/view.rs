//! Reads the kernel's virtual memory.

use text::clean::ascii;

use crate::image::KernelImage;
use crate::memory::PhysicalMemory;
use crate::paging::AddressSpace;
use symbols::bytes::{index, until_nul};
use symbols::{PhysAddr, VirtAddr};

/// Bytes of the smallest page.
const PAGE: u64 = 4096;

/// The kernel's virtual memory: the image where it was found, the rest by the kernel's page tables.
///
/// The image does not move, and its own tables need not be complete yet while the kernel boots.
pub(crate) struct View<'a, M> {
    pub(crate) memory: &'a M,
    pub(crate) image: &'a KernelImage,
    pub(crate) space: AddressSpace,
}

impl<M: PhysicalMemory> View<'_, M> {
    /// Returns the physical address of `virt`.
    pub(crate) fn translate(&self, virt: u64) -> Option<PhysAddr> {
        self.image.translate(virt).or_else(|| {
            let found = self.space.translate(self.memory, VirtAddr(virt))?;
            Some(found.phys)
        })
    }

    /// Fills `into` from `virt`; `None` unless all of it is mapped.
    pub(crate) fn read(&self, virt: u64, into: &mut [u8]) -> Option<()> {
        self.image
            .read(self.memory, virt, into)
            .or_else(|| self.space.read(self.memory, VirtAddr(virt), into))
    }

    /// Reads a little-endian u64 at `virt + offset`.
    pub(crate) fn u64(&self, virt: u64, offset: usize) -> Option<u64> {
        let mut b = [0; 8];
        self.read(virt.checked_add(offset as u64)?, &mut b)?;
        Some(u64::from_le_bytes(b))
    }

    /// Reads a little-endian u32 at `virt + offset`.
    pub(crate) fn u32(&self, virt: u64, offset: usize) -> Option<u32> {
        let mut b = [0; 4];
        self.read(virt.checked_add(offset as u64)?, &mut b)?;
        Some(u32::from_le_bytes(b))
    }
    /// Returns the text at `at` up to its NUL, of at most `N` bytes, in printable ASCII; `None` for an empty
    /// one.
    pub(crate) fn text<const N: usize>(&self, at: u64) -> Option<String> {
        let mut bytes = [0; N];
        // What follows the text may be in a page that is not there.
        let (first, rest) = bytes.split_at_mut(index(PAGE - (at & (PAGE - 1))).min(N));
        self.read(at, first)?;
        if !first.contains(&0) {
            self.read(at.checked_add(first.len() as u64)?, rest)?;
        }
        let text = until_nul(&bytes);
        (!text.is_empty()).then(|| ascii(text))
    }
}
