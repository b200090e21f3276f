//! Kind of a kernel file, determined from its bytes before any of them reaches the guest.

use linux_loader::loader::bootparam::{LOADED_HIGH, XLF_KERNEL_64, setup_header};
use vm_memory::ByteValued;

use crate::error::KernelError;

/// Offset of the setup header in a bzImage (boot protocol, "The Real-Mode Kernel Header").
const SETUP_HEADER: usize = 0x1f1;
/// "HdrS" at 0x202.
const HEADER_MAGIC: u32 = 0x5372_6448;
/// 0xaa55 at 0x1fe.
const BOOT_FLAG: u16 = 0xaa55;
/// The first protocol with `xloadflags`, hence with a 64-bit entry point that is announced.
const OLDEST_PROTOCOL: u16 = 0x020c;
/// Size of one setup sector, bytes.
const SECTOR: u64 = 512;
/// The page of a bzImage that is compared before anything else.
const SMALLEST: usize = 1024;
/// ELF: x86_64 (System V ABI, AMD64 supplement).
const EM_X86_64: u16 = 62;
/// ELF: size of an `Elf64_Phdr`, bytes.
const PROGRAM_HEADER: u64 = 56;
/// ELF: `PT_LOAD`.
const LOAD: u32 = 1;

/// A kernel that can be booted.
#[derive(Debug)]
pub(super) enum KernelImage {
    /// A compressed image with a setup header.
    BzImage(Box<setup_header>),
    /// An ELF vmlinux.
    Elf {
        /// Lowest physical address of a segment.
        start: u64,
        /// The end of its highest segment, bss included.
        end: u64,
    },
}

/// Recognizes a kernel file or says what it is instead.
pub(super) fn recognize(file: &[u8]) -> Result<KernelImage, KernelError> {
    if file.is_empty() {
        return Err(KernelError::Empty);
    }
    if file.starts_with(b"\x7fELF") {
        return elf(file);
    }
    if read::<4>(file, 0x202).map(u32::from_le_bytes) == Some(HEADER_MAGIC) {
        return bz_image(file);
    }
    if let Some(architecture) = foreign(file) {
        return Err(KernelError::Architecture(architecture));
    }
    if file.len() < SMALLEST && file.starts_with(b"MZ") {
        let (have, need) = (file.len() as u64, SMALLEST as u64);
        return Err(KernelError::Truncated { have, need });
    }
    Err(KernelError::NotAKernel(kind(file)))
}

/// Returns `N` bytes at `at`, if the file has them.
fn read<const N: usize>(file: &[u8], at: usize) -> Option<[u8; N]> {
    file.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn bz_image(file: &[u8]) -> Result<KernelImage, KernelError> {
    let have = file.len() as u64;
    let end = SETUP_HEADER + size_of::<setup_header>();
    let cut = |need: u64| KernelError::Truncated { have, need };
    let bytes = file.get(SETUP_HEADER..end).ok_or_else(|| cut(end as u64))?;
    let header = *setup_header::from_slice(bytes).ok_or_else(|| cut(end as u64))?;
    if header.boot_flag != BOOT_FLAG || header.loadflags & LOADED_HIGH == 0 {
        return Err(KernelError::NotAKernel("a kernel of the zImage format"));
    }
    if header.version < OLDEST_PROTOCOL {
        let [minor, major] = header.version.to_le_bytes();
        return Err(KernelError::TooOld { major, minor });
    }
    if header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err(KernelError::Architecture("32-bit x86 (i386)".to_owned()));
    }
    let setup_sectors = match header.setup_sects {
        0 => 4,
        given => u64::from(given),
    };
    let setup = (setup_sectors + 1) * SECTOR;
    // `syssize` counts units of 16 bytes and may round up the last one.
    let by_size = setup + (u64::from(header.syssize) * 16).saturating_sub(15);
    let by_payload = setup + u64::from(header.payload_offset) + u64::from(header.payload_length);
    let need = by_size.max(by_payload);
    if need > have {
        return Err(cut(need));
    }
    Ok(KernelImage::BzImage(Box::new(header)))
}

fn elf(file: &[u8]) -> Result<KernelImage, KernelError> {
    let have = file.len() as u64;
    let cut = |need: u64| KernelError::Truncated { have, need };
    let header: [u8; 64] = read(file, 0).ok_or_else(|| cut(64))?;
    let half = |at: usize| read(&header, at).map_or(0, u16::from_le_bytes);
    let machine = half(18);
    if header[5] != 1 {
        return Err(KernelError::Architecture("a big-endian machine".to_owned()));
    }
    if machine != EM_X86_64 || header[4] != 2 {
        return Err(KernelError::Architecture(machine_name(machine)));
    }
    // ET_EXEC: a kernel is linked to the addresses at which it runs.
    if half(16) != 2 {
        return Err(KernelError::NotAKernel("an ELF file that is not a fixed executable"));
    }
    let table = read(&header, 32).map_or(0, u64::from_le_bytes);
    let count = u64::from(half(56));
    if u64::from(half(54)) != PROGRAM_HEADER || count == 0 {
        return Err(KernelError::Damaged("its program headers have a wrong size".to_owned()));
    }
    // Checked as a whole, so that the loop reads inside of the file.
    let table_end = table.checked_add(count * PROGRAM_HEADER).filter(|end| *end <= have);
    table_end.ok_or_else(|| cut(table.saturating_add(count * PROGRAM_HEADER)))?;
    let (mut start, mut end) = (u64::MAX, 0);
    for index in 0..count {
        let at = usize::try_from(table + index * PROGRAM_HEADER).unwrap_or(usize::MAX);
        let Some((from, to)) = segment(file, at)? else { continue };
        (start, end) = (start.min(from), end.max(to));
    }
    if end == 0 {
        return Err(KernelError::Damaged("it has no segment to load".to_owned()));
    }
    Ok(KernelImage::Elf { start, end })
}

/// Returns the physical start and end of a loadable segment whose bytes are all in the file.
fn segment(file: &[u8], at: usize) -> Result<Option<(u64, u64)>, KernelError> {
    let word = |offset: usize| read(file, at.saturating_add(offset)).map_or(0, u64::from_le_bytes);
    if read(file, at).map(u32::from_le_bytes) != Some(LOAD) {
        return Ok(None);
    }
    let (offset, physical, in_file, in_memory) = (word(8), word(24), word(32), word(40));
    let overflow = || KernelError::Damaged("a segment is outside of all memory".to_owned());
    let file_end = offset.checked_add(in_file).ok_or_else(overflow)?;
    let have = file.len() as u64;
    if file_end > have {
        return Err(KernelError::Truncated { have, need: file_end });
    }
    if in_memory < in_file {
        return Err(KernelError::Damaged("a segment is larger in the file than in memory".to_owned()));
    }
    let end = physical.checked_add(in_memory).ok_or_else(overflow)?;
    Ok(Some((physical, end)))
}

/// Returns the architecture of a kernel image that is neither ELF nor an x86 bzImage.
fn foreign(file: &[u8]) -> Option<String> {
    // The headers of arm64 (`Documentation/arch/arm64/booting.rst`) and RISC-V
    // (`Documentation/arch/riscv/boot-image-header.rst`) images.
    match read::<4>(file, 0x38) {
        Some([b'A', b'R', b'M', 0x64]) => return Some(machine_name(183)),
        Some([b'R', b'S', b'C', 0x05]) => return Some(machine_name(243)),
        _ => {}
    }
    if !file.starts_with(b"MZ") {
        return None;
    }
    // An EFI executable: the PE header names the machine (PE format, "COFF File Header").
    let pe = usize::try_from(u32::from_le_bytes(read(file, 0x3c)?)).ok()?;
    if read(file, pe)? != *b"PE\0\0" {
        return None;
    }
    let name = match u16::from_le_bytes(read(file, pe.checked_add(4)?)?) {
        0xaa64 => machine_name(183),
        0x01c0 | 0x01c2 | 0x01c4 => machine_name(40),
        0x5064 => machine_name(243),
        0x6264 => machine_name(258),
        0x014c => machine_name(3),
        _ => return None,
    };
    Some(name)
}

/// Returns an ELF machine number in words.
fn machine_name(machine: u16) -> String {
    match machine {
        3 => "32-bit x86 (i386)".to_owned(),
        8 => "MIPS".to_owned(),
        20 | 21 => "PowerPC".to_owned(),
        22 => "IBM Z (s390x)".to_owned(),
        40 => "32-bit ARM".to_owned(),
        EM_X86_64 => "32-bit programs on x86_64 (x32)".to_owned(),
        183 => "64-bit ARM (aarch64)".to_owned(),
        243 => "RISC-V".to_owned(),
        258 => "LoongArch".to_owned(),
        other => format!("ELF machine number {other}"),
    }
}

/// Describes a file that is not a kernel.
fn kind(file: &[u8]) -> &'static str {
    match file {
        [0x1f, 0x8b, ..] => "a gzip-compressed file",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "a zstd-compressed file",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "an xz-compressed file",
        [b'Q', b'F', b'I', 0xfb, ..] => "a qcow2 disk image",
        [b'0', b'7', b'0', b'7', b'0', ..] => "a cpio archive (an initrd?)",
        [b'M', b'Z', ..] => "an EFI program",
        [b'#', b'!', ..] => "a script",
        _ if read(file, 0x1fe) == Some([0x55, 0xaa]) => "a disk image with a boot sector",
        _ if read(file, 0x438) == Some([0x53, 0xef]) => "an ext4 file system",
        _ => "a file of unknown format",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use testkit::bz_image;
    use testkit::elf::{EXECUTABLE, ElfImage, LoadSegment};

    use super::*;

    /// Makes an ELF executable with one segment of `in_file` bytes at 16 MiB.
    pub(crate) fn elf_file(machine: u16, in_file: u64) -> Vec<u8> {
        let segment = LoadSegment {
            offset: ElfImage::CONTENT,
            phys: 0x100_0000,
            file_bytes: in_file,
            memory_bytes: in_file + 64,
            ..LoadSegment::default()
        };
        let content = vec![0; usize::try_from(in_file).unwrap()];
        let (kind, entry, segment) = (EXECUTABLE, segment.phys, Some(segment));
        ElfImage { kind, machine, entry, segment, content: &content, ..ElfImage::default() }.to_bytes()
    }

    fn error(file: &[u8]) -> KernelError {
        recognize(file).unwrap_err()
    }

    #[test]
    fn both_formats_are_recognized() {
        assert!(matches!(recognize(&bz_image(4096)), Ok(KernelImage::BzImage(_))));
        let elf = recognize(&elf_file(EM_X86_64, 64)).unwrap();
        assert!(matches!(elf, KernelImage::Elf { start: 0x100_0000, end: 0x100_0080 }));
    }

    #[test]
    fn every_cut_of_a_kernel_is_an_error_that_names_the_file() {
        for whole in [bz_image(4096), elf_file(EM_X86_64, 64)] {
            for length in 0..whole.len() - 16 {
                let message = error(&whole[..length]).to_string();
                assert!(message.contains("file") || message.contains("not a Linux kernel"), "{message}");
            }
        }
        let cut = error(&bz_image(4096)[..4096]);
        assert_eq!(cut, KernelError::Truncated { have: 4096, need: 5 * 512 + 4096 - 15 });
    }

    #[test]
    fn other_architectures_are_named() {
        let message = error(&elf_file(183, 64)).to_string();
        assert!(message.contains("aarch64"), "{message}");
        let mut i386 = bz_image(4096);
        i386[0x236] = 0;
        assert!(error(&i386).to_string().contains("i386"));
        let mut arm64 = vec![0; 4096];
        arm64[0x38..0x3c].copy_from_slice(b"ARM\x64");
        assert!(error(&arm64).to_string().contains("aarch64"));
        let mut zboot = vec![0; 4096];
        zboot[..2].copy_from_slice(b"MZ");
        zboot[0x3c] = 0x80;
        zboot[0x80..0x86].copy_from_slice(b"PE\0\0\x64\xaa");
        assert!(error(&zboot).to_string().contains("aarch64"));
    }

    #[test]
    fn other_files_are_named() {
        for (start, name) in [
            (&b"\x1f\x8b\x08"[..], "gzip"),
            (b"070701", "cpio"),
            (b"QFI\xfb", "qcow2"),
            (b"#!/bin/sh", "script"),
            (b"hello", "unknown format"),
        ] {
            let mut file = start.to_vec();
            file.resize(2000, b'x');
            assert!(error(&file).to_string().contains(name), "{name}");
        }
        assert_eq!(error(&[]), KernelError::Empty);
    }

    proptest::proptest! {
        #[test]
        fn bytes_behind_a_good_beginning_never_panic(
            start in 0..3usize,
            at in 0..0x280usize,
            noise in proptest::collection::vec(proptest::num::u8::ANY, 1..64),
        ) {
            let mut file = [bz_image(64), elf_file(EM_X86_64, 0x280), vec![0; 0x300]][start].clone();
            for (byte, random) in file.iter_mut().skip(at).zip(&noise) {
                *byte = *random;
            }
            let _either = recognize(&file);
        }
    }

    #[test]
    fn a_kernel_older_than_the_64_bit_entry_is_too_old() {
        let mut old = bz_image(4096);
        old[0x206..0x208].copy_from_slice(&0x020b_u16.to_le_bytes());
        assert_eq!(error(&old), KernelError::TooOld { major: 2, minor: 11 });
    }

    #[test]
    fn contradicting_elf_headers_never_panic() {
        let whole = elf_file(EM_X86_64, 64);
        for at in 0..120 {
            for value in [0x00, 0x01, 0x7f, 0xff] {
                let mut file = whole.clone();
                file[at] = value;
                let _either = recognize(&file);
            }
        }
        for (field, name) in [(72, "offset"), (88, "address"), (96, "file size"), (104, "memory size")] {
            let mut file = whole.clone();
            file[field..field + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert!(recognize(&file).is_err(), "{name}");
        }
    }
}
