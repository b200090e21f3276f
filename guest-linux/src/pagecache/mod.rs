//! Bytes of files, out of the guest kernel's page cache.
//!
//! ```text
//! address_space.i_pages (XArray by page of the file) -> folio (a struct page)
//! (folio - vmemmap_base) / sizeof(struct page) + pages into the folio = page frame number
//! ```
//!
//! The files that a process runs are in the page cache, for every file system, so an ELF file can be read
//! without its disk. Pages that were never used, or were dropped again, are not there. Source:
//! include/linux/pagemap.h, arch/x86/include/asm/page_types.h of Linux 5.10 to 6.12.

use crate::kernel::Kernel;
use crate::layout::PageCacheLayout;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::process::FileRef;
use crate::tree::XArray;
use crate::view::View;
use symbols::PhysAddr;
use symbols::bytes::index;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages of a folio, at most: 1 GiB (`PUD_SIZE`).
const MAX_FOLIO_PAGES: u64 = 1 << 18;
/// Start of the array of all `struct page` in kernels that do not move it (`__VMEMMAP_BASE_L4` and `_L5`,
/// arch/x86/include/asm/pgtable_64_types.h).
const VMEMMAP: [u64; 2] = [0xffff_ea00_0000_0000, 0xffd4_0000_0000_0000];

/// Reads files out of a guest's page cache. Resolved once for one kernel, which must have finished booting.
#[derive(Debug, Clone, Copy)]
pub struct PageCache<'a> {
    kernel: &'a Kernel,
    layout: &'a PageCacheLayout,
    /// `vmemmap_base`.
    base: u64,
}

impl<'a> PageCache<'a> {
    /// Returns the page cache of `kernel`.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn new(kernel: &'a Kernel, memory: &impl PhysicalMemory) -> Result<Self, Missing> {
        let view = kernel.view(memory);
        let layout =
            kernel.layouts.as_ref().map_err(Clone::clone)?.page_cache.as_ref().map_err(Clone::clone)?;
        let moved = kernel.symbol("vmemmap_base").ok().and_then(|at| view.u64(at, 0));
        let base = moved.unwrap_or(VMEMMAP[usize::from(view.space.five_level())]);
        Ok(Self { kernel, layout, base })
    }

    /// Fills `into` with the bytes of `file` from `offset` on; `None` unless all their pages are there. After
    /// the end of the file, the rest of its last page is zero.
    pub fn read(
        &self,
        memory: &impl PhysicalMemory,
        file: &FileRef,
        offset: u64,
        into: &mut [u8],
    ) -> Option<()> {
        let view = self.kernel.view(memory);
        let array = file.address_space.checked_add(self.layout.pages as u64)?;
        let array = XArray::new(&view, &self.layout.xarray, array)?;
        let mut done = 0;
        while done < into.len() {
            let at = offset.checked_add(done as u64)?;
            let in_page = at % PAGE;
            let count = index(PAGE - in_page).min(into.len() - done);
            let page = self.page(&view, &array, file.address_space, at / PAGE)?;
            memory.read(page.checked_add(in_page)?, into.get_mut(done..done + count)?)?;
            done += count;
        }
        Some(())
    }

    /// Returns the physical address of page number `number` of a file.
    fn page<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        array: &XArray<'_, M>,
        address_space: u64,
        number: u64,
    ) -> Option<PhysAddr> {
        let folio = array.find(number)?;
        let from_base = folio.checked_sub(self.base)?;
        if from_base % self.layout.page_size != 0 {
            return None;
        }
        // A folio that was freed meanwhile belongs to another file.
        if view.u64(folio, self.layout.mapping)? != address_space {
            return None;
        }
        if let Some(bit) = self.layout.up_to_date
            && view.u64(folio, self.layout.flags)? & 1 << bit == 0
        {
            return None;
        }
        let in_folio = number.checked_sub(view.u64(folio, self.layout.index)?)?;
        if in_folio >= MAX_FOLIO_PAGES {
            return None;
        }
        let frame = (from_base / self.layout.page_size).checked_add(in_folio)?;
        frame.checked_mul(PAGE).map(PhysAddr)
    }
}
