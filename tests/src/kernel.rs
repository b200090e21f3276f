//! A Debian kernel without data that vprof reads, like a kernel built without it.
//!
//! Debian builds no such kernel. So one is unpacked to its vmlinux, and the data is overwritten with zeros:
//! the kernel itself does not need it to run.

use std::path::{Path, PathBuf};

use crate::image::Ext4Image;

/// The part that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovedPart {
    /// The types of its structures (`CONFIG_DEBUG_INFO_BTF`).
    Btf,
    /// The names of its functions (`CONFIG_KALLSYMS`).
    Kallsyms,
}

/// Start of BTF: magic, version, flags, length of its header (Documentation/bpf/btf.rst).
const BTF: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
/// The tokens of the ten digits in the token table of kallsyms.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
/// Legacy LZ4 (lz4_Frame_format.md): magic, then blocks of at most 8 MiB, each after its length.
const LZ4: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
const LZ4_BLOCK: usize = 8 << 20;
/// Documentation/arch/x86/boot.rst: `setup_sects`, `payload_offset`, `payload_length`.
const SETUP_SECTS: usize = 0x1f1;
const PAYLOAD: usize = 0x248;

/// Writes the kernel and the initrd of an image to files in `directory`.
///
/// # Panics
/// The image does not have the form that this project makes.
pub fn kernel_of(image: &Path, directory: &Path) -> (PathBuf, PathBuf) {
    let disk = Ext4Image::open(image).expect("the image's file system");
    let [kernel, initrd] = ["vmlinuz", "initrd.img"].map(|name| {
        let bytes = disk.read(&format!("/boot/{name}")).expect("the image's kernel and initrd");
        let path = directory.join(name);
        std::fs::write(&path, bytes).expect("room for a kernel and an initrd");
        path
    });
    (kernel, initrd)
}

/// Writes the vmlinux of the kernel of an image, without the `removed` part, and the image's initrd to files
/// in `directory`.
///
/// # Panics
/// The image or its kernel does not have the expected form.
pub fn kernel_without(removed: RemovedPart, image: &Path, directory: &Path) -> (PathBuf, PathBuf) {
    let (packed, initrd) = kernel_of(image, directory);
    let mut vmlinux = unpack(&std::fs::read(packed).expect("the kernel just written"));
    let pattern: &[u8] = if removed == RemovedPart::Btf { &BTF } else { DIGITS };
    let places: Vec<usize> =
        (0..vmlinux.len() - pattern.len()).filter(|&at| vmlinux[at..].starts_with(pattern)).collect();
    assert!(!places.is_empty(), "{removed:?} is not in the kernel");
    for at in places {
        vmlinux[at..at + pattern.len()].fill(0);
    }
    let path = directory.join("vmlinux");
    std::fs::write(&path, vmlinux).expect("room for a kernel");
    (path, initrd)
}

/// Returns the ELF file in a bzImage that is packed with LZ4, as Debian's are.
fn unpack(bz_image: &[u8]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(bz_image[at..at + 4].try_into().expect("4 bytes")) as usize;
    let start = (usize::from(bz_image[SETUP_SECTS]) + 1) * 512 + word(PAYLOAD);
    // The kernel's build appends the unpacked length.
    let (end, length) = (start + word(PAYLOAD + 4) - 4, word(start + word(PAYLOAD + 4) - 4));
    assert_eq!(bz_image[start..start + 4], LZ4, "the kernel is packed with LZ4");
    let (mut at, mut unpacked) = (start + 4, Vec::with_capacity(length));
    while at < end {
        let packed = &bz_image[at + 4..at + 4 + word(at)];
        unpacked.extend(lz4_flex::block::decompress(packed, LZ4_BLOCK).expect("an LZ4 block"));
        at += 4 + packed.len();
    }
    assert_eq!(unpacked.len(), length);
    unpacked
}
