//! Offsets of what is read about a process. Each question has its own table, so that a missing member spoils
//! that question only.

use crate::btf::Btf;
use crate::btf::layout::{layout, offset};
use crate::gather::GatherPlan;
use crate::missing::Missing;
use crate::tree::MapleLayout;

/// Layout of the mappings of an address space.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VmaTree {
    /// `mm_struct.mm_mt` (since 6.1).
    Maple { at: usize, tree: MapleLayout },
    /// `mm_struct.mmap`, `vm_area_struct.vm_next`, and the red-black tree `mm_struct.mm_rb` of
    /// `vm_area_struct.vm_rb` (until 6.0).
    List { mmap: usize, next: usize, rb: RbLayout },
}

/// Members of a mapping that are read, in the order of [`VmaField`].
const VMA_FIELDS: usize = 6;

/// Index of a gathered member.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VmaField {
    Start,
    End,
    Flags,
    Offset,
    File,
    Ops,
}

layout! {
    /// Layouts of the structures that a task points to.
    #[derive(Debug, Clone)]
    ProcessLayouts {
        mm: Result<MmLayout, Missing>,
        vmas: Result<VmaLayout, Missing>,
        special: Result<SpecialLayout, Missing>,
        file: Result<FileLayout, Missing>,
        root: Result<RootLayout, Missing>,
        lookup: Result<LookupLayout, Missing>,
        exe: Result<ExeLayout, Missing>,
        argv: Result<ArgvLayout, Missing>,
        cgroup: Result<CgroupLayout, Missing>,
        parent: Result<ParentLayout, Missing>,
        uid: Result<UidLayout, Missing>,
        worker: Result<WorkerLayout, Missing>,
    }

    /// From a task to its address space (include/linux/mm_types.h).
    #[derive(Debug, Clone, Copy)]
    MmLayout {
        mm: usize = "task_struct.mm",
        pgd: usize = "mm_struct.pgd",
    }

    /// A red-black tree (include/linux/rbtree.h).
    #[derive(Debug, Clone, Copy)]
    RbLayout {
        root: usize = "mm_struct.mm_rb.rb_node",
        node: usize = "vm_area_struct.vm_rb",
        left: usize = "rb_node.rb_left",
        right: usize = "rb_node.rb_right",
    }

    /// `struct vm_area_struct`, and the members of `struct mm_struct` by which heap and stack are recognized.
    #[derive(Debug, Clone, Copy)]
    VmaLayout {
        tree: VmaTree => vma_tree,
        gather: GatherPlan<VMA_FIELDS> => vma_gather,
        start_brk: usize = "mm_struct.start_brk",
        brk: usize = "mm_struct.brk",
        start_stack: usize = "mm_struct.start_stack",
    }

    /// Mappings that the kernel itself makes (`_install_special_mapping`, mm/mmap.c).
    #[derive(Debug, Clone, Copy)]
    SpecialLayout {
        /// A `struct vm_special_mapping`.
        private_data: usize = "vm_area_struct.vm_private_data",
        name: usize = "vm_special_mapping.name",
    }

    /// From `struct file` to its name and its inode (include/linux/fs.h, dcache.h, mount.h, fs/mount.h).
    #[derive(Debug, Clone, Copy)]
    FileLayout {
        /// A `struct path`.
        path: usize = "file.f_path" | "file.__f_path",
        inode: usize = "file.f_inode",
        mapping: usize = "file.f_mapping",
        /// `file.f_mode` and `backing_file.user_path` (since 6.8): the path that the process opened, where a
        /// file system opens a file of another one in its stead.
        user_path: Option<(usize, usize)> => |btf| {
            let find = |path| offset(btf, &[path]).ok();
            Ok(find("file.f_mode").zip(find("backing_file.user_path")))
        },
        dentries: DentryLayout,
        inodes: InodeLayout,
    }

    /// The structures that a path is built from.
    #[derive(Debug, Clone, Copy)]
    DentryLayout {
        /// A `struct vfsmount` within a `struct mount`.
        path_mount: usize = "path.mnt",
        path_dentry: usize = "path.dentry",
        parent: usize = "dentry.d_parent",
        name: usize = "dentry.d_name.name" | "dentry.__d_name.name",
        name_len: usize = "dentry.d_name.len" | "dentry.__d_name.len",
        inode: usize = "dentry.d_inode",
        /// NULL once the name is unlinked.
        hashed: usize = "dentry.d_hash.pprev",
        mount: usize = "mount.mnt",
        mount_parent: usize = "mount.mnt_parent",
        mountpoint: usize = "mount.mnt_mountpoint",
        mount_root: usize = "vfsmount.mnt_root",
    }

    /// `struct inode`, `struct super_block`, `struct file_system_type` (include/linux/fs.h).
    #[derive(Debug, Clone, Copy)]
    InodeLayout {
        number: usize = "inode.i_ino",
        size: usize = "inode.i_size",
        links: usize = "inode.i_nlink" | "inode.__i_nlink",
        super_block: usize = "inode.i_sb",
        device: usize = "super_block.s_dev",
        fs_type: usize = "super_block.s_type",
        fs_name: usize = "file_system_type.name",
        /// Seconds of the time of the last change: the third name until 6.6, the second until 6.10.
        modified_s: Option<usize> = "inode.i_mtime_sec" | "inode.__i_mtime.tv_sec" | "inode.i_mtime.tv_sec",
        /// Nanoseconds of that time.
        modified_ns: Option<usize> =
            "inode.i_mtime_nsec" | "inode.__i_mtime.tv_nsec" | "inode.i_mtime.tv_nsec",
    }

    /// A task's root directory.
    #[derive(Debug, Clone, Copy)]
    RootLayout {
        fs: usize = "task_struct.fs",
        /// A `struct path`.
        root: usize = "fs_struct.root",
    }

    /// From a directory down to a file (include/linux/dcache.h, fs/mount.h, fs/overlayfs/ovl_entry.h).
    #[derive(Debug, Clone, Copy)]
    LookupLayout {
        /// The head of a directory's names: the first name since 6.8, the second before.
        children: usize = "dentry.d_children" | "dentry.d_subdirs",
        /// Links them: the first name since 6.8, the second before.
        sibling: usize = "dentry.d_sib" | "dentry.d_child",
        /// The head of the list of mounts in a mount.
        mounts: usize = "mount.mnt_mounts",
        /// Links them.
        mount_sibling: usize = "mount.mnt_child",
        mapping: usize = "inode.i_mapping",
        /// Bytes of `struct inode`: after it, an inode of overlayfs has the name of the file with the bytes
        /// (`ovl_inode.__upperdentry`).
        inode_size: usize => |btf| btf.size_of("inode").ok_or_else(|| Missing::NoField("inode".into())),
    }

    /// The program that a process runs.
    #[derive(Debug, Clone, Copy)]
    ExeLayout {
        file: usize = "mm_struct.exe_file",
        /// An address in the program's text.
        start_code: usize = "mm_struct.start_code",
    }

    /// Range of the arguments of a process in its own memory.
    #[derive(Debug, Clone, Copy)]
    ArgvLayout {
        start: usize = "mm_struct.arg_start",
        end: usize = "mm_struct.arg_end",
    }

    /// From a task to the name of its control group (include/linux/cgroup-defs.h, kernfs.h).
    #[derive(Debug, Clone, Copy)]
    CgroupLayout {
        /// A `struct css_set`.
        set: usize = "task_struct.cgroups",
        /// The group in the hierarchy of version 2.
        default: usize = "css_set.dfl_cgrp",
        node: usize = "cgroup.kn",
        node_name: usize = "kernfs_node.name",
        /// The first name since 6.15, the second before.
        node_parent: usize = "kernfs_node.__parent" | "kernfs_node.parent",
        /// The groups of the hierarchies of version 1.
        links: Option<LinksLayout>,
    }

    /// `css_set.cgrp_links`, a list of `struct cgrp_cset_link` (kernel/cgroup/cgroup-internal.h).
    #[derive(Debug, Clone, Copy)]
    LinksLayout {
        head: usize = "css_set.cgrp_links",
        link: usize = "cgrp_cset_link.cgrp_link",
        group: usize = "cgrp_cset_link.cgrp",
    }

    /// The parent of a task's process.
    #[derive(Debug, Clone, Copy)]
    ParentLayout {
        parent: usize = "task_struct.real_parent",
        tgid: usize = "task_struct.tgid",
    }

    /// The user of a task.
    #[derive(Debug, Clone, Copy)]
    UidLayout {
        /// The credentials that `/proc` shows.
        cred: usize = "task_struct.real_cred",
        uid: usize = "cred.uid.val",
    }

    /// The work of a work queue's thread (kernel/kthread.c, kernel/workqueue_internal.h).
    #[derive(Debug, Clone, Copy)]
    WorkerLayout {
        flags: usize = "task_struct.flags",
        /// The thread's `struct kthread`: the first name since 5.17, the second before.
        kthread: usize = "task_struct.worker_private" | "task_struct.set_child_tid",
        /// The thread's `struct worker`.
        worker: usize = "kthread.data",
        function: usize = "worker.current_func",
    }
}

fn vma_tree(btf: &Btf<'_>) -> Result<VmaTree, Missing> {
    let find = |path| offset(btf, &[path]);
    Ok(match find("mm_struct.mm_mt") {
        Ok(at) => VmaTree::Maple { at, tree: MapleLayout::new(btf)? },
        Err(_) => VmaTree::List {
            mmap: find("mm_struct.mmap")?,
            next: find("vm_area_struct.vm_next")?,
            rb: RbLayout::new(btf)?,
        },
    })
}

fn vma_gather(btf: &Btf<'_>) -> Result<GatherPlan<VMA_FIELDS>, Missing> {
    let vma = |path| Ok((offset(btf, &[path])?, 8));
    Ok(GatherPlan::new([
        vma("vm_area_struct.vm_start")?,
        vma("vm_area_struct.vm_end")?,
        vma("vm_area_struct.vm_flags")?,
        vma("vm_area_struct.vm_pgoff")?,
        vma("vm_area_struct.vm_file")?,
        vma("vm_area_struct.vm_ops")?,
    ]))
}
