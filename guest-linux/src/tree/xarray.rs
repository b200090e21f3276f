//! `XArrays`: u64 to pointers. The radix tree is one, too.
//!
//! ```text
//! xa_head -> node: shift, slots[64]      slot of an index = (index >> shift) & 63
//! entry: pointer | node + 2 | sibling (slot << 2 | 2) | value (bit 0)
//! ```
//!
//! A large page-cache folio takes several slots, the first holds it, the others are its siblings.
//! Source: include/linux/xarray.h and lib/xarray.c of Linux 5.10 to 6.12.

use std::ops::ControlFlow;

use super::{INTERNAL, INTERNAL_MASK, is_node};
use crate::btf::layout::layout;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::view::View;

/// Nodes that one walk reads, at most.
const MAX_NODES: usize = 16_384;
/// Slots of a node, at most (`XA_CHUNK_SIZE`; 16 with `CONFIG_BASE_SMALL`).
const MAX_SLOTS: usize = 64;

layout! {
    /// `struct xarray` and `struct xa_node`.
    #[derive(Debug, Clone, Copy)]
    XArrayLayout {
        head: usize = "xarray.xa_head",
        shift: usize = "xa_node.shift",
        slots: usize = "xa_node.slots",
        /// `XA_CHUNK_SHIFT`.
        chunk_shift: u32 => |btf| {
            let count = btf.member_by_path("xa_node.slots").and_then(|slots| btf.elements(slots));
            let count = count.filter(|n| n.is_power_of_two() && (2..=MAX_SLOTS).contains(n));
            Ok(count.ok_or_else(|| Missing::NoField("xa_node.slots".into()))?.trailing_zeros())
        },
    }
}

/// An `XArray` of the guest.
pub(crate) struct XArray<'a, M> {
    view: &'a View<'a, M>,
    layout: &'a XArrayLayout,
    head: u64,
}

impl<'a, M: PhysicalMemory> XArray<'a, M> {
    /// Returns the array at `at`; `None` if not even its head can be read.
    pub(crate) fn new(view: &'a View<'a, M>, layout: &'a XArrayLayout, at: u64) -> Option<Self> {
        Some(Self { view, layout, head: view.u64(at, layout.head)? })
    }

    /// Returns the pointer at `index`. One that was stored for several indices is found by each of them.
    pub(crate) fn find(&self, index: u64) -> Option<u64> {
        if !is_node(self.head) {
            return pointer(self.head).filter(|_| index == 0);
        }
        let mut entry = self.head;
        // Above every shift, so that the root may have any.
        let mut above = u64::BITS;
        while is_node(entry) {
            let node = entry - INTERNAL;
            let shift = self.shift(node, above)?;
            let slot = index >> shift;
            if above == u64::BITS && slot >> self.layout.chunk_shift != 0 {
                return None;
            }
            above = shift;
            entry = self.slot(node, slot & self.last_slot())?;
            if entry & INTERNAL_MASK == INTERNAL && !is_node(entry) {
                // A sibling names the slot that has the pointer; other entries do not name a slot.
                let canonical = entry >> 2;
                entry = self.slot(node, canonical).filter(|_| canonical <= self.last_slot())?;
            }
        }
        pointer(entry)
    }

    /// Calls `visit` with index and pointer of each entry, ascending, until it breaks.
    pub(crate) fn walk(&self, mut visit: impl FnMut(u64, u64) -> ControlFlow<()>) {
        if is_node(self.head) {
            let mut left = MAX_NODES;
            let _ = self.descend(self.head - INTERNAL, (u64::BITS, 0), &mut left, &mut visit);
        } else if let Some(found) = pointer(self.head) {
            let _ = visit(0, found);
        }
    }

    fn descend(
        &self,
        node: u64,
        (above, base): (u32, u64),
        left: &mut usize,
        visit: &mut impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(rest) = left.checked_sub(1) else {
            return ControlFlow::Break(());
        };
        *left = rest;
        let Some(shift) = self.shift(node, above) else {
            return ControlFlow::Continue(());
        };
        for slot in 0..=self.last_slot() {
            let index = base.wrapping_add(slot << shift);
            match self.slot(node, slot) {
                Some(entry) if is_node(entry) => {
                    self.descend(entry - INTERNAL, (shift, index), left, visit)?
                }
                Some(entry) => {
                    if let Some(found) = pointer(entry) {
                        visit(index, found)?;
                    }
                }
                None => {}
            }
        }
        ControlFlow::Continue(())
    }

    fn last_slot(&self) -> u64 {
        (1 << self.layout.chunk_shift) - 1
    }

    /// Returns the shift of a node, which must be below that of the node above: so a walk ends.
    fn shift(&self, node: u64, above: u32) -> Option<u32> {
        let mut byte = [0];
        self.view.read(node.checked_add(self.layout.shift as u64)?, &mut byte)?;
        let shift = u32::from(byte[0]);
        (shift < above && shift % self.layout.chunk_shift == 0).then_some(shift)
    }

    fn slot(&self, node: u64, slot: u64) -> Option<u64> {
        self.view.u64(node.checked_add(slot * 8)?, self.layout.slots)
    }
}

/// Returns the entry if it is a pointer: neither empty, nor a value (a page that is swapped out), nor a mark.
fn pointer(entry: u64) -> Option<u64> {
    (entry != 0 && entry & INTERNAL_MASK == 0).then_some(entry)
}
