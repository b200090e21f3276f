//! Files that code is mapped from: each is read once, when a stack first leads through it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use guest_linux::{FileOffset, FileRef};
use symbols::LinkAddr;
use symbols::cfi::{CfiSections, CfiTable};
use symbols::elf::{ElfError, ElfFile, ElfSegment, ReadAt};

use super::source::{FileUnavailable, GuestSource};
use display::clean;
use profile::rows::FileRow;

/// Files that are remembered, at most; beyond that all are forgotten and read again when needed.
const REMEMBERED: usize = 4096;
/// Bytes of unwind tables that are kept of all files together, at most.
const MAX_TABLES: usize = 32 << 20;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Name of the kernel's own small library.
const VDSO: &str = "[vdso]";

/// Identity of a file while a guest runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FileKey {
    device: (u32, u32),
    inode: u64,
    size: u64,
    modified: Option<(i64, u32)>,
}

/// Reasons why a file was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileError {
    /// No source has the file.
    #[error(transparent)]
    Unavailable(#[from] FileUnavailable),
    /// The file is not a program or library.
    #[error(transparent)]
    Elf(#[from] ElfError),
}

/// Contents of a file that stacks need.
#[derive(Debug)]
pub(crate) struct LoadedFile {
    pub cfi: Option<CfiTable>,
    segments: Vec<ElfSegment>,
    build_id: Option<String>,
    /// Source of the file, or the reason why it was not read.
    read_from: Result<&'static str, FileError>,
}

impl LoadedFile {
    pub(super) fn was_read(&self) -> bool {
        self.read_from.is_ok()
    }
}

/// Bytes of a file: by reference, or the vDSO's own.
#[derive(Debug)]
enum FileContent {
    File(FileRef),
    Vdso(Arc<[u8]>),
}

/// A file that code was mapped from.
#[derive(Debug)]
pub(crate) struct FileEntry {
    id: u32,
    content: FileContent,
    loaded: OnceLock<LoadedFile>,
    /// The row has to be written again.
    changed: AtomicBool,
    /// The file was removed.
    deleted: AtomicBool,
}

impl FileEntry {
    /// Returns the row id.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the file's name without its directories.
    pub(crate) fn name(&self) -> &str {
        let path = self.path();
        path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path)
    }

    /// Returns the path in the guest.
    pub(crate) fn path(&self) -> &str {
        match &self.content {
            FileContent::File(file) => &file.path,
            FileContent::Vdso(_) => VDSO,
        }
    }

    /// Opens the file; also returns its source.
    pub(crate) fn open(
        &self,
        source: &GuestSource,
    ) -> Result<(Box<dyn ReadAt>, &'static str), FileUnavailable> {
        match &self.content {
            FileContent::File(file) => source.open(file),
            FileContent::Vdso(bytes) => Ok((Box::new(Arc::clone(bytes)), "guest memory")),
        }
    }

    /// Opens the file as an ELF file; `None` if it is something else, or cannot be opened.
    pub(crate) fn elf(&self, source: &GuestSource) -> Option<ElfFile> {
        ElfFile::open(self.open(source).ok()?.0).ok()
    }

    /// Returns the file's contents, read at the first call.
    pub(super) fn load(&self, source: &GuestSource, room: &TableRoom) -> &LoadedFile {
        self.loaded.get_or_init(|| {
            self.changed.store(true, Ordering::Relaxed);
            self.read(source, room).unwrap_or_else(|why| LoadedFile {
                cfi: None,
                segments: Vec::new(),
                build_id: None,
                read_from: Err(why),
            })
        })
    }

    fn read(&self, source: &GuestSource, room: &TableRoom) -> Result<LoadedFile, FileError> {
        let (reader, place) = self.open(source)?;
        let elf = ElfFile::open(reader)?;
        let cfi = CfiTable::parse(CfiSections::read(&elf));
        Ok(LoadedFile {
            cfi: cfi.ok().filter(|table| room.take(table.memory())),
            segments: elf.segments().to_vec(),
            build_id: elf.build_id().map(ToString::to_string),
            read_from: Ok(place),
        })
    }

    /// Returns the start of the function that covers `address` of the file, by its unwind tables, and the
    /// address after it.
    pub(crate) fn function_range(&self, address: LinkAddr) -> Option<(LinkAddr, LinkAddr)> {
        self.loaded.get()?.cfi.as_ref()?.function_start(address)
    }

    /// Returns the start of the function that covers `address` of the file, by its unwind tables.
    pub(crate) fn function_start(&self, address: LinkAddr) -> Option<LinkAddr> {
        self.function_range(address).map(|(start, _)| start)
    }

    /// Returns the file's address of the executable byte mapped at `offset`; the offset itself if that is not
    /// known. The kernel maps whole pages, so the byte at `offset` may belong to the segment before.
    pub(super) fn address_of(&self, FileOffset(offset): FileOffset) -> LinkAddr {
        let segments = self.loaded.get().map_or(&[][..], |loaded| &loaded.segments);
        let mapped = |segment: &&ElfSegment| {
            let end = segment.offset.saturating_add(segment.file_size);
            segment.executable && segment.offset & !(PAGE - 1) <= offset && offset < end
        };
        let segment = segments.iter().rfind(mapped);
        let address =
            |segment: &ElfSegment| segment.address.wrapping_add(offset.wrapping_sub(segment.offset));
        LinkAddr(segment.map_or(offset, address))
    }

    /// Returns the addresses of the function that covers `at`, by the unwind table, if the file was loaded.
    pub(super) fn function_at(&self, at: LinkAddr) -> Option<std::ops::Range<u64>> {
        let (start, end) = self.loaded.get()?.cfi.as_ref()?.function_start(at)?;
        Some(start.0..end.0)
    }

    /// Returns the row; `named_by` as far as it is known.
    pub(crate) fn row(&self, named_by: Option<String>) -> FileRow {
        let loaded = self.loaded.get();
        let mut row = FileRow {
            id: self.id,
            path: clean::printable(self.path()),
            build_id: loaded.and_then(|loaded| loaded.build_id.clone()),
            read_from: loaded.map(|loaded| match &loaded.read_from {
                Ok(place) => (*place).to_owned(),
                Err(why) => format!("not read: {why}"),
            }),
            named_by,
            ..FileRow::default()
        };
        if let FileContent::File(file) = &self.content {
            row.device = file.device.0 << 20 | file.device.1;
            row.inode = file.inode;
            row.filesystem = clean::printable(&file.filesystem);
            row.deleted = self.deleted.load(Ordering::Relaxed);
        }
        row
    }
}

/// Room that is left for unwind tables, bytes.
#[derive(Debug)]
pub(super) struct TableRoom(Mutex<usize>);

impl TableRoom {
    fn take(&self, bytes: usize) -> bool {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }
}

/// All files that are known.
#[derive(Debug)]
pub(crate) struct FileTable {
    known: HashMap<FileKey, Arc<FileEntry>>,
    vdsos: HashMap<Arc<[u8]>, Arc<FileEntry>>,
    unread: Vec<Arc<FileEntry>>,
    given: u32,
    pub(super) room: TableRoom,
}

impl Default for FileTable {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            vdsos: HashMap::new(),
            unread: Vec::new(),
            given: 0,
            room: TableRoom(Mutex::new(MAX_TABLES)),
        }
    }
}

impl FileTable {
    /// Returns the entry of `file`; adds a row to `rows` if it is new.
    pub(crate) fn entry(&mut self, file: &FileRef, rows: &mut Vec<FileRow>) -> Arc<FileEntry> {
        let key =
            FileKey { device: file.device, inode: file.inode, size: file.size, modified: file.modified };
        if let Some(entry) = self.known.get(&key) {
            // Files are removed while they run: by upgrades, above all.
            if file.deleted && !entry.deleted.swap(true, Ordering::Relaxed) {
                rows.push(entry.row(None));
            }
            return Arc::clone(entry);
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
            self.room = TableRoom(Mutex::new(MAX_TABLES));
        }
        let entry = self.add(FileContent::File(file.clone()), rows);
        self.known.insert(key, Arc::clone(&entry));
        entry
    }

    /// Returns the entry of a vDSO.
    pub(crate) fn vdso(&mut self, bytes: Arc<[u8]>, rows: &mut Vec<FileRow>) -> Arc<FileEntry> {
        if let Some(entry) = self.vdsos.get(&bytes) {
            return Arc::clone(entry);
        }
        if self.vdsos.len() >= REMEMBERED {
            self.vdsos.clear();
        }
        let entry = self.add(FileContent::Vdso(Arc::clone(&bytes)), rows);
        self.vdsos.insert(bytes, Arc::clone(&entry));
        entry
    }

    fn add(&mut self, content: FileContent, rows: &mut Vec<FileRow>) -> Arc<FileEntry> {
        self.given = self.given.saturating_add(1);
        let deleted = matches!(&content, FileContent::File(file) if file.deleted);
        let entry = Arc::new(FileEntry {
            id: self.given,
            content,
            deleted: AtomicBool::new(deleted),
            loaded: OnceLock::new(),
            changed: AtomicBool::new(false),
        });
        rows.push(entry.row(None));
        self.unread.push(Arc::clone(&entry));
        entry
    }

    /// Adds the rows of files that were read since the last call.
    pub(super) fn take_loaded(&mut self, rows: &mut Vec<FileRow>) {
        self.unread.retain(|entry| {
            let read = entry.changed.swap(false, Ordering::Relaxed);
            if read {
                rows.push(entry.row(None));
            }
            !read
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_removed_while_it_runs_is_reported_once_more() {
        let file = FileRef {
            path: "/bin/program".to_owned(),
            raw_path: b"/bin/program".to_vec(),
            device: (8, 1),
            inode: 7,
            size: 4096,
            modified: None,
            filesystem: "ext4".to_owned(),
            deleted: false,
            address_space: 0,
            stacked: None,
        };
        let (mut files, mut rows) = (FileTable::default(), Vec::new());
        let entry = files.entry(&file, &mut rows);
        let removed = FileRef { deleted: true, ..file };
        for _ in 0..2 {
            assert!(Arc::ptr_eq(&files.entry(&removed, &mut rows), &entry));
        }
        assert_eq!(rows.iter().map(|row| (row.id, row.deleted)).collect::<Vec<_>>(), [(1, false), (1, true)]);
    }
}
