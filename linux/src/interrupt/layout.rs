//! Offsets of what is read about interrupts.

use crate::btf::Btf;
use crate::layout::offset;
use crate::missing::Missing;
use crate::tree::{MapleLayout, XArrayLayout};

/// What the structures of interrupts look like.
#[derive(Debug, Clone)]
pub(crate) struct InterruptLayouts {
    pub(crate) desc: Result<DescLayout, Missing>,
    pub(crate) tree: LineTree,
}

impl InterruptLayouts {
    pub(crate) fn new(btf: &Btf) -> Self {
        Self { desc: DescLayout::new(btf), tree: LineTree::new(btf) }
    }
}

/// How the lines are found by number (kernel/irq/irqdesc.c).
#[derive(Debug, Clone)]
pub(crate) struct LineTree {
    /// `sparse_irqs` (since 6.5).
    pub(crate) maple: Result<MapleLayout, Missing>,
    /// `irq_desc_tree` (before).
    pub(crate) radix: Result<XArrayLayout, Missing>,
}

impl LineTree {
    fn new(btf: &Btf) -> Self {
        Self { maple: MapleLayout::new(btf), radix: XArrayLayout::new(btf) }
    }
}

/// `struct irq_desc` (include/linux/irqdesc.h) and `struct irqaction` (include/linux/interrupt.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct DescLayout {
    /// `irq_desc.irq_data.irq`.
    pub(crate) number: usize,
    /// `irq_desc.action`.
    pub(crate) action: usize,
    pub(crate) action_name: usize,
    pub(crate) action_handler: usize,
    pub(crate) action_thread: usize,
    pub(crate) action_next: usize,
}

impl DescLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let action = |member| offset(btf, "irqaction", member);
        Ok(Self {
            number: offset(btf, "irq_desc", "irq_data.irq")?,
            action: offset(btf, "irq_desc", "action")?,
            action_name: action("name")?,
            action_handler: action("handler")?,
            action_thread: action("thread_fn")?,
            action_next: action("next")?,
        })
    }
}
