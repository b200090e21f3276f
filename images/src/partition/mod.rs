//! Partition tables: which part of a disk is what.
//!
//! ```text
//! sector 0      master boot record: four entries, or one that protects a GUID partition table
//! sector 1      GUID partition table: header, entries behind it; the same again at the disk's end
//! ```
//!
//! All of it was written by somebody else. Entries outside of the disk, without a length, or one beyond [`MOST`] are
//! passed over or refused; nothing is followed twice.

mod gpt;
mod mbr;

use std::io;

use super::contents::Part;

/// Bytes of a sector, as a guest sees the disk.
pub const SECTOR: u64 = 512;
/// More partitions than this are not looked at: GPT has 128 by default (UEFI 2.10, 5.3.2).
pub const MOST: usize = 256;

/// Which table a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Master boot record.
    Mbr,
    /// GUID partition table.
    Gpt,
}

impl Scheme {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mbr => "MBR",
            Self::Gpt => "GPT",
        }
    }
}

/// A disk's partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its kind.
    pub scheme: Scheme,
    /// What is wrong with it although it can be read, in a few words.
    pub damage: Option<String>,
    /// The partitions, by number.
    pub partitions: Vec<Partition>,
}

/// What a partition's type tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
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

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, counted from 1: the guest's `/dev/vdaN`.
    pub number: u32,
    /// Its first byte on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What its type tells.
    pub kind: Kind,
    /// Its id, as in `root=PARTUUID=`.
    pub uuid: String,
}

/// Reads the partition table. `Ok(None)` where there is none.
///
/// # Errors
/// The inner one: there is a table and it can't be used, in a few words.
pub fn read(disk: &Part) -> io::Result<Result<Option<Table>, String>> {
    let mut first = [0; 512];
    if disk.length().is_some_and(|length| length < 512) {
        return Ok(Ok(None));
    }
    disk.read_exact_at(&mut first, 0)?;
    let record = mbr::Record::parse(&first);
    if record.as_ref().is_some_and(mbr::Record::protects) || gpt::is_at(disk, SECTOR) {
        return Ok(gpt::read(disk).map(Some));
    }
    // A boot sector of a file system has the same last two bytes as a master boot record.
    match record.filter(|_| !is_boot_sector(&first)) {
        Some(record) if record.has_partitions() => Ok(Ok(Some(record.table(disk)))),
        _ => Ok(Ok(None)),
    }
}

/// A FAT or NTFS boot sector: their code stands where a partition table would.
fn is_boot_sector(sector: &[u8; 512]) -> bool {
    let at = |offset: usize, sign: &[u8]| sector.get(offset..).is_some_and(|rest| rest.starts_with(sign));
    at(54, b"FAT1") || at(82, b"FAT32") || at(3, b"NTFS") || at(3, b"EXFAT")
}

/// True if so many bytes from there on lie on the disk.
fn fits(disk: &Part, start: u64, length: u64) -> bool {
    match (start.checked_add(length), disk.length()) {
        (Some(end), Some(size)) => length > 0 && end <= size,
        (Some(_), None) => length > 0,
        (None, _) => false,
    }
}

#[cfg(test)]
pub mod tests;
