//! File systems made by their usual tools, magic numbers written by code, and both after damage.

use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::signature::VolumeSignature;
use super::*;
use crate::contents::part_of;

fn with(signs: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 0x1_1000];
    for (offset, sign) in signs {
        bytes[*offset..offset + sign.len()].copy_from_slice(sign);
    }
    bytes
}

fn named(signs: &[(usize, &[u8])]) -> Option<&'static str> {
    VolumeSignature::from_part(&part_of(&with(signs))).map(|signature| signature.name)
}

#[test]
fn contents_are_recognized_by_their_magic_numbers() {
    assert_eq!(named(&[]), None);
    assert_eq!(named(&[(1080, &[0x53, 0xef])]), Some("ext2"));
    assert_eq!(named(&[(1080, &[0x53, 0xef]), (1024 + 0x5c, &[4])]), Some("ext3"));
    assert_eq!(named(&[(1080, &[0x53, 0xef]), (1024 + 0x60, &[0x40])]), Some("ext4"));
    assert_eq!(named(&[(0, b"XFSB")]), Some("xfs"));
    assert_eq!(named(&[(0x1_0040, b"_BHRfS_M")]), Some("btrfs"));
    assert_eq!(named(&[(0, b"LUKS\xba\xbe\0\x02")]), Some("LUKS"));
    assert_eq!(named(&[(512, b"LABELONE"), (512 + 0x18, b"LVM2 001")]), Some("LVM"));
    assert_eq!(named(&[(4086, b"SWAPSPACE2")]), Some("swap"));
    assert_eq!(named(&[(4096, &0xa92b_4efc_u32.to_le_bytes())]), Some("Linux RAID"));
    assert_eq!(named(&[(1024, &0xf2f5_2010_u32.to_le_bytes())]), Some("f2fs"));
    assert_eq!(named(&[(0, b"hsqs")]), Some("squashfs"));
    assert_eq!(named(&[(510, &[0x55, 0xaa]), (82, b"FAT32   ")]), Some("vfat"));
    assert_eq!(named(&[(510, &[0x55, 0xaa])]), None);
}

#[test]
fn ids_and_labels_are_as_blkid_shows_them() {
    let id: Vec<u8> = (1..=16).collect();
    let recognized = |signs: &[(usize, &[u8])]| VolumeSignature::from_part(&part_of(&with(signs))).unwrap();
    let xfs = recognized(&[(0, b"XFSB"), (32, &id), (108, b"data\0\0")]);
    assert_eq!(xfs.uuid.as_deref(), Some("01020304-0506-0708-090a-0b0c0d0e0f10"));
    assert_eq!(xfs.label.as_deref(), Some("data"));
    let luks = recognized(&[(0, b"LUKS\xba\xbe\0\x02"), (168, b"6f1d2c3e-5a4b\0")]);
    assert_eq!(luks.uuid.as_deref(), Some("6f1d2c3e-5a4b"));
    assert!(luks.is_encrypted());
    let fat = recognized(&[
        (510, &[0x55, 0xaa]),
        (82, b"FAT32   "),
        (67, &[0x66, 0x72, 0x70, 0x76]),
        (71, b"ESP        "),
    ]);
    assert_eq!((fat.uuid.as_deref(), fat.label.as_deref()), (Some("7670-7266"), Some("ESP")));
    let dirty = recognized(&[(1080, &[0x53, 0xef]), (1024 + 0x60, &[0x44])]);
    assert!(dirty.dirty && dirty.uuid.is_none());
    assert_eq!(
        guid(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        "04030201-0605-0807-090a-0b0c0d0e0f10"
    );
}

fn tool(name: &str, arguments: &[&str], image: &Path) {
    let made = Command::new(name)
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .args(arguments)
        .arg(image)
        .stdout(Stdio::null())
        .status();
    assert!(made.expect("the tool is installed: cargo xtask deps").success(), "{name}");
}

/// Returns a FAT32 file system with /EFI/BOOT/long name of a file.conf and some larger files.
fn fat_image() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (image, files) = (directory.path().join("esp"), directory.path().join("EFI"));
    std::fs::create_dir_all(files.join("BOOT")).unwrap();
    std::fs::write(files.join("BOOT/long name of a file.conf"), b"hello").unwrap();
    std::fs::write(files.join("large"), [7; 100_000]).unwrap();
    std::fs::File::create(&image).unwrap().set_len(34 << 20).unwrap();
    tool("mkfs.vfat", &["-F", "32", "-s", "1"], &image);
    let copied = Command::new("mcopy").args(["-s", "-i"]).args([&image, &files]).arg("::").status();
    assert!(copied.expect("mcopy (Debian package mtools) is installed").success());
    std::fs::read(&image).unwrap()
}

#[test]
fn fat_is_read() {
    let volume = DiskVolume::open(part_of(&fat_image()));
    assert_eq!(volume.name(), Some("vfat"));
    let files = volume.readable().unwrap();
    assert_eq!(files.names("/"), ["EFI"]);
    assert_eq!(files.names("/EFI"), ["BOOT", "large"]);
    assert_eq!(files.names("/efi/boot"), ["long name of a file.conf"]);
    assert_eq!(files.read("/EFI/BOOT/Long Name Of A File.conf", 100).unwrap(), b"hello");
    assert_eq!(files.read("/EFI/large", 1 << 20).unwrap(), [7; 100_000]);
    assert!(files.read("/EFI/large", 99_999).unwrap_err().to_string().contains("larger than"));
    assert!(files.is_file("/EFI/large") && !files.is_file("/EFI") && !files.is_file("/none"));
    assert!(files.names("/none").is_empty());
}

#[test]
fn a_circular_directory_of_fat_ends() {
    let mut image = fat_image();
    // Every cluster leads to the root directory's, 2, from which everything hangs.
    let word = |image: &[u8], at: usize| usize::from(image[at]) | usize::from(image[at + 1]) << 8;
    let (reserved, size) = (word(&image, 14) * 512, word(&image, 36) * 512);
    for entry in image[reserved + 8..reserved + size].chunks_exact_mut(4) {
        entry.copy_from_slice(&2_u32.to_le_bytes());
    }
    let volume = DiskVolume::open(part_of(&image));
    let files = volume.readable().unwrap();
    assert!(files.names("/").len() <= MOST_NAMES);
    assert!(!files.is_file("/nothing"));
    // The length of a file does not depend on its clusters.
    assert!(files.read("/EFI/large", 1 << 30).is_ok_and(|bytes| bytes.len() == 100_000));
}

#[test]
fn a_file_that_is_larger_than_its_file_system_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (image, files) = (directory.path().join("image"), directory.path().join("files"));
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("small"), b"hello").unwrap();
    std::fs::File::create(files.join("hole")).unwrap().set_len(1 << 30).unwrap();
    std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    tool("mkfs.ext4", &["-q", "-d", files.to_str().unwrap()], &image);
    let volume = DiskVolume::open(part_of(&std::fs::read(&image).unwrap()));
    let files = volume.readable().unwrap();
    assert_eq!(files.read("/small", 2 << 30).unwrap(), b"hello");
    assert_eq!(files.read("/hole", 2 << 30).unwrap_err().to_string(), "/hole is larger than 4 MiB");
}

proptest! {
    #[test]
    fn damage_to_fat_is_tolerated(changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..60)) {
        thread_local! {
            static WHOLE: Vec<u8> = fat_image();
        }
        let mut image = WHOLE.with(Clone::clone);
        for (at, byte) in changes {
            // The boot sector, the tables' beginnings and the first directories.
            let places = [0, 32 * 512, (32 + 500) * 512, (32 + 2 * 532) * 512];
            let at = places[at as usize % 4] + at as usize / 4 % 1024;
            image[at] = byte;
        }
        let volume = DiskVolume::open(part_of(&image));
        if let Some(files) = volume.readable() {
            prop_assert!(files.names("/EFI").len() <= MOST_NAMES);
            let _damaged = files.read("/EFI/large", 1 << 20);
            let _damaged = files.is_file("/EFI/BOOT/long name of a file.conf");
        }
    }

    #[test]
    fn any_beginning_is_tolerated(mut bytes in proptest::collection::vec(any::<u8>(), 0..2000), sign in 0_usize..3) {
        let signs: [(usize, &[u8]); 3] = [(1080, &[0x53, 0xef]), (510, &[0x55, 0xaa]), (0, b"LUKS\xba\xbe")];
        let (at, sign) = signs[sign];
        if bytes.len() > at + sign.len() {
            bytes[at..at + sign.len()].copy_from_slice(sign);
        }
        let volume = DiskVolume::open(part_of(&bytes));
        prop_assert!(volume.readable().is_none_or(|files| files.names("/").len() <= MOST_NAMES));
    }
}
