//! The mappings of an address space, as the kernel has them.

use std::ops::ControlFlow;

use crate::layout::{RbLayout, VmaField, VmaLayout, VmaTree};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::tree::MapleTree;
use crate::view::View;

/// Mappings of one process that are read, at most: the kernel's own default limit (`DEFAULT_MAX_MAP_COUNT`,
/// include/linux/mm.h) is 65,530.
pub(super) const MAX_VMAS: usize = 65_536;
/// Levels of a red-black tree of [`MAX_VMAS`]: twice the logarithm.
const MAX_LEVELS: usize = 34;

/// One `struct vm_area_struct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vma {
    pub(super) at: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) flags: u64,
    pub(super) page_offset: u64,
    pub(super) file: u64,
    pub(super) ops: u64,
}

/// The mappings of one `struct mm_struct`.
pub(super) struct VmaReader<'a, M> {
    pub(super) view: &'a View<'a, M>,
    pub(super) layout: &'a VmaLayout,
    pub(super) mm: u64,
}

fn unreadable() -> Missing {
    Missing::Unreadable("the mappings".into())
}

impl<M: PhysicalMemory> VmaReader<'_, M> {
    /// Returns all of them, ascending, without overlap; one that is torn by a change meanwhile is left out.
    pub(super) fn all(&self) -> Result<Vec<Vma>, Missing> {
        let mut found: Vec<Vma> = Vec::new();
        let mut take = |at: u64| {
            if let Some(vma) = self.read(at)
                && found.last().is_none_or(|last| last.end <= vma.start)
            {
                found.push(vma);
            }
            if found.len() == MAX_VMAS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match &self.layout.tree {
            VmaTree::Maple { at, tree } => {
                let root = self.mm.checked_add(*at as u64).ok_or_else(unreadable)?;
                MapleTree::new(self.view, tree, root).ok_or_else(unreadable)?.walk(|_, vma| take(vma));
            }
            VmaTree::List { mmap, next, .. } => {
                let mut at = self.view.u64(self.mm, *mmap).ok_or_else(unreadable)?;
                // Bounds a list of mappings that are all left out, too.
                for _ in 0..MAX_VMAS {
                    if at == 0 || take(at).is_break() {
                        break;
                    }
                    at = self.view.u64(at, *next).unwrap_or(0);
                }
            }
        }
        Ok(found)
    }

    /// Returns the one that covers `address`: one descent.
    pub(super) fn find(&self, address: u64) -> Result<Option<Vma>, Missing> {
        let at = match &self.layout.tree {
            VmaTree::Maple { at, tree } => {
                let root = self.mm.checked_add(*at as u64).ok_or_else(unreadable)?;
                MapleTree::new(self.view, tree, root).ok_or_else(unreadable)?.find(address)
            }
            VmaTree::List { rb, .. } => {
                let root = self.view.u64(self.mm, rb.root).ok_or_else(unreadable)?;
                return Ok(self.search(rb, root, address));
            }
        };
        Ok(at.and_then(|at| self.read(at)).filter(|vma| (vma.start..vma.end).contains(&address)))
    }

    fn search(&self, rb: &RbLayout, mut node: u64, address: u64) -> Option<Vma> {
        for _ in 0..MAX_LEVELS {
            if node == 0 {
                return None;
            }
            let vma = self.read(node.wrapping_sub(rb.node as u64))?;
            node = if address < vma.start {
                self.view.u64(node, rb.left)?
            } else if address >= vma.end {
                self.view.u64(node, rb.right)?
            } else {
                return Some(vma);
            };
        }
        None
    }

    /// Reads one; `None` unless it is a range of whole pages in the user's half.
    fn read(&self, at: u64) -> Option<Vma> {
        let read =
            self.layout.gather.read(|offset, into| self.view.read(at.checked_add(offset as u64)?, into))?;
        let member = |field: VmaField| read.member(field as usize).map(u64::from_le_bytes);
        let vma = Vma {
            at,
            start: member(VmaField::Start)?,
            end: member(VmaField::End)?,
            flags: member(VmaField::Flags)?,
            page_offset: member(VmaField::Offset)?,
            file: member(VmaField::File)?,
            ops: member(VmaField::Ops)?,
        };
        let pages = (vma.start | vma.end) & 0xfff == 0;
        (pages && vma.start < vma.end && vma.end <= self.user_end()).then_some(vma)
    }

    /// Returns the end of the user's half of the address space.
    fn user_end(&self) -> u64 {
        if self.view.space.five_level() { 1 << 56 } else { 1 << 47 }
    }

    /// `start_brk`, `brk` and `start_stack`; what cannot be read is in no mapping.
    pub(super) fn heap_and_stack(&self) -> [u64; 3] {
        let VmaLayout { start_brk, brk, start_stack, .. } = *self.layout;
        [start_brk, brk, start_stack].map(|offset| self.view.u64(self.mm, offset).unwrap_or(u64::MAX))
    }
}
