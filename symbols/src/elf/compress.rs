//! Compressed sections.

use std::io::Read;

use flate2::read::ZlibDecoder;
use goblin::elf::compression_header::compression_header64::SIZEOF_CHDR;
use goblin::elf::compression_header::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
use ruzstd::decoding::StreamingDecoder;

use super::{ElfError, MAX_SECTION};
use crate::bytes::{index, u32_at, u64_at};

/// Bytes that are reserved at once; more are reserved only as they arrive, for any size that a section
/// claims.
const AT_ONCE: u64 = 16 << 20;

/// Returns the size in bytes that a compressed section (SHF_COMPRESSED) claims to have without compression.
pub(super) fn size(name: &str, section: &[u8]) -> Result<u64, ElfError> {
    let bytes = u64_at(section, 8).ok_or_else(|| ElfError::BadCompression(name.into()))?;
    if bytes > MAX_SECTION {
        return Err(ElfError::TooLarge { what: format!("section {name}"), bytes });
    }
    Ok(bytes)
}

/// Decompresses a section that starts with an `Elf64_Chdr`: type (u32), reserved, size (u64), alignment
/// (u64), then a zlib or zstd stream. Exactly the size that it claims must come out.
pub(super) fn decompress(name: &str, section: &[u8]) -> Result<Vec<u8>, ElfError> {
    let bad = || ElfError::BadCompression(name.into());
    let claimed = size(name, section)?;
    let stream = section.get(SIZEOF_CHDR..).ok_or_else(bad)?;
    let bytes = match u32_at(section, 0).ok_or_else(bad)? {
        ELFCOMPRESS_ZLIB => read(ZlibDecoder::new(stream), claimed),
        ELFCOMPRESS_ZSTD => StreamingDecoder::new(stream).ok().and_then(|stream| read(stream, claimed)),
        _ => None,
    };
    bytes.filter(|bytes| bytes.len() as u64 == claimed).ok_or_else(bad)
}

/// Reads at most `most` bytes and one more, which shows that there are too many.
pub(super) fn read(stream: impl Read, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(index(most.min(AT_ONCE)));
    stream.take(most.saturating_add(1)).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= most).then_some(bytes)
}
