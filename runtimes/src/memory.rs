//! Memory of a process.

use symbols::VirtAddr;

/// Bytes of a string or table that one call copies, at most.
const LARGEST: usize = 256 << 10;

/// Virtual memory of one process.
pub trait ProcessMemory {
    /// Fills `into` from `at`; `None` unless every byte is present. Never allocates.
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()>;

    /// Reads a little-endian u64.
    fn read_u64(&self, at: VirtAddr) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Reads `len` bytes, at most 256 KiB.
    fn read_bytes(&self, at: VirtAddr, len: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(len).ok().filter(|&len| len <= LARGEST)?;
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes)?;
        Some(bytes)
    }
}
