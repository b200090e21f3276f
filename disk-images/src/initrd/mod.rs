//! Programs and libraries of an initrd: a row of cpio archives, each bare or compressed, as
//! `unpack_to_rootfs` of init/initramfs.c (Linux 6.1) reads it.
//!
//! ```text
//! packed ── archives, bare or ── entries ── ELF programs and libraries ──▶ kept, one behind the other
//!           unpacked                    └── everything else is passed over
//! ```
//!
//! An initrd is read once, from the beginning to the end. The reader takes no more memory than the names in
//! it and the window of its compression. An initrd may be damaged or hostile: everything before the damage,
//! or before a bound, counts.

mod header;
mod input;
mod packed;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::ops::Range;

pub use header::EntryHeader;
use input::StreamInput;
pub use packed::Compression;

/// Bytes of an initrd, at most.
const MAX_PACKED: u64 = 2 << 30;
/// Bytes that all its streams may unpack to.
const MAX_UNPACKED: u64 = 2 << 30;
/// Bytes of programs and libraries that are kept, at most.
const MAX_KEPT: u64 = 512 << 20;
/// Entries of all archives, at most.
const MAX_ENTRIES: u32 = 1 << 18;
/// Bytes of a name with its NUL, at most: `PATH_MAX`.
const MAX_NAME: u32 = 4096;
/// Bytes of all names that are kept, at most.
const MAX_NAMES: usize = 16 << 20;
/// Compressed streams, at most.
const MAX_STREAMS: u32 = 64;

/// Bits of `st_mode` that hold the type of a file, and those of a regular file (include/uapi/linux/stat.h).
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
/// Bytes at the start of an ELF file that show its machine and type: up to `e_type`.
const ELF_START: usize = 18;
/// `e_type` of programs and of libraries: `ET_EXEC` and `ET_DYN`. Kernel modules have another.
const ELF_TYPES: [u8; 2] = [2, 3];

/// Reason why not all of an initrd was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InitrdError {
    /// The initrd ends inside of an archive.
    #[error("it ends too early")]
    CutOff,
    /// The archive has a bad format.
    #[error("its archive is damaged")]
    Archive,
    /// A compressed stream is damaged or wants too much memory.
    #[error("its {} stream cannot be unpacked", .0.name())]
    Stream(Compression),
    /// Neither an archive nor a compression that is known.
    #[error("it is packed in an unknown way")]
    Unknown,
    /// More than a bound allows.
    #[error("it has more than {0}")]
    TooLarge(&'static str),
    /// The initrd could not be read, or the files in it could not be kept.
    #[error("there is no room for its programs")]
    NotKept,
}

/// Files with these number and device are hard links to one: `EntryHeader::inode` and `EntryHeader::device`.
type Inode = (u32, (u32, u32));

/// Names of one file, and its bytes once they have come.
#[derive(Debug, Default)]
struct LinkedFile {
    names: Vec<Vec<u8>>,
    bytes: Option<Range<u64>>,
}

/// Programs and libraries of an initrd by their paths.
#[derive(Debug, Default)]
pub struct Initrd {
    files: HashMap<Vec<u8>, Range<u64>>,
    stopped: Option<InitrdError>,
}

impl Initrd {
    /// Reads `packed` and writes the programs and libraries in it, one after the other, to `keep`.
    pub fn read(packed: impl Read, keep: impl Write) -> Self {
        let mut reading = InitrdReader {
            found: Self::default(),
            keep,
            kept: 0,
            entries: 0,
            names: 0,
            streams: 0,
            unpacked: 0,
            links: HashMap::new(),
        };
        let stopped = reading.all(&mut StreamInput::new(packed, MAX_PACKED)).err();
        Self { stopped, ..reading.found }
    }

    /// Returns the range of the bytes of the file at `path`, an absolute path, in what was kept.
    pub fn find(&self, path: &str) -> Option<Range<u64>> {
        self.files.get(path.trim_start_matches('/').as_bytes()).cloned()
    }

    /// Paths of all files that are kept, without the slash at the beginning, in no order.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.files.keys().map(Vec::as_slice)
    }

    /// Returns the reason why not all of it was read.
    pub fn stopped(&self) -> Option<InitrdError> {
        self.stopped
    }
}

/// An initrd while it is read.
struct InitrdReader<W> {
    found: Initrd,
    keep: W,
    kept: u64,
    entries: u32,
    names: usize,
    streams: u32,
    unpacked: u64,
    links: HashMap<Inode, LinkedFile>,
}

impl<W: Write> InitrdReader<W> {
    /// Returns all archives, bare and compressed.
    fn all<R: Read>(&mut self, input: &mut StreamInput<R>) -> Result<(), InitrdError> {
        loop {
            skip_zeros(input)?;
            let aligned = input.taken().is_multiple_of(EntryHeader::ALIGNMENT);
            let sign = input.peek(packed::SIGN).map_err(|_| InitrdError::CutOff)?;
            let (first, form) = (sign.first().copied(), Compression::from_sign(sign));
            match (first, form) {
                (None, _) if input.is_used_up() => return Err(InitrdError::TooLarge("2 GiB")),
                (None, _) => return Ok(()),
                (Some(b'0'), _) if aligned => self.archive(input)?,
                (_, Some(form)) => self.stream(form, input)?,
                // Padding and junk after a whole archive are not read by the kernel either.
                _ if self.entries > 0 => return Ok(()),
                _ => return Err(InitrdError::Unknown),
            }
        }
    }

    /// Returns the archives in one compressed stream.
    fn stream<R: Read>(&mut self, form: Compression, packed: &mut StreamInput<R>) -> Result<(), InitrdError> {
        self.streams += 1;
        if self.streams > MAX_STREAMS {
            return Err(InitrdError::TooLarge("64 compressed streams"));
        }
        let unpacked = form.unpack(packed).map_err(|_| InitrdError::Stream(form))?;
        let mut input = StreamInput::new(unpacked, MAX_UNPACKED.saturating_sub(self.unpacked));
        let mut read = || -> Result<(), InitrdError> {
            loop {
                skip_zeros(&mut input)?;
                let next = input.peek(1).map_err(|_| InitrdError::Stream(form))?.first().copied();
                match next {
                    None => return Ok(()),
                    Some(b'0') => self.archive(&mut input)?,
                    Some(_) => return Err(InitrdError::Archive),
                }
            }
        };
        let result = read();
        self.unpacked = self.unpacked.saturating_add(input.taken());
        match result {
            _ if input.is_used_up() => Err(InitrdError::TooLarge("2 GiB unpacked")),
            // What is missing in the archive is missing because the stream is damaged.
            Err(InitrdError::CutOff) => Err(InitrdError::Stream(form)),
            other => other,
        }
    }

    /// Returns one archive, up to its trailer.
    fn archive<R: Read>(&mut self, input: &mut StreamInput<R>) -> Result<(), InitrdError> {
        self.links.clear();
        loop {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(InitrdError::TooLarge("262,144 entries"));
            }
            let mut bytes = [0; EntryHeader::BYTES];
            input.read_exact(&mut bytes).map_err(|_| InitrdError::CutOff)?;
            let header = EntryHeader::parse(&bytes).ok_or(InitrdError::Archive)?;
            if header.name_size == 0 || header.name_size > MAX_NAME {
                return Err(InitrdError::Archive);
            }
            let mut name = Vec::new();
            take(input, header.name_size.into(), |part| {
                name.extend_from_slice(part);
                Ok(())
            })?;
            align(input)?;
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            if name == EntryHeader::TRAILER.as_bytes() {
                return take(input, header.size.into(), |_| Ok(())).and_then(|()| align(input));
            }
            self.entry(&header, name, input)?;
            align(input)?;
        }
    }

    /// Returns the content of an entry.
    fn entry<R: Read>(
        &mut self,
        header: &EntryHeader,
        name: &[u8],
        input: &mut StreamInput<R>,
    ) -> Result<(), InitrdError> {
        let size = u64::from(header.size);
        let path = normal(name);
        if let Some(path) = &path {
            // A later entry takes the place of an earlier one of the same name.
            self.found.files.remove(path);
        }
        let start = input.peek(ELF_START).map_err(|_| InitrdError::CutOff)?;
        let keep =
            path.is_some() && header.mode & S_IFMT == S_IFREG && size > ELF_START as u64 && is_program(start);
        let first = self.kept;
        if keep {
            if self.kept.saturating_add(size) > MAX_KEPT {
                return Err(InitrdError::TooLarge("512 MiB of programs"));
            }
            let mut room = true;
            let taken = take(input, size, |part| {
                let written = self.keep.write_all(part);
                room &= written.is_ok();
                written
            });
            if !room {
                return Err(InitrdError::NotKept);
            }
            taken?;
            self.kept += size;
        } else {
            take(input, size, |_| Ok(()))?;
        }
        match path {
            Some(path) if header.mode & S_IFMT == S_IFREG => {
                self.name(header, path, keep.then_some(first..self.kept))
            }
            _ => Ok(()),
        }
    }

    /// `path` leads to `bytes`, and so do all names of the same file, whose bytes come with the last of them.
    fn name(
        &mut self,
        header: &EntryHeader,
        path: Vec<u8>,
        bytes: Option<Range<u64>>,
    ) -> Result<(), InitrdError> {
        if header.links < 2 {
            return bytes.map_or(Ok(()), |bytes| self.insert(path, bytes));
        }
        self.count(&path)?;
        let linked = self.links.entry((header.inode, header.device)).or_default();
        linked.names.push(path);
        if header.size > 0 {
            linked.bytes = bytes;
        }
        let Some(bytes) = linked.bytes.clone() else { return Ok(()) };
        for name in std::mem::take(&mut linked.names) {
            self.insert(name, bytes.clone())?;
        }
        Ok(())
    }

    fn insert(&mut self, path: Vec<u8>, bytes: Range<u64>) -> Result<(), InitrdError> {
        self.count(&path)?;
        self.found.files.insert(path, bytes);
        Ok(())
    }

    fn count(&mut self, name: &[u8]) -> Result<(), InitrdError> {
        self.names = self.names.saturating_add(name.len());
        if self.names > MAX_NAMES { Err(InitrdError::TooLarge("16 MiB of names")) } else { Ok(()) }
    }
}

/// Returns a name as a path without `.` and doubled slashes; `None` where it climbs.
fn normal(name: &[u8]) -> Option<Vec<u8>> {
    let parts = name.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut path = Vec::new();
    for part in parts {
        if part == b".." {
            return None;
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    Some(path)
}

/// Returns true for the beginning of an ELF program or library.
fn is_program(start: &[u8]) -> bool {
    start.starts_with(b"\x7fELF")
        && start.get(16..ELF_START).is_some_and(|kind| matches!(kind, [kind, 0] if ELF_TYPES.contains(kind)))
}

fn skip_zeros<R: Read>(input: &mut StreamInput<R>) -> Result<(), InitrdError> {
    use std::io::BufRead;
    loop {
        let bytes = input.fill_buf().map_err(|_| InitrdError::CutOff)?;
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        let end = zeros < bytes.len() || bytes.is_empty();
        input.consume(zeros);
        if end {
            return Ok(());
        }
    }
}

/// Takes all of the next `count` bytes.
fn take<R: Read>(
    input: &mut StreamInput<R>,
    count: u64,
    each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), InitrdError> {
    match input.take_each(count, each) {
        Ok(taken) if taken == count => Ok(()),
        _ => Err(InitrdError::CutOff),
    }
}

/// Takes the bytes up to the next header, name or content; at the end of a stream they may be missing.
fn align<R: Read>(input: &mut StreamInput<R>) -> Result<(), InitrdError> {
    let behind = input.taken() % EntryHeader::ALIGNMENT;
    let gap = if behind == 0 { 0 } else { EntryHeader::ALIGNMENT - behind };
    input.take_each(gap, |_| Ok(())).map(drop).map_err(|_| InitrdError::CutOff)
}
