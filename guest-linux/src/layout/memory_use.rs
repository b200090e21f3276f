//! Offsets of the kernel's accounting of memory, and of its lists of those who hold memory.

use crate::btf::Btf;
use crate::btf::layout::{FromBtf, layout, offset};
use crate::missing::Missing;

/// Array of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatTable {
    /// `vm_zone_stat`, by `enum zone_stat_item`.
    Zone,
    /// `vm_node_stat`, by `enum node_stat_item`.
    Node,
}

/// A counter of one of the arrays. Paths are like `"node_stat_item.NR_SHMEM"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatItem {
    pub(crate) table: StatTable,
    pub(crate) index: usize,
}

impl FromBtf for StatItem {
    fn from_btf(btf: &Btf<'_>, paths: &[&str]) -> Result<Self, Missing> {
        paths.iter().find_map(|path| item(btf, path)).ok_or_else(|| no_field(paths))
    }
}

fn item(btf: &Btf<'_>, path: &str) -> Option<StatItem> {
    let (of, name) = path.split_once('.')?;
    let table = if of == "zone_stat_item" { StatTable::Zone } else { StatTable::Node };
    Some(StatItem { table, index: usize::try_from(btf.enumerator(of, name)?).ok()? })
}

/// Value of an enumerator; `".NAME"` is one of an enumeration without a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EnumValue(pub(crate) usize);

impl FromBtf for EnumValue {
    fn from_btf(btf: &Btf<'_>, paths: &[&str]) -> Result<Self, Missing> {
        let value = |path: &&str| {
            let (of, name) = path.split_once('.')?;
            usize::try_from(btf.enumerator(of, name)?).ok()
        };
        paths.iter().find_map(value).map(Self).ok_or_else(|| no_field(paths))
    }
}

fn no_field(paths: &[&str]) -> Missing {
    Missing::NoField((*paths.first().unwrap_or(&"")).to_owned())
}

fn size(btf: &Btf<'_>, name: &str) -> Result<u64, Missing> {
    btf.size_of(name).filter(|&size| size > 0).map(|size| size as u64).ok_or_else(|| no_field(&[name]))
}

fn elements(btf: &Btf<'_>, path: &str) -> Result<usize, Missing> {
    let count = btf.member_by_path(path).and_then(|member| btf.elements(member));
    count.ok_or_else(|| no_field(&[path]))
}

layout! {
    /// Layouts of the accounting of memory. They are looked up when memory is asked for.
    #[derive(Debug)]
    MemoryLayouts {
        counters: Result<CounterLayout, Missing>,
        processes: Result<MmUseLayout, Missing>,
        groups: Result<MemoryGroupLayout, Missing>,
        slabs: Result<SlabLayout, Missing>,
        files: Result<SuperBlockLayout, Missing>,
    }

    /// Counters of the whole guest (include/linux/mmzone.h), in pages but for those of kernel stacks.
    #[derive(Debug, Clone, Copy)]
    CounterLayout {
        free: StatItem = "zone_stat_item.NR_FREE_PAGES",
        mlocked: StatItem = "zone_stat_item.NR_MLOCK",
        inactive_anon: StatItem = "node_stat_item.NR_INACTIVE_ANON",
        active_anon: StatItem = "node_stat_item.NR_ACTIVE_ANON",
        inactive_file: StatItem = "node_stat_item.NR_INACTIVE_FILE",
        active_file: StatItem = "node_stat_item.NR_ACTIVE_FILE",
        unevictable: StatItem = "node_stat_item.NR_UNEVICTABLE",
        slab_reclaimable: StatItem =
            "node_stat_item.NR_SLAB_RECLAIMABLE_B" | "node_stat_item.NR_SLAB_RECLAIMABLE",
        slab_unreclaimable: StatItem =
            "node_stat_item.NR_SLAB_UNRECLAIMABLE_B" | "node_stat_item.NR_SLAB_UNRECLAIMABLE",
        misc_reclaimable: StatItem = "node_stat_item.NR_KERNEL_MISC_RECLAIMABLE",
        anonymous: StatItem = "node_stat_item.NR_ANON_MAPPED",
        mapped: StatItem = "node_stat_item.NR_FILE_MAPPED",
        file: StatItem = "node_stat_item.NR_FILE_PAGES",
        dirty: StatItem = "node_stat_item.NR_FILE_DIRTY",
        writeback: StatItem = "node_stat_item.NR_WRITEBACK",
        shmem: StatItem = "node_stat_item.NR_SHMEM",
        /// In pages since 5.12, which brought `NR_SWAPCACHE`; in huge pages before.
        anon_huge: Option<StatItem> = "node_stat_item.NR_ANON_THPS",
        shmem_huge: Option<StatItem> = "node_stat_item.NR_SHMEM_THPS",
        /// KiB. A counter of nodes since 5.11, of zones before, as is the next.
        kernel_stacks: StatItem = "node_stat_item.NR_KERNEL_STACK_KB" | "zone_stat_item.NR_KERNEL_STACK_KB",
        page_tables: StatItem = "node_stat_item.NR_PAGETABLE" | "zone_stat_item.NR_PAGETABLE",
        /// Since 6.1.
        secondary_page_tables: Option<StatItem> = "node_stat_item.NR_SECONDARY_PAGETABLE",
        /// Since 5.12, with CONFIG_SWAP.
        swap_cache: Option<StatItem> = "node_stat_item.NR_SWAPCACHE",
        /// Instead of the variable `nr_vmalloc_pages`, in 7.3.
        vmalloc: Option<StatItem> = "node_stat_item.NR_VMALLOC",
        /// In 7.3.
        balloon: Option<StatItem> = "node_stat_item.NR_BALLOON_PAGES",
        committed: PerCpuCounterLayout,
        zones: ZoneLayout,
        huge: Option<HugeLayout>,
        events: Option<EventLayout>,
    }

    /// `struct percpu_counter` (include/linux/percpu_counter.h).
    #[derive(Debug, Clone, Copy)]
    PerCpuCounterLayout {
        /// s64.
        count: usize = "percpu_counter.count",
        /// s32 of each CPU.
        counters: usize = "percpu_counter.counters",
    }

    /// Zones of a node (include/linux/mmzone.h).
    #[derive(Debug, Clone, Copy)]
    ZoneLayout {
        first: usize = "pglist_data.node_zones",
        count: usize => |btf| elements(btf, "pglist_data.node_zones"),
        size: u64 => |btf| size(btf, "zone"),
        watermarks: usize = "zone._watermark",
        boost: usize = "zone.watermark_boost",
        low: EnumValue = "zone_watermarks.WMARK_LOW",
        /// Per CPU; the structure's name until 5.13 is another one.
        free_lists: Option<(usize, usize)> => |btf| {
            let find = |path| offset(btf, &[path]).ok();
            Ok(find("zone.per_cpu_pageset").zip(find("per_cpu_pages.count")))
        },
    }

    /// `struct hstate` (include/linux/hugetlb.h): one size of huge pages.
    #[derive(Debug, Clone, Copy)]
    HugeLayout {
        size: u64 => |btf| size(btf, "hstate"),
        order: usize = "hstate.order",
        total: usize = "hstate.nr_huge_pages",
        free: usize = "hstate.free_huge_pages",
    }

    /// Events of the balloon (include/linux/vm_event_item.h), in pages.
    #[derive(Debug, Clone, Copy)]
    EventLayout {
        events: usize = "vm_event_state.event",
        inflate: EnumValue = "vm_event_item.BALLOON_INFLATE",
        deflate: EnumValue = "vm_event_item.BALLOON_DEFLATE",
    }

    /// Memory of a process (include/linux/mm_types.h).
    #[derive(Debug, Clone, Copy)]
    MmUseLayout {
        rss: RssLayout => rss,
        /// `task_struct.rss_stat.count`, i32: not yet added to the process's numbers (until 6.1).
        task: Option<usize> = "task_struct.rss_stat.count",
        page_tables: Option<usize> = "mm_struct.pgtables_bytes",
        file: EnumValue = ".MM_FILEPAGES",
        anonymous: EnumValue = ".MM_ANONPAGES",
        swap: EnumValue = ".MM_SWAPENTS",
        shmem: EnumValue = ".MM_SHMEMPAGES",
    }

    /// `struct mem_cgroup` (include/linux/memcontrol.h) and its place in the tree of groups.
    #[derive(Debug, Clone, Copy)]
    MemoryGroupLayout {
        css: usize = "mem_cgroup.css",
        group: usize = "cgroup_subsys_state.cgroup",
        children: usize = "cgroup_subsys_state.children",
        sibling: usize = "cgroup_subsys_state.sibling",
        flags: usize = "cgroup_subsys_state.flags",
        online: EnumValue = ".CSS_ONLINE",
        usage: usize = "mem_cgroup.memory.usage",
        swap: Option<usize> = "mem_cgroup.swap.usage",
        stats: Option<GroupStatLayout>,
    }

    /// Counters of a group: `struct memcg_vmstats` and `struct memcg_vmstats_percpu` (mm/memcontrol.c),
    /// arrays of long. Before 5.14 their shape is another one.
    #[derive(Debug, Clone, Copy)]
    GroupStatLayout {
        stats: usize = "mem_cgroup.vmstats",
        per_cpu: usize = "mem_cgroup.vmstats_percpu",
        state: usize = "memcg_vmstats.state",
        pending: usize = "memcg_vmstats.state_pending",
        cpu_state: usize = "memcg_vmstats_percpu.state",
        cpu_previous: usize = "memcg_vmstats_percpu.state_prev",
        /// Elements of each array.
        count: usize => |btf| elements(btf, "memcg_vmstats.state"),
        /// The counters, in the order of `GroupItem`.
        items: [usize; GROUP_ITEMS] => group_items,
    }

    /// `struct kmem_cache` and `struct kmem_cache_node` of SLUB (mm/slab.h, mm/slub.c).
    #[derive(Debug, Clone, Copy)]
    SlabLayout {
        list: usize = "kmem_cache.list",
        name: usize = "kmem_cache.name",
        object_size: usize = "kmem_cache.object_size",
        /// Order of its slabs in the upper half.
        order: usize = "kmem_cache.oo.x",
        nodes: NodeArray => node_array,
        /// Both exist with CONFIG_SLUB_DEBUG.
        slabs: usize = "kmem_cache_node.nr_slabs",
        objects: usize = "kmem_cache_node.total_objects",
    }

    /// From the list of file systems to the pages of their files (include/linux/fs.h, fs/mount.h).
    #[derive(Debug, Clone, Copy)]
    SuperBlockLayout {
        list: usize = "super_block.s_list",
        id: usize = "super_block.s_id",
        fs_type: usize = "super_block.s_type",
        fs_name: usize = "file_system_type.name",
        inodes: usize = "super_block.s_inodes",
        mounts: usize = "super_block.s_mounts",
        /// Link of a mount in that list (until 6.16): later there is a pointer to the first.
        mount_link: Option<usize> = "mount.mnt_instance",
        inode_link: usize = "inode.i_sb_list",
        mapping: usize = "inode.i_mapping",
        data: usize = "inode.i_data",
        pages: usize = "inode.i_data.nrpages",
        size: usize = "inode.i_size",
        number: usize = "inode.i_ino",
        names: usize = "inode.i_dentry",
        name_link: usize = "dentry.d_u.d_alias" | "dentry.d_alias",
    }
}

/// Numbers of pages of a process, by kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RssLayout {
    /// Array of atomic_long_t in `mm_struct` (until 6.1).
    Atomic(usize),
    /// Array of `struct percpu_counter`: offset, and bytes of an element (since 6.2).
    PerCpu { at: usize, size: u64, counter: PerCpuCounterLayout },
}

fn rss(btf: &Btf<'_>) -> Result<RssLayout, Missing> {
    if offset(btf, &["mm_struct.rss_stat.counters"]).is_ok() {
        let at = offset(btf, &["mm_struct.rss_stat"])?;
        let counter = PerCpuCounterLayout::new(btf)?;
        return Ok(RssLayout::PerCpu { at, size: size(btf, "percpu_counter")?, counter });
    }
    offset(btf, &["mm_struct.rss_stat.count"]).map(RssLayout::Atomic)
}

/// Pointers to the nodes of a cache: offset of the first, and bytes from one to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeArray {
    pub(crate) first: usize,
    pub(crate) step: u64,
    pub(crate) count: usize,
}

/// The array of pointers until 6.18 or later, of structures with two pointers in 7.3.
fn node_array(btf: &Btf<'_>) -> Result<NodeArray, Missing> {
    if let Ok(first) = offset(btf, &["kmem_cache.node"]) {
        return Ok(NodeArray { first, step: 8, count: elements(btf, "kmem_cache.node")? });
    }
    let first = offset(btf, &["kmem_cache.per_node.node"])?;
    let count = elements(btf, "kmem_cache.per_node")?;
    Ok(NodeArray { first, step: size(btf, "kmem_cache_per_node_ptrs")?, count })
}

/// Number of counters that are read of a group.
pub(crate) const GROUP_ITEMS: usize = 9;

/// Counter of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GroupItem {
    Anonymous,
    File,
    Shmem,
    SlabReclaimable,
    SlabUnreclaimable,
    KernelStacks,
    PageTables,
    Sockets,
    PerCpu,
}

fn group_items(btf: &Btf<'_>) -> Result<[usize; GROUP_ITEMS], Missing> {
    let paths = [
        "node_stat_item.NR_ANON_MAPPED",
        "node_stat_item.NR_FILE_PAGES",
        "node_stat_item.NR_SHMEM",
        "node_stat_item.NR_SLAB_RECLAIMABLE_B",
        "node_stat_item.NR_SLAB_UNRECLAIMABLE_B",
        "node_stat_item.NR_KERNEL_STACK_KB",
        "node_stat_item.NR_PAGETABLE",
        "memcg_stat_item.MEMCG_SOCK",
        "memcg_stat_item.MEMCG_PERCPU_B",
    ];
    let mut items = [0; GROUP_ITEMS];
    for (item, path) in items.iter_mut().zip(paths) {
        *item = EnumValue::from_btf(btf, &[path])?.0;
    }
    Ok(items)
}
