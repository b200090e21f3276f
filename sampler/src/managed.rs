//! Frames of managed languages at a tick: what the vCPUs' threads know of the processes' runtimes, and the
//! copy of a thread's frames.
//!
//! The collector finds the runtime of a process when it walks a stack of it, and puts its plan into a table,
//! by the page tables of the process. From the next tick in that process on, the frames are copied.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use attach::ProcessCopies;
use linux::{AddressSpace, PhysAddr, PhysicalMemory, StackCopy, VirtAddr};
use runtimes::{ProcessMemory, RuntimePlan, ThreadRegisters, thread_word};

/// Processes in the table, at most; beyond that all are forgotten and found again.
const MAX_PROCESSES: usize = 4096;
/// Threads that a vCPU remembers.
const HINTS: usize = 64;
/// Translated pages that a walk remembers.
const PAGES: usize = 16;
/// Bytes of a thread's first frames: those of libc and of the runtime's function that starts it.
const ABOVE: u64 = 4096;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// The runtimes of all processes that are known, by the physical address of their page tables. Clones share
/// them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuntimeTable {
    plans: Arc<RwLock<HashMap<u64, RuntimePlan>>>,
    /// Copies of a machine whose memory the vCPU's thread does not read itself at a tick.
    copies: Arc<OnceLock<ProcessCopies>>,
}

impl RuntimeTable {
    /// Returns the runtime of the process with these page tables. Never waits: while the collector changes
    /// the table, which is rare and short, no runtime is known.
    fn find(&self, root: u64) -> Option<RuntimePlan> {
        self.plans.try_read().ok()?.get(&root).copied()
    }

    /// Sets or removes the runtime of the process with these page tables. For the collector: may wait.
    pub(crate) fn set(&self, root: u64, plan: Option<RuntimePlan>) {
        let known = self.plans.read().unwrap_or_else(PoisonError::into_inner).get(&root).copied();
        if known == plan {
            return;
        }
        if let Some(copies) = self.copies.get() {
            copies.set(root, plan.and_then(|plan| plan.copies()).as_ref());
        }
        let mut table = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= MAX_PROCESSES {
            table.clear();
        }
        match plan {
            Some(plan) => table.insert(root, plan),
            None => table.remove(&root),
        };
    }

    /// Lets `copies` copy at ticks what the runtimes that are set from now on read. The first call counts.
    pub(crate) fn copy_by(&self, copies: ProcessCopies) {
        self.copies.get_or_init(|| copies);
    }
}

/// Runtime's state of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct ThreadHint {
    root: u64,
    fs_base: u64,
    thread: VirtAddr,
}

/// Copier of frames on one vCPU's thread.
#[derive(Debug)]
pub(crate) struct FrameCopier {
    table: RuntimeTable,
    hints: [ThreadHint; HINTS],
}

impl FrameCopier {
    pub(crate) fn new(table: RuntimeTable) -> Self {
        Self { table, hints: [ThreadHint::default(); HINTS] }
    }

    /// Adds the frames of the current thread, whose stacks are in `into`, as notes; nothing for threads
    /// without a runtime. No lock, no allocation, bounded reads.
    pub(crate) fn copy(
        &mut self,
        memory: &impl PhysicalMemory,
        (fs_base, five_level): (u64, bool),
        into: &mut StackCopy,
    ) {
        let Some(root) = into.user_root().filter(|_| fs_base != 0) else { return };
        let Some(plan) = self.table.find(root & ROOT) else { return };
        let space = SpaceMemory::new(AddressSpace::new(root, five_level), memory);
        // Threads have their own pages, and processes their own tables.
        let slot = usize::try_from((fs_base >> 12 ^ root >> 13) % HINTS as u64).unwrap_or(0);
        let Some(hint) = self.hints.get_mut(slot) else { return };
        let known = (hint.root == root && hint.fs_base == fs_base).then_some(hint.thread);
        let user = if into.is_user_mode() {
            Some(*into.registers())
        } else {
            into.task_pt_regs().map(|user| user.registers)
        };
        let stack_pointer = user.map_or(0, |user| user.rsp());
        let Some(thread) = plan.thread(&space, ThreadRegisters { fs_base, stack_pointer }, known) else {
            return;
        };
        *hint = ThreadHint { root, fs_base, thread };
        if let Some(above) = plan.stack_above(&space, thread, stack_pointer) {
            into.add_user(&AddressSpace::new(root, five_level), memory, (above, ABOVE));
        }
        let word = thread_word(thread).filter(|_| plan.names_threads());
        if word.is_none_or(|word| into.note(word)) {
            plan.walk(&space, thread, |word| into.note(word));
        }
    }
}

/// Page tables without the bits of CR3 that are none of their address (PCID, and PTI's switch between two
/// tables).
pub(crate) const ROOT: u64 = !0x1fff;

/// Memory of a process, by its page tables, with the pages that were translated last.
#[derive(Debug)]
pub(crate) struct SpaceMemory<'a, M> {
    space: AddressSpace,
    memory: &'a M,
    /// Page number and physical address, by the low bits of the page number.
    pages: [Cell<Option<(u64, PhysAddr)>>; PAGES],
}

impl<'a, M: PhysicalMemory> SpaceMemory<'a, M> {
    pub(crate) fn new(space: AddressSpace, memory: &'a M) -> Self {
        Self { space, memory, pages: [const { Cell::new(None) }; PAGES] }
    }

    /// Returns the physical address of a page.
    fn page(&self, number: u64) -> Option<PhysAddr> {
        let slot = self.pages.get(usize::try_from(number % PAGES as u64).ok()?)?;
        if let Some((_, at)) = slot.get().filter(|&(known, _)| known == number) {
            return Some(at);
        }
        let at = self.space.translate(self.memory, VirtAddr(number.checked_mul(PAGE)?))?.phys;
        slot.set(Some((number, at)));
        Some(at)
    }
}

impl<M: PhysicalMemory> ProcessMemory for SpaceMemory<'_, M> {
    #[inline]
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        let (mut at, mut rest) = (at.0, into);
        while !rest.is_empty() {
            // Less than a page.
            let offset = at % PAGE;
            let len = rest.len().min(usize::try_from(PAGE - offset).ok()?);
            let (part, behind) = rest.split_at_mut_checked(len)?;
            self.memory.read(self.page(at / PAGE)?.checked_add(offset)?, part)?;
            (at, rest) = (at.checked_add(len as u64)?, behind);
        }
        Some(())
    }
}
