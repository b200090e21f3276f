//! The master boot record (as Linux reads it: block/partitions/msdos.c, 6.1).

use super::{DiskPartition, MOST, PartitionKind, PartitionTable, SECTOR, TableDamage, TableScheme, fits};
use crate::contents::DiskPart;

/// Offset of the four entries in the sector.
const ENTRIES: usize = 0x1be;
/// Bytes of an entry.
const ENTRY: usize = 16;
/// Type of the entry that protects a GUID partition table.
const PROTECTIVE: u8 = 0xee;

/// Entry of the record: type, first sector, number of sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordEntry {
    kind: u8,
    start: u64,
    sectors: u64,
}

impl RecordEntry {
    fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// Sector 0 of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootRecord {
    signature: u32,
    entries: [Option<RecordEntry>; 4],
}

impl BootRecord {
    /// Reads a sector; `None` if the mark at its end is missing, or if Linux would refuse an entry.
    pub fn parse(sector: &[u8; 512]) -> Option<Self> {
        if sector.get(510..) != Some(&[0x55, 0xaa]) {
            return None;
        }
        let mut entries = [None; 4];
        for (index, slot) in entries.iter_mut().enumerate() {
            let entry = sector.get(ENTRIES + index * ENTRY..)?.first_chunk::<ENTRY>()?;
            let [flag, _, _, _, kind, _, _, _, rest @ ..] = *entry;
            // Other flags mean that boot code is there instead of a table.
            if flag & 0x7f != 0 {
                return None;
            }
            let [s0, s1, s2, s3, n0, n1, n2, n3] = rest;
            let start = u64::from(u32::from_le_bytes([s0, s1, s2, s3]));
            let sectors = u64::from(u32::from_le_bytes([n0, n1, n2, n3]));
            *slot = (kind != 0 && sectors != 0).then_some(RecordEntry { kind, start, sectors });
        }
        let signature = sector.get(0x1b8..)?.first_chunk::<4>()?;
        Some(Self { signature: u32::from_le_bytes(*signature), entries })
    }

    /// Returns true if the record protects a GUID partition table that follows.
    pub fn protects(&self) -> bool {
        self.entries.iter().flatten().any(|entry| entry.kind == PROTECTIVE)
    }

    /// Returns true if the record has any entry.
    pub fn has_partitions(&self) -> bool {
        self.entries.iter().any(Option::is_some)
    }

    /// Returns the partitions, with those inside of an extended one.
    pub fn table(&self, disk: &DiskPart) -> PartitionTable {
        let mut table = PartitionTable { scheme: TableScheme::Mbr, damage: None, partitions: Vec::new() };
        for (number, entry) in (1..).zip(&self.entries) {
            match entry {
                Some(entry) if !entry.is_extended() => self.add(&mut table, disk, number, *entry),
                _ => {}
            }
        }
        if let Some(extended) = self.entries.iter().flatten().find(|entry| entry.is_extended()) {
            self.logical(&mut table, disk, extended.start);
        }
        table
    }

    fn add(&self, table: &mut PartitionTable, disk: &DiskPart, number: u32, entry: RecordEntry) {
        // No overflow: both are below 2^34, and a sector has 2^9 bytes.
        let (start, length) = (entry.start * SECTOR, entry.sectors * SECTOR);
        if !fits(disk, start, length) {
            table.damage = Some(TableDamage::PartitionBeyondEnd(number));
            return;
        }
        let kind = match entry.kind {
            0xef => PartitionKind::Esp,
            0xea => PartitionKind::Boot,
            0x82 => PartitionKind::Swap,
            _ => PartitionKind::Other,
        };
        let uuid = format!("{:08x}-{number:02x}", self.signature);
        table.partitions.push(DiskPartition { number, start, length, kind, uuid });
    }

    /// Follows the chain of boot records in an extended partition: each has a partition, counted from itself,
    /// and the next record, counted from the extended partition's start.
    fn logical(&self, table: &mut PartitionTable, disk: &DiskPart, base: u64) {
        let mut at = base;
        for number in 5.. {
            let mut sector = [0; 512];
            let Some(record) = (table.partitions.len() < MOST)
                .then(|| disk.read_exact_at(&mut sector, at.checked_mul(SECTOR)?).ok())
                .flatten()
                .and_then(|()| Self::parse(&sector))
            else {
                table.damage = Some(TableDamage::BrokenChain);
                return;
            };
            let mut entries = record.entries.iter().flatten();
            if let Some(entry) = entries.clone().find(|entry| !entry.is_extended()) {
                let start = at.saturating_add(entry.start);
                self.add(table, disk, number, RecordEntry { start, ..*entry });
            }
            match entries.find(|entry| entry.is_extended()) {
                // Only a chain that leads onwards is followed, so the loop ends.
                Some(next) if base.saturating_add(next.start) > at => at = base.saturating_add(next.start),
                Some(_) => {
                    table.damage = Some(TableDamage::BrokenChain);
                    return;
                }
                None => return,
            }
        }
    }
}
