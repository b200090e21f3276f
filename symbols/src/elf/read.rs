//! Files that can be read at any offset.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A file that can be read at any offset: of the guest, on its disk image or in its page cache; of the
/// host; or an image in memory.
pub trait ReadAt: Send {
    /// Returns the size in bytes.
    fn len(&self) -> u64;

    /// Fills `into` with the bytes at `offset`; `None` when they cannot all be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()>;

    /// Returns true for a file of no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn copy(from: &[u8], offset: u64, into: &mut [u8]) -> Option<()> {
    let start = usize::try_from(offset).ok()?;
    into.copy_from_slice(from.get(start..start.checked_add(into.len())?)?);
    Some(())
}

impl ReadAt for &'static [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        copy(self, offset, into)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        copy(self, offset, into)
    }
}

impl ReadAt for Arc<[u8]> {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        copy(self, offset, into)
    }
}

/// A regular file of the host. A file that cannot be asked for its size counts as empty.
impl ReadAt for File {
    fn len(&self) -> u64 {
        self.metadata().map_or(0, |m| if m.is_file() { m.len() } else { 0 })
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        self.read_exact_at(into, offset).ok()
    }
}
