//! Tells what a file is by its first bytes.

use std::path::Path;

use super::ImageError;
use super::boot::Unified;
use super::contents::Part;

/// How much is looked at: an ISO 9660 volume descriptor at 32 KiB is the farthest sign.
const LOOK: usize = 0x9010;

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A compressed x86 kernel with a set-up header.
    BzImage,
    /// An ELF file.
    Elf,
    /// A PE file for x86-64 with a section `.linux`: a unified kernel image.
    Unified,
    /// Something known that can't be used.
    Foreign {
        /// Like "a VMDK image".
        found: String,
        /// What to do.
        advice: String,
    },
    /// None of these: a disk, or nothing.
    Unknown,
}

/// Reads the beginning of a file, or of the disk in it, and tells what it is.
pub fn content(disk: &Part, path: &Path) -> Result<Content, ImageError> {
    let head = disk.beginning(LOOK).map_err(|source| ImageError::Read {
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
    if Unified::is(head) {
        return Content::Unified;
    }
    const RAW: &str = "convert it with `qemu-img convert -O raw IN OUT`";
    const UNPACK: &str = "unpack it first";
    let signs: [(usize, &[u8], &str, &str); 13] = [
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
        (0x8001, b"CD001", "a CD image (ISO 9660)", "boot its kernel and initrd with --initrd"),
        (0, b"07070", "a cpio archive", "give it with --initrd, and a kernel as IMAGE"),
        (0, b"!<arch>", "a package or library", "extract the kernel from it first"),
    ];
    for (offset, sign, found, advice) in signs {
        if at(offset, sign) {
            return foreign(found, advice);
        }
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
        assert_eq!(of(&testkit::bz_image(64)), Content::BzImage);
        assert_eq!(of(&with(0, b"\x7fELF")), Content::Elf);
        let pe = super::super::boot::unified::tests::pe;
        assert_eq!(of(&pe(&[(".linux", &[0; 0x10000])])), Content::Unified);
        assert_eq!(of(&pe(&[(".text", b"a boot loader")])), Content::Unknown);
        assert_eq!(of(&with(1080, &[0x53, 0xef])), Content::Unknown);
        assert_eq!(of(&[0; 4096]), Content::Unknown);
        assert_eq!(of(b"hello"), Content::Unknown);
        let found = |bytes: &[u8]| match of(bytes) {
            Content::Foreign { found, .. } => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(found(&with(0, b"KDMV")), "a VMDK image");
        assert_eq!(found(&with(0x8001, b"CD001")), "a CD image (ISO 9660)");
    }
}
