//! Page cache by file system, and the largest files.
//!
//! ```text
//! super_blocks -> super_block -> s_inodes -> inode -> i_data.nrpages
//!                     `- s_mounts -> mount      `- i_dentry -> dentry ... -> path
//! ```
//!
//! An inode of a device file has the pages of the device elsewhere, in the inode of the file system `bdev`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Deref;

use display::clean::ascii;

use super::{FileMemory, FilesystemMemory, Holders, MemoryReader, PAGE, unreadable};
use crate::gather::GatherPlan;
use crate::kernel::Kernel;
use crate::layout::{DentryLayout, SuperBlockLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::process::path::{DentryPath, PathReader};
use crate::task::list;
use crate::view::View;

/// File systems that are read, at most.
const MAX_FILESYSTEMS: usize = 16_384;
/// Inodes of all file systems that are read, at most.
const MAX_INODES: usize = 1 << 20;
/// Files whose names are read, at most.
const MAX_FILES: usize = 1024;
/// Processes among which the first one is searched, at most: it is the oldest.
const MAX_SEARCHED: usize = 8;
/// Bytes of the name of a type or a device, at most (`s_id` of `struct super_block`).
const NAME: usize = 32;
/// The file system whose pages are counted as a pool of huge pages.
const HUGE_FILES: &str = "hugetlbfs";

/// A file with pages in memory, ordered by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CachedFile {
    pages: u64,
    inode: u64,
    super_block: u64,
}

/// File systems, and the largest files.
pub(super) struct FileCensus {
    pub(super) filesystems: Holders<FilesystemMemory>,
    pub(super) files: Vec<FileMemory>,
}

/// Members of an inode that are read for each.
#[derive(Debug, Clone, Copy)]
enum InodeField {
    Link,
    Mapping,
    Pages,
}

/// Reader of inodes.
struct InodeReader<'a, M> {
    view: &'a View<'a, M>,
    layout: &'a SuperBlockLayout,
    plan: GatherPlan<3>,
    left: usize,
}

impl<M: PhysicalMemory> InodeReader<'_, M> {
    /// Calls `visit` with each inode of the file system at `super_block` that has pages, and their number.
    fn each(&mut self, super_block: u64, mut visit: impl FnMut(u64, u64)) -> Option<()> {
        let head = super_block.checked_add(self.layout.inodes as u64)?;
        let mut link = self.view.u64(head, 0)?;
        let mut seen = HashSet::new();
        while link != head && link != 0 && seen.insert(link) {
            self.left = self.left.checked_sub(1)?;
            let inode = link.wrapping_sub(self.layout.inode_link as u64);
            let read =
                |offset: usize, into: &mut [u8]| self.view.read(inode.checked_add(offset as u64)?, into);
            // An inode that is freed meanwhile ends the list.
            let Some(members) = self.plan.read(read) else { break };
            let member = |field: InodeField| members.member(field as usize).map(u64::from_le_bytes);
            let (mapping, pages) = (member(InodeField::Mapping)?, member(InodeField::Pages)?);
            if pages > 0 && mapping == inode.wrapping_add(self.layout.data as u64) {
                visit(inode, pages);
            }
            link = member(InodeField::Link)?;
        }
        Some(())
    }
}

impl<K: Deref<Target = Kernel>> MemoryReader<K> {
    fn inodes<'a, M: PhysicalMemory>(&'a self, view: &'a View<'a, M>) -> Result<InodeReader<'a, M>, Missing> {
        let layout = self.layouts.files.as_ref().map_err(Clone::clone)?;
        let plan = GatherPlan::new([(layout.inode_link, 8), (layout.mapping, 8), (layout.pages, 8)]);
        Ok(InodeReader { view, layout, plan, left: MAX_INODES })
    }

    /// Returns the pages of block devices (`nr_blockdev_pages`, block/bdev.c).
    pub(super) fn device_pages<M: PhysicalMemory>(&self, view: &View<'_, M>) -> Option<i64> {
        let devices = view.u64(self.kernel.symbol("blockdev_superblock").ok()?, 0)?;
        let mut sum = 0_u64;
        self.inodes(view).ok()?.each(devices, |_, pages| sum = sum.saturating_add(pages))?;
        i64::try_from(sum).ok()
    }

    /// Returns the root directory of the first process.
    fn root<M: PhysicalMemory>(&self, view: &View<'_, M>) -> Option<DentryPath> {
        let layouts = self.kernel.layouts.as_ref().ok()?;
        let (tasks, threads) = (layouts.task.as_ref().ok()?, layouts.threads.as_ref().ok()?);
        let head = self.kernel.symbol("init_task").ok()?.checked_add(threads.tasks as u64)?;
        let mut leaders = list(view, head, MAX_SEARCHED)?.map(|link| link.wrapping_sub(threads.tasks as u64));
        let first = leaders.find(|task| tasks.snapshot(view, *task).is_some_and(|task| task.pid == 1))?;
        Some(self.kernel.root_directory(view.memory, first).ok()?.0)
    }

    /// Returns all file systems with pages in memory, and the `most` largest files.
    pub(super) fn files<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        most: usize,
    ) -> Result<FileCensus, Missing> {
        let mut inodes = self.inodes(view)?;
        let layout = inodes.layout;
        let names = &self.kernel.layouts.as_ref().map_err(Clone::clone)?.process.file;
        let dentries = names.as_ref().ok().map(|file| &file.dentries);
        let names = FileNames { view, layout, dentries, root: self.root(view) };
        let blocks = list(view, self.kernel.symbol("super_blocks")?, MAX_FILESYSTEMS)
            .ok_or_else(|| unreadable("the list of file systems"))?;
        let most = most.min(MAX_FILES);
        let mut largest = BinaryHeap::new();
        let (mut rows, mut complete, mut read) = (Vec::new(), true, 0);
        for link in blocks {
            read += 1;
            let super_block = link.wrapping_sub(layout.list as u64);
            let Some(kind) = names.kind(super_block) else { continue };
            if kind == HUGE_FILES {
                continue;
            }
            let (mut files, mut bytes) = (0_u64, 0_u64);
            let all = inodes.each(super_block, |inode, pages| {
                files += 1;
                bytes = bytes.saturating_add(pages.saturating_mul(PAGE));
                largest.push(Reverse(CachedFile { pages, inode, super_block }));
                if largest.len() > most {
                    largest.pop();
                }
            });
            complete &= all.is_some();
            if files > 0 {
                let (device, mount) = (names.device(super_block), names.mount(super_block));
                rows.push(FilesystemMemory { kind, device, mount, files, bytes });
            }
        }
        rows.sort_by(|a: &FilesystemMemory, b| b.bytes.cmp(&a.bytes).then_with(|| a.device.cmp(&b.device)));
        let files = largest.into_sorted_vec().iter().filter_map(|Reverse(file)| names.file(file)).collect();
        let filesystems = Holders::new(rows, complete && read < MAX_FILESYSTEMS);
        Ok(FileCensus { filesystems, files })
    }
}

/// Reader of names.
struct FileNames<'a, M> {
    view: &'a View<'a, M>,
    layout: &'a SuperBlockLayout,
    dentries: Option<&'a DentryLayout>,
    /// Directory at which paths end.
    root: Option<DentryPath>,
}

impl<M: PhysicalMemory> FileNames<'_, M> {
    /// Returns the type of a file system.
    fn kind(&self, super_block: u64) -> Option<String> {
        let kind = self.view.u64(super_block, self.layout.fs_type)?;
        self.view.text::<NAME>(self.view.u64(kind, self.layout.fs_name)?)
    }

    fn device(&self, super_block: u64) -> String {
        let at = super_block.checked_add(self.layout.id as u64);
        at.and_then(|at| self.view.text::<NAME>(at)).unwrap_or_default()
    }

    /// Returns the first mount (its `struct vfsmount`) of a file system, and its root.
    fn first_mount(&self, super_block: u64) -> Option<(PathReader<'_, M>, DentryPath)> {
        let paths = PathReader { view: self.view, layout: self.dentries? };
        let head = super_block.checked_add(self.layout.mounts as u64)?;
        let first = self.view.u64(head, 0).filter(|&first| first != 0 && first != head)?;
        let mount = first.checked_sub(self.layout.mount_link.unwrap_or(0) as u64)?;
        let mount = mount.checked_add(paths.layout.mount as u64)?;
        let dentry = self.view.u64(mount, paths.layout.mount_root)?;
        Some((paths, DentryPath { mount, dentry }))
    }

    /// Returns the path of a file system; `None` of one that only the kernel itself has mounted.
    fn mount(&self, super_block: u64) -> Option<String> {
        let (paths, top) = self.first_mount(super_block)?;
        let mount = top.mount.checked_sub(paths.layout.mount as u64)?;
        let is_attached = self.view.u64(mount, paths.layout.mount_parent)? != mount;
        if !is_attached && Some(top) != self.root {
            return None;
        }
        paths.name(top, self.root).map(|name| ascii(&name))
    }

    fn file(&self, file: &CachedFile) -> Option<FileMemory> {
        let name = || {
            let (paths, top) = self.first_mount(file.super_block)?;
            let link = self.view.u64(file.inode, self.layout.names).filter(|&link| link != 0)?;
            let dentry = link.checked_sub(self.layout.name_link as u64)?;
            paths.name(DentryPath { mount: top.mount, dentry }, self.root)
        };
        Some(FileMemory {
            path: name().map(|name| ascii(&name)).unwrap_or_default(),
            kind: self.kind(file.super_block)?,
            inode: self.view.u64(file.inode, self.layout.number)?,
            bytes: file.pages.saturating_mul(PAGE),
            size: self.view.u64(file.inode, self.layout.size)?,
        })
    }
}
