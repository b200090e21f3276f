//! Partition tables: the parts of a disk and their purposes.
//!
//! ```text
//! sector 0      master boot record: four entries, or one that protects a GUID partition table
//! sector 1      GUID partition table: header, then entries; a copy of both at the disk's end
//! ```
//!
//! The tables are foreign input. Entries that are outside of the disk, have no length, or come after the
//! first [`MOST`] are skipped or refused. No reference is followed twice.

mod gpt;
mod mbr;

use std::io;

use super::contents::DiskPart;

/// Bytes of a sector, as a guest sees the disk.
pub const SECTOR: u64 = 512;
/// Most partitions of a disk; GPT has 128 by default (UEFI 2.10, 5.3.2).
pub const MOST: usize = 256;

/// Format of a partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableScheme {
    /// Master boot record.
    Mbr,
    /// GUID partition table.
    Gpt,
}

impl TableScheme {
    /// Returns the usual name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mbr => "MBR",
            Self::Gpt => "GPT",
        }
    }
}

/// Partition table of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// Format of the table.
    pub scheme: TableScheme,
    /// Damage of a table that is readable all the same.
    pub damage: Option<TableDamage>,
    /// Partitions in the order of their numbers.
    pub partitions: Vec<DiskPartition>,
}

/// Purpose of a partition, by its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionKind {
    /// The EFI system partition.
    Esp,
    /// A boot partition (XBOOTLDR of the boot loader specification).
    Boot,
    /// The root file system of x86-64 (discoverable partitions specification).
    Root,
    /// Swap.
    Swap,
    /// Anything else.
    Other,
}

/// Partition of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPartition {
    /// Number, counted from 1: the guest's `/dev/vdaN`.
    pub number: u32,
    /// First byte of the partition on the disk.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Purpose, by the partition's type.
    pub kind: PartitionKind,
    /// Id of the partition, as in `root=PARTUUID=`.
    pub uuid: String,
}

/// Damage of a partition table, in words that follow "has a damaged partition table:".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableDamage {
    /// The disk ends before the header.
    #[error("the disk ends before it")]
    CutOff,
    /// The header's signature is missing.
    #[error("it has no header")]
    NoHeader,
    /// The header's size, bytes, is impossible.
    #[error("its header claims {0} bytes")]
    HeaderSize(u32),
    /// The header does not match its checksum.
    #[error("its header fails its checksum")]
    HeaderChecksum,
    /// The size of an entry, bytes, is impossible.
    #[error("its entries claim {0} bytes each")]
    EntrySize(u32),
    /// There are more entries than vprof reads.
    #[error("it claims {0} entries, more than {MOST}")]
    EntryCount(usize),
    /// The disk ends before the end of the entries.
    #[error("its entries are beyond the end of the disk")]
    EntriesBeyondEnd,
    /// The entries do not match their checksum.
    #[error("its entries fail their checksum")]
    EntriesChecksum,
    /// The partition with this number is empty, or the disk ends before it does.
    #[error("partition {0} is beyond the end of the disk")]
    PartitionBeyondEnd(u32),
    /// A boot record in the chain of logical partitions is missing, or the chain leads back.
    #[error("its chain of logical partitions is broken")]
    BrokenChain,
    /// Only the first of the two copies is damaged; the second was read.
    #[error("the first copy is damaged ({0}), its second was read")]
    FirstCopy(Box<Self>),
    /// Both copies have the same damage.
    #[error("{0}; its copy at the end has the same damage")]
    BothAlike(Box<Self>),
    /// The copies have different damage.
    #[error("{first}; its copy at the end: {second}")]
    BothCopies {
        /// Damage of the copy at the disk's beginning.
        first: Box<Self>,
        /// Damage of the copy at the disk's end.
        second: Box<Self>,
    },
}

/// Failure to read the partition table of a disk.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The disk cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The disk has a table that cannot be used.
    #[error(transparent)]
    Damaged(#[from] TableDamage),
}

/// Reads the partition table. Returns `None` if the disk has none.
///
/// # Errors
/// The disk cannot be read, or it has a table that cannot be used.
pub fn read(disk: &DiskPart) -> Result<Option<PartitionTable>, TableError> {
    let mut first = [0; 512];
    if disk.length().is_some_and(|length| length < 512) {
        return Ok(None);
    }
    disk.read_exact_at(&mut first, 0)?;
    let record = mbr::BootRecord::parse(&first);
    if record.as_ref().is_some_and(mbr::BootRecord::protects) || gpt::has_header_at(disk, SECTOR) {
        return Ok(Some(gpt::read(disk)?));
    }
    // A boot sector of a file system has the same last two bytes as a master boot record.
    match record.filter(|_| !is_boot_sector(&first)) {
        Some(record) if record.has_partitions() => Ok(Some(record.table(disk))),
        _ => Ok(None),
    }
}

/// Returns true for a boot sector of FAT or NTFS, which has code at the place of a partition table.
fn is_boot_sector(sector: &[u8; 512]) -> bool {
    let at = |offset: usize, sign: &[u8]| sector.get(offset..).is_some_and(|rest| rest.starts_with(sign));
    at(54, b"FAT1") || at(82, b"FAT32") || at(3, b"NTFS") || at(3, b"EXFAT")
}

/// Returns true if the disk has the `length` bytes from `start` on, and `length` is not zero.
fn fits(disk: &DiskPart, start: u64, length: u64) -> bool {
    match (start.checked_add(length), disk.length()) {
        (Some(end), Some(size)) => length > 0 && end <= size,
        (Some(_), None) => length > 0,
        (None, _) => false,
    }
}

#[cfg(test)]
pub mod tests;
