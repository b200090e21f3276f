//! Address translation by the guest's own page tables.
//!
//! ```text
//! CR3 -> [PML5 ->] PML4 -> PDPT -> PD -> PT -> 4 KiB page
//!         48..56   39..47  30..38  21..29 12..20    bits of the virtual address
//!                          `- 1 GiB `- 2 MiB page, when bit 7 of the entry is set
//! ```
//!
//! Source: Intel SDM volume 3, chapter 4 (4-level and 5-level paging). A walk reads at most five
//! entries; an entry with reserved bits set translates nothing, as in the processor.

use std::ops::ControlFlow;

use crate::memory::PhysicalMemory;
use symbols::bytes::{index, u64_at};
use symbols::{PhysAddr, VirtAddr};

/// Bits 12..51 of a paging-structure entry or of CR3: the physical address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bit 0: the entry is present.
const PRESENT: u64 = 1;
/// Bit 7: the entry maps a large page (PD and PDPT), reserved above.
const LARGE: u64 = 1 << 7;
/// Bytes of a paging structure: 512 entries of 8 bytes.
const TABLE: usize = 4096;
/// With page-table isolation (PTI) a process's own tables are one page above the kernel's
/// (`PTI_USER_PGTABLE_BIT`, arch/x86/include/asm/pgtable.h).
const PTI_USER: u64 = 0x1000;
/// Shift of the lowest level.
const PT: u32 = 12;
/// Shift of the highest level that can map a page.
const PDPT: u32 = 30;

/// Returns the page tables that `cr3` may mean: its own, and the kernel's where PTI may have made these a
/// process's.
pub(crate) fn roots(cr3: u64) -> impl Iterator<Item = u64> {
    let kernels = cr3 & !PTI_USER;
    [Some(cr3), (kernels != cr3).then_some(kernels)].into_iter().flatten()
}

/// A virtual address space: the page tables under one CR3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSpace {
    root: PhysAddr,
    five_level: bool,
}

/// Physical location of a virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// Physical address of the very byte.
    pub phys: PhysAddr,
    /// Size of the page that maps it, in bytes: 4 KiB, 2 MiB or 1 GiB.
    pub page_size: u64,
}

/// One mapped page as the region walk sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedPage {
    pub(crate) virt: u64,
    pub(crate) phys: u64,
    pub(crate) size: u64,
}

/// Meaning of an entry.
enum TableEntry {
    Nothing,
    Table(PhysAddr),
    Page(u64),
}

fn decode(entry: u64, shift: u32) -> TableEntry {
    if entry & PRESENT == 0 {
        return TableEntry::Nothing;
    }
    let address = entry & ADDRESS;
    if shift == PT {
        return TableEntry::Page(address);
    }
    if entry & LARGE == 0 {
        return TableEntry::Table(PhysAddr(address));
    }
    // Bit 12 of a large page is its PAT bit; the bits from there up to the page size are reserved.
    let base = address & !0x1000;
    if shift > PDPT || base & ((1 << shift) - 1) != 0 {
        return TableEntry::Nothing;
    }
    TableEntry::Page(base)
}

impl AddressSpace {
    /// Returns the address space of a CR3 value; PCID and the other low and high bits are ignored.
    /// `five_level` is CR4.LA57.
    pub fn new(cr3: u64, five_level: bool) -> Self {
        Self { root: PhysAddr(cr3 & ADDRESS), five_level }
    }

    /// Returns the physical address of the top-level table.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// Returns true with 5-level paging.
    pub fn five_level(&self) -> bool {
        self.five_level
    }

    fn top_shift(&self) -> u32 {
        if self.five_level { 48 } else { 39 }
    }

    /// Returns true if the bits above the translated ones are copies of the highest of them.
    fn canonical(&self, virt: VirtAddr) -> bool {
        let above = virt.0 >> (self.top_shift() + 8);
        above == 0 || above == u64::MAX >> (self.top_shift() + 8)
    }

    /// Walks the page tables for `virt`; `None` if nothing is mapped there.
    pub fn translate(&self, memory: &impl PhysicalMemory, virt: VirtAddr) -> Option<Translation> {
        if !self.canonical(virt) {
            return None;
        }
        let mut table = self.root;
        let mut shift = self.top_shift();
        loop {
            let slot = (virt.0 >> shift) & 511;
            match decode(memory.read_u64(table.checked_add(slot * 8)?)?, shift) {
                TableEntry::Nothing => return None,
                TableEntry::Page(base) => {
                    return Some(Translation {
                        phys: PhysAddr(base | (virt.0 & ((1 << shift) - 1))),
                        page_size: 1 << shift,
                    });
                }
                TableEntry::Table(next) => table = next,
            }
            shift -= 9;
        }
    }

    /// Fills `into` from `virt`, page by page; `None` unless every byte is mapped and backed.
    pub fn read(&self, memory: &impl PhysicalMemory, virt: VirtAddr, into: &mut [u8]) -> Option<()> {
        read_pages(memory, virt, into, |at| self.translate(memory, at))
    }

    /// Calls `visit` for every page mapped in `start..=last`, in ascending order, until it breaks.
    ///
    /// Reads whole tables, so the cost is one table per 2 MiB at most: keep the range small.
    pub(crate) fn pages<B>(
        &self,
        memory: &impl PhysicalMemory,
        (start, last): (u64, u64),
        visit: &mut impl FnMut(MappedPage) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let sign = if start >> 63 == 1 { u64::MAX } else { 0 };
        let top = self.top_shift();
        // What is above the bits that the top level translates.
        let prefix = sign.checked_shl(top + 9).unwrap_or(0);
        walk(memory, self.root, (top, prefix), (start, last), visit)
    }
}

/// Fills `into` from `virt`, whose pages `translate` finds.
pub(crate) fn read_pages(
    memory: &impl PhysicalMemory,
    virt: VirtAddr,
    into: &mut [u8],
    translate: impl Fn(VirtAddr) -> Option<Translation>,
) -> Option<()> {
    let mut done = 0;
    while done < into.len() {
        let at = virt.checked_add(done as u64)?;
        let page = translate(at)?;
        let left = page.page_size - (at.0 & (page.page_size - 1));
        let count = index(left).min(into.len() - done);
        memory.read(page.phys, &mut into[done..done + count])?;
        done += count;
    }
    Some(())
}

/// Returns one table of [`AddressSpace::pages`]; recursion ends at the lowest level, five deep at most.
fn walk<B>(
    memory: &impl PhysicalMemory,
    table: PhysAddr,
    (shift, base): (u32, u64),
    (start, last): (u64, u64),
    visit: &mut impl FnMut(MappedPage) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let mut entries = [0; TABLE];
    if memory.read(table, &mut entries).is_none() {
        return ControlFlow::Continue(());
    }
    let size = 1u64 << shift;
    let first = start.max(base).wrapping_sub(base) >> shift;
    for slot in first.min(511)..512 {
        let virt = base | (slot << shift);
        if virt > last {
            break;
        }
        if virt | (size - 1) < start {
            continue;
        }
        match decode(u64_at(&entries, index(slot) * 8).unwrap_or(0), shift) {
            TableEntry::Nothing => {}
            TableEntry::Page(phys) => visit(MappedPage { virt, phys, size })?,
            TableEntry::Table(next) => walk(memory, next, (shift - 9, virt), (start, last), visit)?,
        }
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FlatMemory;
    use proptest::prelude::*;

    /// Physical memory with tables at 0x1000 (top), 0x2000, ... each entry put by hand.
    struct Tables(Vec<u8>);

    impl Tables {
        fn new() -> Self {
            Self(vec![0; 0x8000])
        }
        fn put(&mut self, table: usize, slot: usize, entry: u64) {
            let at = table + slot * 8;
            self.0[at..at + 8].copy_from_slice(&entry.to_le_bytes());
        }
        fn memory(self) -> FlatMemory<Vec<u8>> {
            FlatMemory(self.0)
        }
    }

    /// 0xffffffff81234567 through each page size, with 4 and 5 levels.
    fn chain(five: bool, leaf_shift: u32, leaf: u64) -> FlatMemory<Vec<u8>> {
        let virt = 0xffff_ffff_8123_4567u64;
        let mut t = Tables::new();
        let mut table = 0x1000;
        let mut shift = if five { 48 } else { 39 };
        while shift > leaf_shift {
            let slot = usize::try_from((virt >> shift) & 511).unwrap();
            t.put(table, slot, (table as u64 + 0x1000) | 0x63);
            table += 0x1000;
            shift -= 9;
        }
        t.put(table, usize::try_from((virt >> shift) & 511).unwrap(), leaf | 0x63);
        t.memory()
    }

    #[test]
    fn every_page_size_translates_with_four_and_five_levels() {
        let virt = VirtAddr(0xffff_ffff_8123_4567);
        for five in [false, true] {
            // The low bits are a PCID or flags, the high one "do not flush".
            let space = AddressSpace::new(0x8000_0000_0000_1fff, five);
            let memory = chain(five, 12, 0x7000);
            assert_eq!(
                space.translate(&memory, virt),
                Some(Translation { phys: PhysAddr(0x7567), page_size: 0x1000 })
            );
            let memory = chain(five, 21, 0x20_0000 | LARGE | (1 << 63) | 0x1000);
            assert_eq!(space.translate(&memory, virt).unwrap().phys, PhysAddr(0x23_4567));
            let memory = chain(five, 30, 0x4000_0000 | LARGE);
            assert_eq!(
                space.translate(&memory, virt),
                Some(Translation { phys: PhysAddr(0x4123_4567), page_size: 1 << 30 })
            );
        }
    }

    #[test]
    fn reserved_bits_and_non_canonical_addresses_translate_nothing() {
        let virt = VirtAddr(0xffff_ffff_8123_4567);
        let space = AddressSpace::new(0x1000, false);
        // A misaligned large page, a large page at the top level, an entry that is not present.
        assert_eq!(space.translate(&chain(false, 21, 0x20_2000 | LARGE), virt), None);
        assert_eq!(space.translate(&chain(false, 39, LARGE), virt), None);
        assert_eq!(space.translate(&FlatMemory(vec![0; 0x8000]), virt), None);
        let memory = chain(false, 12, 0x7000);
        assert!(space.translate(&memory, virt).is_some());
        assert_eq!(space.translate(&memory, VirtAddr(0x0000_ffff_8123_4567)), None);
        // With five levels the same address has other, canonical, upper bits.
        let five = AddressSpace::new(0x1000, true);
        assert_eq!(five.translate(&memory, VirtAddr(0x0fff_ffff_8123_4567)), None);
    }

    #[test]
    fn a_read_crosses_pages_and_stops_at_a_hole() {
        let mut t = Tables::new();
        t.put(0x1000, 0, 0x2000 | 1);
        t.put(0x2000, 0, 0x3000 | 1);
        t.put(0x3000, 0, 0x4000 | 1);
        t.put(0x4000, 1, 0x6000 | 1);
        t.put(0x4000, 2, 0x5000 | 1);
        t.0[0x6fff] = 7;
        t.0[0x5000] = 9;
        let memory = t.memory();
        let space = AddressSpace::new(0x1000, false);
        let mut two = [0; 2];
        assert_eq!(space.read(&memory, VirtAddr(0x1fff), &mut two), Some(()));
        assert_eq!(two, [7, 9]);
        assert_eq!(space.read(&memory, VirtAddr(0x2fff), &mut two), None);
        assert_eq!(space.read(&memory, VirtAddr(0x0fff), &mut two), None);
    }

    #[test]
    fn the_region_walk_sees_what_translate_sees() {
        for (five, leaf) in [(false, 12), (true, 12), (true, 21), (false, 30)] {
            let memory = chain(five, leaf, if leaf == 12 { 0x7000 } else { LARGE });
            let space = AddressSpace::new(0x1000, five);
            let mut pages = Vec::new();
            let range = (0xffff_ffff_8000_0000, 0xffff_ffff_bfff_ffff);
            let _ = space.pages::<()>(&memory, range, &mut |p| {
                pages.push(p);
                ControlFlow::Continue(())
            });
            let virt = 0xffff_ffff_8123_4567 & !((1u64 << leaf) - 1);
            let phys = if leaf == 12 { 0x7000 } else { 0 };
            let size = 1 << leaf;
            assert_eq!(pages, [MappedPage { virt, phys, size }]);
        }
    }

    proptest! {
        #[test]
        fn walks_of_arbitrary_tables_agree_and_never_panic(
            seed in prop::collection::vec(any::<u64>(), 1024),
            cr3 in 0u64..0x4000,
            five: bool,
            pick in any::<prop::sample::Index>(),
        ) {
            // Entries point into the same 16 KiB, so walks go deep and tables form loops.
            let bytes: Vec<u8> = seed.iter().cycle().take(2048)
                .flat_map(|e| (e & 0x3fff | 1).to_le_bytes()).collect();
            let memory = FlatMemory(bytes);
            let space = AddressSpace::new(cr3, five);
            let range = (0xffff_ffff_8000_0000, 0xffff_ffff_80ff_ffff);
            let mut pages = Vec::new();
            let _ = space.pages::<()>(&memory, range, &mut |p| {
                pages.push(p);
                ControlFlow::Continue(())
            });
            if !pages.is_empty() {
                let page = pages[pick.index(pages.len())];
                let inside = page.virt.max(range.0);
                let found = space.translate(&memory, VirtAddr(inside)).unwrap();
                prop_assert_eq!(found.page_size, page.size);
                prop_assert_eq!(found.phys.0, page.phys + (inside - page.virt));
            }
        }
    }
}
