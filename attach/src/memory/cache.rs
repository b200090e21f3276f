//! Pages of guest memory that were read during one stop.
//!
//! A sample walks page tables and reads many small objects that are close together, and each read of another
//! process's memory is a system call. So pages are copied whole, and dropped at the next stop.

use std::cell::RefCell;

use guest_linux::{PhysAddr, PhysicalMemory};

use super::StopSource;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Number of cached pages; a page's slot is given by the lowest bits of its number.
const SLOTS: usize = 64;
/// Maximum size of a read that is cached, bytes: longer reads are not worth a copy of the page.
const SMALL: usize = 512;

/// Memory that a stop reads.
pub(crate) trait StopReader: PhysicalMemory {
    /// Fills `into` from what was copied of a vCPU that may run; `None` if its memory is to be read.
    fn read_copied(&self, at: PhysAddr, into: &mut [u8]) -> Option<Option<()>> {
        let _ = (at, into);
        None
    }
}

/// Guest memory during a stop. Does not allocate after it was made.
#[derive(Debug)]
pub struct StopMemory<M = StopSource> {
    memory: M,
    cache: RefCell<PageCache>,
}

#[derive(Debug)]
struct PageCache {
    /// Guest physical address of the page in each slot; [`EMPTY`] for an empty slot.
    pages: [u64; SLOTS],
    /// Place of each slot's page in `bytes`, once the slot was used.
    places: [Option<u8>; SLOTS],
    /// Has room for all slots from the beginning, and takes memory of the host for those that were used.
    bytes: Vec<[u8; PAGE]>,
}

impl PageCache {
    fn new() -> Self {
        Self { pages: [EMPTY; SLOTS], places: [None; SLOTS], bytes: Vec::with_capacity(SLOTS) }
    }

    /// Returns the address of the page in a slot, and its bytes.
    fn slot(&mut self, slot: usize) -> Option<(&mut u64, &mut [u8; PAGE])> {
        let place = self.places.get_mut(slot)?;
        if place.is_none() {
            *place = u8::try_from(self.bytes.len()).ok();
            self.bytes.push([0; PAGE]);
        }
        let bytes = self.bytes.get_mut(usize::from((*place)?))?;
        Some((self.pages.get_mut(slot)?, bytes))
    }
}

/// Value of an empty slot: no page begins there.
const EMPTY: u64 = u64::MAX;

impl<M> StopMemory<M> {
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, cache: RefCell::new(PageCache::new()) }
    }

    /// Drops all pages: another stop begins.
    pub(crate) fn forget(&self) {
        self.cache.borrow_mut().pages = [EMPTY; SLOTS];
    }

    /// Returns the memory that is read on a miss.
    pub(crate) fn source(&self) -> &M {
        &self.memory
    }
}

impl<M: StopReader> PhysicalMemory for StopMemory<M> {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        if let Some(copied) = self.memory.read_copied(at, into) {
            return copied;
        }
        let page_bytes = u64::try_from(PAGE).ok()?;
        let offset = usize::try_from(at.0 % page_bytes).ok()?;
        let end = offset.checked_add(into.len())?;
        if into.len() > SMALL || end > PAGE {
            return self.memory.read(at, into);
        }
        let page = at.0 - at.0 % page_bytes;
        let slot = usize::try_from(page / page_bytes % u64::try_from(SLOTS).ok()?).ok()?;
        let mut cache = self.cache.borrow_mut();
        let (known, bytes) = cache.slot(slot)?;
        if *known != page {
            *known = EMPTY;
            self.memory.read(PhysAddr(page), bytes)?;
            *known = page;
        }
        into.copy_from_slice(bytes.get(offset..end)?);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use guest_linux::FlatMemory;

    use super::*;

    impl StopReader for FlatMemory<Vec<u8>> {}

    #[test]
    fn pages_of_all_slots_are_kept_without_more_memory() {
        let numbers = (0..u8::MAX).flat_map(|page| [page; PAGE]).collect();
        let stop = StopMemory::new(FlatMemory::<Vec<u8>>(numbers));
        let room = stop.cache.borrow().bytes.capacity();
        for _ in 0..2 {
            for page in (0..u8::MAX).rev() {
                let mut read = [0];
                stop.read(PhysAddr(u64::from(page) * PAGE as u64), &mut read).unwrap();
                assert_eq!(read, [page]);
            }
        }
        let cache = stop.cache.borrow();
        assert_eq!((cache.bytes.len(), cache.bytes.capacity()), (SLOTS, room));
    }

    #[test]
    fn a_page_is_read_once_a_stop() {
        let mut stop = StopMemory::new(FlatMemory(vec![7_u8; PAGE * 2]));
        assert_eq!(stop.read_u32(PhysAddr(0)), Some(0x0707_0707));
        stop.memory.0[0] = 9;
        assert_eq!(stop.read_u32(PhysAddr(0)), Some(0x0707_0707), "of the same stop");
        assert_eq!(stop.read_u32(PhysAddr(PAGE as u64 - 2)), Some(0x0707_0707), "across pages");
        stop.forget();
        assert_eq!(stop.read_u32(PhysAddr(0)), Some(0x0707_0709));
        assert_eq!(stop.read_u32(PhysAddr(2 * PAGE as u64 - 1)), None);
        assert_eq!(stop.read(PhysAddr(0), &mut vec![0; 2 * PAGE + 1]), None);
    }
}
