//! Paths of files: through the names up to a root, across mount points.
//!
//! ```text
//! path { mnt, dentry }    dentry -> d_parent -> ... -> mnt_root of its mount
//!                         mount  -> mnt_mountpoint (a dentry) in mnt_parent -> ... -> the root
//! ```
//!
//! Source: `prepend_path` and `simple_dname` in fs/d_path.c of Linux 6.1 and 6.12.

use crate::layout::DentryLayout;
use crate::memory::PhysicalMemory;
use crate::view::View;

/// Components of a path, at most, mount points included.
const MAX_COMPONENTS: usize = 256;
/// Bytes of a path, at most (`PATH_MAX`, include/uapi/linux/limits.h).
const MAX_PATH: usize = 4096;
/// Bytes of a component, at most (`NAME_MAX`).
const MAX_NAME: u32 = 255;

/// A `struct path`: a name in a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DentryPath {
    /// A `struct vfsmount`.
    pub(crate) mount: u64,
    pub(crate) dentry: u64,
}

/// Reads paths.
pub(crate) struct PathReader<'a, M> {
    pub(crate) view: &'a View<'a, M>,
    pub(crate) layout: &'a DentryLayout,
}

impl<M: PhysicalMemory> PathReader<'_, M> {
    /// Returns the `struct path` at `at`.
    pub(crate) fn path(&self, at: u64) -> Option<DentryPath> {
        Some(DentryPath {
            mount: self.view.u64(at, self.layout.path_mount)?,
            dentry: self.view.u64(at, self.layout.path_dentry)?,
        })
    }

    /// Returns true if this is a name of a file in a mount.
    pub(crate) fn exists(&self, path: DentryPath) -> bool {
        let root = self.view.u64(path.mount, self.layout.mount_root);
        root.is_some_and(|root| self.component(root).is_some())
            && self.component(path.dentry).is_some()
            && self.inode(path.dentry).is_some_and(|inode| inode != 0)
    }

    /// Returns the inode that a name stands for.
    pub(crate) fn inode(&self, dentry: u64) -> Option<u64> {
        self.view.u64(dentry, self.layout.inode)
    }

    /// Returns true for a name that has been removed: it is no longer found by its parent's table of names.
    pub(crate) fn unlinked(&self, dentry: u64) -> Option<bool> {
        let is_root = self.view.u64(dentry, self.layout.parent)? == dentry;
        Some(!is_root && self.view.u64(dentry, self.layout.hashed)? == 0)
    }

    /// Returns the path of `file` as seen from `root`; from the top of its mounts, where `root` is `None` or
    /// does not hold the file. `None` when it cannot be read, is longer than 4 KiB or has more than 256
    /// components.
    pub(crate) fn name(&self, file: DentryPath, root: Option<DentryPath>) -> Option<Vec<u8>> {
        let mut path = ReversedPath::default();
        let mut at = file;
        let mut mount_root = self.view.u64(at.mount, self.layout.mount_root)?;
        for _ in 0..MAX_COMPONENTS {
            if Some(at) == root {
                return Some(path.finish());
            }
            if at.dentry == mount_root {
                let mount = at.mount.checked_sub(self.layout.mount as u64)?;
                let parent = self.view.u64(mount, self.layout.mount_parent)?;
                if parent == mount {
                    return Some(path.finish());
                }
                at = DentryPath {
                    mount: parent.checked_add(self.layout.mount as u64)?,
                    dentry: self.view.u64(mount, self.layout.mountpoint)?,
                };
                mount_root = self.view.u64(at.mount, self.layout.mount_root)?;
                continue;
            }
            path.prepend(&self.component(at.dentry)?)?;
            let parent = self.view.u64(at.dentry, self.layout.parent)?;
            if parent == at.dentry {
                // A file without a directory: shared memory and the like.
                return Some(path.finish());
            }
            at.dentry = parent;
        }
        None
    }

    /// Returns the name in its directory.
    pub(crate) fn component(&self, dentry: u64) -> Option<Vec<u8>> {
        let len = self.view.u32(dentry, self.layout.name_len)?;
        if len == 0 || len > MAX_NAME {
            return None;
        }
        let mut name = vec![0; len as usize];
        self.view.read(self.view.u64(dentry, self.layout.name)?, &mut name)?;
        Some(name)
    }
}

/// A path that grows at its front.
#[derive(Default)]
struct ReversedPath(Vec<u8>);

impl ReversedPath {
    fn prepend(&mut self, component: &[u8]) -> Option<()> {
        if self.0.len() + component.len() >= MAX_PATH {
            return None;
        }
        self.0.extend(component.iter().rev());
        self.0.push(b'/');
        Some(())
    }

    fn finish(mut self) -> Vec<u8> {
        if self.0.is_empty() {
            self.0.push(b'/');
        }
        self.0.reverse();
        self.0
    }
}
