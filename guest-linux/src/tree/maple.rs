//! Maple trees: ranges of u64 to pointers (6.1 and later).
//!
//! ```text
//! ma_root -> node of 256 bytes: parent | pivot[n - 1] | slot[n]
//!            slot[i] holds what belongs to pivot[i - 1] + 1 ..= pivot[i]
//! entry of a node = address (bits 8..63) | type (bits 3..6) | 2, in the root, or 4, elsewhere
//! ```
//!
//! Source: include/linux/maple_tree.h and lib/maple_tree.c of Linux 6.1 and 6.12.

use std::ops::ControlFlow;

use super::{INTERNAL_MASK, is_node};
use crate::btf::Btf;
use crate::btf::layout::{layout, offset};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::view::View;
use symbols::bytes::u64_at;

/// Bytes of a node (`struct maple_node`), which is aligned to its size.
const NODE: usize = 256;
/// Levels that are descended, at most: with nodes half full, ten levels hold more than 4^10 ranges
/// (the kernel itself allows 31, `MAPLE_HEIGHT_MAX`).
const MAX_DEPTH: usize = 10;
/// Slots of a node, at most (`MAPLE_RANGE64_SLOTS`).
const MAX_SLOTS: usize = 16;
/// Nodes that one walk reads, at most: 65,536 ranges in leaves that are a quarter full, and their parents.
const MAX_NODES: usize = 32_768;

/// Types of nodes (`enum maple_type`).
mod kind {
    pub(super) const LEAF_64: u64 = 1;
    pub(super) const RANGE_64: u64 = 2;
    pub(super) const ARANGE_64: u64 = 3;
}

/// Offsets and lengths of the arrays of a kind of node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeLayout {
    pivot: usize,
    pivots: usize,
    slot: usize,
}

layout! {
    /// `struct maple_tree` and its nodes.
    #[derive(Debug, Clone, Copy)]
    MapleLayout {
        root: usize = "maple_tree.ma_root",
        range: NodeLayout => |btf| NodeLayout::new(btf, "maple_range_64"),
        arange: NodeLayout => |btf| NodeLayout::new(btf, "maple_arange_64"),
    }
}

impl NodeLayout {
    fn new(btf: &Btf<'_>, name: &str) -> Result<Self, Missing> {
        let no_pivots = || Missing::NoField(format!("{name}.pivot"));
        let pivot = btf.member(name, "pivot").ok_or_else(no_pivots)?;
        let pivots = btf.elements(pivot).ok_or_else(no_pivots)?;
        let slot = offset(btf, &[&format!("{name}.slot")])?;
        // There is one slot more than pivots.
        let fits = pivots < MAX_SLOTS && pivot.offset + pivots * 8 <= NODE && slot + (pivots + 1) * 8 <= NODE;
        if fits { Ok(Self { pivot: pivot.offset, pivots, slot }) } else { Err(no_pivots()) }
    }
}

/// A maple tree of the guest.
pub(crate) struct MapleTree<'a, M> {
    view: &'a View<'a, M>,
    layout: &'a MapleLayout,
    root: u64,
}

/// A node that was read, and the range that it covers.
struct MapleNode {
    bytes: [u8; NODE],
    layout: NodeLayout,
    leaf: bool,
    min: u64,
    max: u64,
}

/// A slot of a node: what belongs to `min..=max`.
#[derive(Debug, Clone, Copy)]
struct MapleSlot {
    min: u64,
    max: u64,
    entry: u64,
}

impl MapleNode {
    /// Returns the slots from the first to the one that ends the node's range.
    fn slots(&self) -> impl Iterator<Item = MapleSlot> + '_ {
        let mut next = Some(self.min);
        (0..=self.layout.pivots).map_while(move |i| {
            let min = next?;
            let pivot = if i < self.layout.pivots {
                u64_at(&self.bytes, self.layout.pivot + i * 8)?
            } else {
                self.max
            };
            // After the last used pivot there are zeros; the range of the node ends there.
            let max = if (i > 0 && pivot == 0) || pivot > self.max { self.max } else { pivot };
            if max < min {
                return None;
            }
            next = if max == self.max { None } else { max.checked_add(1) };
            Some(MapleSlot { min, max, entry: u64_at(&self.bytes, self.layout.slot + i * 8)? })
        })
    }
}

impl<'a, M: PhysicalMemory> MapleTree<'a, M> {
    /// Returns the tree at `at`; `None` if not even its root can be read.
    pub(crate) fn new(view: &'a View<'a, M>, layout: &'a MapleLayout, at: u64) -> Option<Self> {
        Some(Self { view, layout, root: view.u64(at, layout.root)? })
    }

    /// Returns the pointer that belongs to `index`.
    pub(crate) fn find(&self, index: u64) -> Option<u64> {
        if !is_node(self.root) {
            return entry(self.root).filter(|_| index == 0);
        }
        let mut slot = MapleSlot { min: 0, max: u64::MAX, entry: self.root };
        for _ in 0..MAX_DEPTH {
            let node = self.node(slot)?;
            slot = node.slots().find(|slot| index <= slot.max)?;
            if node.leaf {
                return entry(slot.entry);
            }
        }
        None
    }

    /// Calls `visit` with the first index and the pointer of each range that has one, ascending.
    pub(crate) fn walk(&self, mut visit: impl FnMut(u64, u64) -> ControlFlow<()>) {
        if is_node(self.root) {
            let mut left = MAX_NODES;
            let _ = self.descend(
                MapleSlot { min: 0, max: u64::MAX, entry: self.root },
                MAX_DEPTH,
                &mut left,
                &mut visit,
            );
        } else if let Some(found) = entry(self.root) {
            let _ = visit(0, found);
        }
    }

    fn descend(
        &self,
        at: MapleSlot,
        depth: usize,
        left: &mut usize,
        visit: &mut impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (Some(depth), Some(rest)) = (depth.checked_sub(1), left.checked_sub(1)) else {
            return ControlFlow::Break(());
        };
        *left = rest;
        let Some(node) = self.node(at) else {
            return ControlFlow::Continue(());
        };
        for slot in node.slots() {
            if !node.leaf {
                self.descend(slot, depth, left, visit)?;
            } else if let Some(found) = entry(slot.entry) {
                visit(slot.min, found)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads the node that the entry of `slot` points to.
    fn node(&self, slot: MapleSlot) -> Option<MapleNode> {
        let (layout, leaf) = match (slot.entry >> 3) & 0xf {
            kind::LEAF_64 => (self.layout.range, true),
            kind::RANGE_64 => (self.layout.range, false),
            kind::ARANGE_64 => (self.layout.arange, false),
            _ => return None,
        };
        let mut node = MapleNode { bytes: [0; NODE], layout, leaf, min: slot.min, max: slot.max };
        self.view.read(slot.entry & !(NODE as u64 - 1), &mut node.bytes)?;
        Some(node)
    }
}

/// Returns the entry if it is a pointer: not a gap, and not a mark like `XA_ZERO_ENTRY`.
fn entry(entry: u64) -> Option<u64> {
    (entry != 0 && entry & INTERNAL_MASK == 0).then_some(entry)
}
