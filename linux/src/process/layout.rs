//! Offsets of what is read about a process. Each question has its own, so that a member that is missing
//! spoils that question alone.

use crate::btf::Btf;
use crate::gather::Gather;
use crate::layout::{first_offset, offset};
use crate::missing::Missing;
use crate::tree::MapleLayout;

/// What the structures behind a task look like.
#[derive(Debug, Clone)]
pub(crate) struct ProcessLayouts {
    pub(crate) mm: Result<MmLayout, Missing>,
    pub(crate) vmas: Result<VmaLayout, Missing>,
    pub(crate) special: Result<SpecialLayout, Missing>,
    pub(crate) file: Result<FileLayout, Missing>,
    pub(crate) root: Result<RootLayout, Missing>,
    pub(crate) lookup: Result<LookupLayout, Missing>,
    pub(crate) exe: Result<ExeLayout, Missing>,
    pub(crate) argv: Result<ArgvLayout, Missing>,
    pub(crate) cgroup: Result<CgroupLayout, Missing>,
    pub(crate) parent: Result<ParentLayout, Missing>,
    pub(crate) uid: Result<UidLayout, Missing>,
    pub(crate) worker: Result<WorkerLayout, Missing>,
}

impl ProcessLayouts {
    pub(crate) fn new(btf: &Btf) -> Self {
        Self {
            mm: MmLayout::new(btf),
            vmas: VmaLayout::new(btf),
            special: SpecialLayout::new(btf),
            file: FileLayout::new(btf),
            root: RootLayout::new(btf),
            lookup: LookupLayout::new(btf),
            exe: ExeLayout::new(btf),
            argv: ArgvLayout::new(btf),
            cgroup: CgroupLayout::new(btf),
            parent: ParentLayout::new(btf),
            uid: UidLayout::new(btf),
            worker: WorkerLayout::new(btf),
        }
    }
}

/// From a task to its address space (include/linux/mm_types.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct MmLayout {
    /// `task_struct.mm`.
    pub(crate) mm: usize,
    /// `mm_struct.pgd`.
    pub(crate) pgd: usize,
}

impl MmLayout {
    pub(crate) fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self { mm: offset(btf, "task_struct", "mm")?, pgd: offset(btf, "mm_struct", "pgd")? })
    }
}

/// How an address space holds its mappings.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VmaTree {
    /// `mm_struct.mm_mt` (since 6.1).
    Maple { at: usize, tree: MapleLayout },
    /// `mm_struct.mmap`, `vm_area_struct.vm_next`, and the red-black tree `mm_struct.mm_rb` of
    /// `vm_area_struct.vm_rb` (until 6.0).
    List { mmap: usize, next: usize, rb: RbLayout },
}

/// A red-black tree (include/linux/rbtree.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RbLayout {
    pub(crate) root: usize,
    pub(crate) node: usize,
    pub(crate) left: usize,
    pub(crate) right: usize,
}

/// Members of a mapping that are read, in the order of [`VmaField`].
pub(crate) const VMA_FIELDS: usize = 6;

/// Which of the gathered members.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VmaField {
    Start,
    End,
    Flags,
    Offset,
    File,
    Ops,
}

/// `struct vm_area_struct`, and what of `struct mm_struct` tells heap and stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VmaLayout {
    pub(crate) tree: VmaTree,
    pub(crate) gather: Gather<VMA_FIELDS>,
    /// `mm_struct.start_brk`, `.brk`, `.start_stack`.
    pub(crate) heap_and_stack: [usize; 3],
}

impl VmaLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let mm = |member| offset(btf, "mm_struct", member);
        let vma = |member| offset(btf, "vm_area_struct", member);
        let tree = match mm("mm_mt") {
            Ok(at) => VmaTree::Maple { at, tree: MapleLayout::new(btf)? },
            Err(_) => VmaTree::List {
                mmap: mm("mmap")?,
                next: vma("vm_next")?,
                rb: RbLayout {
                    root: mm("mm_rb.rb_node")?,
                    node: vma("vm_rb")?,
                    left: offset(btf, "rb_node", "rb_left")?,
                    right: offset(btf, "rb_node", "rb_right")?,
                },
            },
        };
        let members = ["vm_start", "vm_end", "vm_flags", "vm_pgoff", "vm_file", "vm_ops"];
        let mut places = [(0, 8); VMA_FIELDS];
        for (place, member) in places.iter_mut().zip(members) {
            place.0 = vma(member)?;
        }
        Ok(Self {
            tree,
            gather: Gather::new(places),
            heap_and_stack: [mm("start_brk")?, mm("brk")?, mm("start_stack")?],
        })
    }
}

/// Mappings that the kernel itself makes (`_install_special_mapping`, mm/mmap.c).
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpecialLayout {
    /// `vm_area_struct.vm_private_data`: a `struct vm_special_mapping`.
    pub(crate) private_data: usize,
    /// `vm_special_mapping.name`.
    pub(crate) name: usize,
}

impl SpecialLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self {
            private_data: offset(btf, "vm_area_struct", "vm_private_data")?,
            name: offset(btf, "vm_special_mapping", "name")?,
        })
    }
}

/// From `struct file` to its name and its inode (include/linux/fs.h, dcache.h, mount.h, fs/mount.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileLayout {
    /// `file.f_path`, a `struct path`.
    pub(crate) path: usize,
    pub(crate) inode: usize,
    pub(crate) mapping: usize,
    /// `file.f_mode` and `backing_file.user_path` (since 6.8): the path that the process opened, where a file
    /// system's own file stands behind it.
    pub(crate) user_path: Option<(usize, usize)>,
    pub(crate) dentries: DentryLayout,
    pub(crate) inodes: InodeLayout,
}

impl FileLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let file = |member| offset(btf, "file", member);
        Ok(Self {
            path: first_offset(btf, "file", &["f_path", "__f_path"])?,
            inode: file("f_inode")?,
            mapping: file("f_mapping")?,
            user_path: file("f_mode").ok().zip(offset(btf, "backing_file", "user_path").ok()),
            dentries: DentryLayout::new(btf)?,
            inodes: InodeLayout::new(btf)?,
        })
    }
}

/// What a path is built from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DentryLayout {
    /// `path.mnt`, a `struct vfsmount` within a `struct mount`, and `path.dentry`.
    pub(crate) path_mount: usize,
    pub(crate) path_dentry: usize,
    pub(crate) parent: usize,
    pub(crate) name: usize,
    pub(crate) name_len: usize,
    pub(crate) inode: usize,
    /// `dentry.d_hash.pprev`: NULL once it is unlinked.
    pub(crate) hashed: usize,
    /// `mount.mnt`.
    pub(crate) mount: usize,
    pub(crate) mount_parent: usize,
    pub(crate) mountpoint: usize,
    /// `vfsmount.mnt_root`.
    pub(crate) mount_root: usize,
}

impl DentryLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let dentry = |names: &[&str]| first_offset(btf, "dentry", names);
        let mount = |member| offset(btf, "mount", member);
        Ok(Self {
            path_mount: offset(btf, "path", "mnt")?,
            path_dentry: offset(btf, "path", "dentry")?,
            parent: dentry(&["d_parent"])?,
            name: dentry(&["d_name.name", "__d_name.name"])?,
            name_len: dentry(&["d_name.len", "__d_name.len"])?,
            inode: dentry(&["d_inode"])?,
            hashed: dentry(&["d_hash.pprev"])?,
            mount: mount("mnt")?,
            mount_parent: mount("mnt_parent")?,
            mountpoint: mount("mnt_mountpoint")?,
            mount_root: offset(btf, "vfsmount", "mnt_root")?,
        })
    }
}

/// `struct inode`, `struct super_block`, `struct file_system_type` (include/linux/fs.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct InodeLayout {
    pub(crate) number: usize,
    pub(crate) size: usize,
    pub(crate) links: usize,
    pub(crate) super_block: usize,
    pub(crate) device: usize,
    pub(crate) fs_type: usize,
    pub(crate) fs_name: usize,
    /// Seconds and nanoseconds: `i_mtime.tv_sec`, since 6.7 `__i_mtime.tv_sec`, since 6.11 `i_mtime_sec`.
    pub(crate) modified: Option<(usize, usize)>,
}

impl InodeLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let inode = |member| offset(btf, "inode", member);
        let seconds = ["i_mtime_sec", "__i_mtime.tv_sec", "i_mtime.tv_sec"];
        let nanoseconds = ["i_mtime_nsec", "__i_mtime.tv_nsec", "i_mtime.tv_nsec"];
        let seconds = first_offset(btf, "inode", &seconds).ok();
        Ok(Self {
            number: inode("i_ino")?,
            size: inode("i_size")?,
            links: first_offset(btf, "inode", &["i_nlink", "__i_nlink"])?,
            super_block: inode("i_sb")?,
            device: offset(btf, "super_block", "s_dev")?,
            fs_type: offset(btf, "super_block", "s_type")?,
            fs_name: offset(btf, "file_system_type", "name")?,
            modified: seconds.zip(first_offset(btf, "inode", &nanoseconds).ok()),
        })
    }
}

/// A task's root directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RootLayout {
    /// `task_struct.fs`.
    pub(crate) fs: usize,
    /// `fs_struct.root`, a `struct path`.
    pub(crate) root: usize,
}

impl RootLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self { fs: offset(btf, "task_struct", "fs")?, root: offset(btf, "fs_struct", "root")? })
    }
}

/// From a directory down to a file (include/linux/dcache.h, fs/mount.h, fs/overlayfs/ovl_entry.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct LookupLayout {
    /// `dentry.d_children` (since 6.8), `.d_subdirs` before: the head of a directory's names.
    pub(crate) children: usize,
    /// `dentry.d_sib` (since 6.8), `.d_child` before: links them.
    pub(crate) sibling: usize,
    /// `mount.mnt_mounts`: the head of what is mounted in a mount.
    pub(crate) mounts: usize,
    /// `mount.mnt_child`: links them.
    pub(crate) mount_sibling: usize,
    /// `inode.i_mapping`.
    pub(crate) mapping: usize,
    /// Bytes of `struct inode`: behind it, an inode of overlayfs has the name of the file with the bytes
    /// (`ovl_inode.__upperdentry`).
    pub(crate) inode_size: usize,
}

impl LookupLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let mount = |member| offset(btf, "mount", member);
        Ok(Self {
            children: first_offset(btf, "dentry", &["d_children", "d_subdirs"])?,
            sibling: first_offset(btf, "dentry", &["d_sib", "d_child"])?,
            mounts: mount("mnt_mounts")?,
            mount_sibling: mount("mnt_child")?,
            mapping: offset(btf, "inode", "i_mapping")?,
            inode_size: btf.size("inode").ok_or_else(|| Missing::NoField("inode".into()))?,
        })
    }
}

/// The program that a process runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExeLayout {
    /// `mm_struct.exe_file`.
    pub(crate) file: usize,
    /// `mm_struct.start_code`: an address in the program's text.
    pub(crate) start_code: usize,
}

impl ExeLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let mm = |member| offset(btf, "mm_struct", member);
        Ok(Self { file: mm("exe_file")?, start_code: mm("start_code")? })
    }
}

/// Where the arguments of a process lie in its own memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArgvLayout {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl ArgvLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let mm = |member| offset(btf, "mm_struct", member);
        Ok(Self { start: mm("arg_start")?, end: mm("arg_end")? })
    }
}

/// From a task to the name of its control group (include/linux/cgroup-defs.h, kernfs.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct CgroupLayout {
    /// `task_struct.cgroups`, a `struct css_set`.
    pub(crate) set: usize,
    /// `css_set.dfl_cgrp`: the group in the hierarchy of version 2.
    pub(crate) default: usize,
    /// `cgroup.kn`.
    pub(crate) node: usize,
    pub(crate) node_name: usize,
    /// `kernfs_node.parent`, since 6.15 `.__parent`.
    pub(crate) node_parent: usize,
    /// The groups of the hierarchies of version 1.
    pub(crate) links: Option<LinksLayout>,
}

/// `css_set.cgrp_links`, a list of `struct cgrp_cset_link` (kernel/cgroup/cgroup-internal.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinksLayout {
    pub(crate) head: usize,
    pub(crate) link: usize,
    pub(crate) group: usize,
}

impl CgroupLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self {
            set: offset(btf, "task_struct", "cgroups")?,
            default: offset(btf, "css_set", "dfl_cgrp")?,
            node: offset(btf, "cgroup", "kn")?,
            node_name: offset(btf, "kernfs_node", "name")?,
            node_parent: first_offset(btf, "kernfs_node", &["__parent", "parent"])?,
            links: LinksLayout::new(btf).ok(),
        })
    }
}

impl LinksLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self {
            head: offset(btf, "css_set", "cgrp_links")?,
            link: offset(btf, "cgrp_cset_link", "cgrp_link")?,
            group: offset(btf, "cgrp_cset_link", "cgrp")?,
        })
    }
}

/// The process that a task's process belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParentLayout {
    /// `task_struct.real_parent`.
    pub(crate) parent: usize,
    pub(crate) tgid: usize,
}

impl ParentLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let task = |member| offset(btf, "task_struct", member);
        Ok(Self { parent: task("real_parent")?, tgid: task("tgid")? })
    }
}

/// The user of a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UidLayout {
    /// `task_struct.real_cred`, which `/proc` shows.
    pub(crate) cred: usize,
    /// `cred.uid.val`.
    pub(crate) uid: usize,
}

impl UidLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self { cred: offset(btf, "task_struct", "real_cred")?, uid: offset(btf, "cred", "uid.val")? })
    }
}

/// What a thread of a work queue is doing (kernel/kthread.c, kernel/workqueue_internal.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerLayout {
    pub(crate) flags: usize,
    /// `task_struct.worker_private` (since 5.17), `.set_child_tid` before: its `struct kthread`.
    pub(crate) kthread: usize,
    /// `kthread.data`: its `struct worker`.
    pub(crate) worker: usize,
    /// `worker.current_func`.
    pub(crate) function: usize,
}

impl WorkerLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self {
            flags: offset(btf, "task_struct", "flags")?,
            kthread: first_offset(btf, "task_struct", &["worker_private", "set_child_tid"])?,
            worker: offset(btf, "kthread", "data")?,
            function: offset(btf, "worker", "current_func")?,
        })
    }
}
