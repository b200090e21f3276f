//! `.gnu_debugdata`: a small ELF file with more symbols, compressed with xz.

use std::io::Read;

use lzma_rust2::XzReader;

use crate::elf::{ElfError, ElfFile};

/// Bytes of the small file, at most; Fedora's largest have some MB.
const MAX_SIZE: u64 = 64 << 20;
/// KiB that the decompressor may take for its dictionary: `xz -9` asks for 65 MB.
const MAX_MEMORY: u32 = 80 << 10;
/// Name of the section.
const SECTION: &str = ".gnu_debugdata";

/// Returns the small file in `elf`.
pub(super) fn debug_data(elf: &ElfFile) -> Result<ElfFile, ElfError> {
    let section = elf.section(SECTION)?;
    let bad = || ElfError::BadCompression(SECTION.into());
    let reader = XzReader::new_mem_limit(&section.bytes[..], false, MAX_MEMORY);
    let mut bytes = Vec::new();
    reader.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(|_| bad())?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(ElfError::TooLarge { what: SECTION.into(), bytes: bytes.len() as u64 });
    }
    ElfFile::open(Box::new(bytes))
}
