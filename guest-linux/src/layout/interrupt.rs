//! Offsets of what is read about interrupts.

use crate::btf::layout::layout;
use crate::missing::Missing;
use crate::tree::{MapleLayout, XArrayLayout};

layout! {
    /// Layouts of the structures of interrupts.
    #[derive(Debug, Clone)]
    InterruptLayouts {
        desc: Result<DescLayout, Missing>,
        tree: LineTreeLayout,
    }

    /// The tree by which the lines are found by number (kernel/irq/irqdesc.c).
    #[derive(Debug, Clone)]
    LineTreeLayout {
        /// `sparse_irqs` (since 6.5).
        maple: Result<MapleLayout, Missing>,
        /// `irq_desc_tree` (before).
        radix: Result<XArrayLayout, Missing>,
    }

    /// `struct irq_desc` (include/linux/irqdesc.h) and `struct irqaction` (include/linux/interrupt.h).
    #[derive(Debug, Clone, Copy)]
    DescLayout {
        number: usize = "irq_desc.irq_data.irq",
        action: usize = "irq_desc.action",
        action_name: usize = "irqaction.name",
        action_handler: usize = "irqaction.handler",
        action_thread: usize = "irqaction.thread_fn",
        action_next: usize = "irqaction.next",
    }
}
