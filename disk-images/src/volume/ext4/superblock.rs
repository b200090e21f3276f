//! Superblock of ext2, ext3 and ext4, and the way from it to the journal's inode.
//!
//! ```text
//! superblock: number of the inode ──▶ group's descriptor: table of inodes ──▶ inode: map of blocks
//! ```
//!
//! Layout: super.rst, group_descr.rst and inodes.rst in Documentation/filesystems/ext4 of Linux 6.1. Numbers
//! are little endian.

use std::io;

use super::{JournalError, crc32c, le_u16, le_u32};
use crate::contents::DiskPart;

/// First byte of the superblock.
pub const START: u64 = 1024;
/// Bytes of the superblock.
const BYTES: usize = 1024;
/// Offset of the incompatible features.
const INCOMPAT: usize = 0x60;
/// Offset of the checksum.
const CHECKSUM: usize = 0x3fc;
const COMPAT_HAS_JOURNAL: u32 = 0x4;
const INCOMPAT_RECOVER: u8 = 0x4;
const INCOMPAT_64BIT: u32 = 0x80;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;
/// Bytes of an inode in the oldest revision. Larger ones begin with the same members.
pub const INODE_BYTES: usize = 128;

/// Superblock of a file system.
pub struct ExtSuperblock([u8; BYTES]);

impl ExtSuperblock {
    pub fn read(part: &DiskPart) -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        part.read_exact_at(&mut bytes, START)?;
        Ok(Self(bytes))
    }

    fn word(&self, at: usize) -> u32 {
        le_u32(&self.0, at)
    }

    /// Returns true if the file system was not unmounted.
    pub fn needs_recovery(&self) -> bool {
        self.0[INCOMPAT] & INCOMPAT_RECOVER != 0
    }

    /// Returns the bytes of a block: 1 to 64 KiB.
    pub fn block_size(&self) -> Result<u32, JournalError> {
        let shift = self.word(0x18);
        if shift > 6 {
            return Err(JournalError::Damaged("the file system's superblock"));
        }
        Ok(1024 << shift)
    }

    /// Reads the journal's inode.
    pub fn journal_inode(&self, part: &DiskPart) -> Result<[u8; INODE_BYTES], JournalError> {
        if self.word(0x5c) & COMPAT_HAS_JOURNAL == 0 {
            return Err(JournalError::Missing);
        }
        // A journal elsewhere has no inode here.
        let number = self.word(0xe0).checked_sub(1).ok_or(JournalError::External)?;
        let damaged = || JournalError::Damaged("its inode");
        let block_size = u64::from(self.block_size()?);
        let group = number.checked_div(self.word(0x28)).ok_or_else(damaged)?;
        let index = number % self.word(0x28);
        let is_64_bit = self.word(INCOMPAT) & INCOMPAT_64BIT != 0;
        let descriptor_size = if is_64_bit { le_u16(&self.0, 0xfe) } else { 32 };

        let mut descriptor = [0; 0x2c];
        let least = if is_64_bit { descriptor.len() } else { 0x20 };
        let descriptors = (u64::from(self.word(0x14)) + 1) * block_size;
        let descriptor_at = descriptors + u64::from(group) * u64::from(descriptor_size);
        part.read_exact_at(&mut descriptor[..least], descriptor_at)?;
        let table = u64::from(le_u32(&descriptor, 0x28)) << 32 | u64::from(le_u32(&descriptor, 8));

        let inode_size = if self.word(0x4c) == 0 { 128 } else { le_u16(&self.0, 0x58) };
        let inode_at = table
            .checked_mul(block_size)
            .and_then(|at| at.checked_add(u64::from(index) * u64::from(inode_size)))
            .ok_or_else(damaged)?;
        let mut inode = [0; INODE_BYTES];
        part.read_exact_at(&mut inode, inode_at)?;
        Ok(inode)
    }
}

/// Clears "needs recovery" in the bytes of a superblock. A checksum that was right is right again.
pub fn clear_recovery(superblock: &mut [u8]) {
    let Some(superblock) = superblock.first_chunk_mut::<BYTES>() else { return };
    let sum = |superblock: &[u8; BYTES]| crc32c(!0, &superblock[..CHECKSUM]);
    let was_right = le_u32(superblock, CHECKSUM) == sum(superblock);
    superblock[INCOMPAT] &= !INCOMPAT_RECOVER;
    if le_u32(superblock, 0x64) & RO_COMPAT_METADATA_CSUM != 0 && was_right {
        let sum = sum(superblock);
        superblock[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    }
}
