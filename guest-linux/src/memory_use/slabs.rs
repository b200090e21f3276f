//! Caches of kernel objects of SLUB, as `/proc/slabinfo` shows them (`get_slabinfo`, mm/slub.c).

use std::ops::Deref;

use super::counters::MAX_NODES;
use super::{Holders, MemoryReader, PAGE, SlabMemory, signed, unreadable};
use crate::kernel::Kernel;
use crate::layout::SlabLayout;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::task::list;
use crate::view::View;

/// Caches that are read, at most; a Debian kernel has some 200, one with groups' own caches thousands.
const MAX_CACHES: usize = 16_384;
/// Bytes of a name, at most.
const MAX_NAME: usize = 64;
/// `OO_SHIFT` (mm/slub.c): the order is above it.
const ORDER_SHIFT: u32 = 16;
/// Order of a slab, at most (`MAX_PAGE_ORDER`, include/linux/mmzone.h, and one).
const MAX_ORDER: u32 = 11;

impl<K: Deref<Target = Kernel>> MemoryReader<K> {
    pub(super) fn slabs<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
    ) -> Result<Holders<SlabMemory>, Missing> {
        let layout = self.layouts.slabs.as_ref().map_err(Clone::clone)?;
        let head = self.kernel.symbol("slab_caches")?;
        let nodes = self.kernel.symbol("nr_node_ids").ok().and_then(|at| view.u32(at, 0)).unwrap_or(1);
        let nodes = u64::from(nodes.clamp(1, MAX_NODES)).min(layout.nodes.count as u64);
        let links = list(view, head, MAX_CACHES).ok_or_else(|| unreadable("the list of slab caches"))?;
        let mut read = 0;
        let mut rows = Vec::new();
        for link in links {
            read += 1;
            rows.extend(cache(view, layout, nodes, link.wrapping_sub(layout.list as u64)));
        }
        rows.sort_by(|a: &SlabMemory, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        Ok(Holders::new(rows, read < MAX_CACHES))
    }
}

/// Returns the cache at `at`, on the first `nodes` nodes.
fn cache<M: PhysicalMemory>(
    view: &View<'_, M>,
    layout: &SlabLayout,
    nodes: u64,
    at: u64,
) -> Option<SlabMemory> {
    let (mut slabs, mut objects) = (0_i64, 0_i64);
    for node in 0..nodes {
        let pointer = at.checked_add(layout.nodes.first as u64)?.checked_add(node * layout.nodes.step)?;
        let node = view.u64(pointer, 0)?;
        if node != 0 {
            slabs = slabs.saturating_add(signed(view, node, layout.slabs)?.max(0));
            objects = objects.saturating_add(signed(view, node, layout.objects)?.max(0));
        }
    }
    let order = (view.u32(at, layout.order)? >> ORDER_SHIFT).min(MAX_ORDER);
    Some(SlabMemory {
        name: view.text::<MAX_NAME>(view.u64(at, layout.name)?)?,
        objects: objects.unsigned_abs(),
        object_bytes: u64::from(view.u32(at, layout.object_size)?),
        bytes: slabs.unsigned_abs().saturating_mul(PAGE << order),
    })
}
