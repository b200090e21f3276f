//! Frames of managed languages at a tick: what the vCPUs' threads know of the processes' runtimes, and the
//! copy of a thread's frames.
//!
//! The collector finds the runtime of a process when it walks a stack of it, and puts its plan into a table,
//! by the page tables of the process. From the next tick in that process on, the frames are copied.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use attach::ProcessCopies;
use guest_linux::{AddressSpace, PhysAddr, PhysicalMemory, StackCopy, VirtAddr};
use runtimes::{ProcessMemory, RuntimePlan, ThreadRegisters, WalkFailure, failure_word, thread_word};

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
    /// without a runtime, and the reason if memory that would show the thread cannot be read. No lock, no
    /// allocation, bounded reads.
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
            if space.has_missed() {
                into.note(failure_word(WalkFailure::NotPresent));
            }
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
    missed: Cell<bool>,
}

impl<'a, M: PhysicalMemory> SpaceMemory<'a, M> {
    pub(crate) fn new(space: AddressSpace, memory: &'a M) -> Self {
        Self { space, memory, pages: [const { Cell::new(None) }; PAGES], missed: Cell::new(false) }
    }

    /// Returns true if a read has failed.
    fn has_missed(&self) -> bool {
        self.missed.get()
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
        let read = self.read_pages(at, into);
        self.missed.set(self.missed.get() || read.is_none());
        read
    }
}

impl<M: PhysicalMemory> SpaceMemory<'_, M> {
    #[inline]
    fn read_pages(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
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

#[cfg(test)]
mod tests {
    use guest_linux::FlatMemory;
    use runtimes::fixture::{self, BASE};
    use runtimes::{FrameWords, ManagedStep, RuntimeBinary};
    use symbols::Registers;

    use super::*;

    /// Page tables: one table of each level, at 0x2000 and the pages after it.
    const ROOT_TABLE: u64 = 0x2000;
    const LOWEST_TABLE: u64 = 0x5000;
    /// Physical address of the process's memory.
    const MEMORY: u64 = 0x8000;
    const PRESENT: u64 = 1;

    /// Returns physical memory with that of a process in it.
    fn physical(process: &[u8]) -> FlatMemory<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(MEMORY).unwrap()];
        let mut put = |at: u64, entry: u64| {
            let at = usize::try_from(at).unwrap();
            bytes[at..at + 8].copy_from_slice(&entry.to_le_bytes());
        };
        for table in (ROOT_TABLE..LOWEST_TABLE).step_by(0x1000) {
            put(table, (table + 0x1000) | PRESENT);
        }
        for page in 0..process.len() as u64 / PAGE {
            put(LOWEST_TABLE + (BASE / PAGE + page) * 8, (MEMORY + page * PAGE) | PRESENT);
        }
        bytes.extend_from_slice(process);
        FlatMemory(bytes)
    }

    /// Returns what is copied of the thread with this FS base.
    fn copied(memory: &FlatMemory<Vec<u8>>, plan: RuntimePlan, fs_base: u64) -> Vec<ManagedStep> {
        let table = RuntimeTable::default();
        table.set(ROOT_TABLE, Some(plan));
        let mut into = StackCopy::new();
        into.set_user(Registers::default(), ROOT_TABLE);
        FrameCopier::new(table).copy(memory, (fs_base, false), &mut into);
        FrameWords::new(into.notes()).collect()
    }

    #[test]
    fn a_thread_has_its_frames_or_a_reason_and_one_without_a_runtime_nothing() {
        let process = fixture::python((3, 11));
        let binary = RuntimeBinary::Python(fixture::binary((3, 11)));
        let (plan, _) = binary.plan(&process, 0).unwrap();
        let mut memory = physical(&process.bytes);
        let steps = copied(&memory, plan, fixture::FS_BASE);
        let count = |is: fn(&ManagedStep) -> bool| steps.iter().filter(|step| is(step)).count();
        assert!(matches!(steps.first(), Some(ManagedStep::Thread(_))), "{steps:?}");
        assert_eq!(count(|step| matches!(step, ManagedStep::Frame(_))), fixture::NAMES.len());
        assert_eq!(count(|step| matches!(step, ManagedStep::Failure(_))), 0);
        assert_eq!(copied(&memory, plan, 0x1234), [], "a thread that the runtime does not know");
        assert_eq!(copied(&memory, plan, 0), [], "no FS base");
        // The page with the threads is gone.
        let entry = usize::try_from(LOWEST_TABLE + (BASE / PAGE + 3) * 8).unwrap();
        memory.0[entry] = 0;
        assert_eq!(copied(&memory, plan, fixture::FS_BASE), [ManagedStep::Failure(WalkFailure::NotPresent)]);
    }
}
