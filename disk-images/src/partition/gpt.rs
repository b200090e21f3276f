//! The GUID partition table (UEFI specification 2.10, 5.3).

use super::{DiskPartition, MOST, PartitionKind, PartitionTable, SECTOR, TableDamage, TableScheme, fits};
use crate::contents::DiskPart;
use crate::volume::guid;

const SIGNATURE: &[u8] = b"EFI PART";
/// Bytes of the header that its checksum covers, at least and at most.
const HEADER: std::ops::RangeInclusive<u32> = 92..=512;
/// Bytes of an entry: 128 times a power of two; nobody uses more than 4096.
const ENTRY_SIZES: std::ops::RangeInclusive<u32> = 128..=4096;
/// Types of partitions (UEFI 2.10, table 5.7; uapi-group.org, discoverable partitions specification).
const TYPES: &[(&str, PartitionKind)] = &[
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", PartitionKind::Esp),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", PartitionKind::Boot),
    ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", PartitionKind::Root),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", PartitionKind::Swap),
];

/// Returns true if there is a header at this byte of the disk.
pub fn has_header_at(disk: &DiskPart, offset: u64) -> bool {
    let mut sign = [0; 8];
    disk.read_exact_at(&mut sign, offset).is_ok() && sign == *SIGNATURE
}

/// Reads the table at the disk's beginning, or its copy at the disk's end if the first is damaged.
pub fn read(disk: &DiskPart) -> Result<PartitionTable, TableDamage> {
    let first = match table_at(disk, SECTOR) {
        Ok(partitions) => return Ok(PartitionTable { scheme: TableScheme::Gpt, damage: None, partitions }),
        Err(damage) => Box::new(damage),
    };
    let last =
        disk.length().and_then(|length| (length / SECTOR).checked_sub(1)).map(|sector| sector * SECTOR);
    // The end of a block device is unknown, and so is the copy there.
    let Some(last) = last else { return Err(*first) };
    match table_at(disk, last) {
        Ok(partitions) => Ok(PartitionTable {
            scheme: TableScheme::Gpt,
            damage: Some(TableDamage::FirstCopy(first)),
            partitions,
        }),
        Err(second) if second == *first => Err(TableDamage::BothAlike(first)),
        Err(second) => Err(TableDamage::BothCopies { first, second: Box::new(second) }),
    }
}

/// Reads the table whose header is at this byte of the disk.
fn table_at(disk: &DiskPart, offset: u64) -> Result<Vec<DiskPartition>, TableDamage> {
    let mut header = [0; 512];
    disk.read_exact_at(&mut header, offset).map_err(|_| TableDamage::CutOff)?;
    if !header.starts_with(SIGNATURE) {
        return Err(TableDamage::NoHeader);
    }
    let word = |at: usize| {
        header.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
    };
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (size, checksum) = (word(12), word(16));
    if !HEADER.contains(&size) {
        return Err(TableDamage::HeaderSize(size));
    }
    let mut covered = header;
    // The checksum is computed with its own field as zero.
    covered[16..20].fill(0);
    let covered = covered.get(..usize::try_from(size).unwrap_or(512)).unwrap_or(&covered);
    if crc(covered) != checksum {
        return Err(TableDamage::HeaderChecksum);
    }
    let (count, entry) = (word(80), word(84));
    if !ENTRY_SIZES.contains(&entry) || !entry.is_multiple_of(128) {
        return Err(TableDamage::EntrySize(entry));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // The limit keeps a hostile table from an allocation of terabytes.
    if count > MOST {
        return Err(TableDamage::EntryCount(count));
    }
    let entry = usize::try_from(entry).unwrap_or(128);
    let mut entries = vec![0; count * entry];
    let entries_start = long(72).checked_mul(SECTOR).ok_or(TableDamage::EntriesBeyondEnd)?;
    disk.read_exact_at(&mut entries, entries_start).map_err(|_| TableDamage::EntriesBeyondEnd)?;
    if crc(&entries) != word(88) {
        return Err(TableDamage::EntriesChecksum);
    }
    (1..)
        .zip(entries.chunks_exact(entry))
        .filter_map(|(number, bytes)| partition(disk, number, bytes))
        .collect()
}

/// Reads one entry: type, id, first and last sector. `None` if the entry is unused.
fn partition(disk: &DiskPart, number: u32, entry: &[u8]) -> Option<Result<DiskPartition, TableDamage>> {
    let kind: &[u8; 16] = entry.first_chunk()?;
    if *kind == [0; 16] {
        return None;
    }
    let id: &[u8; 16] = entry.get(16..)?.first_chunk()?;
    let first = u64::from_le_bytes(*entry.get(32..)?.first_chunk()?);
    let last = u64::from_le_bytes(*entry.get(40..)?.first_chunk()?);
    let range = || {
        let start = first.checked_mul(SECTOR)?;
        let length = last.checked_sub(first)?.checked_add(1)?.checked_mul(SECTOR)?;
        fits(disk, start, length).then_some((start, length))
    };
    let Some((start, length)) = range() else {
        return Some(Err(TableDamage::PartitionBeyondEnd(number)));
    };
    let kind = guid(kind);
    let kind = TYPES.iter().find(|(guid, _)| *guid == kind).map_or(PartitionKind::Other, |(_, kind)| *kind);
    Some(Ok(DiskPartition { number, start, length, kind, uuid: guid(id) }))
}

/// Returns the CRC-32 that gzip and UEFI use.
pub fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
