//! The GUID partition table (UEFI specification 2.10, 5.3).

use super::{Kind, MOST, Partition, SECTOR, Scheme, Table, fits};
use crate::contents::Part;
use crate::volume::guid;

const SIGNATURE: &[u8] = b"EFI PART";
/// Bytes of the header that its checksum covers, at least and at most.
const HEADER: std::ops::RangeInclusive<u32> = 92..=512;
/// Bytes of an entry: a power of two times 128; more than 4096 nobody has.
const ENTRY_SIZES: std::ops::RangeInclusive<u32> = 128..=4096;
/// Types of partitions (UEFI 2.10, table 5.7; uapi-group.org, discoverable partitions specification).
const TYPES: &[(&str, Kind)] = &[
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", Kind::Esp),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", Kind::Boot),
    ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", Kind::Root),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", Kind::Swap),
];

/// True where a header stands at this byte.
pub fn is_at(disk: &Part, offset: u64) -> bool {
    let mut sign = [0; 8];
    disk.read_exact_at(&mut sign, offset).is_ok() && sign == *SIGNATURE
}

/// The table at the disk's beginning, else its copy at the end.
pub fn read(disk: &Part) -> Result<Table, String> {
    let first = match table_at(disk, SECTOR) {
        Ok(partitions) => return Ok(Table { scheme: Scheme::Gpt, damage: None, partitions }),
        Err(why) => why,
    };
    let last =
        disk.length().and_then(|length| (length / SECTOR).checked_sub(1)).map(|sector| sector * SECTOR);
    match last.map(|last| table_at(disk, last)) {
        Some(Ok(partitions)) => {
            let damage = Some(format!("the first copy is damaged ({first}), its second was read"));
            Ok(Table { scheme: Scheme::Gpt, damage, partitions })
        }
        Some(Err(second)) if second != first => Err(format!("{first}; its copy at the end: {second}")),
        _ => Err(format!("{first}, and so does its copy at the end")),
    }
}

fn table_at(disk: &Part, offset: u64) -> Result<Vec<Partition>, String> {
    let mut header = [0; 512];
    disk.read_exact_at(&mut header, offset).map_err(|_| "the disk ends before it".to_owned())?;
    if !header.starts_with(SIGNATURE) {
        return Err("it has no header".to_owned());
    }
    let word = |at: usize| {
        header.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
    };
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (size, checksum) = (word(12), word(16));
    if !HEADER.contains(&size) {
        return Err(format!("its header claims {size} bytes"));
    }
    let mut covered = header;
    // The checksum itself counts as zero.
    covered[16..20].fill(0);
    let covered = covered.get(..usize::try_from(size).unwrap_or(512)).unwrap_or(&covered);
    if crc(covered) != checksum {
        return Err("its header fails its checksum".to_owned());
    }
    let (count, entry) = (word(80), word(84));
    if !ENTRY_SIZES.contains(&entry) || !entry.is_multiple_of(128) {
        return Err(format!("its entries claim {entry} bytes each"));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > MOST {
        return Err(format!("it claims {count} entries"));
    }
    let entry = usize::try_from(entry).unwrap_or(128);
    let mut entries = vec![0; count * entry];
    let at = long(72).checked_mul(SECTOR).ok_or("its entries lie beyond the end of the disk")?;
    disk.read_exact_at(&mut entries, at)
        .map_err(|_| "its entries lie beyond the end of the disk".to_owned())?;
    if crc(&entries) != word(88) {
        return Err("its entries fail their checksum".to_owned());
    }
    let found: Result<Vec<_>, String> = (1..)
        .zip(entries.chunks_exact(entry))
        .filter_map(|(number, bytes)| partition(disk, number, bytes))
        .collect();
    found
}

/// One entry: type, id, first and last sector. `None` where it is not used.
fn partition(disk: &Part, number: u32, entry: &[u8]) -> Option<Result<Partition, String>> {
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
        return Some(Err(format!("partition {number} lies beyond the end of the disk")));
    };
    let kind = guid(kind);
    let kind = TYPES.iter().find(|(guid, _)| *guid == kind).map_or(Kind::Other, |(_, kind)| *kind);
    Some(Ok(Partition { number, start, length, kind, uuid: guid(id) }))
}

/// CRC-32 as gzip has it, which UEFI takes too.
pub fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
