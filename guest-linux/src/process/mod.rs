//! Identity and mappings of a process.
//!
//! ```text
//! task_struct -> mm_struct -> maple tree or list of vm_area_struct -> file -> dentry ... -> path
//!                          |- pgd: the process's own memory -> arguments                `-> inode
//!             |- css_set -> cgroup -> kernfs_node ... -> path of the control group
//! ```
//!
//! The guest runs on while it is read: what is torn is left out or is a [`Missing`]. Every list, depth and
//! length is bounded, see the constants of each module.

mod cgroup;
mod file;
mod identity;
mod lookup;
pub(crate) mod path;
mod vma;

use std::collections::HashMap;
use std::sync::Arc;

pub use cgroup::{container, systemd_unit};
pub use file::{FileRef, StackedFile};

use crate::kernel::Kernel;
use crate::layout::{ExeLayout, MmLayout, ProcessLayouts, RootLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::paging::AddressSpace;
use crate::view::View;
use file::FileReader;
use lookup::PathLookup;
use path::DentryPath;
use symbols::{FileOffset, VirtAddr};
use vma::{Vma, VmaReader};

/// Bits of `vm_flags` (include/linux/mm.h).
mod flag {
    pub(super) const READ: u64 = 1;
    pub(super) const WRITE: u64 = 2;
    pub(super) const EXEC: u64 = 4;
    /// `VM_MAYSHARE`: what `/proc/PID/maps` shows as `s`; `VM_SHARED` says that it is writable, too.
    pub(super) const SHARED: u64 = 0x80;
}
/// Files of one process that are read, at most; mappings of others are [`MappingKind::UnknownFile`].
const MAX_FILES: usize = 4096;
/// Bytes of the name of a special mapping, at most.
const SPECIAL_NAME: usize = 32;
/// Bytes of a page in a file offset (`PAGE_SHIFT`).
const PAGE_SHIFT: u32 = 12;

/// A mapping of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: VirtAddr,
    /// First address after it.
    pub end: VirtAddr,
    /// Offset of its start in the file, bytes; 0 without a file.
    pub file_offset: FileOffset,
    /// Pages can be read.
    pub read: bool,
    /// Pages can be written.
    pub write: bool,
    /// Pages can be run.
    pub execute: bool,
    /// Writes are seen by others who map the same.
    pub shared: bool,
    /// Kind of memory.
    pub kind: MappingKind,
}

/// Kind of memory that a mapping maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MappingKind {
    /// A file, shared between the mappings of one call.
    File(Arc<FileRef>),
    /// A file that could not be read.
    UnknownFile,
    /// Memory without a file.
    Anonymous,
    /// The memory that `brk` grows.
    Heap,
    /// The stack of the process's first thread.
    Stack,
    /// The functions that the kernel offers to processes: a small ELF file.
    Vdso,
    /// The data of those functions: `[vvar]`.
    Vvar,
    /// Another mapping that the kernel made, with the name that the kernel gave it: `[vvar_vclock]`,
    /// `[uprobes]`.
    Special(String),
}

/// The root directory of a process. It stays where it is when the process ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RootDirectory(pub(crate) DentryPath);

/// Identity of a process. Each answer may be missing without the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id of the parent; 0 for a process that the kernel itself started.
    pub parent: Result<i32, Missing>,
    /// The program that it runs; [`Missing::NoUserMemory`] for kernel threads.
    pub exe: Result<FileRef, Missing>,
    /// Arguments, with `?` for each control character: the first 256, and of those the first 4 KiB.
    pub argv: Result<Vec<String>, Missing>,
    /// Path of its control group: of version 2, or else of the first hierarchy of version 1 that it is in.
    /// [`systemd_unit`] and [`container`] find names in it.
    pub cgroup: Result<String, Missing>,
    /// Real user id, as the guest's initial user namespace numbers it.
    pub uid: Result<u32, Missing>,
}

impl Kernel {
    /// Returns the mappings of the process of `task` (address of a `task_struct`), ascending, without
    /// overlap; at most 65,536, with at most 4,096 files.
    ///
    /// # Errors
    /// [`Missing::NoUserMemory`] for a kernel thread and an ending process; the reason why they cannot be
    /// read.
    pub fn mappings(&self, memory: &impl PhysicalMemory, task: u64) -> Result<Vec<Mapping>, Missing> {
        let view = self.view(memory);
        let mut reader = MappingReader::new(self, &view, task)?;
        let found = reader.vmas.all()?;
        Ok(found.iter().map(|vma| reader.mapping(vma)).collect())
    }

    /// Returns the mapping of the process of `task` that covers `address`, by one descent of the tree.
    ///
    /// # Errors
    /// As [`Kernel::mappings`].
    pub fn mapping_at(
        &self,
        memory: &impl PhysicalMemory,
        task: u64,
        address: VirtAddr,
    ) -> Result<Option<Mapping>, Missing> {
        let view = self.view(memory);
        let mut reader = MappingReader::new(self, &view, task)?;
        let found = reader.vmas.find(address.0)?;
        Ok(found.map(|vma| reader.mapping(&vma)))
    }

    /// Returns the identity of the process of `task`.
    pub fn process(&self, memory: &impl PhysicalMemory, task: u64) -> Process {
        let view = self.view(memory);
        let layouts = match self.process_layouts() {
            Ok(layouts) => layouts,
            Err(missing) => return Process::missing(&missing),
        };
        Process {
            parent: required(&layouts.parent).and_then(|layout| identity::parent(&view, layout, task)),
            exe: self.exe(&view, layouts, task),
            argv: self.arguments(memory, task),
            cgroup: required(&layouts.cgroup).and_then(|layout| identity::cgroup(&view, layout, task)),
            uid: required(&layouts.uid).and_then(|layout| identity::uid(&view, layout, task)),
        }
    }

    /// Returns the arguments of the process of `task` as it has them now, as in [`Process::argv`].
    ///
    /// # Errors
    /// [`Missing::NoUserMemory`] for a kernel thread and an ending process; the reason why they cannot be
    /// read.
    pub fn arguments(&self, memory: &impl PhysicalMemory, task: u64) -> Result<Vec<String>, Missing> {
        let (view, layouts) = (self.view(memory), self.process_layouts()?);
        let layout = required(&layouts.argv)?;
        let mm = mm(&view, required(&layouts.mm)?, task)?;
        identity::argv(&view, layout, mm, &self.user_memory(memory, task)?)
    }

    /// Returns the function that `task`, a thread of a work queue, is running now; `None` while it waits for
    /// work, and for other tasks.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn work_function(
        &self,
        memory: &impl PhysicalMemory,
        task: u64,
    ) -> Result<Option<VirtAddr>, Missing> {
        identity::work(&self.view(memory), required(&self.process_layouts()?.worker)?, task)
    }

    /// Returns the root directory of the process of `task`.
    ///
    /// # Errors
    /// The reason why it cannot be read; a kernel's or an ending process's task has none.
    pub fn root_directory(&self, memory: &impl PhysicalMemory, task: u64) -> Result<RootDirectory, Missing> {
        let view = self.view(memory);
        let layouts = self.process_layouts()?;
        let files = FileReader { view: &view, layout: required(&layouts.file)?, root: None };
        root(&files, required(&layouts.root)?, task)
            .map(RootDirectory)
            .ok_or_else(|| Missing::Unreadable("the root directory of the process".into()))
    }

    /// Returns the file that a process with the root directory `root` would find at `path`, across mount
    /// points: as far as the guest's kernel keeps the names on the way in memory, which it does for a file
    /// that was just written. Symbolic links are not followed, `..` is not understood; on overlayfs only
    /// files of the upper layer, written ones, are found; at most 32 components, and 65,536 names in a
    /// directory.
    ///
    /// # Errors
    /// [`Missing::NotCached`] where the way ends; what is missing to go it.
    pub fn lookup(
        &self,
        memory: &impl PhysicalMemory,
        root: RootDirectory,
        path: &[u8],
    ) -> Result<FileRef, Missing> {
        let view = self.view(memory);
        let layouts = self.process_layouts()?;
        let (file, layout) = (required(&layouts.file)?, required(&layouts.lookup)?);
        let files = FileReader { view: &view, layout: file, root: Some(root.0) };
        PathLookup::new(&files, layout).file(root.0, path).ok_or(Missing::NotCached)
    }

    /// Returns the memory of the process of `task`, by its own page tables. It is the process's only as long
    /// as the process lives.
    ///
    /// # Errors
    /// [`Missing::NoUserMemory`] for a kernel thread and an ending process; the reason why it cannot be
    /// found.
    pub fn user_memory(&self, memory: &impl PhysicalMemory, task: u64) -> Result<AddressSpace, Missing> {
        let view = self.view(memory);
        let layout = required(&self.process_layouts()?.mm)?;
        let root = view.u64(mm(&view, layout, task)?, layout.pgd).and_then(|pgd| view.translate(pgd));
        let root = root.ok_or_else(|| Missing::Unreadable("the page tables of the process".into()))?;
        Ok(AddressSpace::new(root.0, view.space.five_level()))
    }

    /// Returns the path of the control group of `task`; `None` if it cannot be read.
    pub(crate) fn control_group<M: PhysicalMemory>(&self, view: &View<'_, M>, task: u64) -> Option<String> {
        identity::cgroup(view, self.process_layouts().ok()?.cgroup.as_ref().ok()?, task).ok()
    }

    /// Returns the path of the `struct cgroup` at `group`; `None` if it cannot be read.
    pub(crate) fn group_path<M: PhysicalMemory>(&self, view: &View<'_, M>, group: u64) -> Option<String> {
        identity::group_path(view, self.process_layouts().ok()?.cgroup.as_ref().ok()?, group)
    }

    fn process_layouts(&self) -> Result<&ProcessLayouts, Missing> {
        self.layouts.as_ref().map(|layouts| &layouts.process).map_err(Clone::clone)
    }

    fn exe<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        layouts: &ProcessLayouts,
        task: u64,
    ) -> Result<FileRef, Missing> {
        let what = || Missing::Unreadable("the program's file".into());
        let ExeLayout { file, start_code } = *required(&layouts.exe)?;
        let mm = mm(view, required(&layouts.mm)?, task)?;
        let file = view.u64(mm, file).filter(|&file| file != 0).ok_or_else(what)?;
        let mut reader = MappingReader::new(self, view, task)?;
        let exe = reader.files.as_ref().map_err(Clone::clone)?.read(file).ok_or_else(what)?;
        // A stacked file system opens a second file for what is mapped, and that one has the bytes.
        let mapped = view.u64(mm, start_code).and_then(|at| reader.vmas.find(at).ok().flatten());
        match mapped.map(|vma| reader.mapping(&vma).kind) {
            Some(MappingKind::File(mapped)) if mapped.raw_path == exe.raw_path => Ok(FileRef::clone(&mapped)),
            _ => Ok(exe),
        }
    }
}

impl Process {
    fn missing(missing: &Missing) -> Self {
        Self {
            parent: Err(missing.clone()),
            exe: Err(missing.clone()),
            argv: Err(missing.clone()),
            cgroup: Err(missing.clone()),
            uid: Err(missing.clone()),
        }
    }
}

fn required<T>(layout: &Result<T, Missing>) -> Result<&T, Missing> {
    layout.as_ref().map_err(Clone::clone)
}

/// `task_struct.mm`.
fn mm<M: PhysicalMemory>(view: &View<'_, M>, layout: &MmLayout, task: u64) -> Result<u64, Missing> {
    match view.u64(task, layout.mm) {
        Some(0) => Err(Missing::NoUserMemory),
        Some(mm) => Ok(mm),
        None => Err(Missing::Unreadable("the task".into())),
    }
}

/// Returns the root directory of a task.
fn root<M: PhysicalMemory>(files: &FileReader<'_, M>, layout: &RootLayout, task: u64) -> Option<DentryPath> {
    let fs = files.view.u64(task, layout.fs)?;
    files.paths().path(fs.checked_add(layout.root as u64)?)
}

/// Turns what the kernel has into mappings.
struct MappingReader<'a, M> {
    vmas: VmaReader<'a, M>,
    files: Result<FileReader<'a, M>, Missing>,
    special: Option<SpecialMappings>,
    heap_and_stack: [u64; 3],
    /// By address of their `struct file`.
    known: HashMap<u64, Option<Arc<FileRef>>>,
}

/// Members by which the kernel's own mappings are recognized.
struct SpecialMappings {
    /// Address of `special_mapping_vmops`.
    ops: u64,
    private_data: usize,
    name: usize,
}

impl<'a, M: PhysicalMemory> MappingReader<'a, M> {
    fn new(kernel: &'a Kernel, view: &'a View<'a, M>, task: u64) -> Result<Self, Missing> {
        let layouts = kernel.process_layouts()?;
        let vmas =
            VmaReader { view, layout: required(&layouts.vmas)?, mm: mm(view, required(&layouts.mm)?, task)? };
        let files = required(&layouts.file).map(|layout| {
            let mut files = FileReader { view, layout, root: None };
            files.root = layouts.root.as_ref().ok().and_then(|layout| root(&files, layout, task));
            files
        });
        let special = layouts.special.as_ref().ok().and_then(|layout| {
            let ops = kernel.symbol("special_mapping_vmops").ok()?;
            Some(SpecialMappings { ops, private_data: layout.private_data, name: layout.name })
        });
        let heap_and_stack = vmas.heap_and_stack();
        Ok(Self { vmas, files, special, heap_and_stack, known: HashMap::new() })
    }

    fn mapping(&mut self, vma: &Vma) -> Mapping {
        let kind = self.kind(vma);
        let of_file = matches!(kind, MappingKind::File(_) | MappingKind::UnknownFile);
        let flag = |flag| vma.flags & flag != 0;
        Mapping {
            start: VirtAddr(vma.start),
            end: VirtAddr(vma.end),
            file_offset: FileOffset(if of_file { vma.page_offset << PAGE_SHIFT } else { 0 }),
            read: flag(flag::READ),
            write: flag(flag::WRITE),
            execute: flag(flag::EXEC),
            shared: flag(flag::SHARED),
            kind,
        }
    }

    /// In the order in which `show_map_vma` (fs/proc/task_mmu.c) asks.
    fn kind(&mut self, vma: &Vma) -> MappingKind {
        if vma.file != 0 {
            return self.file(vma.file).map_or(MappingKind::UnknownFile, MappingKind::File);
        }
        if let Some(special) = self.special.as_ref().filter(|special| special.ops == vma.ops) {
            return special.kind(self.vmas.view, vma.at);
        }
        let [start_brk, brk, start_stack] = self.heap_and_stack;
        if vma.start <= brk && vma.end >= start_brk {
            MappingKind::Heap
        } else if vma.start <= start_stack && vma.end >= start_stack {
            MappingKind::Stack
        } else {
            MappingKind::Anonymous
        }
    }

    fn file(&mut self, file: u64) -> Option<Arc<FileRef>> {
        if let Some(known) = self.known.get(&file) {
            return known.clone();
        }
        if self.known.len() == MAX_FILES {
            return None;
        }
        let read = self.files.as_ref().ok().and_then(|files| files.read(file)).map(Arc::new);
        self.known.insert(file, read.clone());
        read
    }
}

impl SpecialMappings {
    fn kind<M: PhysicalMemory>(&self, view: &View<'_, M>, vma: u64) -> MappingKind {
        let name = view
            .u64(vma, self.private_data)
            .and_then(|mapping| view.u64(mapping, self.name))
            .and_then(|name| view.text::<SPECIAL_NAME>(name));
        match name.as_deref() {
            Some("[vdso]") => MappingKind::Vdso,
            Some("[vvar]") => MappingKind::Vvar,
            Some(name) => MappingKind::Special(name.into()),
            None => MappingKind::Anonymous,
        }
    }
}
