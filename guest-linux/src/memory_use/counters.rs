//! Numbers of the whole guest, as `meminfo_proc_show` (fs/proc/meminfo.c) and `si_mem_available`
//! (mm/show_mem.c) compute them in Linux 6.1 to 7.3.
//!
//! Each CPU collects changes of a counter before it adds them to the sum, and `/proc/meminfo` shows the sum
//! only. So does this reader, to show the same.

use std::ops::Deref;

use super::{MemoryCounters, MemoryReader, PAGE, pages, signed, unreadable};
use crate::kernel::Kernel;
use crate::layout::{CounterLayout, EventLayout, HugeLayout, StatItem, StatTable};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::view::View;

/// Nodes that are read, at most (`MAX_NUMNODES` of x86-64, NODES_SHIFT in arch/x86/Kconfig).
pub(super) const MAX_NODES: u32 = 1024;
/// Zones of a node, at most (`MAX_NR_ZONES`).
const MAX_ZONES: usize = 8;
/// Sizes of huge pages, at most (`HUGE_MAX_HSTATE` is 2 on x86-64).
const MAX_HUGE_SIZES: u32 = 8;
/// Order of a huge page, at most: 1 GiB.
const MAX_ORDER: u32 = 18;

/// Watermarks and per-CPU lists of all zones, pages.
#[derive(Debug, Clone, Copy, Default)]
struct ZoneSums {
    low_watermarks: i64,
    free_lists: i64,
}

impl<K: Deref<Target = Kernel>> MemoryReader<K> {
    pub(super) fn counters<M: PhysicalMemory>(&self, view: &View<'_, M>) -> Result<MemoryCounters, Missing> {
        let layout = self.layouts.counters.as_ref().map_err(Clone::clone)?;
        let (zone_stat, node_stat) =
            (self.kernel.symbol("vm_zone_stat")?, self.kernel.symbol("vm_node_stat")?);
        let total = self.kernel.symbol("_totalram_pages")?;
        let what = || unreadable("the kernel's counters of memory");
        let stat = |item: StatItem| {
            let array = if item.table == StatTable::Zone { zone_stat } else { node_stat };
            signed(view, array, item.index.checked_mul(8)?)
        };
        let required = |item: StatItem| stat(item).map(|number| number.max(0)).ok_or_else(what);
        let optional = |item: Option<StatItem>| item.and_then(stat);
        let variable = |name: &str| signed(view, self.kernel.symbol(name).ok()?, 0);
        let small = |name: &str| view.u32(self.kernel.symbol(name).ok()?, 0).map(i64::from);

        let file = required(layout.file)?;
        let swap_total = variable("total_swap_pages");
        let swap_cached = optional(layout.swap_cache);
        let buffers = self.device_pages(view);
        // Without a counter of the swap cache, its pages are unknown as soon as there is swap.
        let in_swap_cache = swap_cached.or((swap_total.unwrap_or(0) == 0).then_some(0));
        let cached = buffers
            .zip(in_swap_cache)
            .map(|(buffers, swap)| file.saturating_sub(swap).saturating_sub(buffers).max(0));
        let (active_file, inactive_file) = (required(layout.active_file)?, required(layout.inactive_file)?);
        let (reclaimable, misc) = (required(layout.slab_reclaimable)?, required(layout.misc_reclaimable)?);
        let free = required(layout.free)?;
        let zones = self.zones(view, layout);
        let available = zones.zip(variable("totalreserve_pages")).map(|(zones, reserve)| {
            let low = zones.low_watermarks;
            let part = |size: i64| size.saturating_sub((size / 2).min(low));
            let file = active_file.saturating_add(inactive_file);
            free.saturating_sub(reserve)
                .saturating_add(part(file))
                .saturating_add(part(reclaimable.saturating_add(misc)))
        });
        // Transparent huge pages are counted in pages since the swap cache is counted.
        let huge = |item| optional(item).filter(|_| swap_cached.is_some()).map(pages);
        let pool = layout.huge.and_then(|layout| self.huge_pools(view, layout));
        Ok(MemoryCounters {
            total: pages(signed(view, total, 0).ok_or_else(what)?),
            free: pages(free),
            available: available.map(pages),
            free_lists: zones.map(|zones| pages(zones.free_lists)),
            buffers: buffers.map(pages),
            cached: cached.map(pages),
            swap_cached: swap_cached.map(pages),
            active_anon: pages(required(layout.active_anon)?),
            inactive_anon: pages(required(layout.inactive_anon)?),
            active_file: pages(active_file),
            inactive_file: pages(inactive_file),
            unevictable: pages(required(layout.unevictable)?),
            mlocked: pages(required(layout.mlocked)?),
            swap_total: swap_total.map(pages),
            swap_free: variable("nr_swap_pages").map(pages),
            dirty: pages(required(layout.dirty)?),
            writeback: pages(required(layout.writeback)?),
            anonymous: pages(required(layout.anonymous)?),
            mapped: pages(required(layout.mapped)?),
            shmem: pages(required(layout.shmem)?),
            kernel_reclaimable: pages(reclaimable.saturating_add(misc)),
            slab_reclaimable: pages(reclaimable),
            slab_unreclaimable: pages(required(layout.slab_unreclaimable)?),
            kernel_stacks: required(layout.kernel_stacks)?.cast_unsigned().saturating_mul(1024),
            page_tables: pages(required(layout.page_tables)?),
            secondary_page_tables: optional(layout.secondary_page_tables).map(pages),
            committed: self.committed(view, layout).map(pages),
            vmalloc: optional(layout.vmalloc).or_else(|| variable("nr_vmalloc_pages")).map(pages),
            per_cpu: small("pcpu_nr_populated")
                .zip(small("pcpu_nr_units"))
                .map(|(populated, units)| pages(populated.saturating_mul(units))),
            anon_huge: huge(layout.anon_huge),
            shmem_huge: huge(layout.shmem_huge),
            huge_pool: pool.map(|(total, _)| total),
            huge_pool_free: pool.map(|(_, free)| free),
            balloon: optional(layout.balloon)
                .or_else(|| self.inflated(view, layout.events.as_ref()?))
                .map(pages),
        })
    }

    /// Returns sums over all zones of all nodes.
    fn zones<M: PhysicalMemory>(&self, view: &View<'_, M>, layout: &CounterLayout) -> Option<ZoneSums> {
        let zones = &layout.zones;
        let array = self.kernel.symbol("node_data").ok()?;
        let ids = self.kernel.symbol("nr_node_ids").ok().and_then(|at| view.u32(at, 0)).unwrap_or(1);
        let mut sums = ZoneSums::default();
        for node in 0..u64::from(ids.clamp(1, MAX_NODES)) {
            let data = view.u64(array, usize::try_from(node * 8).ok()?)?;
            if data == 0 {
                continue;
            }
            for zone in 0..zones.count.min(MAX_ZONES) as u64 {
                let at = data.checked_add(zones.first as u64)?.checked_add(zone.checked_mul(zones.size)?)?;
                let low = signed(view, at, zones.watermarks.checked_add(zones.low.0.checked_mul(8)?)?)?;
                let boost = signed(view, at, zones.boost)?;
                sums.low_watermarks = sums.low_watermarks.saturating_add(low).saturating_add(boost);
                let Some((pageset, count)) = zones.free_lists else { continue };
                let pointer = view.u64(at, pageset)?.checked_add(count as u64)?;
                // A zone without pages has the lists of the boot, which are empty.
                sums.free_lists =
                    sums.free_lists.saturating_add(self.per_cpu_sum(view, pointer).unwrap_or(0).max(0));
            }
        }
        Some(sums)
    }

    /// Returns the memory that processes were promised, pages (`vm_memory_committed`, mm/util.c).
    fn committed<M: PhysicalMemory>(&self, view: &View<'_, M>, layout: &CounterLayout) -> Option<i64> {
        let at = self.kernel.symbol("vm_committed_as").ok()?;
        let count = signed(view, at, layout.committed.count)?;
        Some(count.wrapping_add(self.per_cpu_sum(view, view.u64(at, layout.committed.counters)?)?))
    }

    /// Returns the bytes of all pools of huge pages, and of their free pages (`hugetlb_report_meminfo`,
    /// mm/hugetlb.c).
    fn huge_pools<M: PhysicalMemory>(&self, view: &View<'_, M>, layout: HugeLayout) -> Option<(u64, u64)> {
        let first = self.kernel.symbol("hstates").ok()?;
        let count = view.u32(self.kernel.symbol("hugetlb_max_hstate").ok()?, 0)?.min(MAX_HUGE_SIZES);
        let (mut total, mut free) = (0_u64, 0_u64);
        for number in 0..u64::from(count) {
            let at = first.checked_add(number.checked_mul(layout.size)?)?;
            let size = PAGE << view.u32(at, layout.order)?.min(MAX_ORDER);
            total = total.saturating_add(view.u64(at, layout.total)?.saturating_mul(size));
            free = free.saturating_add(view.u64(at, layout.free)?.saturating_mul(size));
        }
        Some((total, free))
    }

    /// Returns the pages that balloons have taken and not given back, by the counts of both.
    fn inflated<M: PhysicalMemory>(&self, view: &View<'_, M>, layout: &EventLayout) -> Option<i64> {
        let events = self.kernel.symbol("vm_event_states").ok()?.checked_add(layout.events as u64);
        let sum = |event: usize| {
            let at = events?.checked_add(event.checked_mul(8)? as u64)?;
            self.cpus
                .iter()
                .try_fold(0_i64, |sum, base| Some(sum.wrapping_add(signed(view, base.wrapping_add(at), 0)?)))
        };
        Some(sum(layout.inflate.0)?.wrapping_sub(sum(layout.deflate.0)?))
    }
}
