//! Blocks of the journal's inode: by a tree of extents in ext4, by blocks of pointers in ext3.
//!
//! A journal has no holes. So every node of a hostile map has to add the blocks that follow those before it,
//! which bounds the search.
//!
//! Layout: ifork.rst in Documentation/filesystems/ext4 of Linux 6.1. Numbers are little endian.

use super::superblock::ExtSuperblock;
use super::{JournalError, le_u16, le_u32};
use crate::contents::DiskPart;

/// Most blocks of a journal: four times those of the largest that mke2fs makes unless another size is given.
pub const MOST_BLOCKS: u32 = 1 << 20;
/// Flag of an inode: its map is a tree of extents.
const EXTENTS: u32 = 0x8_0000;
/// First word of each node of a tree of extents.
const EXTENT_MAGIC: u16 = 0xf30a;
/// Most levels of nodes below the inode (`EXT4_MAX_EXTENT_DEPTH`).
const EXTENT_DEPTH: u16 = 5;
/// Bytes of a node's header, and of each entry.
const EXTENT_ENTRY: usize = 12;
/// Most blocks of an extent. Lengths beyond mark an extent that was never written.
const EXTENT_BLOCKS: u16 = 1 << 15;

/// Blocks of a journal, in its own order.
pub struct JournalBlocks {
    part: DiskPart,
    block_size: u32,
    count: u32,
    runs: Vec<BlockRun>,
    mapped: u32,
}

/// Blocks of a journal that follow each other on the disk.
struct BlockRun {
    first: u32,
    count: u32,
    /// Number of the first one in the file system.
    block: u64,
}

impl JournalBlocks {
    /// Finds the journal of a file system.
    pub fn find(part: &DiskPart, superblock: &ExtSuperblock) -> Result<Self, JournalError> {
        let block_size = superblock.block_size()?;
        let inode = superblock.journal_inode(part)?;
        let bytes = u64::from(le_u32(&inode, 0x6c)) << 32 | u64::from(le_u32(&inode, 4));
        let count = u32::try_from(bytes / u64::from(block_size)).unwrap_or(u32::MAX);
        if count > MOST_BLOCKS {
            return Err(JournalError::TooLarge);
        }
        let mut blocks = Self { part: part.clone(), block_size, count, runs: Vec::new(), mapped: 0 };
        let map = &inode[0x28..0x64];
        if le_u32(&inode, 0x20) & EXTENTS != 0 {
            blocks.add_extents(map, le_u16(map, 6).min(EXTENT_DEPTH))?;
        } else {
            let (direct, trees) = map.split_at(12 * 4);
            blocks.add_pointers(direct, 0)?;
            for (level, tree) in (1..).zip(trees.chunks_exact(4)) {
                blocks.add_pointers(tree, level)?;
            }
        }
        if blocks.mapped < count { Err(damaged()) } else { Ok(blocks) }
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the first byte of a block of the journal, on the part of the disk.
    pub fn offset(&self, number: u32) -> Result<u64, JournalError> {
        let after = self.runs.partition_point(|run| run.first <= number);
        let run = after.checked_sub(1).and_then(|index| self.runs.get(index)).ok_or_else(damaged)?;
        if number - run.first >= run.count {
            return Err(damaged());
        }
        self.bytes_before(run.block + u64::from(number - run.first))
    }

    /// Reads a block of the journal.
    pub fn read(&self, number: u32) -> Result<Vec<u8>, JournalError> {
        self.read_at(self.offset(number)?)
    }

    fn read_at(&self, offset: u64) -> Result<Vec<u8>, JournalError> {
        let mut bytes = vec![0; self.block_size as usize];
        self.part.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Returns the bytes before a block of the file system.
    fn bytes_before(&self, block: u64) -> Result<u64, JournalError> {
        block.checked_mul(u64::from(self.block_size)).ok_or_else(damaged)
    }

    /// Adds what a node of a tree of extents has, with `depth` levels of nodes below it.
    fn add_extents(&mut self, node: &[u8], depth: u16) -> Result<(), JournalError> {
        let entries = usize::from(le_u16(node, 2));
        let found = (le_u16(node, 0), le_u16(node, 6));
        let all = node.get(EXTENT_ENTRY..).and_then(|all| all.get(..entries * EXTENT_ENTRY));
        let (Some(all), true) = (all, entries > 0 && found == (EXTENT_MAGIC, depth)) else {
            return Err(damaged());
        };
        for entry in all.chunks_exact(EXTENT_ENTRY) {
            if self.mapped == self.count {
                break;
            }
            if le_u32(entry, 0) != self.mapped {
                return Err(damaged());
            }
            match depth.checked_sub(1) {
                Some(below) => {
                    let block = u64::from(le_u16(entry, 8)) << 32 | u64::from(le_u32(entry, 4));
                    let node = self.read_at(self.bytes_before(block)?)?;
                    self.add_extents(&node, below)?;
                }
                None => {
                    let block = u64::from(le_u16(entry, 6)) << 32 | u64::from(le_u32(entry, 8));
                    match le_u16(entry, 4) {
                        count @ 1..=EXTENT_BLOCKS => self.add_run(block, count.into())?,
                        _ => return Err(damaged()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the blocks to which pointers lead, through `level` levels of blocks of pointers.
    fn add_pointers(&mut self, pointers: &[u8], level: u8) -> Result<(), JournalError> {
        for pointer in pointers.chunks_exact(4) {
            if self.mapped == self.count {
                break;
            }
            let block = u64::from(le_u32(pointer, 0));
            match level.checked_sub(1) {
                _ if block == 0 => return Err(damaged()),
                Some(below) => {
                    let pointers = self.read_at(self.bytes_before(block)?)?;
                    self.add_pointers(&pointers, below)?;
                }
                None => self.add_run(block, 1)?,
            }
        }
        Ok(())
    }

    fn add_run(&mut self, block: u64, count: u32) -> Result<(), JournalError> {
        let count = count.min(self.count - self.mapped);
        match self.runs.last_mut() {
            Some(last) if last.block + u64::from(last.count) == block => last.count += count,
            _ => self.runs.push(BlockRun { first: self.mapped, count, block }),
        }
        self.mapped += count;
        Ok(())
    }
}

fn damaged() -> JournalError {
    JournalError::Damaged("the map of its blocks")
}
