//! Replay of a journal of ext3 and ext4: finds the newest copy of each block, and writes nothing.
//!
//! ```text
//! superblock: where the log starts (s_start), number of its first transaction (s_sequence)
//!
//! transaction:  descriptor | block | block | ... | revoke | commit
//!                 │ where the blocks belong         │ blocks that were freed
//! ```
//!
//! The log ends before the first transaction that has no commit block, has another number than the one that
//! follows, or has a wrong checksum: what comes after was written in an earlier round of the log, or only in
//! part. A copy counts unless its own or a later transaction revokes it, because the block may hold a file's
//! bytes since, which are not journaled.
//!
//! Fast commits, which describe changes instead of holding blocks, are left out: files are as of the last
//! complete transaction.
//!
//! Layout: Documentation/filesystems/ext4/journal.rst of Linux 6.1. Numbers are big endian.

use std::collections::BTreeMap;
use std::io;

use super::blocks::JournalBlocks;
use super::superblock::ExtSuperblock;
use super::{JournalError, crc32c};
use crate::contents::DiskPart;

/// First word of every block of the log but copies. A copy that begins with it is "escaped": it has zeros
/// instead.
const MAGIC: u32 = 0xc03b_3998;
/// Kinds of blocks.
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK_V1: u32 = 3;
const SUPERBLOCK_V2: u32 = 4;
const REVOKE: u32 = 5;
/// Incompatible features. Those without a use here are revoke blocks and asynchronous commits.
const HAS_64BIT: u32 = 0x2;
const CSUM_V2: u32 = 0x8;
const CSUM_V3: u32 = 0x10;
const FAST_COMMIT: u32 = 0x20;
const KNOWN: u32 = 0x1 | HAS_64BIT | 0x4 | CSUM_V2 | CSUM_V3 | FAST_COMMIT;
/// Type of checksum in superblocks: CRC-32C.
const CRC32C: u8 = 4;
/// Bytes of the superblock that its checksum covers, and the checksum's offset.
const SUPERBLOCK_BYTES: usize = 1024;
const SUPERBLOCK_CHECKSUM: usize = 0xfc;
/// Offset of s_sequence and s_start in the superblock.
const STATE: usize = 0x18;
/// Blocks for fast commits, if the superblock has no number (`JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
const FAST_COMMIT_BLOCKS: u32 = 256;
/// Bytes of the header of a block of the log: magic number, kind, transaction.
const HEADER: usize = 12;
/// Flags of a tag.
const ESCAPED: u32 = 1;
const SAME_UUID: u32 = 2;
const LAST: u32 = 8;
/// Most blocks that one transaction revokes: 8 MiB of numbers.
const MOST_REVOKED: usize = 1 << 20;

/// Newest copies of blocks in a journal.
#[derive(Debug)]
pub struct JournalReplay {
    block_size: u64,
    /// By number of the block in the file system.
    copies: BTreeMap<u64, BlockCopy>,
    /// Place of the superblock's s_sequence and s_start, and their bytes when the journal was replayed.
    state_at: u64,
    state: [u8; 8],
}

/// Copy of a block in the journal.
#[derive(Debug)]
struct BlockCopy {
    /// First byte on the part of the disk.
    at: u64,
    /// The magic number at the beginning was replaced by zeros.
    escaped: bool,
}

impl JournalReplay {
    /// Replays the journal of the file system on `part`; `None` if the journal has nothing that the file
    /// system lacks.
    pub fn read(part: &DiskPart) -> Result<Option<Self>, JournalError> {
        let superblock = ExtSuperblock::read(part)?;
        if !superblock.needs_recovery() {
            return Ok(None);
        }
        let blocks = JournalBlocks::find(part, &superblock)?;
        let Some(log) = Log::open(&blocks)? else { return Ok(None) };
        Ok(Some(Self {
            block_size: blocks.block_size().into(),
            copies: log.copies()?,
            state_at: blocks.offset(0)? + STATE as u64,
            state: log.state,
        }))
    }

    /// Puts copies from the journal over the bytes `into` of the disk, which begin at `start`.
    pub fn cover(&self, part: &DiskPart, start: u64, into: &mut [u8]) -> io::Result<()> {
        let end = start.saturating_add(into.len() as u64);
        let mut covered = false;
        for (number, copy) in self.copies.range(start / self.block_size..end.div_ceil(self.block_size)) {
            let block = number * self.block_size;
            let (from, to) = (block.max(start), (block + self.block_size).min(end));
            let [first, last] =
                [from - start, to - start].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
            let Some(piece) = into.get_mut(first..last) else { continue };
            part.read_exact_at(piece, copy.at + (from - block))?;
            if copy.escaped {
                let magic =
                    MAGIC.to_be_bytes().into_iter().skip(usize::try_from(from - block).unwrap_or(usize::MAX));
                piece.iter_mut().zip(magic).for_each(|(byte, magic)| *byte = magic);
            }
            covered = true;
        }
        // A guest that starts meanwhile replays its journal too, notes that in the journal's superblock, and
        // only then reuses the journal's blocks.
        let mut state = [0; 8];
        if covered {
            part.read_exact_at(&mut state, self.state_at)?;
            if state != self.state {
                part.read_exact_at(into, start)?;
            }
        }
        Ok(())
    }
}

/// Log of a journal.
struct Log<'a> {
    blocks: &'a JournalBlocks,
    features: u32,
    /// Beginning of all checksums; `None` for a journal without checksums of version 2 or 3.
    seed: Option<u32>,
    /// Blocks of the log: `first..end`, after which the log continues at `first`.
    first: u32,
    end: u32,
    start: u32,
    sequence: u32,
    state: [u8; 8],
}

/// Transaction of a log.
#[derive(Default)]
struct Transaction {
    copies: Vec<(u64, BlockCopy)>,
    revoked: Vec<u64>,
}

/// Entry of a descriptor: the place of a block.
struct BlockTag {
    block: u64,
    flags: u32,
    checksum: u32,
}

impl<'a> Log<'a> {
    /// Reads the superblock; `None` if the log is empty.
    fn open(blocks: &'a JournalBlocks) -> Result<Option<Self>, JournalError> {
        let bytes = blocks.read(0)?;
        let word = |at| be_u32(&bytes, at);
        let damaged = || JournalError::Damaged("its superblock");
        let has_kind = matches!(word(4), SUPERBLOCK_V1 | SUPERBLOCK_V2);
        if word(0) != MAGIC || !has_kind || word(0xc) != blocks.block_size() {
            return Err(damaged());
        }
        let features = if word(4) == SUPERBLOCK_V1 { 0 } else { word(0x28) };
        if features & !KNOWN != 0 {
            return Err(JournalError::Features(features & !KNOWN));
        }
        let seed = match features & (CSUM_V2 | CSUM_V3) {
            0 => None,
            CSUM_V2 | CSUM_V3 if bytes.get(0x50) == Some(&CRC32C) => {
                Some(crc32c(!0, bytes.get(0x30..0x40).unwrap_or_default()))
            }
            _ => return Err(damaged()),
        };
        if seed.is_some() {
            let checked = bytes.get(..SUPERBLOCK_BYTES).ok_or_else(damaged)?;
            if sum(!0, checked, SUPERBLOCK_CHECKSUM) != word(SUPERBLOCK_CHECKSUM) {
                return Err(damaged());
            }
        }
        let fast_commits = match word(0x54) {
            _ if features & FAST_COMMIT == 0 => 0,
            0 => FAST_COMMIT_BLOCKS,
            count => count,
        };
        let (first, start, length) = (word(0x14), word(0x1c), word(0x10));
        if start == 0 {
            return Ok(None);
        }
        let end = length.saturating_sub(fast_commits);
        if first == 0 || length > blocks.count() || !(first..end).contains(&start) {
            return Err(damaged());
        }
        let state = bytes.get(STATE..).and_then(|rest| rest.first_chunk()).ok_or_else(damaged)?;
        Ok(Some(Self { blocks, features, seed, first, end, start, sequence: word(0x18), state: *state }))
    }

    /// Returns the newest copy of each block.
    fn copies(&self) -> Result<BTreeMap<u64, BlockCopy>, JournalError> {
        let mut copies = BTreeMap::new();
        let mut sequence = self.sequence;
        // Once around the log, and no further.
        let mut numbers = (self.start..self.end).chain(self.first..self.start);
        while let Some(transaction) = self.transaction(sequence, &mut numbers)? {
            copies.extend(transaction.copies);
            for block in transaction.revoked {
                copies.remove(&block);
            }
            sequence = sequence.wrapping_add(1);
        }
        Ok(copies)
    }

    /// Reads the transaction at the next of the journal's blocks; `None` at the end of the log.
    fn transaction(
        &self,
        sequence: u32,
        numbers: &mut impl Iterator<Item = u32>,
    ) -> Result<Option<Transaction>, JournalError> {
        let mut transaction = Transaction::default();
        while let Some(number) = numbers.next() {
            let block = self.blocks.read(number)?;
            if be_u32(&block, 0) != MAGIC || be_u32(&block, 8) != sequence {
                break;
            }
            match be_u32(&block, 4) {
                COMMIT if self.is_sound(&block, HEADER + 4) => return Ok(Some(transaction)),
                DESCRIPTOR if self.is_sound(&block, block.len() - 4) => {
                    for tag in self.tags(&block) {
                        let Some(number) = numbers.next() else { return Ok(None) };
                        if !self.is_copy_sound(number, sequence, &tag)? {
                            return Ok(None);
                        }
                        let copy =
                            BlockCopy { at: self.blocks.offset(number)?, escaped: tag.flags & ESCAPED != 0 };
                        transaction.copies.push((tag.block, copy));
                    }
                }
                REVOKE if self.is_sound(&block, block.len() - 4) => {
                    let Some(revoked) = self.revoked(&block) else { break };
                    transaction.revoked.extend(revoked);
                    if transaction.revoked.len() > MOST_REVOKED {
                        break;
                    }
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// Returns true if a block of the log has the checksum that is in it at offset `at`, or needs none.
    fn is_sound(&self, block: &[u8], at: usize) -> bool {
        self.seed.is_none_or(|seed| sum(seed, block, at) == be_u32(block, at))
    }

    /// Returns true if a copy of a block has the checksum of its tag, or needs none.
    fn is_copy_sound(&self, number: u32, sequence: u32, tag: &BlockTag) -> Result<bool, JournalError> {
        let Some(seed) = self.seed else { return Ok(true) };
        let sum = crc32c(crc32c(seed, &sequence.to_be_bytes()), &self.blocks.read(number)?);
        // The tags of version 2 have half of the checksum.
        let mask = if self.features & CSUM_V3 == 0 { 0xffff } else { !0 };
        Ok(sum & mask == tag.checksum)
    }

    /// Returns the bytes of a block without the checksum at its end.
    fn payload<'b>(&self, block: &'b [u8]) -> &'b [u8] {
        let tail = if self.seed.is_some() { 4 } else { 0 };
        block.get(..block.len() - tail).unwrap_or_default()
    }

    /// Returns the entries of a descriptor.
    fn tags(&self, block: &[u8]) -> Vec<BlockTag> {
        let has_high = self.features & HAS_64BIT != 0;
        let is_v3 = self.features & CSUM_V3 != 0;
        // Version 2 has two bytes more than it uses.
        let bytes = if is_v3 {
            16
        } else {
            8 + 4 * usize::from(has_high) + if self.features & CSUM_V2 != 0 { 2 } else { 0 }
        };
        let mut tags = Vec::new();
        let mut rest = self.payload(block).get(HEADER..).unwrap_or_default();
        while let Some(tag) = rest.get(..bytes) {
            let (flags, checksum) = if is_v3 {
                (be_u32(tag, 4), be_u32(tag, 12))
            } else {
                (be_u32(tag, 4) & 0xffff, be_u32(tag, 4) >> 16)
            };
            let high = if has_high { be_u32(tag, 8) } else { 0 };
            tags.push(BlockTag { block: u64::from(high) << 32 | u64::from(be_u32(tag, 0)), flags, checksum });
            if flags & LAST != 0 {
                break;
            }
            let uuid = if flags & SAME_UUID == 0 { 16 } else { 0 };
            rest = rest.get(bytes + uuid..).unwrap_or_default();
        }
        tags
    }

    /// Returns the blocks that a revoke block names; `None` if it has more than there is room for.
    fn revoked<'b>(&self, block: &'b [u8]) -> Option<impl Iterator<Item = u64> + use<'b>> {
        let numbers = self.payload(block).get(..be_u32(block, HEADER) as usize)?.get(HEADER + 4..)?;
        let bytes = if self.features & HAS_64BIT != 0 { 8 } else { 4 };
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Some(numbers.chunks_exact(bytes).map(number))
    }
}

/// Returns the checksum of bytes with zeros instead of the four at `at`, where their checksum is.
fn sum(seed: u32, bytes: &[u8], at: usize) -> u32 {
    let (before, rest) = bytes.split_at(at.min(bytes.len()));
    crc32c(crc32c(crc32c(seed, before), &[0; 4]), rest.get(4..).unwrap_or_default())
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u32::from_be_bytes)
}
