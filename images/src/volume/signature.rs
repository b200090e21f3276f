//! What a part of a disk holds, by the signs that each format has.
//!
//! Offsets are those of the formats' own documents; each sign is named with the kernel's or the tool's file that has it.

use super::uuid;
use crate::contents::Part;

/// Signs stand in the first 128 KiB: the farthest is btrfs' at 64 KiB.
const LOOK: usize = 128 << 10;

/// What was recognized.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Like `ext4`, `LUKS`.
    pub name: &'static str,
    /// The id by which `root=UUID=` finds it.
    pub uuid: Option<String>,
    /// Its label.
    pub label: Option<String>,
    /// It was not unmounted; what a journal holds is not in its place yet.
    pub dirty: bool,
    /// Bytes that the file system says it has.
    pub length: Option<u64>,
}

impl Signature {
    /// Looks at the first bytes.
    pub fn of(part: &Part) -> Option<Self> {
        let head = Head(part.beginning(LOOK).ok()?);
        [ext, xfs, btrfs, luks, lvm, swap, raid, f2fs, squashfs, vfat].iter().find_map(|look| look(&head))
    }

    /// Contents that are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.name == "LUKS"
    }
}

/// The first bytes of a part.
struct Head(Vec<u8>);

impl Head {
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

    /// Text of so many bytes at most, ended by a NUL or spaces.
    fn text(&self, offset: usize, length: usize) -> Option<String> {
        let field = self.0.get(offset..offset.checked_add(length)?)?;
        let field = field.split(|byte| *byte == 0).next()?.trim_ascii_end();
        (!field.is_empty()).then(|| String::from_utf8_lossy(field).into_owned())
    }
}

/// Documentation/filesystems/ext4/super.rst (Linux 6.1).
fn ext(head: &Head) -> Option<Signature> {
    const SUPER: usize = 1024;
    const COMPAT_HAS_JOURNAL: u32 = 0x4;
    const INCOMPAT_RECOVER: u32 = 0x4;
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
    Some(Signature {
        name: match () {
            () if incompat & INCOMPAT_EXT4 != 0 => "ext4",
            () if compat & COMPAT_HAS_JOURNAL != 0 => "ext3",
            () => "ext2",
        },
        uuid: head.uuid(SUPER + 0x68),
        label: head.text(SUPER + 0x78, 16),
        dirty: incompat & INCOMPAT_RECOVER != 0,
        length: Some(block.and_then(|block| blocks.checked_mul(block)).unwrap_or(u64::MAX)),
    })
}

/// `struct xfs_dsb` of fs/xfs/libxfs/xfs_format.h (Linux 6.1).
fn xfs(head: &Head) -> Option<Signature> {
    head.has(0, b"XFSB").then(|| Signature {
        name: "xfs",
        uuid: head.uuid(32),
        label: head.text(108, 12),
        ..Signature::default()
    })
}

/// `struct btrfs_super_block` of fs/btrfs/ctree.h (Linux 6.1), at 64 KiB.
fn btrfs(head: &Head) -> Option<Signature> {
    const SUPER: usize = 0x1_0000;
    head.has(SUPER + 0x40, b"_BHRfS_M").then(|| Signature {
        name: "btrfs",
        uuid: head.uuid(SUPER + 0x20),
        label: head.text(SUPER + 0x12b, 256),
        ..Signature::default()
    })
}

/// LUKS1 On-Disk Format Specification 1.2.3; LUKS2 has the magic and the UUID in the same places.
fn luks(head: &Head) -> Option<Signature> {
    head.has(0, b"LUKS\xba\xbe").then(|| Signature {
        name: "LUKS",
        uuid: head.text(168, 40),
        ..Signature::default()
    })
}

/// lib/format_text/layout.h of LVM2: a label in one of the first four sectors.
fn lvm(head: &Head) -> Option<Signature> {
    (0..4)
        .any(|sector| head.has(512 * sector, b"LABELONE") && head.has(512 * sector + 0x18, b"LVM2 001"))
        .then(|| Signature { name: "LVM", ..Signature::default() })
}

/// `union swap_header` of include/linux/swap.h (Linux 6.1), with pages of 4 KiB.
fn swap(head: &Head) -> Option<Signature> {
    head.has(4086, b"SWAPSPACE2").then(|| Signature {
        name: "swap",
        uuid: head.uuid(1036),
        label: head.text(1052, 16),
        ..Signature::default()
    })
}

/// `struct mdp_superblock_1` of include/uapi/linux/raid/md_p.h (Linux 6.1), version 1.2 at 4 KiB.
fn raid(head: &Head) -> Option<Signature> {
    head.has(4096, &0xa92b_4efc_u32.to_le_bytes()).then(|| Signature {
        name: "Linux RAID",
        uuid: head.uuid(4096 + 16),
        ..Signature::default()
    })
}

/// `F2FS_SUPER_MAGIC` of include/uapi/linux/magic.h (Linux 6.1), at 1 KiB.
fn f2fs(head: &Head) -> Option<Signature> {
    head.has(1024, &0xf2f5_2010_u32.to_le_bytes()).then(|| Signature {
        name: "f2fs",
        uuid: head.uuid(1024 + 108),
        ..Signature::default()
    })
}

/// Documentation/filesystems/squashfs.rst.
fn squashfs(head: &Head) -> Option<Signature> {
    head.has(0, b"hsqs").then(|| Signature { name: "squashfs", ..Signature::default() })
}

/// Microsoft's "FAT: General Overview of On-Disk Format" 1.03: extended boot record of FAT12/16 and of FAT32.
fn vfat(head: &Head) -> Option<Signature> {
    if !head.has(510, &[0x55, 0xaa]) {
        return None;
    }
    let (id, label) = match () {
        () if head.has(82, b"FAT32   ") => (67, 71),
        () if head.has(54, b"FAT16   ") || head.has(54, b"FAT12   ") => (39, 43),
        () => return None,
    };
    let id = head.word(id)?;
    Some(Signature {
        name: "vfat",
        uuid: Some(format!("{:04X}-{:04X}", id >> 16, id & 0xffff)),
        label: head.text(label, 11).filter(|label| label != "NO NAME"),
        ..Signature::default()
    })
}
