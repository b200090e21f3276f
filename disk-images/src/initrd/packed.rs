//! The compressions that Linux unpacks an initrd from (`lib/decompress.c`, Linux 6.1), but for lzo.

use std::io::{self, BufRead, Read};

use bzip2_rs::DecoderReader;
use flate2::bufread::GzDecoder;
use lzma_rust2::{LzmaReader, XzReader};
use ruzstd::decoding::StreamingDecoder;

use super::input::StreamInput;

/// KiB that xz and lzma may take for their dictionary: `xz -9` asks for 65 MB.
const MAX_DICTIONARY: u32 = 80 << 10;
/// Bytes of zstd's window, at most: that of `zstd --ultra -22`.
const MAX_WINDOW: u64 = 128 << 20;
/// Bytes of an unpacked block of the legacy form of LZ4, at most (lz4_Frame_format.md, "Legacy frame").
const LZ4_BLOCK: usize = 8 << 20;
/// Bytes of such a block when compressed, at most: `LZ4_compressBound(LZ4_BLOCK)`.
const LZ4_PACKED: usize = LZ4_BLOCK + LZ4_BLOCK / 255 + 16;
/// Magic.
const LZ4_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// Bytes by which a compression is recognized.
pub(super) const SIGN: usize = 6;

/// A compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// The .xz file format.
    Xz,
    /// The older .lzma.
    Lzma,
    /// bzip2.
    Bzip2,
    /// LZ4's legacy frames.
    Lz4,
}

impl Compression {
    /// Recognizes a compression by the first bytes of a stream.
    pub(super) fn from_sign(sign: &[u8]) -> Option<Self> {
        let forms: [(&[u8], Self); 6] = [
            (&[0x1f, 0x8b], Self::Gzip),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x5d, 0, 0], Self::Lzma),
            (b"BZh", Self::Bzip2),
            (&LZ4_MAGIC, Self::Lz4),
        ];
        forms.into_iter().find(|(start, _)| sign.starts_with(start)).map(|(_, form)| form)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Bzip2 => "bzip2",
            Self::Lz4 => "lz4",
        }
    }

    /// Returns the unpacked bytes of one stream. All but bzip2 leave what follows the stream in `input`.
    pub(super) fn unpack<'a, R: Read>(self, input: &'a mut StreamInput<R>) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(GzDecoder::new(input)),
            Self::Zstd => Box::new(
                StreamingDecoder::new_with_max_window_size(input, MAX_WINDOW).map_err(io::Error::other)?,
            ),
            Self::Xz => Box::new(XzReader::new_mem_limit(input, false, MAX_DICTIONARY)),
            Self::Lzma => Box::new(LzmaReader::new_mem_limit(input, MAX_DICTIONARY, None)?),
            Self::Bzip2 => Box::new(DecoderReader::new(input)),
            Self::Lz4 => Box::new(LegacyLz4 { input, block: Vec::new(), done: 0 }),
        })
    }
}

/// Legacy frames of LZ4: magic, then blocks after their lengths.
struct LegacyLz4<'a, R> {
    input: &'a mut StreamInput<R>,
    block: Vec<u8>,
    done: usize,
}

impl<R: Read> LegacyLz4<'_, R> {
    /// Returns the next block; false at the end of the stream.
    fn next(&mut self) -> io::Result<bool> {
        let mut word = self.input.peek(LZ4_MAGIC.len())?;
        while word == LZ4_MAGIC {
            self.input.consume(LZ4_MAGIC.len());
            word = self.input.peek(LZ4_MAGIC.len())?;
        }
        let Ok(size) = <[u8; 4]>::try_from(word) else { return Ok(false) };
        let size = usize::try_from(u32::from_le_bytes(size)).unwrap_or(usize::MAX);
        // A length that can't be one begins something else.
        if size == 0 || size > LZ4_PACKED {
            return Ok(false);
        }
        self.input.consume(LZ4_MAGIC.len());
        let mut packed = Vec::new();
        self.input.take_each(size as u64, |part| {
            packed.extend_from_slice(part);
            Ok(())
        })?;
        self.block.resize(LZ4_BLOCK, 0);
        let len = lz4_flex::block::decompress_into(&packed, &mut self.block).map_err(io::Error::other)?;
        self.block.truncate(len);
        self.done = 0;
        Ok(true)
    }
}

impl<R: Read> Read for LegacyLz4<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.done >= self.block.len() {
            if !self.next()? {
                return Ok(0);
            }
        }
        let count = self.block.get(self.done..).unwrap_or_default().read(into)?;
        self.done += count;
        Ok(count)
    }
}
