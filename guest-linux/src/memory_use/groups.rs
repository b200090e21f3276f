//! Memory of control groups (mm/memcontrol.c).
//!
//! A group's numbers are those of its last flush. Changes since then are in the parts of each CPU, and, of
//! groups below it, in `state_pending`. `memory.stat` flushes them first
//! (`mem_cgroup_css_rstat_flush`), which this reader computes:
//!
//! ```text
//! changes(group) = pending + sum over CPUs (state - state_prev) + sum over children of changes(child)
//! number(group)  = state + changes(group)
//! ```

use std::ops::Deref;

use super::{GroupMemory, GroupStat, Holders, MemoryReader, PAGE, pages, signed, unreadable};
use crate::kernel::Kernel;
use crate::layout::{GROUP_ITEMS, GroupItem, GroupStatLayout, MemoryGroupLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::task::list;
use crate::view::View;
use symbols::bytes::u64_at;

/// Groups that are read, at most.
const MAX_GROUPS: usize = 16_384;
/// Groups within each other, at most.
const MAX_DEPTH: usize = 64;
/// Parts of CPUs that are read, at most; of groups beyond it the numbers are those of the last flush.
const MAX_PARTS: usize = 1 << 18;
/// Counters of a group, at most; kernels have up to 57.
const MAX_COUNTERS: usize = 256;

/// Numbers in the order of `GroupItem`.
type Items = [i64; GROUP_ITEMS];

/// A walk through the tree of groups.
struct GroupWalk<'a, M> {
    view: &'a View<'a, M>,
    layout: &'a MemoryGroupLayout,
    /// The counters, and the index of each item in their arrays.
    stats: Option<(&'a GroupStatLayout, [usize; GROUP_ITEMS])>,
    cpus: &'a [u64],
    parts_left: usize,
    groups_left: usize,
    complete: bool,
}

impl<K: Deref<Target = Kernel>> MemoryReader<K> {
    pub(super) fn groups<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
    ) -> Result<Holders<GroupMemory>, Missing> {
        let layout = self.layouts.groups.as_ref().map_err(Clone::clone)?;
        let what = || unreadable("the control groups' memory");
        let root = view.u64(self.kernel.symbol("root_mem_cgroup")?, 0).filter(|&at| at != 0);
        let root = root.ok_or_else(what)?.wrapping_add(layout.css as u64);
        let stats = layout.stats.as_ref().and_then(|stats| Some((stats, self.indexes(view, stats)?)));
        let mut walk = GroupWalk {
            view,
            layout,
            stats,
            cpus: &self.cpus,
            parts_left: MAX_PARTS,
            groups_left: MAX_GROUPS,
            complete: true,
        };
        let mut rows = Vec::new();
        walk.group(root, MAX_DEPTH, &mut rows, &|group| self.kernel.group_path(view, group))
            .ok_or_else(what)?;
        if let Some(root) = rows.first_mut() {
            // Nothing is charged to it.
            (root.current, root.swap) = (None, None);
        }
        if let Some((_, below)) = rows.split_first_mut() {
            below.sort_by(|a, b| b.current.cmp(&a.current).then_with(|| a.path.cmp(&b.path)));
        }
        Ok(Holders::new(rows, walk.complete))
    }

    /// Returns the index of each item in the arrays: that of the enumeration, or, since 6.10, what
    /// `mem_cgroup_stats_index` has for it, counted from 0 (from 1 until 6.11). Its first counter is the
    /// enumeration's first.
    fn indexes<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        layout: &GroupStatLayout,
    ) -> Option<[usize; GROUP_ITEMS]> {
        let mut indexes = layout.items;
        if let Ok(table) = self.kernel.symbol("mem_cgroup_stats_index") {
            let byte = |item: usize| {
                let mut byte = [0];
                view.read(table.checked_add(item as u64)?, &mut byte)?;
                Some(usize::from(byte[0]))
            };
            let first = byte(0)?;
            for index in &mut indexes {
                *index = byte(*index)?.checked_sub(first)?;
            }
        }
        let count = layout.count.min(MAX_COUNTERS);
        indexes.iter().all(|&index| index < count).then_some(indexes)
    }
}

impl<M: PhysicalMemory> GroupWalk<'_, M> {
    /// Adds the group with the subsystem state at `css`, and those below it; returns their changes since the
    /// last flush.
    fn group(
        &mut self,
        css: u64,
        depth: usize,
        rows: &mut Vec<GroupMemory>,
        path: &impl Fn(u64) -> Option<String>,
    ) -> Option<Items> {
        let (Some(depth), Some(left)) = (depth.checked_sub(1), self.groups_left.checked_sub(1)) else {
            self.complete = false;
            return None;
        };
        self.groups_left = left;
        let (view, layout) = (self.view, self.layout);
        let at = css.wrapping_sub(layout.css as u64);
        let number = |offset| signed(view, at, offset).map(pages);
        let row = GroupMemory {
            path: path(view.u64(css, layout.group)?).unwrap_or_default(),
            removed: view.u32(css, layout.flags)? & u32::try_from(layout.online.0).unwrap_or(0) == 0,
            current: number(layout.usage),
            swap: layout.swap.and_then(number),
            stat: None,
        };
        let place = rows.len();
        rows.push(row);
        let mut changes = self.changes(at);
        let children = list(view, css.checked_add(layout.children as u64)?, self.groups_left)?;
        for link in children {
            let child = link.wrapping_sub(layout.sibling as u64);
            let below = self.group(child, depth, rows, path);
            changes = changes.zip(below).map(|(own, below)| add(own, below)).or(changes);
        }
        let stat = self.flushed(at).zip(changes).map(|(flushed, changes)| stat(add(flushed, changes)));
        if let Some(row) = rows.get_mut(place) {
            row.stat = stat;
        }
        changes
    }

    /// Returns the numbers of the last flush of the group at `at`.
    fn flushed(&self, at: u64) -> Option<Items> {
        let (layout, indexes) = self.stats?;
        let stats = self.view.u64(at, layout.stats)?;
        self.items(stats.checked_add(layout.state as u64)?, layout, indexes)
    }

    /// Returns the changes since then, without those of groups below that have not been flushed.
    fn changes(&mut self, at: u64) -> Option<Items> {
        let (layout, indexes) = self.stats?;
        let stats = self.view.u64(at, layout.stats)?;
        let mut sum = self.items(stats.checked_add(layout.pending as u64)?, layout, indexes)?;
        let pointer = self.view.u64(at, layout.per_cpu)?;
        let Some(left) = self.parts_left.checked_sub(self.cpus.len()) else {
            self.complete = false;
            return Some(sum);
        };
        self.parts_left = left;
        for base in self.cpus {
            let part = base.wrapping_add(pointer);
            let now = self.items(part.checked_add(layout.cpu_state as u64)?, layout, indexes)?;
            let before = self.items(part.checked_add(layout.cpu_previous as u64)?, layout, indexes)?;
            sum = add(sum, std::array::from_fn(|item| now[item].wrapping_sub(before[item])));
        }
        Some(sum)
    }

    /// Returns the items of the array at `at`.
    fn items(&self, at: u64, layout: &GroupStatLayout, indexes: [usize; GROUP_ITEMS]) -> Option<Items> {
        let mut bytes = [0; MAX_COUNTERS * 8];
        let bytes = bytes.get_mut(..layout.count.min(MAX_COUNTERS) * 8)?;
        self.view.read(at, bytes)?;
        let mut items = [0; GROUP_ITEMS];
        for (item, index) in items.iter_mut().zip(indexes) {
            *item = u64_at(bytes, index * 8)?.cast_signed();
        }
        Some(items)
    }
}

fn add(a: Items, b: Items) -> Items {
    std::array::from_fn(|item| a[item].wrapping_add(b[item]))
}

/// Returns the numbers in bytes (`memcg_page_state_unit`, mm/memcontrol.c).
fn stat(items: Items) -> GroupStat {
    let bytes =
        |item: GroupItem, unit: u64| u64::try_from(items[item as usize]).unwrap_or(0).saturating_mul(unit);
    GroupStat {
        anonymous: bytes(GroupItem::Anonymous, PAGE),
        file: bytes(GroupItem::File, PAGE),
        shmem: bytes(GroupItem::Shmem, PAGE),
        slab: bytes(GroupItem::SlabReclaimable, 1).saturating_add(bytes(GroupItem::SlabUnreclaimable, 1)),
        kernel_stacks: bytes(GroupItem::KernelStacks, 1024),
        page_tables: bytes(GroupItem::PageTables, PAGE),
        sockets: bytes(GroupItem::Sockets, PAGE),
        per_cpu: bytes(GroupItem::PerCpu, 1),
    }
}
