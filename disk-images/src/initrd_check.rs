//! Check of an initrd before the guest starts: with a truncated initrd the guest ends in an obscure kernel
//! panic.
//!
//! An initrd is a row of archives, each bare or compressed, as `unpack_to_rootfs` of init/initramfs.c (Linux
//! 6.1) reads it. Bare archives, zstd and lz4 are walked by their own lengths. gzip is unpacked. xz is
//! recognized by its footer. Of bzip2, lzma and lzo only the beginning is checked.

use std::io::{BufRead, Read};
use std::path::Path;

use super::{ImageError, WANTED_INITRD, cpio};

/// Most bytes that are unpacked to search for a file.
const MAX_UNPACKED: u64 = 1 << 30;

/// Fault of an initrd.
#[derive(Debug, PartialEq, Eq)]
enum InitrdFault {
    CutOff(&'static str),
    Foreign,
}

/// Checks that the bytes are a whole initrd. `path` is for error messages.
///
/// # Errors
/// The bytes are empty, cut off, or not an initrd.
pub fn check(initrd: &[u8], path: &Path) -> Result<(), ImageError> {
    if initrd.is_empty() {
        return Err(ImageError::Empty { path: path.to_owned(), wanted: WANTED_INITRD });
    }
    walk(initrd).map_err(|wrong| match wrong {
        InitrdFault::CutOff(form) => {
            ImageError::Truncated { path: path.to_owned(), detail: format!("its {form} ends too early") }
        }
        InitrdFault::Foreign => ImageError::Foreign {
            path: path.to_owned(),
            found: "not an initrd".to_owned(),
            advice: format!("give {WANTED_INITRD}"),
        },
    })
}

/// Joins archives into one initrd, as a boot loader does; `None` if there is no archive.
pub fn joined(archives: impl IntoIterator<Item = Vec<u8>>) -> Option<Vec<u8>> {
    archives.into_iter().reduce(|mut all, next| {
        // Each archive begins at a multiple of 4
        // (Documentation/driver-api/early-userspace/buffer-format.rst).
        all.resize(all.len().next_multiple_of(4), 0);
        all.extend(next);
        all
    })
}

/// Returns true if the first archive of a whole initrd, bare or in gzip, has this file.
pub fn contains(initrd: &[u8], name: &str) -> bool {
    let mut unpacked = Vec::new();
    let archive = if initrd.starts_with(&[0x1f, 0x8b]) {
        let read = flate2::bufread::GzDecoder::new(initrd).take(MAX_UNPACKED).read_to_end(&mut unpacked);
        if read.is_err() {
            return false;
        }
        &unpacked[..]
    } else {
        initrd
    };
    let mut at = 0;
    while let Some(entry) = cpio::entry(archive, at) {
        if entry.name == name.as_bytes() {
            return true;
        }
        at = entry.end;
    }
    false
}

fn walk(initrd: &[u8]) -> Result<(), InitrdFault> {
    let mut at = 0;
    let mut archives = 0_u32;
    while let Some(zeros) = initrd[at..].iter().position(|b| *b != 0) {
        at += zeros;
        let rest = &initrd[at..];
        let length = match rest {
            [b'0', ..] if at % 4 == 0 => bare(initrd, at)? - at,
            [0x1f, 0x8b, ..] => gzip(rest)?,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => zstd(rest).ok_or(InitrdFault::CutOff("zstd stream"))?,
            [0x02, 0x21, 0x4c, 0x18, ..] => lz4(rest).ok_or(InitrdFault::CutOff("lz4 stream"))?,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
                let used = rest.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
                // A stream ends in "YZ" (the xz file format, 2.1.2). Its end within the bytes is not known
                // without unpacking, so an archive that follows is accepted as a sign that the stream is
                // whole.
                if rest[..used].ends_with(b"YZ") || has_archive_after(rest) {
                    rest.len()
                } else {
                    return Err(InitrdFault::CutOff("xz stream"));
                }
            }
            [b'B', b'Z', b'h', ..] | [0x5d, 0, 0, ..] | [0x89, b'L', b'Z', b'O', ..] => rest.len(),
            // The kernel ignores padding and junk after a whole archive as well.
            _ if archives > 0 => return Ok(()),
            _ => return Err(InitrdFault::Foreign),
        };
        archives += 1;
        at += length;
        if at >= initrd.len() {
            break;
        }
    }
    if archives == 0 { Err(InitrdFault::Foreign) } else { Ok(()) }
}

/// Returns true if a bare archive follows a compressed one.
fn has_archive_after(compressed: &[u8]) -> bool {
    compressed.windows(6).any(|w| w == b"070701")
}

/// Returns the end of the bare archive that starts at `start`.
fn bare(initrd: &[u8], start: usize) -> Result<usize, InitrdFault> {
    let mut at = start;
    loop {
        match cpio::entry(initrd, at) {
            Some(entry) if entry.name == cpio::TRAILER.as_bytes() => return Ok(entry.end.min(initrd.len())),
            Some(entry) => at = entry.end,
            None if at == start && !initrd[at..].starts_with(b"07070") => return Err(InitrdFault::Foreign),
            None => return Err(InitrdFault::CutOff("cpio archive")),
        }
    }
}

/// Returns the length of one gzip member.
fn gzip(rest: &[u8]) -> Result<usize, InitrdFault> {
    let mut decoder = flate2::bufread::GzDecoder::new(rest);
    let mut buffer = vec![0; 1 << 16];
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => return Err(InitrdFault::CutOff("gzip stream")),
        }
    }
    let mut left = decoder.into_inner();
    let left = left.fill_buf().map_or(0, <[u8]>::len);
    Ok(rest.len() - left)
}

/// Returns the length of one zstd frame (RFC 8878, 3.1.1).
fn zstd(rest: &[u8]) -> Option<usize> {
    let descriptor = *rest.get(4)?;
    let single_segment = descriptor & 0x20 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_size = match descriptor >> 6 {
        0 => usize::from(single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let mut at = 5 + usize::from(!single_segment) + dictionary + content_size;
    loop {
        let header = rest.get(at..at + 3)?;
        let header = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        let size = match header >> 1 & 3 {
            0 | 2 => header >> 3,
            1 => 1,
            _ => return None,
        };
        at = at.checked_add(3 + size)?;
        if header & 1 != 0 {
            break;
        }
    }
    let end = at + if descriptor & 4 != 0 { 4 } else { 0 };
    (end <= rest.len()).then_some(end)
}

/// Returns the length of one legacy lz4 stream: 4 bytes of magic, then blocks with their lengths
/// (lz4_Frame_format.md, "Legacy frame"). An impossible length is the beginning of something else.
fn lz4(rest: &[u8]) -> Option<usize> {
    /// Largest block of the legacy form, bytes: LZ4_compressBound(8 MiB).
    const MAX_BLOCK: usize = 8_421_520;
    let mut at = 4;
    loop {
        let Some(size) = rest.get(at..at + 4) else {
            return (at >= rest.len() || rest[at..].iter().all(|b| *b == 0)).then_some(rest.len());
        };
        let size = usize::try_from(u32::from_le_bytes([size[0], size[1], size[2], size[3]])).ok()?;
        if size == 0 || size > MAX_BLOCK {
            return Some(at);
        }
        at += 4 + size;
        if at > rest.len() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn archive() -> Vec<u8> {
        let mut writer = cpio::ArchiveWriter::append_to(Vec::new());
        writer.file("init", 0o755, &[0x5a; 5000]);
        writer.finish()
    }

    fn gzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Returns a zstd frame of one raw block, without content size or checksum.
    fn zstd_raw(bytes: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x50];
        let header = (bytes.len() << 3 | 1).to_le_bytes();
        frame.extend_from_slice(&header[..3]);
        frame.extend_from_slice(bytes);
        frame
    }

    #[test]
    fn whole_initrds_pass_in_every_form_and_mix() {
        let bare = archive();
        assert_eq!(walk(&bare), Ok(()));
        assert_eq!(walk(&gzipped(&bare)), Ok(()));
        assert_eq!(walk(&zstd_raw(&bare)), Ok(()));
        let mut mixed = bare.clone();
        mixed.resize(mixed.len() + 512, 0);
        mixed.extend(gzipped(&bare));
        let mixed = cpio::ArchiveWriter::append_to(mixed).finish();
        assert_eq!(walk(&mixed), Ok(()));
    }

    #[test]
    fn torn_initrds_are_cut_off() {
        let bare = archive();
        assert_eq!(walk(&bare[..bare.len() - 130]), Err(InitrdFault::CutOff("cpio archive")));
        assert_eq!(walk(&bare[..3000]), Err(InitrdFault::CutOff("cpio archive")));
        let gz = gzipped(&bare);
        assert_eq!(walk(&gz[..gz.len() - 9]), Err(InitrdFault::CutOff("gzip stream")));
        let zstd = zstd_raw(&bare);
        assert_eq!(walk(&zstd[..zstd.len() - 1]), Err(InitrdFault::CutOff("zstd stream")));
        let mut lz4 = vec![0x02, 0x21, 0x4c, 0x18, 8, 0, 0, 0];
        lz4.extend([1; 7]);
        assert_eq!(walk(&lz4), Err(InitrdFault::CutOff("lz4 stream")));
        lz4.push(1);
        assert_eq!(walk(&lz4), Ok(()));
        assert_eq!(walk(b"\xfd7zXZ\0\0\x04abcdef"), Err(InitrdFault::CutOff("xz stream")));
    }

    #[test]
    fn a_file_is_found_bare_and_packed() {
        let bare = archive();
        for initrd in [&bare, &gzipped(&bare)] {
            assert!(contains(initrd, "init"));
            assert!(!contains(initrd, "sbin/init"));
        }
        assert!(!contains(b"hello", "init"));
        assert!(!contains(&gzipped(&bare)[..60], "init"));
    }

    #[test]
    fn foreign_files_are_recognized() {
        assert_eq!(walk(b"hello, world"), Err(InitrdFault::Foreign));
        assert_eq!(walk(&[0; 64]), Err(InitrdFault::Foreign));
        assert_eq!(walk(b"0123456789"), Err(InitrdFault::Foreign));
    }
}
