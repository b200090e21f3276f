//! Sources of the bytes of the guest's files: its disks or its initrd, otherwise its page cache.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use guest_linux::{FileRef, Kernel, PageCache, VirtAddr};
use symbols::elf::ReadAt;
use symbols::names::GuestFiles;

use crate::initrd::Initrd;
use crate::memory::GuestMemory;

/// Bytes at the start of a file that must be the same on the disk and in memory: headers and build-id.
const HEAD: usize = 4096;
/// Bytes of the vDSO, at most: it has 2 to 4 pages.
const MAX_VDSO: u64 = 1 << 20;
/// The kernel's description of the vDSO of 64-bit processes.
const VDSO_IMAGE: &str = "vdso_image_64";

/// File system that Linux unpacks an initrd into (init/do_mounts.c and fs/ramfs/inode.c, Linux 5.10 to 6.12).
const ROOTFS: &str = "rootfs";

/// Absence of a file from all sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("neither on a disk that can be read nor in the initrd or the page cache")]
pub(crate) struct FileUnavailable;

/// One guest's memory, disks and initrd.
pub(crate) struct GuestSource {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) memory: GuestMemory,
    files: Box<dyn GuestFiles>,
    initrd: Option<Initrd>,
    /// Time for which the initrd may still be awaited.
    patience: Cell<Duration>,
}

impl fmt::Debug for GuestSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// A file in the page cache.
struct CachedFile {
    kernel: Arc<Kernel>,
    memory: GuestMemory,
    file: FileRef,
}

impl ReadAt for CachedFile {
    fn len(&self) -> u64 {
        self.file.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        let end = offset.checked_add(into.len() as u64)?;
        if end > self.file.size {
            return None;
        }
        PageCache::new(&self.kernel, &self.memory).ok()?.read(&self.memory, &self.file, offset, into)
    }
}

impl GuestSource {
    pub(crate) fn new(kernel: Arc<Kernel>, memory: GuestMemory, files: Box<dyn GuestFiles>) -> Self {
        Self { kernel, memory, files, initrd: None, patience: Cell::default() }
    }

    /// Adds the programs of the initrd, with a total time to wait for them.
    pub(crate) fn with_initrd(mut self, initrd: Option<Initrd>, patience: Duration) -> Self {
        self.initrd = initrd;
        self.patience = patience.into();
        self
    }

    /// Prepares the guest's disks ([`GuestFiles::prepare`]).
    pub(crate) fn prepare(&self) {
        self.files.prepare();
    }

    /// Opens `file`. Also returns its source, or returns the reason why it is not available.
    pub(crate) fn open(&self, file: &FileRef) -> Result<(Box<dyn ReadAt>, &'static str), FileUnavailable> {
        let cached =
            CachedFile { kernel: Arc::clone(&self.kernel), memory: self.memory.clone(), file: file.clone() };
        let head = file.size.min(HEAD as u64);
        let head_of = |reader: &dyn ReadAt| {
            let mut bytes = vec![0; usize::try_from(head).unwrap_or(HEAD)];
            reader.read_at(0, &mut bytes).map(|()| bytes)
        };
        let in_memory = head_of(&cached);
        if let Some((reader, place)) = self.outside(file)
            && reader.len() == file.size
        {
            // A path may lead to another file by now: the mapped bytes decide.
            match (&in_memory, head_of(reader.as_ref())) {
                (Some(mapped), Some(found)) if *mapped == found => return Ok((reader, place)),
                (None, Some(_)) => return Ok((reader, place)),
                _ => {}
            }
        }
        match in_memory {
            Some(_) => Ok((Box::new(cached), "page cache")),
            None => Err(FileUnavailable),
        }
    }

    /// Opens the path of `file` outside of the guest's memory.
    fn outside(&self, file: &FileRef) -> Option<(Box<dyn ReadAt>, &'static str)> {
        if file.filesystem == ROOTFS {
            // Distributions delete files there once they have another root; the initrd still has them.
            let mut patience = self.patience.get();
            let reader = self.initrd.as_ref()?.open(&file.path, &mut patience);
            self.patience.set(patience);
            return Some((reader?, "initrd"));
        }
        if file.deleted { None } else { Some((self.files.open(&file.path)?, "image")) }
    }

    /// Reads the vDSO mapped at `start..end` of the process of `task`.
    pub(crate) fn vdso(&self, task: u64, (start, end): (VirtAddr, VirtAddr)) -> Option<Arc<[u8]>> {
        let len = end.offset_from(start).filter(|&len| len <= MAX_VDSO)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        // A process has only those pages of the vDSO in its tables that it has touched; the kernel has them
        // all.
        if self.kernels_vdso(len, &mut bytes).is_none() {
            let space = self.kernel.user_memory(&self.memory, task).ok()?;
            space.read(&self.memory, start, &mut bytes)?;
        }
        Some(bytes.into())
    }

    /// Reads the kernel's own copy of the 64-bit vDSO if it has `len` bytes: `struct vdso_image` begins with
    /// the address of its bytes and their number (arch/x86/include/asm/vdso.h, Linux 3.16 to 6.12).
    fn kernels_vdso(&self, len: u64, into: &mut [u8]) -> Option<()> {
        let space = self.kernel.address_space();
        let image = self.kernel.address_of(VDSO_IMAGE)?;
        let (mut data, mut size) = ([0; 8], [0; 8]);
        space.read(&self.memory, image, &mut data)?;
        space.read(&self.memory, VirtAddr(image.0.checked_add(8)?), &mut size)?;
        if u64::from_le_bytes(size) != len {
            return None;
        }
        space.read(&self.memory, VirtAddr(u64::from_le_bytes(data)), into)
    }
}
