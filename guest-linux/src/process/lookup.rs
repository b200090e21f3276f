//! From a path to its file: down through the names that the guest's kernel keeps in memory.
//!
//! ```text
//! dentry -> d_subdirs -> d_child -> d_child ...          names in a directory, until 6.7
//! dentry -> d_children -> d_sib -> d_sib ...             since 6.8
//! mount  -> mnt_mounts -> mnt_child -> mnt_child ...     mounts in it, each at the name mnt_mountpoint
//! ```
//!
//! A list of the first and third kind ends at its head, one of the second with NULL. Names of files that do
//! not exist are kept, too: they have no inode. So are those of removed files that are still open: they are
//! in no table of names. Source: fs/namei.c, fs/dcache.c, fs/namespace.c of Linux 5.10 to 6.12.

use super::file::{FileReader, FileRef};
use super::path::{DentryPath, PathReader};
use crate::layout::LookupLayout;
use crate::memory::PhysicalMemory;

/// Components of a path, at most.
const MAX_COMPONENTS: usize = 32;
/// Names of a directory that are read, at most.
const MAX_NAMES: usize = 65_536;
/// Mounts within a mount that are read, at most.
const MAX_MOUNTS: usize = 4096;
/// Mounts on top of each other, at most.
const MAX_STACKED: usize = 8;
/// Steps along lists in one lookup, at most.
const MAX_STEPS: usize = 2 * MAX_NAMES;
/// The file system whose files have their bytes in another one.
const OVERLAY: &str = "overlay";

/// Looks files up.
pub(super) struct PathLookup<'a, M> {
    files: &'a FileReader<'a, M>,
    paths: PathReader<'a, M>,
    layout: &'a LookupLayout,
    steps: usize,
}

impl<'a, M: PhysicalMemory> PathLookup<'a, M> {
    pub(super) fn new(files: &'a FileReader<'a, M>, layout: &'a LookupLayout) -> Self {
        Self { files, paths: files.paths(), layout, steps: MAX_STEPS }
    }

    /// Returns the file at `path` below `root`.
    pub(super) fn file(mut self, root: DentryPath, path: &[u8]) -> Option<FileRef> {
        let mut at = self.topmost(root)?;
        let components = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        for (number, name) in components.enumerate() {
            if number == MAX_COMPONENTS || name == b".." {
                return None;
            }
            at.dentry = self.child(at.dentry, name)?;
            at = self.topmost(at)?;
        }
        let inode = self.bytes_of(at.dentry)?;
        self.files.describe(at, inode, self.files.view.u64(inode, self.layout.mapping)?)
    }

    /// Returns the place that is visible at a place: the root of the mount there, if there is one.
    fn topmost(&mut self, mut at: DentryPath) -> Option<DentryPath> {
        for _ in 0..MAX_STACKED {
            let Some(mounted) = self.mounted(at) else { return Some(at) };
            let dentry = self.files.view.u64(mounted, self.paths.layout.mount_root)?;
            at = DentryPath { mount: mounted, dentry };
        }
        None
    }

    /// Returns the mount (its `struct vfsmount`) at a place.
    fn mounted(&mut self, at: DentryPath) -> Option<u64> {
        let (view, inside) = (self.files.view, self.paths.layout.mount as u64);
        let mountpoint = self.paths.layout.mountpoint;
        let head = at.mount.checked_sub(inside)?.checked_add(self.layout.mounts as u64)?;
        let here = |mount| view.u64(mount, mountpoint) == Some(at.dentry);
        self.search(head, self.layout.mount_sibling, MAX_MOUNTS, here)?.checked_add(inside)
    }

    /// Returns the name of an existing file in a directory.
    fn child(&mut self, directory: u64, name: &[u8]) -> Option<u64> {
        let (view, layout) = (self.files.view, self.paths.layout);
        let paths = self.files.paths();
        let is_it = |dentry: u64| {
            view.u32(dentry, layout.name_len).is_some_and(|len| len as usize == name.len())
                && view.u64(dentry, layout.parent) == Some(directory)
                && paths.component(dentry).as_deref() == Some(name)
                && paths.inode(dentry).is_some_and(|inode| inode != 0)
                && paths.unlinked(dentry) == Some(false)
        };
        let head = directory.checked_add(self.layout.children as u64)?;
        self.search(head, self.layout.sibling, MAX_NAMES, is_it)
    }

    /// Returns the first structure that `is_it` in the list at `head`, linked by the member at offset `link`.
    fn search(&mut self, head: u64, link: usize, limit: usize, is_it: impl Fn(u64) -> bool) -> Option<u64> {
        let mut at = self.files.view.u64(head, 0)?;
        for _ in 0..limit {
            if at == 0 || at == head {
                return None;
            }
            self.steps = self.steps.checked_sub(1)?;
            let found = at.checked_sub(link as u64)?;
            if is_it(found) {
                return Some(found);
            }
            at = self.files.view.u64(at, 0)?;
        }
        None
    }

    /// Returns the inode with the bytes of a name's file: another one on overlayfs, where that has its own
    /// copy.
    fn bytes_of(&self, dentry: u64) -> Option<u64> {
        let inode = self.paths.inode(dentry)?;
        if self.files.filesystem(inode)? != OVERLAY {
            return Some(inode);
        }
        let upper = self.files.view.u64(inode, self.layout.inode_size)?;
        // If a kernel has something else in this place, then it is not a file of this name.
        let same = self.paths.component(upper)? == self.paths.component(dentry)?;
        self.paths.inode(upper).filter(|&inode| same && inode != 0)
    }
}
