//! FAT, by the crate fatfs: EFI system partitions and boot partitions.
//!
//! fatfs follows chains of clusters without a check for circles. Therefore the number of reads of each
//! operation is limited, and a circular chain ends at that limit.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use fatfs::{FileSystem, FsOptions};

use super::{MOST_NAMES, VolumeError, VolumeFiles};
use crate::contents::DiskPart;

/// Most reads of one operation: a file of 2 GiB in clusters of 512 bytes takes about three reads for each
/// cluster.
const MOST_READS: u64 = 16 << 20;
/// Most reads of one operation on the smallest volume: paths and directories take some that are not clusters.
const LEAST_READS: u64 = 64 << 10;
/// Bytes read from the image at once.
const WINDOW: usize = 64 << 10;
/// Windows of the image that are kept: for the allocation table, a directory, a file, and one spare.
const WINDOWS: usize = 4;

/// Opens the file system.
pub fn open(part: &DiskPart) -> Result<Box<dyn VolumeFiles>, VolumeError> {
    // No file is larger than its volume, so a longer chain is circular.
    let clusters = part.length().map_or(MOST_READS, |length| length / 512);
    let most = clusters.saturating_mul(4).saturating_add(LEAST_READS).min(MOST_READS);
    let reads = Rc::new(Cell::new(most));
    let stream = PartStream { part: part.clone(), at: 0, windows: Vec::new(), reads: Rc::clone(&reads) };
    let fs = guarded(|| FileSystem::new(stream, FsOptions::new()))?;
    Ok(Box::new(FatVolume { fs, reads, most }))
}

/// Calls the reader, and turns its panic, by which it gives up on some damage, into an error.
fn guarded<T>(read: impl FnOnce() -> io::Result<T>) -> Result<T, VolumeError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => Ok(result?),
        Err(_) => Err(VolumeError::Contradiction),
    }
}

/// FAT file system of a volume.
struct FatVolume {
    fs: FileSystem<PartStream>,
    /// Reads left for the current operation.
    reads: Rc<Cell<u64>>,
    /// Most reads of an operation.
    most: u64,
}

impl fmt::Debug for FatVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FatVolume")
    }
}

impl FatVolume {
    fn operation<T>(&self, act: impl FnOnce() -> io::Result<T>) -> Result<T, VolumeError> {
        self.reads.set(self.most);
        guarded(act)
    }
}

impl VolumeFiles for FatVolume {
    fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, VolumeError> {
        let read = || {
            let mut bytes = Vec::new();
            self.fs.root_dir().open_file(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = self.operation(read).map_err(|error| VolumeError::in_file(path, error))?;
        if bytes.len() as u64 > most {
            return Err(VolumeError::TooLarge { path: path.to_owned(), most });
        }
        Ok(bytes)
    }

    fn is_file(&self, path: &str) -> bool {
        self.operation(|| self.fs.root_dir().open_file(path).map(drop)).is_ok()
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let list = || {
            let root = self.fs.root_dir();
            let directory = match directory.trim_matches('/') {
                "" => root,
                path => root.open_dir(path)?,
            };
            Ok(directory
                .iter()
                .take(MOST_NAMES)
                .map_while(Result::ok)
                .map(|entry| entry.file_name())
                .collect())
        };
        let mut names: Vec<String> = self.operation(list).unwrap_or_default();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    fn resolved(&self, path: String) -> String {
        path
    }
}

/// Part of a disk as the stream that fatfs needs. The stream refuses writes.
struct PartStream {
    part: DiskPart,
    at: u64,
    /// Offsets and bytes, the most recently used at the end.
    windows: Vec<(u64, Vec<u8>)>,
    reads: Rc<Cell<u64>>,
}

impl PartStream {
    /// Returns the bytes from `self.at` to the end of their window.
    fn here(&mut self) -> io::Result<&[u8]> {
        let start = self.at - self.at % WINDOW as u64;
        match self.windows.iter().position(|(offset, _)| *offset == start) {
            Some(known) => {
                let window = self.windows.remove(known);
                self.windows.push(window);
            }
            None => {
                let left = self.part.length().unwrap_or(u64::MAX).saturating_sub(start);
                let mut bytes = vec![0; WINDOW.min(usize::try_from(left).unwrap_or(WINDOW))];
                self.part.read_exact_at(&mut bytes, start)?;
                if self.windows.len() == WINDOWS {
                    self.windows.remove(0);
                }
                self.windows.push((start, bytes));
            }
        }
        let skip = usize::try_from(self.at - start).unwrap_or(usize::MAX);
        Ok(self.windows.last().and_then(|(_, bytes)| bytes.get(skip..)).unwrap_or_default())
    }
}

impl Read for PartStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.reads.get().checked_sub(1) {
            Some(left) => self.reads.set(left),
            None => return Err(io::Error::other("its tables lead in a circle")),
        }
        let from = self.here()?;
        let count = from.len().min(into.len());
        for (to, from) in into.iter_mut().zip(from) {
            *to = *from;
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for PartStream {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.part.length().and_then(|length| length.checked_add_signed(by)),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Write for PartStream {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
