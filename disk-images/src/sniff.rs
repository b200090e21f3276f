//! Kind of a file, by its first bytes.

use std::path::Path;

use super::ImageError;
use super::boot::UnifiedImage;
use super::contents::DiskPart;

/// Bytes that are read: the farthest magic number is that of an ISO 9660 volume descriptor at 32 KiB.
const HEAD_BYTES: usize = 0x9010;

/// Kind of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// Compressed x86 kernel with a set-up header.
    BzImage,
    /// ELF file.
    Elf,
    /// Unified kernel image: a PE file for x86-64 with a section `.linux`.
    UnifiedImage,
    /// Known format that vprof cannot use.
    Foreign {
        /// Name of the format, like "a VMDK image".
        found: String,
        /// The cure.
        advice: String,
    },
    /// Any other file: a disk, or unusable.
    Unknown,
}

/// Returns the kind of a file, or of the disk in it, by its beginning. `path` is for error messages.
pub fn content(disk: &DiskPart, path: &Path) -> Result<FileContent, ImageError> {
    let head = disk.beginning(HEAD_BYTES).map_err(|source| ImageError::Read {
        what: "the file",
        path: path.to_owned(),
        source,
    })?;
    Ok(classify(&head))
}

fn classify(head: &[u8]) -> FileContent {
    let at = |offset: usize, sign: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(sign));
    let foreign = |found: &str, advice: &str| FileContent::Foreign {
        found: found.to_owned(),
        advice: advice.to_owned(),
    };
    // Documentation/arch/x86/boot.rst: boot_flag at 0x1fe, header "HdrS" at 0x202.
    if at(0x1fe, &[0x55, 0xaa]) && at(0x202, b"HdrS") {
        return FileContent::BzImage;
    }
    if at(0, b"\x7fELF") {
        return FileContent::Elf;
    }
    if UnifiedImage::is_unified(head) {
        return FileContent::UnifiedImage;
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
    FileContent::Unknown
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
    fn known_formats_are_recognized() {
        assert_eq!(classify(&testkit::bz_image(64)), FileContent::BzImage);
        assert_eq!(classify(&with(0, b"\x7fELF")), FileContent::Elf);
        let pe = super::super::boot::unified::tests::pe;
        assert_eq!(classify(&pe(&[(".linux", &[0; 0x10000])])), FileContent::UnifiedImage);
        assert_eq!(classify(&pe(&[(".text", b"a boot loader")])), FileContent::Unknown);
        assert_eq!(classify(&with(1080, &[0x53, 0xef])), FileContent::Unknown);
        assert_eq!(classify(&[0; 4096]), FileContent::Unknown);
        assert_eq!(classify(b"hello"), FileContent::Unknown);
        let found = |bytes: &[u8]| match classify(bytes) {
            FileContent::Foreign { found, .. } => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(found(&with(0, b"KDMV")), "a VMDK image");
        assert_eq!(found(&with(0x8001, b"CD001")), "a CD image (ISO 9660)");
    }
}
