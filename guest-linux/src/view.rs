//! Reads the kernel's virtual memory.

use std::cell::Cell;

use display::clean::ascii;

use crate::image::KernelImage;
use crate::memory::PhysicalMemory;
use crate::paging::{AddressSpace, Translation, read_pages};
use symbols::bytes::{index, until_nul};
use symbols::{PhysAddr, VirtAddr};

/// Bytes of the smallest page, and of a large one.
const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;
/// Pages that a view remembers.
const PAGES: usize = 32;

/// The kernel's virtual memory: the image where it was found, the rest by the kernel's page tables.
///
/// The image does not move, and its own tables need not be complete yet while the kernel boots.
///
/// A view is for one reading: it translates a page once.
pub(crate) struct View<'a, M> {
    pub(crate) memory: &'a M,
    pub(crate) image: &'a KernelImage,
    pub(crate) space: AddressSpace,
    pages: KnownPages,
}

/// Pages that were translated. In another process's memory each of the four or five entries that lead to a
/// page takes a system call.
#[derive(Default)]
struct KnownPages([Cell<Option<KnownPage>>; PAGES]);

/// First byte of a page, and its translation.
#[derive(Clone, Copy)]
struct KnownPage {
    virt: u64,
    first: Translation,
}

impl KnownPages {
    /// Returns the place of the page of `virt`, if it has this size.
    fn place(&self, virt: u64, page_size: u64) -> Option<&Cell<Option<KnownPage>>> {
        self.0.get(index(virt / page_size.min(LARGE_PAGE)) % PAGES)
    }

    fn find(&self, virt: u64) -> Option<Translation> {
        [LARGE_PAGE, PAGE].into_iter().find_map(|page_size| {
            let KnownPage { virt: begin, first } = self.place(virt, page_size)?.get()?;
            let offset = virt.checked_sub(begin).filter(|offset| *offset < first.page_size)?;
            Some(Translation { phys: first.phys.checked_add(offset)?, ..first })
        })
    }

    fn keep(&self, virt: u64, found: Translation) {
        let offset = virt & (found.page_size - 1);
        let first =
            found.phys.0.checked_sub(offset).map(|phys| Translation { phys: PhysAddr(phys), ..found });
        if let (Some(place), Some(first)) = (self.place(virt, found.page_size), first) {
            place.set(Some(KnownPage { virt: virt - offset, first }));
        }
    }
}

impl<'a, M> View<'a, M> {
    pub(crate) fn new(memory: &'a M, image: &'a KernelImage, space: AddressSpace) -> Self {
        Self { memory, image, space, pages: KnownPages::default() }
    }
}

impl<M: PhysicalMemory> View<'_, M> {
    /// Returns the physical address of `virt`.
    pub(crate) fn translate(&self, virt: u64) -> Option<PhysAddr> {
        self.image.translate(virt).or_else(|| Some(self.page(VirtAddr(virt))?.phys))
    }

    /// Walks the page tables for `virt`, unless its page was translated before.
    fn page(&self, virt: VirtAddr) -> Option<Translation> {
        self.pages.find(virt.0).or_else(|| {
            let found = self.space.translate(self.memory, virt)?;
            self.pages.keep(virt.0, found);
            Some(found)
        })
    }

    /// Fills `into` from `virt`; `None` unless all of it is mapped.
    pub(crate) fn read(&self, virt: u64, into: &mut [u8]) -> Option<()> {
        self.image
            .read(self.memory, virt, into)
            .or_else(|| read_pages(self.memory, VirtAddr(virt), into, |at| self.page(at)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;
    use crate::fixture::{Config, Style};

    /// Memory that counts reads.
    struct Counted<'a, M>(&'a M, Cell<u32>);

    impl<M: PhysicalMemory> PhysicalMemory for Counted<'_, M> {
        fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
            self.1.set(self.1.get() + 1);
            self.0.read(at, into)
        }
    }

    #[test]
    fn a_page_is_translated_once() {
        let guest = Config::new(Style::V6_12).build();
        let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).unwrap();
        let memory = Counted(&guest.memory, Cell::new(0));
        let tasks = [100, 102].map(|tid| guest.task(tid).unwrap());
        let (view, other) = (kernel.view(&memory), kernel.view(&guest.memory));
        let mut walked = 0;
        for round in 0..2 {
            for task in tasks {
                for offset in 0..64 {
                    assert_eq!(view.u64(task, offset), other.space.read_u64(other.memory, task, offset));
                }
            }
            let reads = memory.1.replace(0);
            if round == 0 {
                walked = reads;
            } else {
                assert!(reads == 128 && walked > 128, "{reads}, {walked} in the first round");
            }
        }
        assert_eq!(view.u64(0xffff_fe00_0000_0000, 0), None);
    }

    impl AddressSpace {
        fn read_u64(&self, memory: &impl PhysicalMemory, virt: u64, offset: usize) -> Option<u64> {
            let mut bytes = [0; 8];
            self.read(memory, VirtAddr(virt + offset as u64), &mut bytes)?;
            Some(u64::from_le_bytes(bytes))
        }
    }
}
