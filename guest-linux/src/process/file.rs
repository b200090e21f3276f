//! Files of the guest, as its kernel has them open.

use super::path::{DentryPath, PathReader};
use crate::layout::{FileLayout, InodeLayout};
use crate::memory::PhysicalMemory;
use crate::view::View;
use display::clean::ascii;

/// `FMODE_BACKING` (include/linux/fs.h): the file has the bytes of a stacked file system's file. Bit 25 since
/// 6.5, bit 24 in later kernels, 6.12.117 among them; the other bit has another meaning there.
const FMODE_BACKING: u32 = 1 << 25 | 1 << 24;
/// `FMODE_NOACCOUNT` (include/linux/fs.h): a file that the kernel has opened for itself, as those are.
const FMODE_NOACCOUNT: u32 = 1 << 29;
/// A device number has its minor number in the lower 20 bits (`MINORBITS`, include/linux/kdev_t.h).
const MINOR_BITS: u32 = 20;
/// Bytes of a file system's name, at most.
const FS_NAME: usize = 32;

/// A file of the guest: what its bytes belong to, and how the process named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRef {
    /// Path as the process sees it, in printable ASCII: for display. At most 4 KiB. Empty if it could not be
    /// read.
    pub path: String,
    /// The same, byte by byte: for opening.
    pub raw_path: Vec<u8>,
    /// True when no name leads to the file any more.
    pub deleted: bool,
    /// Major and minor number of the device that holds the bytes.
    pub device: (u32, u32),
    /// Inode number on that device.
    pub inode: u64,
    /// Size, bytes.
    pub size: u64,
    /// Type of the file system that holds the bytes, such as `ext4`, `tmpfs`, `squashfs`.
    pub filesystem: String,
    /// When its bytes last changed: seconds since 1970 and nanoseconds.
    pub modified: Option<(i64, u32)>,
    /// Virtual address of its `struct address_space`: for [`crate::PageCache`].
    pub address_space: u64,
    /// The file as the process opened it, where that is another one: on overlayfs.
    pub stacked: Option<StackedFile>,
}

/// A file of a file system that takes its bytes from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackedFile {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
    /// Type of its file system, such as `overlay`.
    pub filesystem: String,
}

/// Members of an inode.
struct Inode {
    device: (u32, u32),
    number: u64,
    size: u64,
    links: u32,
    filesystem: String,
    modified: Option<(i64, u32)>,
}

/// Reads files.
pub(super) struct FileReader<'a, M> {
    pub(super) view: &'a View<'a, M>,
    pub(super) layout: &'a FileLayout,
    /// Directory at which paths end.
    pub(super) root: Option<DentryPath>,
}

impl<M: PhysicalMemory> FileReader<'_, M> {
    pub(super) fn paths(&self) -> PathReader<'_, M> {
        PathReader { view: self.view, layout: &self.layout.dentries }
    }

    /// Returns the path that the process opened the file at `file` by.
    pub(super) fn opened(&self, file: u64) -> Option<DentryPath> {
        let path = |offset: usize| self.paths().path(file.checked_add(offset as u64)?);
        let backing = self.layout.user_path.filter(|(mode, _)| {
            let mode = self.view.u32(file, *mode).unwrap_or(0);
            mode & FMODE_NOACCOUNT != 0 && mode & FMODE_BACKING != 0
        });
        // If the bits mean something else, the bytes after the file are not a path.
        let user = backing.and_then(|(_, offset)| path(offset)).filter(|user| self.paths().exists(*user));
        user.or_else(|| path(self.layout.path))
    }

    /// Returns the `struct file` at `file`.
    pub(super) fn read(&self, file: u64) -> Option<FileRef> {
        let inode = self.view.u64(file, self.layout.inode)?;
        self.describe(self.opened(file)?, inode, self.view.u64(file, self.layout.mapping)?)
    }

    /// Returns the file of the inode at `at`, which was opened as `opened`; `address_space` has its pages.
    pub(super) fn describe(&self, opened: DentryPath, at: u64, address_space: u64) -> Option<FileRef> {
        let inode = self.inode(at)?;
        let paths = self.paths();
        let stacked = match paths.inode(opened.dentry) {
            Some(other) if other != at => self.inode(other),
            _ => None,
        };
        let links = stacked.as_ref().map_or(inode.links, |stacked| stacked.links);
        let raw_path = paths.name(opened, self.root).unwrap_or_default();
        Some(FileRef {
            path: ascii(&raw_path),
            raw_path,
            deleted: links == 0 || paths.unlinked(opened.dentry)?,
            device: inode.device,
            inode: inode.number,
            size: inode.size,
            filesystem: inode.filesystem,
            modified: inode.modified,
            address_space,
            stacked: stacked.map(|stacked| StackedFile {
                device: stacked.device,
                inode: stacked.number,
                filesystem: stacked.filesystem,
            }),
        })
    }

    /// Returns the type of the file system that the inode at `at` is of.
    pub(super) fn filesystem(&self, at: u64) -> Option<String> {
        let InodeLayout { super_block, fs_type, fs_name, .. } = self.layout.inodes;
        let fs_type = self.view.u64(self.view.u64(at, super_block)?, fs_type)?;
        self.view.text::<FS_NAME>(self.view.u64(fs_type, fs_name)?)
    }

    fn inode(&self, at: u64) -> Option<Inode> {
        let InodeLayout { number, size, links, super_block, device, .. } = self.layout.inodes;
        let InodeLayout { modified_s, modified_ns, .. } = self.layout.inodes;
        let view = self.view;
        let super_block = view.u64(at, super_block)?;
        let device = view.u32(super_block, device)?;
        let time = |(seconds, nanoseconds)| {
            Some((view.u64(at, seconds)?.cast_signed(), view.u32(at, nanoseconds)?.min(999_999_999)))
        };
        Some(Inode {
            device: (device >> MINOR_BITS, device & ((1 << MINOR_BITS) - 1)),
            number: view.u64(at, number)?,
            // A size cannot be negative (`loff_t`).
            size: view.u64(at, size).filter(|size| size >> 63 == 0)?,
            links: view.u32(at, links)?,
            filesystem: self.filesystem(at)?,
            modified: modified_s.zip(modified_ns).and_then(time),
        })
    }
}
