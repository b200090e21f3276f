//! Memory of one reading, page by page.
//!
//! A reading walks page tables and reads many small structures that are close together, and a read of
//! another process's memory is a system call. So pages are copied whole, and kept for the reading.

use std::cell::RefCell;

use super::PAGE;
use crate::memory::PhysicalMemory;
use symbols::PhysAddr;
use symbols::bytes::index;

/// Number of kept pages; a page's slot is given by the lowest bits of its number.
const SLOTS: u64 = 1024;
/// Value of an empty slot: no page begins there.
const EMPTY: u64 = u64::MAX;

/// Memory whose pages are read once while they are in their slots.
pub(super) struct PageSnapshot<'a, M> {
    memory: &'a M,
    slots: RefCell<PageSlots>,
}

struct PageSlots {
    /// Address of the page in each slot.
    pages: Vec<u64>,
    bytes: Vec<u8>,
}

impl<'a, M: PhysicalMemory> PageSnapshot<'a, M> {
    pub(super) fn new(memory: &'a M) -> Self {
        let slots = PageSlots { pages: vec![EMPTY; index(SLOTS)], bytes: vec![0; index(SLOTS * PAGE)] };
        Self { memory, slots: RefCell::new(slots) }
    }

    /// Fills `into` from within the page at `page`.
    fn read_page(&self, page: u64, offset: u64, into: &mut [u8]) -> Option<()> {
        let slot = page / PAGE % SLOTS;
        let PageSlots { pages, bytes } = &mut *self.slots.borrow_mut();
        let known = pages.get_mut(index(slot))?;
        let start = index(slot * PAGE);
        if *known != page {
            *known = EMPTY;
            self.memory.read(PhysAddr(page), bytes.get_mut(start..start + index(PAGE))?)?;
            *known = page;
        }
        let from = start + index(offset);
        into.copy_from_slice(bytes.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}

impl<M: PhysicalMemory> PhysicalMemory for PageSnapshot<'_, M> {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let mut at = at;
        let mut rest = into;
        while !rest.is_empty() {
            let offset = at.0 % PAGE;
            let count = index(PAGE - offset).min(rest.len());
            let (part, after) = rest.split_at_mut(count);
            self.read_page(at.0 - offset, offset, part)?;
            rest = after;
            if !rest.is_empty() {
                at = at.checked_add(count as u64)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FlatMemory;

    #[test]
    fn reads_are_those_of_the_memory_until_its_end() {
        let memory = FlatMemory((0..3 * 4096_u32).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect::<Vec<_>>());
        let snapshot = PageSnapshot::new(&memory);
        for (at, len) in [(0, 8), (4090, 12), (4096, 4096), (100, 8192), (3 * 4096 - 8, 8), (5, 0)] {
            let (mut own, mut plain) = (vec![0; len], vec![0; len]);
            assert_eq!(snapshot.read(PhysAddr(at), &mut own), Some(()), "{at}");
            memory.read(PhysAddr(at), &mut plain).unwrap();
            assert_eq!(own, plain, "{at}");
        }
        assert_eq!(snapshot.read(PhysAddr(3 * 4096 - 4), &mut [0; 8]), None);
        assert_eq!(snapshot.read(PhysAddr(u64::MAX - 3), &mut [0; 8]), None);
    }

    #[test]
    fn a_page_is_read_once() {
        let cell = RefCell::new(FlatMemory(vec![7_u8; 8192]));
        struct Changing<'a>(&'a RefCell<FlatMemory<Vec<u8>>>);
        impl PhysicalMemory for Changing<'_> {
            fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
                self.0.borrow().read(at, into)
            }
        }
        let memory = Changing(&cell);
        let snapshot = PageSnapshot::new(&memory);
        assert_eq!(snapshot.read_u32(PhysAddr(0)), Some(0x0707_0707));
        cell.borrow_mut().0[4] = 9;
        assert_eq!(snapshot.read_u32(PhysAddr(4)), Some(0x0707_0707));
        cell.borrow_mut().0[4096] = 9;
        assert_eq!(snapshot.read_u32(PhysAddr(4096)), Some(0x0707_0709));
    }
}
