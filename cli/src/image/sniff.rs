//! Tells what a file is by its first bytes.

use std::path::Path;

use super::ImageError;
use super::contents::Contents;

/// How much is looked at: an ISO 9660 volume descriptor at 32 KiB is the farthest sign.
const LOOK: usize = 0x9010;

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A compressed x86 kernel with a set-up header.
    BzImage,
    /// An ELF file.
    Elf,
    /// An ext2, ext3 or ext4 file system from the first byte on.
    Ext4,
    /// Something known that can't be used.
    Foreign {
        /// Like "a VMDK image".
        found: String,
        /// What to do.
        advice: String,
    },
    /// No known sign.
    Unknown,
}

/// Reads the beginning of a file, or of the disk in it, and tells what it is.
pub fn content(contents: &Contents, path: &Path) -> Result<Content, ImageError> {
    let head = contents.start(LOOK).map_err(|source| ImageError::Read {
        what: "the file",
        path: path.to_owned(),
        source,
    })?;
    Ok(of(&head))
}

fn of(head: &[u8]) -> Content {
    let at = |offset: usize, sign: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(sign));
    let foreign =
        |found: &str, advice: &str| Content::Foreign { found: found.to_owned(), advice: advice.to_owned() };
    // Documentation/arch/x86/boot.rst: boot_flag at 0x1fe, header "HdrS" at 0x202.
    if at(0x1fe, &[0x55, 0xaa]) && at(0x202, b"HdrS") {
        return Content::BzImage;
    }
    if at(0, b"\x7fELF") {
        return Content::Elf;
    }
    // Super block at 1024, s_magic at 0x38 in it (Documentation/filesystems/ext4/super.rst).
    if at(1024 + 0x38, &[0x53, 0xef]) {
        return Content::Ext4;
    }
    const RAW: &str = "convert it with `qemu-img convert -O raw IN OUT`";
    const UNPACK: &str = "unpack it first";
    const PARTITIONS: &str = "only images that hold one ext4 file system from the first byte on can be booted; give the guest's kernel with --kernel";
    const FILE_SYSTEM: &str = "only ext4 can be read; give the guest's kernel with --kernel";
    let signs: [(usize, &[u8], &str, &str); 17] = [
        (0, b"KDMV", "a VMDK image", RAW),
        (0, b"# Disk Descriptor", "a VMDK image", RAW),
        (0x40, b"\x7f\x10\xda\xbe", "a VDI image", RAW),
        (0, b"vhdxfile", "a VHDX image", RAW),
        (0, b"conectix", "a VHD image", RAW),
        (0, b"\x1f\x8b", "a gzip file", UNPACK),
        (0, b"\xfd7zXZ\0", "an xz file", UNPACK),
        (0, b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
        (0, b"BZh", "a bzip2 file", UNPACK),
        (0, b"PK\x03\x04", "a zip file", UNPACK),
        (512, b"EFI PART", "a disk with a partition table (GPT)", PARTITIONS),
        (0x8001, b"CD001", "a CD image (ISO 9660)", "boot its kernel and initrd with --initrd"),
        (0, b"XFSB", "an XFS file system", FILE_SYSTEM),
        (0, b"hsqs", "a SquashFS file system", FILE_SYSTEM),
        (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system", FILE_SYSTEM),
        (0, b"07070", "a cpio archive", "give it with --initrd, and a kernel as IMAGE"),
        (0, b"!<arch>", "a package or library", "extract the kernel from it first"),
    ];
    for (offset, sign, found, advice) in signs {
        if at(offset, sign) {
            return foreign(found, advice);
        }
    }
    if at(0x1fe, &[0x55, 0xaa]) && (0..4).any(|i| head.get(0x1be + 16 * i + 4).is_some_and(|t| *t != 0)) {
        return foreign("a disk with a partition table (MBR)", PARTITIONS);
    }
    Content::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(offset: usize, sign: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 0x9000];
        bytes[offset..offset + sign.len()].copy_from_slice(sign);
        bytes
    }

    #[test]
    fn known_signs_are_told() {
        assert_eq!(of(&super::super::test_files::bzimage(64)), Content::BzImage);
        assert_eq!(of(&with(0, b"\x7fELF")), Content::Elf);
        assert_eq!(of(&with(1080, &[0x53, 0xef])), Content::Ext4);
        assert_eq!(of(&[0; 4096]), Content::Unknown);
        assert_eq!(of(b"hello"), Content::Unknown);
        let found = |bytes: &[u8]| match of(bytes) {
            Content::Foreign { found, .. } => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(found(&with(0, b"KDMV")), "a VMDK image");
        assert_eq!(found(&with(512, b"EFI PART")), "a disk with a partition table (GPT)");
        let mut mbr = with(0x1fe, &[0x55, 0xaa]);
        assert_eq!(of(&mbr), Content::Unknown);
        mbr[0x1c2] = 0x83;
        assert_eq!(found(&mbr), "a disk with a partition table (MBR)");
    }
}
