//! Bytes of a disk: in its file, in any format, and for a snapshot in a temporary file that overlays it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::{Disk, DiskFile, DiskFormat, DiskMode};
use crate::error::DiskError;

/// Bytes of a sector, the unit of virtio-blk whatever the disk's own unit is.
pub(crate) const SECTOR: u64 = 512;
/// Bytes of a block of a snapshot: a page, in which guests mostly write.
const BLOCK: u64 = 4096;
/// Blocks whose bits are kept together.
const GROUP: u64 = 4096;
/// New blocks of a snapshot between two checks of the room for them: 16 MiB.
const CHECKED_BLOCKS: u64 = 4096;
/// Part of a file system that snapshots leave to others: one in this many bytes, and at most [`MOST_LEFT`].
const LEFT_PART: u64 = 20;
/// 1 GiB.
const MOST_LEFT: u64 = 1 << 30;

/// A disk's contents.
#[derive(Debug)]
pub(crate) struct DiskStore {
    base: BaseFile,
    sectors: u64,
    writes: WriteTarget,
}

/// The disk's own file.
#[derive(Debug)]
enum BaseFile {
    Raw(File),
    Formatted(Box<dyn DiskFormat>),
}

impl BaseFile {
    /// Checks the file; also its size in bytes.
    fn open(file: DiskFile) -> Result<(Self, u64), DiskError> {
        match file {
            DiskFile::Raw(mut file) => {
                let kind = file.metadata()?.file_type();
                if !kind.is_file() && !kind.is_block_device() {
                    return Err(DiskError::Kind);
                }
                let bytes = file.seek(SeekFrom::End(0))?;
                Ok((Self::Raw(file), bytes))
            }
            DiskFile::Formatted(disk) => {
                let bytes = disk.size();
                Ok((Self::Formatted(disk), bytes))
            }
        }
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_exact_at(data, offset),
            Self::Formatted(disk) => disk.read_at(offset, data),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.write_all_at(data, offset),
            Self::Formatted(disk) => disk.write_at(offset, data),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.sync_data(),
            Self::Formatted(disk) => disk.flush(),
        }
    }

    /// Reads what there is; the last block may be incomplete.
    fn read_up_to_end(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Raw(file) => read_up_to_end(file, offset, data),
            Self::Formatted(disk) => {
                let left = usize::try_from(disk.size().saturating_sub(offset)).unwrap_or(usize::MAX);
                let there = data.len().min(left);
                disk.read_at(offset, &mut data[..there])
            }
        }
    }
}

#[derive(Debug)]
enum WriteTarget {
    ToBase,
    Forbidden,
    Above(WriteOverlay),
}

/// Bytes that a snapshot's guest wrote, at the same offsets as in the base.
#[derive(Debug)]
struct WriteOverlay {
    file: File,
    /// One bit per written block; groups without a written block are absent.
    written: HashMap<u64, Box<[u64; 64]>>,
    /// New blocks that may be written before the next check of the room.
    granted: u64,
    /// Reads the size of the file system and what is free of it, bytes.
    room: fn(&File) -> io::Result<(u64, u64)>,
    full: Arc<AtomicBool>,
    /// True once the lack of room was reported.
    reported: bool,
}

/// Returns the size of the file system of an open file and what a user has free there, bytes.
fn room(file: &File) -> io::Result<(u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open, and the kernel fills the structure, which is valid for writes.
    if unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstatfs has succeeded and so filled the structure.
    let stat = unsafe { stat.assume_init() };
    let block = u64::try_from(stat.f_bsize).unwrap_or(0);
    Ok((stat.f_blocks.saturating_mul(block), stat.f_bavail.saturating_mul(block)))
}

impl WriteOverlay {
    /// Grants one more block, or fails while there is room for others still: the guest learns of it as of a
    /// disk that fails, and the other users of the file system are not affected.
    fn grant(&mut self) -> io::Result<()> {
        if self.granted == 0 {
            let (all, free) = (self.room)(&self.file)?;
            let left = (all / LEFT_PART).min(MOST_LEFT);
            if free < left.saturating_add(CHECKED_BLOCKS * BLOCK) {
                if !std::mem::replace(&mut self.reported, true) {
                    self.full.store(true, Ordering::Release);
                }
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.granted = CHECKED_BLOCKS;
        }
        self.granted -= 1;
        Ok(())
    }

    /// Returns the group, word and bit of a block.
    fn place(block: u64) -> (u64, usize, u64) {
        let index = block % GROUP;
        // Below 64, so it fits.
        let word = usize::try_from(index / 64).unwrap_or(0);
        (block / GROUP, word, 1 << (index % 64))
    }

    fn has(&self, block: u64) -> bool {
        let (group, word, bit) = Self::place(block);
        self.written.get(&group).is_some_and(|words| words[word] & bit != 0)
    }

    fn mark(&mut self, block: u64) {
        let (group, word, bit) = Self::place(block);
        self.written.entry(group).or_insert_with(|| Box::new([0; 64]))[word] |= bit;
    }
}

impl DiskStore {
    /// Checks the file and, for a snapshot, makes the temporary file. That file has no name, so
    /// it goes with the process however the process ends.
    pub(crate) fn open(disk: Disk) -> Result<Self, DiskError> {
        let (base, bytes) = BaseFile::open(disk.file)?;
        if bytes < SECTOR {
            return Err(DiskError::TooSmall(bytes));
        }
        let writes = match disk.mode {
            DiskMode::ReadWrite => WriteTarget::ToBase,
            DiskMode::ReadOnly => WriteTarget::Forbidden,
            DiskMode::Snapshot => {
                let file = tempfile::tempfile().map_err(|source| DiskError::Snapshot {
                    directory: std::env::temp_dir().display().to_string(),
                    source,
                })?;
                WriteTarget::Above(WriteOverlay {
                    file,
                    written: HashMap::new(),
                    granted: 0,
                    room,
                    full: Arc::default(),
                    reported: false,
                })
            }
        };
        Ok(Self { base, sectors: bytes / SECTOR, writes })
    }

    /// Returns the size of the disk in sectors; an incomplete last sector does not count.
    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns true if the guest must not write.
    pub(crate) fn read_only(&self) -> bool {
        matches!(self.writes, WriteTarget::Forbidden)
    }

    /// Returns what becomes true when a snapshot has no more room; `None` for other disks.
    pub(crate) fn full(&self) -> Option<Arc<AtomicBool>> {
        match &self.writes {
            WriteTarget::Above(overlay) => Some(Arc::clone(&overlay.full)),
            WriteTarget::ToBase | WriteTarget::Forbidden => None,
        }
    }

    /// Reads from a byte offset inside the disk.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let WriteTarget::Above(overlay) = &self.writes else {
            return self.base.read(offset, data);
        };
        // Runs of blocks that come from the same file are read at once.
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let above = overlay.has(at / BLOCK);
            let mut end = done;
            while end < data.len() && overlay.has((offset + end as u64) / BLOCK) == above {
                end += (data.len() - end).min(to_block_end(offset + end as u64));
            }
            let part = &mut data[done..end];
            if above {
                overlay.file.read_exact_at(part, at)?;
            } else {
                self.base.read(at, part)?;
            }
            done = end;
        }
        Ok(())
    }

    /// Writes at a byte offset inside the disk.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &mut self.writes {
            WriteTarget::ToBase => self.base.write(offset, data),
            WriteTarget::Forbidden => Err(io::ErrorKind::PermissionDenied.into()),
            WriteTarget::Above(overlay) => write_above(&self.base, overlay, offset, data),
        }
    }

    /// Makes what was written last. A snapshot's writes need not.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match self.writes {
            WriteTarget::ToBase => self.base.flush(),
            WriteTarget::Forbidden | WriteTarget::Above(_) => Ok(()),
        }
    }
}

/// Returns the bytes from an offset to the end of its block.
fn to_block_end(offset: u64) -> usize {
    usize::try_from(BLOCK - offset % BLOCK).unwrap_or(1)
}

fn write_above(base: &BaseFile, overlay: &mut WriteOverlay, offset: u64, data: &[u8]) -> io::Result<()> {
    let mut rest = data;
    let mut at = offset;
    while !rest.is_empty() {
        let (part, later) = rest.split_at(rest.len().min(to_block_end(at)));
        let block = at / BLOCK;
        if !overlay.has(block) {
            overlay.grant()?;
        }
        if !overlay.has(block) && part.len() as u64 != BLOCK {
            // The first write to a block covers part of it: the remainder comes from the base.
            let mut whole = vec![0; usize::try_from(BLOCK).unwrap_or(0)];
            base.read_up_to_end(block * BLOCK, &mut whole)?;
            overlay.file.write_all_at(&whole, block * BLOCK)?;
        }
        overlay.file.write_all_at(part, at)?;
        overlay.mark(block);
        at += part.len() as u64;
        rest = later;
    }
    Ok(())
}

/// Reads what the file has; the last block may be incomplete.
fn read_up_to_end(file: &File, offset: u64, data: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match file.read_at(&mut data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn base(bytes: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..bytes).map(|index| u8::try_from(index / 512).unwrap()).collect();
        file.write_all(&content).unwrap();
        file
    }

    fn store(file: &File, mode: DiskMode) -> DiskStore {
        DiskStore::open(Disk { file: file.try_clone().unwrap().into(), mode }).unwrap()
    }

    #[test]
    fn a_snapshot_leaves_room_to_others_and_keeps_what_it_has() {
        use std::sync::atomic::AtomicU64;
        static FREE: AtomicU64 = AtomicU64::new(0);
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 30).unwrap();
        let mut store = store(&file, DiskMode::Snapshot);
        let full = store.full().unwrap();
        let WriteTarget::Above(overlay) = &mut store.writes else { panic!("a snapshot") };
        overlay.room = |_| Ok((1 << 30, FREE.load(Ordering::Relaxed)));
        // A twentieth of 1 GiB stays free, and what is granted at once has to fit.
        FREE.store((1 << 30) / 20 + CHECKED_BLOCKS * BLOCK, Ordering::Relaxed);
        for block in 0..CHECKED_BLOCKS {
            store.write(block * BLOCK, &[1; 4096]).unwrap();
        }
        FREE.store((1 << 30) / 20 + CHECKED_BLOCKS * BLOCK - 1, Ordering::Relaxed);
        assert!(!full.load(Ordering::Relaxed));
        let error = store.write(CHECKED_BLOCKS * BLOCK, &[1; 512]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(full.load(Ordering::Relaxed));
        store.write(0, &[2; 512]).unwrap();
        let mut sector = [0; 512];
        store.read(0, &mut sector).unwrap();
        assert_eq!(sector, [2; 512]);
        FREE.store(1 << 30, Ordering::Relaxed);
        store.write(CHECKED_BLOCKS * BLOCK, &[1; 512]).unwrap();
    }

    #[test]
    fn a_snapshot_reads_its_own_writes_and_leaves_the_file_alone() {
        let file = base(5 * 4096 + 512);
        let mut store = store(&file, DiskMode::Snapshot);
        store.write(4096 - 512, &[0xaa; 1024]).unwrap();
        store.write(2 * 4096, &[0xbb; 4096]).unwrap();
        store.write(5 * 4096, &[0xcc; 512]).unwrap();
        let mut all = vec![0; 5 * 4096 + 512];
        store.read(0, &mut all).unwrap();
        let sector = |index: usize| {
            let bytes = &all[index * 512..][..512];
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            bytes[0]
        };
        let expected: Vec<u8> = (0..41u8)
            .map(|index| match index {
                7 | 8 => 0xaa,
                16..24 => 0xbb,
                40 => 0xcc,
                other => other,
            })
            .collect();
        assert_eq!((0..41).map(sector).collect::<Vec<u8>>(), expected);
        let mut untouched = [0; 512];
        file.read_exact_at(&mut untouched, 4096).unwrap();
        assert_eq!(untouched, [8; 512]);
    }

    /// A disk of 4.5 blocks in memory.
    #[derive(Debug)]
    struct InMemory(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl DiskFormat for InMemory {
        fn size(&self) -> u64 {
            self.0.lock().unwrap().len() as u64
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            let start = usize::try_from(offset).unwrap();
            let bytes = self.0.lock().unwrap();
            into.copy_from_slice(bytes.get(start..start + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            let start = usize::try_from(offset).unwrap();
            self.0.lock().unwrap()[start..start + data.len()].copy_from_slice(data);
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_file_with_a_format_is_a_disk_like_any_other() {
        let bytes = std::sync::Arc::new(std::sync::Mutex::new(vec![3; 9 * 2048]));
        let open = |mode| {
            let disk = InMemory(std::sync::Arc::clone(&bytes));
            DiskStore::open(Disk { file: DiskFile::Formatted(Box::new(disk)), mode }).unwrap()
        };
        let mut store = open(DiskMode::Snapshot);
        assert_eq!(store.sectors(), 36);
        // The last block has only four sectors.
        store.write(35 * 512, &[9; 512]).unwrap();
        let mut last = [0; 1024];
        store.read(34 * 512, &mut last).unwrap();
        assert_eq!((last[511], last[512]), (3, 9));
        assert!(bytes.lock().unwrap().iter().all(|byte| *byte == 3));
        store.flush().unwrap();
        let mut store = open(DiskMode::ReadWrite);
        store.write(512, &[7; 512]).unwrap();
        assert_eq!(bytes.lock().unwrap()[511..513], [3, 7]);
        assert!(store.flush().is_err(), "the guest hears of it");
    }

    #[test]
    fn writes_reach_the_file_or_are_refused() {
        let file = base(4096);
        store(&file, DiskMode::ReadWrite).write(512, &[9; 512]).unwrap();
        let mut data = [0; 512];
        file.read_exact_at(&mut data, 512).unwrap();
        assert_eq!(data, [9; 512]);
        let mut store = store(&file, DiskMode::ReadOnly);
        assert!(store.read_only());
        assert!(store.write(0, &[0; 512]).is_err());
    }

    #[test]
    fn files_that_are_no_disks_are_refused() {
        let open = |file| DiskStore::open(Disk { file: File::into(file), mode: DiskMode::ReadOnly });
        assert!(matches!(open(File::open("/").unwrap()), Err(DiskError::Kind)));
        assert!(matches!(open(File::open("/dev/null").unwrap()), Err(DiskError::Kind)));
        assert!(matches!(open(base(511)), Err(DiskError::TooSmall(511))));
        assert_eq!(open(base(1023)).unwrap().sectors(), 1);
    }

    #[test]
    fn a_huge_sparse_disk_costs_no_memory() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 43).unwrap();
        let mut store = store(&file, DiskMode::Snapshot);
        let last = (1 << 43) - 512;
        store.write(last, &[1; 512]).unwrap();
        let mut data = [0; 512];
        store.read(last, &mut data).unwrap();
        assert_eq!(data, [1; 512]);
    }
}
