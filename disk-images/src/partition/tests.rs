//! Partition tables made by code, and what is left of them after damage.

use proptest::prelude::*;

use super::*;
use crate::contents::part_of;

/// Returns an empty disk of so many sectors.
fn disk(sectors: usize) -> Vec<u8> {
    vec![0; sectors * 512]
}

/// Writes an entry of a master boot record: type, first sector, number of sectors.
fn put_mbr(disk: &mut [u8], at: usize, slot: usize, kind: u8, start: u32, sectors: u32) {
    let entry = at * 512 + 0x1be + 16 * slot;
    disk[entry + 4] = kind;
    disk[entry + 8..entry + 12].copy_from_slice(&start.to_le_bytes());
    disk[entry + 12..entry + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[at * 512 + 510..at * 512 + 512].copy_from_slice(&[0x55, 0xaa]);
}

const ROOT_TYPE: [u8; 16] =
    [0xe3, 0xbc, 0x68, 0x4f, 0xcd, 0xe8, 0xb1, 0x4d, 0x96, 0xe7, 0xfb, 0xca, 0xf9, 0x84, 0xb7, 0x09];

/// Returns a disk of 128 sectors with a GUID partition table and these partitions: first and last sector.
pub fn gpt_disk(partitions: &[(u64, u64)]) -> Vec<u8> {
    let mut disk = disk(128);
    put_mbr(&mut disk, 0, 0, 0xee, 1, 127);
    let mut entries = vec![0; 4 * 128];
    for (slot, (first, last)) in partitions.iter().enumerate() {
        let entry = &mut entries[slot * 128..];
        entry[..16].copy_from_slice(&ROOT_TYPE);
        entry[16] = u8::try_from(slot + 1).unwrap();
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
    }
    for (header_at, entries_at) in [(1_usize, 2_usize), (127, 126)] {
        disk[entries_at * 512..entries_at * 512 + 512].copy_from_slice(&entries);
        let mut header = [0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[72..80].copy_from_slice(&(entries_at as u64).to_le_bytes());
        header[80..84].copy_from_slice(&4_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        header[88..92].copy_from_slice(&gpt::crc(&entries).to_le_bytes());
        let checksum = gpt::crc(&header);
        header[16..20].copy_from_slice(&checksum.to_le_bytes());
        disk[header_at * 512..header_at * 512 + 92].copy_from_slice(&header);
    }
    disk
}

fn table(disk: &[u8]) -> Result<Option<PartitionTable>, TableDamage> {
    read(&part_of(disk)).map_err(|error| match error {
        TableError::Damaged(damage) => damage,
        TableError::Read(error) => panic!("{error}"),
    })
}

/// Returns the message of a table that cannot be used.
fn refusal(disk: &[u8]) -> String {
    table(disk).unwrap_err().to_string()
}

#[test]
fn a_guid_partition_table_is_read() {
    let table = table(&gpt_disk(&[(34, 40), (48, 99)])).unwrap().unwrap();
    assert_eq!((table.scheme, table.damage), (TableScheme::Gpt, None));
    let second = &table.partitions[1];
    assert_eq!((second.number, second.start, second.length), (2, 48 * 512, 52 * 512));
    assert_eq!(second.kind, PartitionKind::Root);
    assert_eq!(second.uuid, "00000002-0000-0000-0000-000000000000");
}

#[test]
fn the_copy_at_the_end_serves_where_the_first_is_damaged() {
    let mut damaged = gpt_disk(&[(34, 40)]);
    damaged[512 + 80] ^= 1;
    let found = table(&damaged).unwrap().unwrap();
    assert_eq!(found.partitions.len(), 1);
    assert_eq!(found.damage, Some(TableDamage::FirstCopy(Box::new(TableDamage::HeaderChecksum))));
    damaged[127 * 512] = 0;
    assert_eq!(refusal(&damaged), "its header fails its checksum; its copy at the end: it has no header");
    let mut entries = gpt_disk(&[(34, 40)]);
    entries[2 * 512 + 200] ^= 1;
    entries[126 * 512 + 200] ^= 1;
    assert_eq!(refusal(&entries), "its entries fail their checksum; its copy at the end has the same damage");
}

#[test]
fn partitions_beyond_the_disk_are_damage() {
    assert!(refusal(&gpt_disk(&[(34, 128)])).contains("partition 1 is beyond the end"));
    assert!(table(&gpt_disk(&[(40, 34)])).is_err());
    let whole = gpt_disk(&[(34, 100)]);
    assert!(refusal(&whole[..90 * 512]).contains("beyond the end of the disk"));
}

#[test]
fn a_master_boot_record_is_read_with_logical_partitions() {
    let mut disk = disk(100);
    disk[0x1b8..0x1bc].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
    put_mbr(&mut disk, 0, 0, 0x83, 2, 10);
    put_mbr(&mut disk, 0, 1, 0x05, 20, 60);
    put_mbr(&mut disk, 20, 0, 0x82, 1, 5);
    put_mbr(&mut disk, 20, 1, 0x05, 10, 20);
    put_mbr(&mut disk, 30, 0, 0x83, 2, 7);
    let table = table(&disk).unwrap().unwrap();
    assert_eq!((table.scheme, &table.damage), (TableScheme::Mbr, &None));
    let shown: Vec<_> =
        table.partitions.iter().map(|p| (p.number, p.start / 512, p.length / 512, p.uuid.as_str())).collect();
    assert_eq!(shown, [(1, 2, 10, "deadbeef-01"), (5, 21, 5, "deadbeef-05"), (6, 32, 7, "deadbeef-06")]);
    assert_eq!(table.partitions[1].kind, PartitionKind::Swap);
}

#[test]
fn a_chain_that_leads_back_ends() {
    let mut disk = disk(100);
    put_mbr(&mut disk, 0, 1, 0x05, 20, 60);
    put_mbr(&mut disk, 20, 0, 0x83, 1, 5);
    put_mbr(&mut disk, 20, 1, 0x05, 0, 20);
    let table = table(&disk).unwrap().unwrap();
    assert_eq!(table.partitions.len(), 1);
    assert_eq!(table.damage, Some(TableDamage::BrokenChain));
}

#[test]
fn disks_without_a_table_have_none() {
    assert_eq!(table(&disk(10)), Ok(None));
    assert_eq!(table(b"short"), Ok(None));
    let mut fat = disk(10);
    fat[82..90].copy_from_slice(b"FAT32   ");
    put_mbr(&mut fat, 0, 0, 0x83, 2, 4);
    assert_eq!(table(&fat), Ok(None));
    let mut code = disk(10);
    put_mbr(&mut code, 0, 0, 0x83, 2, 4);
    code[0x1be] = 0x33;
    assert_eq!(table(&code), Ok(None));
}

proptest! {
    #[test]
    fn damage_anywhere_is_tolerated(
        changes in proptest::collection::vec((0_usize..128 * 512, any::<u8>()), 1..20),
        cut in 0_usize..=128 * 512,
        gpt in any::<bool>(),
    ) {
        let mut disk = if gpt {
            gpt_disk(&[(34, 40), (48, 99)])
        } else {
            let mut disk = disk(128);
            put_mbr(&mut disk, 0, 0, 0x83, 2, 10);
            put_mbr(&mut disk, 0, 1, 0x05, 20, 60);
            put_mbr(&mut disk, 20, 0, 0x82, 1, 5);
            put_mbr(&mut disk, 20, 1, 0x05, 10, 20);
            disk
        };
        for (at, byte) in changes {
            // Half of the changes where they hurt.
            let at = if byte % 2 == 0 { at } else { at % 1536 };
            disk[at] = byte;
        }
        disk.truncate(cut);
        if let Ok(Some(table)) = table(&disk) {
            prop_assert!(table.partitions.len() <= MOST);
            for partition in table.partitions {
                prop_assert!(partition.start + partition.length <= disk.len() as u64);
            }
        }
    }
}
