//! Names of interrupts and of system calls.

mod syscall;

use std::ops::ControlFlow;

use crate::kernel::Kernel;
use crate::layout::{DescLayout, LineTreeLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::per_cpu::PerCpuAreas;
use crate::tree::{MapleTree, XArray};
use crate::view::View;
use symbols::VirtAddr;

/// Interrupt lines that are read, at most.
const MAX_LINES: usize = 65_536;
/// Handlers of one line that are read, at most.
const MAX_ACTIONS: usize = 32;
/// Bytes of a name, at most.
const NAME: usize = 64;
/// Number of softirqs (`NR_SOFTIRQS`, include/linux/interrupt.h): the same since 2.6.33.
const SOFTIRQS: u64 = 10;
/// Interrupt vectors of a CPU (`NR_VECTORS`, arch/x86/include/asm/irq_vectors.h).
const VECTORS: usize = 256;
/// Entries of the vector table from here on are marks, not pointers (`VECTOR_RETRIGGERED` and
/// `VECTOR_SHUTDOWN`, arch/x86/include/asm/hw_irq.h, are error pointers; `MAX_ERRNO`, include/linux/err.h).
const FIRST_MARK: u64 = u64::MAX - 4094;

/// Names of the guest's interrupts. Each answer may be missing without the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptTables {
    /// Interrupt lines, ascending by number.
    pub lines: Result<Vec<InterruptLine>, Missing>,
    /// Softirqs, by number.
    pub softirqs: Result<Vec<Softirq>, Missing>,
    /// Line of each CPU's vectors, ascending by CPU and vector.
    pub vectors: Result<Vec<InterruptVector>, Missing>,
}

/// An interrupt line, as `/proc/interrupts` numbers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptLine {
    /// Number.
    pub irq: u32,
    /// Handlers; empty for a line that nobody uses.
    pub actions: Vec<InterruptAction>,
}

/// A handler of an interrupt line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptAction {
    /// Name of the device, such as `virtio0-req.0`.
    pub name: String,
    /// The function that handles the interrupt.
    pub handler: VirtAddr,
    /// The function that does the rest of the work in a separate thread.
    pub thread: Option<VirtAddr>,
}

/// A softirq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Softirq {
    /// Name as in `/proc/softirqs`, such as `NET_RX`.
    pub name: String,
    /// The function that handles it; `None` when it has none.
    pub handler: Option<VirtAddr>,
}

/// A vector of a CPU that belongs to an interrupt line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterruptVector {
    /// The CPU's APIC id, which is the number of its vCPU; its number in the guest where the kernel does not
    /// show that.
    pub cpu: u32,
    /// The vector.
    pub vector: u8,
    /// The number of the line.
    pub irq: u32,
}

impl Kernel {
    /// Returns the names of interrupts as they are now: read them again when devices come and go.
    pub fn interrupts(&self, memory: &impl PhysicalMemory) -> InterruptTables {
        let view = self.view(memory);
        let layouts = self.layouts.as_ref().map(|layouts| &layouts.interrupts).map_err(Clone::clone);
        let described = || {
            let layouts = layouts.clone()?;
            Ok((layouts.desc.as_ref().map_err(Missing::clone)?, &layouts.tree))
        };
        InterruptTables {
            lines: described().and_then(|(desc, tree)| self.lines(&view, desc, tree)),
            softirqs: self.softirqs(&view),
            vectors: described().and_then(|(desc, _)| self.vectors(&view, desc)),
        }
    }

    fn lines<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        desc: &DescLayout,
        tree: &LineTreeLayout,
    ) -> Result<Vec<InterruptLine>, Missing> {
        let what = || Missing::Unreadable("the tree of interrupts".into());
        let mut found = Vec::new();
        let mut take = |_, at| {
            found.extend(line(view, desc, at));
            if found.len() == MAX_LINES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match (self.symbol("sparse_irqs"), &tree.maple) {
            (Ok(at), Ok(layout)) => MapleTree::new(view, layout, at).ok_or_else(what)?.walk(&mut take),
            (Ok(_), Err(missing)) => return Err(missing.clone()),
            (Err(_), _) => {
                let layout = tree.radix.as_ref().map_err(Clone::clone)?;
                let at = self.symbol("irq_desc_tree")?;
                XArray::new(view, layout, at).ok_or_else(what)?.walk(&mut take);
            }
        }
        Ok(found)
    }

    fn softirqs<M: PhysicalMemory>(&self, view: &View<'_, M>) -> Result<Vec<Softirq>, Missing> {
        let names = self.symbol("softirq_to_name")?;
        let handlers = self.symbol("softirq_vec")?;
        // An array of pointers, and one of structures that hold but one.
        let read = |number: u64| {
            let offset = symbols::bytes::index(number * 8);
            let name = view.text::<NAME>(view.u64(names, offset)?)?;
            let handler = view.u64(handlers, offset)?;
            Some(Softirq { name, handler: (handler != 0).then_some(VirtAddr(handler)) })
        };
        (0..SOFTIRQS)
            .map(read)
            .collect::<Option<_>>()
            .ok_or_else(|| Missing::Unreadable("the table of softirqs".into()))
    }

    fn vectors<M: PhysicalMemory>(
        &self,
        view: &View<'_, M>,
        desc: &DescLayout,
    ) -> Result<Vec<InterruptVector>, Missing> {
        let what = || Missing::Unreadable("the table of interrupt vectors".into());
        let (symbols, layouts) = (self.symbol_table()?, self.layouts.as_ref().map_err(Clone::clone)?);
        let table = self.symbol("vector_irq")?;
        let areas = PerCpuAreas::new(view, symbols, self.symbol("__per_cpu_offset")?, table)?;
        let mut found = Vec::new();
        for (cpu, area) in (0..).zip(areas.by_apic_id(view, symbols, layouts, Some)) {
            let Some(area) = area else { continue };
            let mut entries = [0; VECTORS * 8];
            view.read(table.wrapping_add(area), &mut entries).ok_or_else(what)?;
            for vector in 0..=u8::MAX {
                let at = symbols::bytes::u64_at(&entries, usize::from(vector) * 8).unwrap_or(0);
                if at != 0
                    && at < FIRST_MARK
                    && let Some(irq) = view.u32(at, desc.number)
                {
                    found.push(InterruptVector { cpu, vector, irq });
                }
            }
        }
        Ok(found)
    }
}

/// Returns the `struct irq_desc` at `at`.
fn line<M: PhysicalMemory>(view: &View<'_, M>, desc: &DescLayout, at: u64) -> Option<InterruptLine> {
    let irq = view.u32(at, desc.number)?;
    let mut action = view.u64(at, desc.action)?;
    let mut actions = Vec::new();
    while action != 0 && actions.len() < MAX_ACTIONS {
        let read = |offset| view.u64(action, offset);
        let (Some(name), Some(handler), Some(thread), Some(next)) = (
            read(desc.action_name),
            read(desc.action_handler),
            read(desc.action_thread),
            read(desc.action_next),
        ) else {
            break;
        };
        actions.push(InterruptAction {
            name: view.text::<NAME>(name).unwrap_or_default(),
            handler: VirtAddr(handler),
            thread: (thread != 0).then_some(VirtAddr(thread)),
        });
        action = next;
    }
    Some(InterruptLine { irq, actions })
}
