//! Sound disks, written by code: file systems with boot loaders' configurations, partition tables, qcow2.

use std::io::{Cursor, Write};

use crate::input::files;

/// Bytes of a sector.
const SECTOR: usize = 512;
/// Sectors before the first partition, and after the last one.
const EDGE: usize = 64;
/// Bytes of a block of the ext4 file systems.
const BLOCK: usize = 1024;
/// Inodes of an ext4 file system, of 128 bytes each.
const INODES: usize = 32;
/// First block of its data: boot block, superblock, group, two bitmaps, inodes.
const DATA: usize = 5 + INODES * 128 / BLOCK;

/// Returns a number as a field of 4 bytes.
fn le32(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("a small disk").to_le_bytes()
}

/// Returns a number as a field of 2 bytes.
fn le16(number: usize) -> [u8; 2] {
    u16::try_from(number).expect("a small disk").to_le_bytes()
}

/// Returns configurations of all known boot loaders, with a kernel.
pub fn configurations() -> Vec<(&'static str, Vec<u8>)> {
    let grub = "set default=\"${saved_entry}\"\nmenuentry 'Debian' --id a {\n linux /boot/vmlinuz root=UUID=1 ro $kernelopts\n \
                initrd /boot/initrd.img\n}\nsubmenu 'More' {\nmenuentry 'Old' {\nlinux (hd0,gpt2)/boot/old\n}\n}\n";
    let bls = "title Fedora\nversion 6.1\nsort-key f\nlinux /boot/vmlinuz\ninitrd /boot/initrd.img $tuned\noptions root=LABEL=x $kernelopts\n";
    let extlinux = "default l0\nlabel l0\n menu label ^One\n linux ../vmlinuz\n initrd ../initrd.img\n append root=/dev/sda1 ro\n";
    vec![
        ("/boot/grub/grub.cfg", grub.into()),
        (
            "/boot/grub/grubenv",
            b"# GRUB Environment Block\nsaved_entry=a\nkernelopts=quiet\ntuned=/x\n###".to_vec(),
        ),
        ("/loader/loader.conf", b"timeout 1\ndefault f*\n".to_vec()),
        ("/loader/entries/f-6.1.conf", bls.into()),
        ("/boot/extlinux/extlinux.conf", extlinux.into()),
        ("/boot/vmlinuz", testkit::bz_image(512)),
        ("/boot/initrd.img", files::archive()),
    ]
}

/// Returns a disk that is one FAT file system.
pub fn fat() -> Vec<u8> {
    let mut disk = Cursor::new(vec![0; 128 << 10]);
    let options = fatfs::FormatVolumeOptions::new().volume_label(*b"ESP        ").volume_id(7);
    fatfs::format_volume(&mut disk, options).expect("room for a file system");
    {
        let volume = fatfs::FileSystem::new(&mut disk, fatfs::FsOptions::new()).expect("a file system");
        let root = volume.root_dir();
        for directory in
            ["boot", "boot/grub", "boot/extlinux", "loader", "loader/entries", "EFI", "EFI/Linux"]
        {
            root.create_dir(directory).expect("a directory");
        }
        let unified = ("/EFI/Linux/a.efi", files::efi());
        for (path, bytes) in configurations().into_iter().chain([unified]) {
            let mut file = root.create_file(path.trim_start_matches('/')).expect("a file");
            file.write_all(&bytes).expect("room for a small file");
        }
    }
    disk.into_inner()
}

/// Returns a disk that is one ext4 file system: one group of blocks of 1 KiB, inodes with extents, no
/// journal, no checksums (Documentation/filesystems/ext4 of Linux).
pub fn ext4() -> Vec<u8> {
    let mut volume = Ext4Writer { disk: vec![0; 128 * BLOCK], next_block: DATA, next_inode: 12 };
    let root = volume.tree("", &configurations());
    volume.inode(2, 0x41ed, &root);
    volume.finish()
}

/// Returns a disk like that of [`ext4`] that was not unmounted: its root directory is only in the journal
/// (Documentation/filesystems/ext4/journal.rst of Linux), which has no checksums.
pub fn journaled() -> Vec<u8> {
    let mut volume = Ext4Writer { disk: vec![0; 128 * BLOCK], next_block: DATA, next_inode: 12 };
    let root = volume.tree("", &configurations());
    let home = volume.next_block;
    volume.inode(2, 0x41ed, &root);
    volume.put(home * BLOCK, &[0; BLOCK]);
    // The superblock: size of a block, blocks, first block of the log, its first transaction, its start. Then
    // a descriptor with one tag, the last one; the copy; a commit.
    let [size, home] = [BLOCK, home].map(|number| u32::try_from(number).expect("a small disk"));
    let blocks: [&[u32]; 3] = [&[4, 0, size, 6, 1, 1, 1], &[1, 1, home, 8], &[2, 1]];
    let [superblock, descriptor, commit] = blocks.map(|words| {
        let words = [&[0xc03b_3998][..], words].concat();
        let mut block: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        block.resize(BLOCK, 0);
        block
    });
    volume.inode(8, 0x8180, &[superblock, descriptor, root, commit, vec![0; 2 * BLOCK]].concat());
    let mut disk = volume.finish();
    // Features: a journal; types in directories, extents, "needs recovery". The journal's inode.
    for (offset, value) in [(92, 4_u32), (96, 0x46), (224, 8)] {
        disk[BLOCK + offset..BLOCK + offset + 4].copy_from_slice(&value.to_le_bytes());
    }
    disk
}

struct Ext4Writer {
    disk: Vec<u8>,
    next_block: usize,
    next_inode: usize,
}

impl Ext4Writer {
    /// Writes what is below a directory, and returns the directory's own entries.
    fn tree(&mut self, directory: &str, files: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut names: Vec<(&str, bool)> = Vec::new();
        for (path, _) in files {
            let Some(below) = path.strip_prefix(directory).and_then(|below| below.strip_prefix('/')) else {
                continue;
            };
            let (name, is_file) = below.split_once('/').map_or((below, true), |(name, _)| (name, false));
            if !names.contains(&(name, is_file)) {
                names.push((name, is_file));
            }
        }
        let mut entries: Vec<(usize, &str, u8)> = vec![(2, ".", 2), (2, "..", 2)];
        for (name, is_file) in names {
            let path = format!("{directory}/{name}");
            let number = self.next_inode;
            self.next_inode += 1;
            if is_file {
                let bytes = files.iter().find(|(own, _)| *own == path).map_or(&[][..], |(_, bytes)| bytes);
                self.inode(number, 0x81a4, bytes);
            } else {
                let below = self.tree(&path, files);
                self.inode(number, 0x41ed, &below);
            }
            entries.push((number, name, if is_file { 1 } else { 2 }));
        }
        let mut block = Vec::new();
        for (index, (inode, name, kind)) in entries.iter().enumerate() {
            let length = (8 + name.len()).next_multiple_of(4);
            let length = if index + 1 == entries.len() { BLOCK - block.len() } else { length };
            let start = block.len();
            block.extend(le32(*inode));
            block.extend(le16(length));
            block.extend([u8::try_from(name.len()).expect("a short name"), *kind]);
            block.extend(name.bytes());
            block.resize(start + length, 0);
        }
        block
    }

    fn inode(&mut self, number: usize, mode: u16, bytes: &[u8]) {
        let blocks = bytes.len().div_ceil(BLOCK);
        let first = self.next_block;
        self.next_block += blocks;
        self.put(first * BLOCK, bytes);
        let at = 5 * BLOCK + (number - 1) * 128;
        self.put(at, &mode.to_le_bytes());
        self.put(at + 4, &le32(bytes.len()));
        self.put(at + 26, &1_u16.to_le_bytes());
        self.put(at + 28, &le32(blocks * BLOCK / SECTOR));
        // EXT4_EXTENTS_FL, then a header and one extent: magic, entries, most, depth, generation.
        self.put(at + 32, &0x8_0000_u32.to_le_bytes());
        self.put(at + 40, &[0x0a, 0xf3, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        self.put(at + 52, &0_u32.to_le_bytes());
        self.put(at + 56, &le16(blocks));
        self.put(at + 60, &le32(first));
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.disk[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn finish(mut self) -> Vec<u8> {
        let blocks = self.disk.len() / BLOCK;
        let words: &[(usize, usize)] = &[
            (0, INODES),
            (4, blocks),
            (20, 1),      // first data block
            (32, 8192),   // blocks of a group
            (36, 8192),   // clusters of a group
            (40, INODES), // inodes of a group
            (76, 1),      // revision
            (84, 11),     // first inode that is free to use
            (96, 0x42),   // incompatible features: types in directories, extents
        ];
        for (offset, value) in words {
            self.put(BLOCK + offset, &le32(*value));
        }
        self.put(BLOCK + 56, &[0x53, 0xef, 1, 0, 1, 0]);
        self.put(BLOCK + 88, &128_u16.to_le_bytes());
        self.put(BLOCK + 104, &[9; 16]);
        self.put(BLOCK + 120, b"root");
        for (offset, block) in [(0, 3_u32), (4, 4), (8, 5)] {
            self.put(2 * BLOCK + offset, &block.to_le_bytes());
        }
        self.disk
    }
}

/// Returns a disk with a GUID partition table: an EFI system partition and a root.
pub fn gpt() -> Vec<u8> {
    let parts = [(fat(), ESP), (ext4(), ROOT)];
    let mut disk = vec![0; EDGE * SECTOR];
    let mut entries = vec![0; 4 * 128];
    for (slot, (bytes, kind)) in parts.iter().enumerate() {
        let first = disk.len() / SECTOR;
        disk.extend(bytes);
        let entry = &mut entries[slot * 128..];
        entry[..16].copy_from_slice(kind);
        entry[16..20].copy_from_slice(&le32(slot + 1));
        entry[32..40].copy_from_slice(&(first as u64).to_le_bytes());
        entry[40..48].copy_from_slice(&((disk.len() / SECTOR - 1) as u64).to_le_bytes());
    }
    disk.resize(disk.len() + EDGE * SECTOR, 0);
    let last = disk.len() / SECTOR - 1;
    disk[0x1be + 4] = 0xee;
    disk[0x1be + 8..0x1be + 12].copy_from_slice(&1_u32.to_le_bytes());
    disk[0x1be + 12..0x1be + 16].copy_from_slice(&le32(last));
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (header, table) in [(1, 2), (last, last - 1)] {
        disk[table * SECTOR..table * SECTOR + entries.len()].copy_from_slice(&entries);
        let at = header * SECTOR;
        disk[at..at + 8].copy_from_slice(b"EFI PART");
        for (offset, value) in [(12, 92), (72, table), (80, 4), (84, 128)] {
            disk[at + offset..at + offset + 4].copy_from_slice(&le32(value));
        }
    }
    sum_gpt(&mut disk);
    disk
}

/// C12A7328-F81F-11D2-BA4B-00A0C93EC93B (UEFI 2.10, table 5.7).
const ESP: [u8; 16] =
    [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b];
/// 4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709 (discoverable partitions specification).
const ROOT: [u8; 16] =
    [0xe3, 0xbc, 0x68, 0x4f, 0xcd, 0xe8, 0xb1, 0x4d, 0x96, 0xe7, 0xfb, 0xca, 0xf9, 0x84, 0xb7, 0x09];

/// Corrects the checksums of a GUID partition table, whatever its fields are, if its places are on the disk.
pub fn sum_gpt(disk: &mut [u8]) {
    let Some(last) = (disk.len() / SECTOR).checked_sub(1) else { return };
    for at in [SECTOR, last * SECTOR] {
        let word = |disk: &[u8], offset: usize| {
            let bytes = disk.get(at + offset..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*bytes) as usize)
        };
        let entries = || {
            let length = word(disk, 80)?.checked_mul(word(disk, 84)?)?;
            let start = word(disk, 72)?.checked_mul(SECTOR)?;
            Some(crc(disk.get(start..start.checked_add(length)?)?))
        };
        if let Some(sum) = entries() {
            disk[at + 88..at + 92].copy_from_slice(&sum.to_le_bytes());
        }
        let size = word(disk, 12).unwrap_or(0).min(SECTOR);
        if let Some(field) = disk.get_mut(at + 16..at + 20) {
            field.fill(0);
        }
        if let Some(sum) = disk.get(at..at + size).map(crc) {
            disk[at + 16..at + 20].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Returns a disk with a master boot record: an ext4 partition, and a FAT one in an extended partition.
pub fn mbr() -> Vec<u8> {
    let (ext4, fat) = (ext4(), fat());
    let extended = EDGE + ext4.len() / SECTOR;
    let mut disk = vec![0; EDGE * SECTOR];
    disk.extend(&ext4);
    disk.resize(disk.len() + SECTOR, 0);
    disk.extend(&fat);
    let (sectors, fat_sectors) = (disk.len() / SECTOR, fat.len() / SECTOR);
    let mut put = |sector: usize, slot: usize, kind: u8, start: usize, length: usize| {
        let at = sector * SECTOR + 0x1be + 16 * slot;
        disk[at + 4] = kind;
        disk[at + 8..at + 12].copy_from_slice(&le32(start));
        disk[at + 12..at + 16].copy_from_slice(&le32(length));
        disk[sector * SECTOR + 510..(sector + 1) * SECTOR].copy_from_slice(&[0x55, 0xaa]);
    };
    put(0, 0, 0x83, EDGE, ext4.len() / SECTOR);
    put(0, 1, 0x05, extended, sectors - extended);
    put(extended, 0, 0x0c, 1, fat_sectors);
    disk
}

/// Returns a disk in a qcow2 file of version 3 with clusters of 4 KiB (docs/interop/qcow2.txt of QEMU).
pub fn qcow2(disk: &[u8]) -> Vec<u8> {
    const CLUSTER: usize = 4096;
    let data = disk.len().div_ceil(CLUSTER);
    assert!(data <= CLUSTER / 8, "one table of the second level");
    let mut file = vec![0; 5 * CLUSTER];
    file[..4].copy_from_slice(b"QFI\xfb");
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    let cluster = |number: usize| (number * CLUSTER) as u64;
    put(4, &3_u32.to_be_bytes());
    put(20, &12_u32.to_be_bytes());
    put(24, &(disk.len() as u64).to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &cluster(3).to_be_bytes());
    put(48, &cluster(1).to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    put(CLUSTER, &cluster(2).to_be_bytes());
    // The bit for "in use once".
    put(3 * CLUSTER, &(cluster(4) | 1 << 63).to_be_bytes());
    for number in 0..data {
        put(4 * CLUSTER + 8 * number, &(cluster(5 + number) | 1 << 63).to_be_bytes());
    }
    for number in 0..5 + data {
        put(2 * CLUSTER + 2 * number, &1_u16.to_be_bytes());
    }
    file.extend(disk);
    file.resize((5 + data) * CLUSTER, 0);
    file
}
