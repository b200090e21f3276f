//! Contents of a part of a disk, recognized by the magic numbers of their formats.
//!
//! Offsets are those of the formats' documents. Each format is named with the file of the kernel or the tool
//! that defines its magic number.

use super::uuid;
use crate::contents::DiskPart;

/// Bytes that are read, with all magic numbers: the farthest is that of btrfs at 64 KiB.
const HEAD_BYTES: usize = 128 << 10;

/// Signature of the contents of a part of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeSignature {
    /// Name of the format, like `ext4` or `LUKS`.
    pub name: &'static str,
    /// Id of the contents, as in `root=UUID=`.
    pub uuid: Option<String>,
    /// Label of the contents.
    pub label: Option<String>,
    /// True if the file system was not unmounted, so that its journal has to be replayed.
    pub dirty: bool,
    /// Size that the file system claims, bytes.
    pub length: Option<u64>,
}

impl VolumeSignature {
    /// Recognizes the contents of a part by its first bytes; `None` for unknown contents.
    pub fn from_part(part: &DiskPart) -> Option<Self> {
        let head = VolumeHead(part.beginning(HEAD_BYTES).ok()?);
        let formats = [ext, xfs, btrfs, luks, lvm, swap, raid, f2fs, squashfs, vfat];
        formats.iter().find_map(|recognize| recognize(&head))
    }

    /// Returns true for encrypted contents.
    pub fn is_encrypted(&self) -> bool {
        self.name == "LUKS"
    }
}

/// First bytes of a part.
struct VolumeHead(Vec<u8>);

impl VolumeHead {
    fn has(&self, offset: usize, sign: &[u8]) -> bool {
        self.0.get(offset..).is_some_and(|rest| rest.starts_with(sign))
    }

    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..)?.first_chunk().copied()
    }

    fn word(&self, offset: usize) -> Option<u32> {
        self.bytes(offset).map(u32::from_le_bytes)
    }

    fn uuid(&self, offset: usize) -> Option<String> {
        self.bytes(offset).filter(|bytes| *bytes != [0; 16]).map(|bytes| uuid(&bytes))
    }

    /// Returns the text of at most `length` bytes that ends at a NUL or at trailing spaces.
    fn text(&self, offset: usize, length: usize) -> Option<String> {
        let field = self.0.get(offset..offset.checked_add(length)?)?;
        let field = field.split(|byte| *byte == 0).next()?.trim_ascii_end();
        (!field.is_empty()).then(|| String::from_utf8_lossy(field).into_owned())
    }
}

/// Recognizes ext2, ext3, ext4 and their external journals (Documentation/filesystems/ext4/super.rst of Linux
/// 6.1).
fn ext(head: &VolumeHead) -> Option<VolumeSignature> {
    const SUPER: usize = 1024;
    const COMPAT_HAS_JOURNAL: u32 = 0x4;
    const INCOMPAT_RECOVER: u32 = 0x4;
    const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
    const INCOMPAT_64BIT: u32 = 0x80;
    /// Extents, and others that only ext4 has: meta block groups excluded.
    const INCOMPAT_EXT4: u32 = 0x40 | INCOMPAT_64BIT | 0x200 | 0x400 | 0x1000 | 0x2000 | 0x8000;
    if !head.has(SUPER + 0x38, &[0x53, 0xef]) {
        return None;
    }
    let (compat, incompat) = (head.word(SUPER + 0x5c)?, head.word(SUPER + 0x60)?);
    let high = if incompat & INCOMPAT_64BIT == 0 { 0 } else { head.word(SUPER + 0x150)? };
    let blocks = u64::from(high) << 32 | u64::from(head.word(SUPER + 4)?);
    let block = 1_u64.checked_shl(head.word(SUPER + 0x18)?.saturating_add(10));
    Some(VolumeSignature {
        name: if incompat & INCOMPAT_JOURNAL_DEV != 0 {
            // A journal for a file system elsewhere, by the name that blkid has for it.
            "jbd"
        } else if incompat & INCOMPAT_EXT4 != 0 {
            "ext4"
        } else if compat & COMPAT_HAS_JOURNAL != 0 {
            "ext3"
        } else {
            "ext2"
        },
        uuid: head.uuid(SUPER + 0x68),
        label: head.text(SUPER + 0x78, 16),
        dirty: incompat & INCOMPAT_RECOVER != 0,
        length: Some(block.and_then(|block| blocks.checked_mul(block)).unwrap_or(u64::MAX)),
    })
}

/// Recognizes xfs (`struct xfs_dsb` of fs/xfs/libxfs/xfs_format.h, Linux 6.1).
fn xfs(head: &VolumeHead) -> Option<VolumeSignature> {
    head.has(0, b"XFSB").then(|| VolumeSignature {
        name: "xfs",
        uuid: head.uuid(32),
        label: head.text(108, 12),
        ..VolumeSignature::default()
    })
}

/// Recognizes btrfs (`struct btrfs_super_block` of fs/btrfs/ctree.h, Linux 6.1), at 64 KiB.
fn btrfs(head: &VolumeHead) -> Option<VolumeSignature> {
    const SUPER: usize = 0x1_0000;
    head.has(SUPER + 0x40, b"_BHRfS_M").then(|| VolumeSignature {
        name: "btrfs",
        uuid: head.uuid(SUPER + 0x20),
        label: head.text(SUPER + 0x12b, 256),
        ..VolumeSignature::default()
    })
}

/// Recognizes LUKS (LUKS1 On-Disk Format Specification 1.2.3; LUKS2 has its magic and its UUID at the same
/// offsets).
fn luks(head: &VolumeHead) -> Option<VolumeSignature> {
    head.has(0, b"LUKS\xba\xbe").then(|| VolumeSignature {
        name: "LUKS",
        uuid: head.text(168, 40),
        ..VolumeSignature::default()
    })
}

/// Recognizes LVM by a label in one of the first four sectors (lib/format_text/layout.h of LVM2).
fn lvm(head: &VolumeHead) -> Option<VolumeSignature> {
    (0..4)
        .any(|sector| head.has(512 * sector, b"LABELONE") && head.has(512 * sector + 0x18, b"LVM2 001"))
        .then(|| VolumeSignature { name: "LVM", ..VolumeSignature::default() })
}

/// Recognizes swap with pages of 4 KiB (`union swap_header` of include/linux/swap.h, Linux 6.1).
fn swap(head: &VolumeHead) -> Option<VolumeSignature> {
    head.has(4086, b"SWAPSPACE2").then(|| VolumeSignature {
        name: "swap",
        uuid: head.uuid(1036),
        label: head.text(1052, 16),
        ..VolumeSignature::default()
    })
}

/// Recognizes Linux RAID, version 1.2 at 4 KiB (`struct mdp_superblock_1` of include/uapi/linux/raid/md_p.h,
/// Linux 6.1).
fn raid(head: &VolumeHead) -> Option<VolumeSignature> {
    head.has(4096, &0xa92b_4efc_u32.to_le_bytes()).then(|| VolumeSignature {
        name: "Linux RAID",
        uuid: head.uuid(4096 + 16),
        ..VolumeSignature::default()
    })
}

/// Recognizes f2fs (`F2FS_SUPER_MAGIC` of include/uapi/linux/magic.h, Linux 6.1), at 1 KiB.
fn f2fs(head: &VolumeHead) -> Option<VolumeSignature> {
    head.has(1024, &0xf2f5_2010_u32.to_le_bytes()).then(|| VolumeSignature {
        name: "f2fs",
        uuid: head.uuid(1024 + 108),
        ..VolumeSignature::default()
    })
}

/// Recognizes squashfs (Documentation/filesystems/squashfs.rst).
fn squashfs(head: &VolumeHead) -> Option<VolumeSignature> {
    head.has(0, b"hsqs").then(|| VolumeSignature { name: "squashfs", ..VolumeSignature::default() })
}

/// Recognizes FAT by its extended boot record (Microsoft's "FAT: General Overview of On-Disk Format" 1.03,
/// for FAT12/16 and for FAT32).
fn vfat(head: &VolumeHead) -> Option<VolumeSignature> {
    if !head.has(510, &[0x55, 0xaa]) {
        return None;
    }
    let (id, label) = if head.has(82, b"FAT32   ") {
        (67, 71)
    } else if head.has(54, b"FAT16   ") || head.has(54, b"FAT12   ") {
        (39, 43)
    } else {
        return None;
    };
    let id = head.word(id)?;
    Some(VolumeSignature {
        name: "vfat",
        uuid: Some(format!("{:04X}-{:04X}", id >> 16, id & 0xffff)),
        label: head.text(label, 11).filter(|label| label != "NO NAME"),
        ..VolumeSignature::default()
    })
}
