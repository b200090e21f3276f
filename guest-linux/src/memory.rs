//! The guest's physical memory as a reader sees it.

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use symbols::PhysAddr;
use symbols::bytes::index;

/// Physical memory of a guest that may change while it is read.
pub trait PhysicalMemory {
    /// Fills `into` from `at`; `None` unless every byte is backed by memory. Never allocates.
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()>;

    /// Reads a little-endian u64.
    fn read_u64(&self, at: PhysAddr) -> Option<u64> {
        let mut b = [0; 8];
        self.read(at, &mut b)?;
        Some(u64::from_le_bytes(b))
    }
    /// Reads a little-endian u32.
    fn read_u32(&self, at: PhysAddr) -> Option<u32> {
        let mut b = [0; 4];
        self.read(at, &mut b)?;
        Some(u32::from_le_bytes(b))
    }
}

impl<M: GuestMemoryBackend> PhysicalMemory for M {
    #[inline]
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let at = GuestAddress(at.0);
        // Almost every read is within one region: this way takes a third of the general one's time, which is
        // a sample's time.
        if let Some((region, offset)) = self.to_region_addr(at)
            && let Ok(slice) = region.get_slice(offset, into.len())
        {
            return (slice.copy_to(into) == into.len()).then_some(());
        }
        self.read_slice(into, at).ok()
    }
}

/// Physical memory as one run of bytes from address 0: a RAM dump, an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatMemory<B>(pub B);

impl<B: AsRef<[u8]>> PhysicalMemory for FlatMemory<B> {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let start = index(at.0);
        let from = self.0.as_ref().get(start..start.checked_add(into.len())?)?;
        into.copy_from_slice(from);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_memory_ends_where_its_bytes_end() {
        let memory = FlatMemory([1u8, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(memory.read_u32(PhysAddr(4)), Some(2));
        assert_eq!(memory.read_u32(PhysAddr(5)), None);
        assert_eq!(memory.read_u64(PhysAddr(0)), Some(0x2_0000_0001));
        assert_eq!(memory.read_u64(PhysAddr(u64::MAX)), None);
    }

    #[test]
    fn reads_of_mapped_memory_cross_regions_but_no_holes() {
        let regions =
            [(0, 0x1000), (0x1000, 0x1000), (0x4000, 0x1000)].map(|(at, size)| (GuestAddress(at), size));
        let memory: vm_memory::GuestMemoryMmap = vm_memory::GuestMemoryMmap::from_ranges(&regions).unwrap();
        memory.write_slice(&[1, 2, 3, 4], GuestAddress(0xffe)).unwrap();
        assert_eq!(memory.read_u32(PhysAddr(0xffe)), Some(0x0403_0201));
        let mut two = [0; 2];
        assert_eq!(PhysicalMemory::read(&memory, PhysAddr(0x1000), &mut two), Some(()));
        assert_eq!(two, [3, 4]);
        assert_eq!(memory.read_u32(PhysAddr(0x1ffe)), None);
        assert_eq!(memory.read_u64(PhysAddr(0x3ffc)), None);
        assert_eq!(memory.read_u64(PhysAddr(0x4ffc)), None);
        assert_eq!(memory.read_u64(PhysAddr(u64::MAX - 3)), None);
    }
}
