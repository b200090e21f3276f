//! Writer and reader of cpio archives in the "newc" form that the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! An initrd may be several archives in a row, so a file is added by appending a small uncompressed archive.
//! The kernel skips zero bytes between archives and needs each one to start at a multiple of 4.

use crate::initrd::EntryHeader;

/// Name of the entry that ends an archive.
pub const TRAILER: &str = EntryHeader::TRAILER;

/// Multiple at which an archive in an initrd begins, bytes.
pub const ALIGNMENT: usize = 4;

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// Writer that appends entries to an initrd.
#[derive(Debug)]
pub struct ArchiveWriter {
    bytes: Vec<u8>,
    inode: u32,
}

impl ArchiveWriter {
    /// Returns a writer that continues this initrd, which may be empty.
    pub fn append_to(mut initrd: Vec<u8>) -> Self {
        pad(&mut initrd);
        Self { bytes: initrd, inode: 0 }
    }

    /// Adds a directory. The kernel accepts a directory that exists already.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, S_IFDIR | 0o755, &[]);
    }

    /// Adds a file with these permissions.
    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.entry(name, S_IFREG | (permissions & 0o7777), content);
    }

    /// Ends the archive and returns the whole initrd.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        // The format has 32-bit sizes. The callers' limits keep each file below 2 GiB.
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize,
        // check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        pad(&mut self.bytes);
        self.bytes.extend_from_slice(content);
        pad(&mut self.bytes);
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

/// Entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Name without its NUL.
    pub name: &'a [u8],
    /// Bytes of the file.
    pub content: &'a [u8],
    /// Offset of the next header in the archive.
    pub end: usize,
}

/// Reads the entry whose header is at `offset`; `None` if the entry is malformed or cut off.
pub fn entry(archive: &[u8], offset: usize) -> Option<ArchiveEntry<'_>> {
    let header = EntryHeader::parse(archive.get(offset..)?.first_chunk()?)?;
    let (size, name_size) = (usize::try_from(header.size).ok()?, usize::try_from(header.name_size).ok()?);
    let name_start = offset + EntryHeader::BYTES;
    let name_end = name_start.checked_add(name_size)?;
    let name = archive.get(name_start..name_end.checked_sub(1)?)?;
    let start = name_end.checked_next_multiple_of(4)?;
    let end = start.checked_add(size)?;
    let content = archive.get(start..end)?;
    Some(ArchiveEntry { name, content, end: end.checked_next_multiple_of(4)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let mut writer = ArchiveWriter::append_to(vec![7; 5]);
        writer.directory("vprof");
        writer.file("vprof/command", 0o644, b"sh\0-c\0true\0");
        let bytes = writer.finish();
        assert_eq!(&bytes[..8], &[7, 7, 7, 7, 7, 0, 0, 0]);
        let first = entry(&bytes, 8).unwrap();
        assert_eq!((first.name, first.content), (&b"vprof"[..], &b""[..]));
        let second = entry(&bytes, first.end).unwrap();
        assert_eq!((second.name, second.content), (&b"vprof/command"[..], &b"sh\0-c\0true\0"[..]));
        let last = entry(&bytes, second.end).unwrap();
        assert_eq!((last.name, last.end), (TRAILER.as_bytes(), bytes.len()));
        assert_eq!(entry(&bytes, last.end), None);
    }

    #[test]
    fn torn_and_hostile_headers_are_none() {
        let mut writer = ArchiveWriter::append_to(Vec::new());
        writer.file("a", 0o644, b"content");
        let bytes = writer.finish();
        for cut in 0..EntryHeader::BYTES + 9 {
            assert_eq!(entry(&bytes[..cut], 0), None, "cut at {cut}");
        }
        let mut hostile = bytes.clone();
        hostile[54..62].copy_from_slice(b"ffffffff");
        assert_eq!(entry(&hostile, 0), None);
        hostile[54..62].copy_from_slice(b"+0000001");
        assert_eq!(entry(&hostile, 0), None);
        let mut nameless = bytes;
        nameless[94..102].copy_from_slice(b"00000000");
        assert_eq!(entry(&nameless, 0), None);
        assert_eq!(entry(&nameless, usize::MAX), None);
    }
}
