//! The guest's memory by holder, out of the guest kernel's own accounting.
//!
//! ```text
//! vm_zone_stat, vm_node_stat, ...      -> counters: what /proc/meminfo shows
//! init_task -> mm_struct.rss_stat      -> processes
//! root_mem_cgroup -> children          -> control groups: what memory.current and memory.stat show
//! slab_caches -> kmem_cache_node       -> caches of kernel objects
//! super_blocks -> inodes -> nrpages    -> page cache and tmpfs by file system, and the largest files
//! ```
//!
//! The guest runs on while it is read, so the parts are of slightly different times. Every list is bounded;
//! one that is longer is marked as incomplete.

mod counters;
mod files;
mod groups;
mod processes;
mod slabs;
mod snapshot;

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::layout::MemoryLayouts;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::per_cpu::PerCpuAreas;
use crate::view::View;
use snapshot::PageSnapshot;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Memory of a guest by holder, at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Numbers of the whole guest.
    pub counters: MemoryCounters,
    /// Processes, the largest first.
    pub processes: Result<Holders<ProcessMemory>, Missing>,
    /// Control groups with a memory controller: the root, then the largest first. A group's numbers include
    /// those of its children.
    pub groups: Result<Holders<GroupMemory>, Missing>,
    /// Caches of kernel objects, the largest first.
    pub slabs: Result<Holders<SlabMemory>, Missing>,
    /// File systems with pages in memory, the largest first.
    pub filesystems: Result<Holders<FilesystemMemory>, Missing>,
    /// Files with the most pages in memory, the largest first; empty where `filesystems` is an error.
    pub files: Vec<FileMemory>,
}

/// Rows of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders<T> {
    /// The first rows.
    pub rows: Vec<T>,
    /// Number of all rows.
    pub count: u64,
    /// False if not all could be read: there are too many.
    pub complete: bool,
}

impl<T> Holders<T> {
    fn new(rows: Vec<T>, complete: bool) -> Self {
        Self { count: rows.len() as u64, rows, complete }
    }

    fn cut(mut self, most: usize) -> Self {
        self.rows.truncate(most);
        self
    }
}

/// Numbers of the whole guest, bytes, as `/proc/meminfo` computes them. A number is `None` where this kernel
/// does not count it, or not so that it can be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCounters {
    /// `MemTotal`: memory that the kernel manages.
    pub total: u64,
    /// `MemFree`.
    pub free: u64,
    /// `MemAvailable`: an estimate of the kernel of what programs can get without swapping.
    pub available: Option<u64>,
    /// Free pages in the lists of each CPU, which `MemFree` lacks.
    pub free_lists: Option<u64>,
    /// `Buffers`: page cache of block devices.
    pub buffers: Option<u64>,
    /// `Cached`: other page cache, with tmpfs and shared memory.
    pub cached: Option<u64>,
    /// `SwapCached`.
    pub swap_cached: Option<u64>,
    /// `Active(anon)`.
    pub active_anon: u64,
    /// `Inactive(anon)`.
    pub inactive_anon: u64,
    /// `Active(file)`.
    pub active_file: u64,
    /// `Inactive(file)`.
    pub inactive_file: u64,
    /// `Unevictable`.
    pub unevictable: u64,
    /// `Mlocked`.
    pub mlocked: u64,
    /// `SwapTotal`.
    pub swap_total: Option<u64>,
    /// `SwapFree`.
    pub swap_free: Option<u64>,
    /// `Dirty`.
    pub dirty: u64,
    /// `Writeback`.
    pub writeback: u64,
    /// `AnonPages`.
    pub anonymous: u64,
    /// `Mapped`: page cache that programs have mapped.
    pub mapped: u64,
    /// `Shmem`: tmpfs and shared memory.
    pub shmem: u64,
    /// `KReclaimable`.
    pub kernel_reclaimable: u64,
    /// `SReclaimable`.
    pub slab_reclaimable: u64,
    /// `SUnreclaim`.
    pub slab_unreclaimable: u64,
    /// `KernelStack`.
    pub kernel_stacks: u64,
    /// `PageTables`.
    pub page_tables: u64,
    /// `SecPageTables`.
    pub secondary_page_tables: Option<u64>,
    /// `Committed_AS`.
    pub committed: Option<u64>,
    /// `VmallocUsed`: with kernel stacks, where the kernel maps these so.
    pub vmalloc: Option<u64>,
    /// `Percpu`.
    pub per_cpu: Option<u64>,
    /// `AnonHugePages`.
    pub anon_huge: Option<u64>,
    /// `ShmemHugePages`.
    pub shmem_huge: Option<u64>,
    /// `Hugetlb`: the pools of huge pages of all sizes.
    pub huge_pool: Option<u64>,
    /// Free part of these pools.
    pub huge_pool_free: Option<u64>,
    /// Pages that a balloon has given back to the host.
    pub balloon: Option<u64>,
}

impl MemoryCounters {
    /// Returns the holders that together have all of `total`, bytes. The last one is what the kernel counts
    /// nowhere else: pages of drivers, of the swap cache and of vmalloc.
    pub fn parts(&self) -> [(MemoryPart, u64); 12] {
        let buffers = self.buffers.unwrap_or(0);
        let known = [
            (MemoryPart::Free, self.free.saturating_add(self.free_lists.unwrap_or(0))),
            (MemoryPart::Anonymous, self.anonymous),
            (MemoryPart::PageCache, self.cached.unwrap_or(0).saturating_sub(self.shmem)),
            (MemoryPart::Buffers, buffers),
            (MemoryPart::Shmem, self.shmem),
            (MemoryPart::SlabReclaimable, self.slab_reclaimable),
            (MemoryPart::SlabUnreclaimable, self.slab_unreclaimable),
            (
                MemoryPart::PageTables,
                self.page_tables.saturating_add(self.secondary_page_tables.unwrap_or(0)),
            ),
            (MemoryPart::KernelStacks, self.kernel_stacks),
            (MemoryPart::PerCpu, self.per_cpu.unwrap_or(0)),
            (MemoryPart::HugePool, self.huge_pool.unwrap_or(0)),
        ];
        let sum = known.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let mut parts = [(MemoryPart::Other, self.total.saturating_sub(sum)); 12];
        parts[..known.len()].copy_from_slice(&known);
        parts
    }
}

/// Holder of a part of the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPart {
    /// Nobody, with the lists of each CPU.
    Free,
    /// Processes: memory without a file, mapped.
    Anonymous,
    /// Files, without tmpfs and shared memory.
    PageCache,
    /// Block devices.
    Buffers,
    /// tmpfs and shared memory.
    Shmem,
    /// Kernel objects that can be dropped.
    SlabReclaimable,
    /// Other kernel objects.
    SlabUnreclaimable,
    /// Page tables.
    PageTables,
    /// Stacks of tasks in the kernel.
    KernelStacks,
    /// Variables of each CPU.
    PerCpu,
    /// Pools of huge pages.
    HugePool,
    /// The rest.
    Other,
}

impl MemoryPart {
    /// All parts, in the order of [`MemoryCounters::parts`].
    pub const ALL: [Self; 12] = [
        Self::Free,
        Self::Anonymous,
        Self::PageCache,
        Self::Buffers,
        Self::Shmem,
        Self::SlabReclaimable,
        Self::SlabUnreclaimable,
        Self::PageTables,
        Self::KernelStacks,
        Self::PerCpu,
        Self::HugePool,
        Self::Other,
    ];

    /// Returns the name in JSON and in profiles.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Anonymous => "anonymous",
            Self::PageCache => "page_cache",
            Self::Buffers => "buffers",
            Self::Shmem => "shmem",
            Self::SlabReclaimable => "slab_reclaimable",
            Self::SlabUnreclaimable => "slab_unreclaimable",
            Self::PageTables => "page_tables",
            Self::KernelStacks => "kernel_stacks",
            Self::PerCpu => "per_cpu",
            Self::HugePool => "huge_pool",
            Self::Other => "other",
        }
    }
}

/// Memory of a process, bytes. Pages that processes share count for each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Process id.
    pub pid: i32,
    /// Name.
    pub comm: String,
    /// Path of its control group.
    pub group: Option<String>,
    /// Anonymous memory (`RssAnon` of /proc/PID/status).
    pub anonymous: u64,
    /// Mapped files (`RssFile`).
    pub file: u64,
    /// Mapped tmpfs and shared memory (`RssShmem`).
    pub shmem: u64,
    /// Swapped out (`VmSwap`).
    pub swap: u64,
    /// Page tables (`VmPTE`).
    pub page_tables: u64,
}

impl ProcessMemory {
    /// Returns the resident memory (`VmRSS`), bytes.
    pub fn resident(&self) -> u64 {
        self.anonymous.saturating_add(self.file).saturating_add(self.shmem)
    }
}

/// Memory of a control group with its children, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMemory {
    /// Path.
    pub path: String,
    /// True if the group was removed, but still has memory.
    pub removed: bool,
    /// `memory.current`; `None` of the root, which has no limit to count for.
    pub current: Option<u64>,
    /// `memory.swap.current`.
    pub swap: Option<u64>,
    /// Numbers by kind, as in `memory.stat`.
    pub stat: Option<GroupStat>,
}

/// Numbers of `memory.stat`, bytes. Each page counts once: for the group that used it first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStat {
    /// `anon`.
    pub anonymous: u64,
    /// `file`, with `shmem`.
    pub file: u64,
    /// `shmem`.
    pub shmem: u64,
    /// `slab`.
    pub slab: u64,
    /// `kernel_stack`.
    pub kernel_stacks: u64,
    /// `pagetables`.
    pub page_tables: u64,
    /// `sock`.
    pub sockets: u64,
    /// `percpu`.
    pub per_cpu: u64,
}

/// Cache of kernel objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabMemory {
    /// Name.
    pub name: String,
    /// Objects that there is room for, in use or not.
    pub objects: u64,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Bytes of its slabs, if all have the usual size.
    pub bytes: u64,
}

/// Pages of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemMemory {
    /// Type, such as `ext4` or `tmpfs`; `bdev` is that of block devices.
    pub kind: String,
    /// The kernel's name of it: `vda1`, or again the type.
    pub device: String,
    /// Path of its first mount.
    pub mount: Option<String>,
    /// Number of files with pages in memory.
    pub files: u64,
    /// Bytes of these pages.
    pub bytes: u64,
}

/// Pages of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMemory {
    /// Path, as the first mount of its file system has it; empty for one without a name.
    pub path: String,
    /// Type of its file system.
    pub kind: String,
    /// Inode number.
    pub inode: u64,
    /// Bytes of its pages in memory.
    pub bytes: u64,
    /// Size, bytes.
    pub size: u64,
}

/// Reader of a guest's memory by holder, with its own kernel or another's.
#[derive(Debug)]
pub struct MemoryReader<K> {
    kernel: K,
    layouts: MemoryLayouts,
    /// Offset of each CPU's area.
    cpus: Vec<u64>,
}

impl<K: Deref<Target = Kernel>> MemoryReader<K> {
    /// Prepares a reader. The kernel's types are parsed for it.
    ///
    /// # Errors
    /// The reason why this kernel's memory cannot be read by holder.
    pub fn new(kernel: K, memory: &impl PhysicalMemory) -> Result<Self, Missing> {
        let layouts = kernel.with_btf(memory, MemoryLayouts::new)?;
        let view = kernel.view(memory);
        let variable = kernel.symbol("vm_event_states")?;
        let areas =
            PerCpuAreas::new(&view, kernel.symbol_table()?, kernel.symbol("__per_cpu_offset")?, variable)?;
        let cpus = areas.offsets().collect();
        Ok(Self { kernel, layouts, cpus })
    }

    /// Reads the guest's memory by holder, with at most `most` rows of each kind, and 1,024 files.
    ///
    /// # Errors
    /// The reason why not even the counters can be read.
    pub fn read(&self, memory: &impl PhysicalMemory, most: usize) -> Result<MemoryUse, Missing> {
        let memory = PageSnapshot::new(memory);
        let view = self.kernel.view(&memory);
        let counters = self.counters(&view)?;
        let (filesystems, files) = match self.files(&view, most) {
            Ok(census) => (Ok(census.filesystems.cut(most)), census.files),
            Err(missing) => (Err(missing), Vec::new()),
        };
        Ok(MemoryUse {
            counters,
            processes: self.processes(&view, counters.total).map(|holders| holders.cut(most)),
            groups: self.groups(&view).map(|holders| holders.cut(most)),
            slabs: self.slabs(&view).map(|holders| holders.cut(most)),
            filesystems,
            files,
        })
    }

    /// Reads the numbers of the whole guest only.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    pub fn read_counters(&self, memory: &impl PhysicalMemory) -> Result<MemoryCounters, Missing> {
        let memory = PageSnapshot::new(memory);
        self.counters(&self.kernel.view(&memory))
    }

    /// Returns the sum of a counter that each CPU has a part of: `pointer` is that of the parts, of type s32.
    fn per_cpu_sum<M: PhysicalMemory>(&self, view: &View<'_, M>, pointer: u64) -> Option<i64> {
        self.cpus.iter().try_fold(0_i64, |sum, base| {
            let part = view.u32(base.wrapping_add(pointer), 0)?.cast_signed();
            Some(sum.wrapping_add(i64::from(part)))
        })
    }
}

/// Returns pages as bytes; a negative number, which counters can be for a moment, as 0.
fn pages(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0).saturating_mul(PAGE)
}

/// Reads a number that may be negative.
fn signed<M: PhysicalMemory>(view: &View<'_, M>, at: u64, offset: usize) -> Option<i64> {
    view.u64(at, offset).map(u64::cast_signed)
}

fn unreadable(what: &str) -> Missing {
    Missing::Unreadable(what.into())
}
