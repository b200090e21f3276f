//! Copies stacks at a sample.

use super::StackCopy;
use crate::current::TaskAddresses;
use crate::kallsyms::table::SymbolTable;
use crate::layout::{Layouts, StackLayout};
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::paging::AddressSpace;
use crate::per_cpu::{CpuTable, PerCpuAreas};
use crate::pt_regs::{self, SavedMode};
use crate::task::TaskSnapshot;
use crate::view::View;
use symbols::AddressKind;
use symbols::bytes::{index, u64_at};
use symbols::{PhysAddr, VirtAddr};
use symbols::{Registers, StackMemory};

/// Bytes below RSP that a function may use (System V ABI, AMD64 supplement 1.0, 3.2.2).
pub const RED_ZONE: u64 = 128;
/// Bytes below RSP that are copied in the kernel's entry code: while it takes a `pt_regs` off its stack, RSP
/// is at most at its iret frame, and the word below the `pt_regs` is where the last function that was called
/// with it returned to.
const BELOW_RSP: u64 = pt_regs::IRET + 8;
/// Kernel stacks that interrupt each other and are copied, at most.
const MAX_STACKS: usize = 4;
/// Bytes of an exception stack, at most; they have 4 to 16 KiB.
const MAX_EXCEPTION: u64 = 16 << 10;
/// Bytes of the stack on which the processor enters the kernel (`struct entry_stack`).
const ENTRY_STACK: u64 = 4096;
/// Bytes of a 64-bit TSS (Intel SDM volume 3, figure 8-11).
const TSS: usize = 104;
/// Offset of RSP0 in it: the top of the entry stack.
const TSS_SP0: usize = 4;
/// Offsets of IST1 to IST7 in it: the tops of the exception stacks.
const TSS_IST: [usize; 7] = [36, 44, 52, 60, 68, 76, 84];
/// Bytes of the smallest page.
const PAGE: u64 = 4096;
/// Bytes of an instruction, at most (Intel SDM volume 2, 2.3.11).
const MAX_INSTRUCTION: u64 = 15;
/// `TOP_OF_KERNEL_STACK_PADDING` with CONFIG_X86_FRED (arch/x86/include/asm/thread_info.h, 6.9); else there
/// is none.
const FRED_PADDING: u64 = 16;

/// Function that a new task starts in: no call returns there (arch/x86/entry/entry_64.S, the second since
/// 6.6).
const FORK: [&str; 2] = ["ret_from_fork", "ret_from_fork_asm"];

/// State of a vCPU at a sample whose stacks are to be copied.
#[derive(Debug, Clone, Copy)]
pub struct StackSample<'a> {
    /// The registers.
    pub registers: &'a Registers,
    /// Current privilege level: 0 in the kernel, 3 in a program.
    pub cpl: u8,
    /// CR3.
    pub cr3: u64,
    /// CR2: where the processor has faulted last.
    pub cr2: u64,
    /// CR4.LA57: 5-level paging.
    pub five_level: bool,
    /// Address of the current task_struct, if it is known.
    pub task: Option<u64>,
    /// True if that is a kernel thread or an idle task, which has no user stack.
    pub kernel_thread: bool,
    /// Bytes of user stack to copy, at most; [`StackReader::USER_BYTES`] is enough for almost all.
    pub user_bytes: usize,
}

/// A task that does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SleepingTask {
    /// Address of its task_struct.
    pub task: VirtAddr,
    /// True if the task is a kernel thread, which has no user stack.
    pub kernel_thread: bool,
}

impl TaskSnapshot {
    /// Returns the task as [`StackReader::copy_sleeping`] needs it.
    pub fn sleeping(&self) -> SleepingTask {
        SleepingTask { task: VirtAddr(self.task), kernel_thread: self.kernel_thread }
    }
}

/// Copies the stacks of a sample without allocating: addresses are resolved beforehand.
#[derive(Debug)]
pub struct StackReader {
    pub(super) cpus: CpuTable<PerCpu>,
    pub(super) layout: StackLayout,
    pub(super) tasks: TaskAddresses,
    pub(super) kernel: AddressSpace,
    /// Bytes above a task's `pt_regs`.
    pub(super) padding: u64,
    /// Addresses at which a task that has never run continues.
    pub(super) fork: [u64; FORK.len()],
    /// Start and end of the entry code; empty if not known.
    pub(super) entry: (u64, u64),
}

/// Physical addresses of one CPU's variables.
#[derive(Debug, Clone, Copy)]
pub(super) struct PerCpu {
    /// `hardirq_stack_ptr`.
    pub(super) irq_stack: Option<PhysAddr>,
    /// `cpu_tss_rw`.
    pub(super) tss: Option<PhysAddr>,
}

/// The stack that an address is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StackPlace {
    /// The task's own; its top.
    Task(u64),
    /// The CPU's interrupt stack: its top, and the address of the word that holds the RSP that was left.
    Interrupt { top: u64, link: u64 },
    /// A stack that the processor switched to: its top, where the iret frame ends.
    Exception(u64),
    /// Another stack: that of the next task, while the kernel is switching to it; its top, as stacks of tasks
    /// are aligned to their size.
    Other(u64),
}

/// Start of the way through the kernel stacks.
struct KernelStart {
    /// Lowest address and top of the current task's stack.
    task: Option<(u64, u64)>,
    rsp: u64,
    /// Bytes below RSP to copy.
    below: u64,
}

/// End of the way through the kernel stacks.
enum StackExit {
    /// In user mode, with this RSP.
    User(u64),
    /// At this top of a task's stack, or, with `None`, where nothing could be copied any more.
    Kernel(Option<u64>),
}

impl StackReader {
    /// Bytes of user stack to copy, unless there is a reason for another number.
    pub const USER_BYTES: usize = 40 << 10;

    /// Copies the stacks of `vcpu` (its APIC id) into `into`, which it clears first. No allocation, no lock,
    /// bounded reads; what cannot be read is left out.
    pub fn copy(
        &self,
        memory: &impl PhysicalMemory,
        vcpu: usize,
        sample: &StackSample<'_>,
        into: &mut StackCopy,
    ) {
        into.clear();
        into.registers = *sample.registers;
        into.user_mode = sample.cpl == 3;
        let rsp = sample.registers.rsp();
        // While the kernel switches, CR3 is the next task's before the stack is, and the stack before
        // `current` is.
        let (user, root, is_own) = if sample.cpl == 3 {
            (Some(rsp), sample.cr3, true)
        } else {
            let stack = sample.task.and_then(|task| self.task_stack(memory, task));
            let in_entry = (self.entry.0..self.entry.1).contains(&sample.registers.rip);
            let below = if in_entry { BELOW_RSP } else { 0 };
            let start = KernelStart { task: stack, rsp, below };
            let left = self.copy_kernel(memory, vcpu, start, into);
            let own = stack.map(|(_, top)| top);
            let top = if let StackExit::Kernel(top @ Some(_)) = left { top } else { own };
            let is_own = top == own;
            let user =
                if sample.kernel_thread && is_own { None } else { self.user_rsp(memory, top, left, into) };
            let root = sample.task.filter(|_| is_own).and_then(|task| self.user_root(memory, task));
            (user, root.unwrap_or(sample.cr3), is_own)
        };
        let space = AddressSpace::new(root, sample.five_level);
        into.user_root = is_own.then(|| space.root().0);
        // While the kernel is entered or left on another stack, what is on the task's is of an earlier entry.
        let saved_now =
            into.pt_regs.is_some_and(|at| at.checked_sub(rsp).is_some_and(|below| below < self.layout.size));
        if is_own && sample.cpl != 3 && !sample.kernel_thread && saved_now {
            into.fetching = fetching(&space, memory, Some(sample.cr2), into);
        }
        if let Some(rsp) = user.filter(|rsp| !is_kernel(*rsp)) {
            copy_user(&space, memory, (rsp, sample.user_bytes), into);
        }
    }

    /// Returns the addresses of the pointer to a CPU's interrupt stack, and of its TSS.
    pub(crate) fn addresses_of(
        &self,
        memory: &impl PhysicalMemory,
        cpu: usize,
    ) -> (Option<PhysAddr>, Option<PhysAddr>) {
        let per_cpu = self.cpus.get(memory, cpu);
        per_cpu.map_or((None, None), |per_cpu| (per_cpu.irq_stack, per_cpu.tss))
    }

    pub(crate) fn layout(&self) -> &StackLayout {
        &self.layout
    }

    /// Returns the number of bytes above a task's `pt_regs`.
    pub(crate) fn padding(&self) -> u64 {
        self.padding
    }

    /// Copies the kernel stack of a task that does not run, and sets the registers to where it will continue:
    /// what it sleeps in. `None` if it cannot be read. Of its user stack up to `user_bytes` are copied,
    /// unless it is a kernel thread or has left its memory already. No allocation, no lock, bounded reads.
    pub fn copy_sleeping(
        &self,
        memory: &impl PhysicalMemory,
        SleepingTask { task, kernel_thread }: SleepingTask,
        user_bytes: usize,
        into: &mut StackCopy,
    ) -> Option<()> {
        into.clear();
        let task = task.0;
        let (start, top) = self.task_stack(memory, task)?;
        let sp = self.task_word(memory, task, self.layout.saved_sp)?;
        if !(start..top).contains(&sp) {
            return None;
        }
        into.gaps.kernel_not_present = !copy_pages(&self.kernel, memory, (sp, top), into);
        let word = |offset: usize| into.read_u64(sp.checked_add(offset as u64)?);
        let mut registers = Registers { rip: word(self.layout.return_address)?, ..Registers::default() };
        registers.gpr[Registers::RBP] = word(self.layout.saved_bp)?;
        registers.gpr[Registers::RSP] = sp.checked_add(self.layout.return_address as u64 + 8)?;
        into.registers = registers;
        into.first =
            if self.fork.contains(&registers.rip) { AddressKind::Exact } else { AddressKind::Return };
        if kernel_thread {
            return Some(());
        }
        into.pt_regs = self.pt_regs(top);
        let user_rsp = into.pt_regs.and_then(|at| into.read_u64(at.checked_add(pt_regs::SP)?));
        let Some(root) = self.user_root(memory, task) else { return Some(()) };
        let space = AddressSpace::new(root, self.kernel.five_level());
        into.fetching = fetching(&space, memory, None, into);
        if let Some(rsp) = user_rsp.filter(|rsp| user_bytes > 0 && !is_kernel(*rsp)) {
            into.user_root = Some(space.root().0);
            copy_user(&space, memory, (rsp, user_bytes), into);
        }
        Some(())
    }

    /// Returns the user's RSP: where the way through the kernel stacks left to, or in the task's `pt_regs`,
    /// which are copied.
    fn user_rsp(
        &self,
        memory: &impl PhysicalMemory,
        top: Option<u64>,
        left: StackExit,
        into: &mut StackCopy,
    ) -> Option<u64> {
        into.pt_regs = top.and_then(|top| self.pt_regs(top));
        let place = into.pt_regs;
        let saved = place.and_then(|at| {
            let sp = at.checked_add(pt_regs::SP)?;
            if into.read_u64(sp).is_none() {
                let from = at.checked_sub(8)?;
                copy_pages(&self.kernel, memory, (from, at.checked_add(pt_regs::SIZE)?), into);
            }
            into.read_u64(sp)
        });
        match left {
            StackExit::User(rsp) => Some(rsp),
            StackExit::Kernel(_) => saved,
        }
    }

    /// Returns the page tables of a task that has user memory: with page-table isolation the kernel's, which
    /// map the program, too.
    fn user_root(&self, memory: &impl PhysicalMemory, task: u64) -> Option<u64> {
        let layout = self.layout.mm?;
        let mm = self.task_word(memory, task, layout.mm).filter(|&mm| is_kernel(mm))?;
        let pgd = self.task_word(memory, mm, layout.pgd).filter(|&pgd| is_kernel(pgd))?;
        self.tasks.translate(pgd).map(|root| root.0)
    }

    /// Returns the address of the user's registers on a task's stack.
    fn pt_regs(&self, top: u64) -> Option<u64> {
        top.checked_sub(self.padding + pt_regs::SIZE)
    }

    /// Copies the stack that `rsp` is on, from `below` bytes below it on, and those that it interrupted.
    fn copy_kernel(
        &self,
        memory: &impl PhysicalMemory,
        vcpu: usize,
        KernelStart { task, rsp, below }: KernelStart,
        into: &mut StackCopy,
    ) -> StackExit {
        let per_cpu = self.cpus.get(memory, vcpu);
        let mut at = rsp;
        for _ in 0..MAX_STACKS {
            if !is_kernel(at) {
                return StackExit::User(at);
            }
            let place = self.place(memory, per_cpu, task, at);
            let (StackPlace::Task(top)
            | StackPlace::Other(top)
            | StackPlace::Interrupt { top, .. }
            | StackPlace::Exception(top)) = place;
            // Not beyond the page: the one below may be missing, which is not a gap in the stack.
            let below = if at == rsp { below.min(at % PAGE) } else { 0 };
            if !copy_pages(&self.kernel, memory, (at - below, top), into) {
                into.gaps.kernel_not_present = !into.gaps.full;
                return StackExit::Kernel(None);
            }
            let next = match place {
                StackPlace::Task(top) | StackPlace::Other(top) => return StackExit::Kernel(Some(top)),
                StackPlace::Interrupt { link, .. } => into.read_u64(link),
                StackPlace::Exception(top) => interrupted_rsp(into, top),
            };
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        StackExit::Kernel(None)
    }

    fn place(
        &self,
        memory: &impl PhysicalMemory,
        per_cpu: Option<PerCpu>,
        task: Option<(u64, u64)>,
        at: u64,
    ) -> StackPlace {
        if let Some((start, top)) = task
            && (start..top).contains(&at)
        {
            return StackPlace::Task(top);
        }
        let other = StackPlace::Other((at | (self.layout.size - 1)).saturating_add(1));
        let Some(per_cpu) = per_cpu else {
            return other;
        };
        // Points after the topmost word until 5.11, to it since: the word is in the same page.
        let irq = per_cpu.irq_stack.and_then(|pointer| memory.read_u64(pointer)?.checked_add(8));
        if let Some(top) = irq.map(|above| above & !0xfff)
            && (top.saturating_sub(self.layout.irq_size)..top).contains(&at)
        {
            return StackPlace::Interrupt { top, link: top - 8 };
        }
        let mut tss = [0; TSS];
        if per_cpu.tss.and_then(|tss_at| memory.read(tss_at, &mut tss)).is_none() {
            return other;
        }
        let entry = (TSS_SP0, ENTRY_STACK);
        let exceptions = TSS_IST.map(|offset| (offset, MAX_EXCEPTION));
        let tops = std::iter::once(entry).chain(exceptions).filter_map(|(offset, size)| {
            let top = u64_at(&tss, offset)?;
            (top.saturating_sub(size)..top).contains(&at).then_some(top)
        });
        tops.min().map_or(other, StackPlace::Exception)
    }

    /// Returns the lowest address and top of a task's stack.
    fn task_stack(&self, memory: &impl PhysicalMemory, task: u64) -> Option<(u64, u64)> {
        let start = self.task_word(memory, task, self.layout.stack)?;
        let top = start.checked_add(self.layout.size)?;
        is_kernel(start).then_some((start, top))
    }

    /// Returns a word of a structure in the direct map.
    fn task_word(&self, memory: &impl PhysicalMemory, task: u64, offset: usize) -> Option<u64> {
        memory.read_u64(self.tasks.translate(task)?.checked_add(offset as u64)?)
    }

    /// Resolves the addresses; [`Missing::PerCpuNotReady`] and [`Missing::NoDirectMap`] while the kernel is
    /// booting.
    pub(crate) fn new<M: PhysicalMemory>(
        view: &View<'_, M>,
        symbols: &SymbolTable,
        layouts: &Layouts,
    ) -> Result<Self, Missing> {
        let layout = layouts.stack.clone()?;
        let symbol = |name: &str| symbols.address_of(name).ok_or_else(|| Missing::NoSymbol(name.into()));
        let tss = symbol("cpu_tss_rw")?;
        let irq_stack = symbols.address_of("hardirq_stack_ptr").or_else(|| {
            let offset = layouts.hot.as_ref()?.irq_stack?;
            Some(symbols.address_of("pcpu_hot")?.wrapping_add(offset as u64))
        });
        let areas = PerCpuAreas::new(view, symbols, symbol("__per_cpu_offset")?, tss)?;
        let cpus = areas.table(view, symbols, layouts, |base| {
            let at = |variable: u64| view.translate(base.wrapping_add(variable));
            Some(PerCpu { irq_stack: irq_stack.and_then(at), tss: at(tss) })
        });
        let fred = symbols.address_of("asm_fred_entrypoint_user").is_some();
        Ok(Self {
            cpus,
            layout,
            tasks: TaskAddresses::new(view, symbols, areas.first(tss)?)?,
            kernel: view.space,
            padding: if fred { FRED_PADDING } else { 0 },
            fork: FORK.map(|name| symbols.address_of(name).unwrap_or(u64::MAX)),
            entry: entry_code(symbols),
        })
    }
}

/// Returns the start and end of the code by which the kernel is entered and left (`.entry.text`); empty if
/// not known.
pub(crate) fn entry_code(symbols: &SymbolTable) -> (u64, u64) {
    let symbol = |name| symbols.address_of(name);
    symbol("__entry_text_start").zip(symbol("__entry_text_end")).unwrap_or_default()
}

/// See [`StackCopy::is_fetching`]: by the saved registers that are in `into`, and by CR2 where that is the
/// task's.
///
/// While a fault at an instruction is being resolved its page is not present; afterwards, on the way out of
/// the kernel, CR2 still has the address, or that of the next page for an instruction that reaches into it.
fn fetching(
    space: &AddressSpace,
    memory: &impl PhysicalMemory,
    cr2: Option<u64>,
    into: &StackCopy,
) -> Option<bool> {
    let word = |offset: u64| into.read_u64(into.pt_regs?.checked_add(offset)?);
    // Of an exception, all ones (`idtentry_body`, arch/x86/entry/entry_64.S).
    if word(pt_regs::ORIG_AX)? != u64::MAX {
        return None;
    }
    let rip = word(pt_regs::IRET).filter(|rip| !is_kernel(*rip))?;
    let next_page = (rip | (PAGE - 1)).checked_add(1)?;
    let at_fault = |cr2: u64| cr2 == rip || cr2 == next_page && next_page - rip < MAX_INSTRUCTION;
    Some(space.translate(memory, VirtAddr(rip)).is_none() || cr2.is_some_and(at_fault))
}

/// Returns true for the upper half of the address space.
fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

/// Copies what is present of the `bytes` of user stack at `rsp`. A page that is not there is left out: the
/// callers of a function with a large array that it has not touched are beyond it.
fn copy_user(
    space: &AddressSpace,
    memory: &impl PhysicalMemory,
    (rsp, bytes): (u64, usize),
    into: &mut StackCopy,
) {
    // A stack may end within the red zone of its lowest frame, which then uses none.
    let red = rsp.saturating_sub(RED_ZONE);
    let start = if space.translate(memory, VirtAddr(red)).is_some() { red } else { rsp };
    let end = start.saturating_add(bytes as u64);
    let mut at = start;
    while at < end {
        let next = (at | (PAGE - 1)).saturating_add(1).min(end);
        if !copy_pages(space, memory, (at, next), into) {
            if into.gaps.full {
                return;
            }
            into.gaps.user_not_present = true;
        }
        at = next;
    }
}

impl StackCopy {
    /// Adds what is present of the `bytes` at `start`, a part of the user stack that is not next to the one
    /// that was copied. Before any notes: these are forgotten. No allocation, bounded reads.
    pub fn add_user(
        &mut self,
        space: &AddressSpace,
        memory: &impl PhysicalMemory,
        (start, bytes): (VirtAddr, u64),
    ) {
        if is_kernel(start.0) || self.read_u64(start.0).is_some() {
            return;
        }
        let end = start.0.saturating_add(bytes);
        self.gaps.user_not_present |= !copy_pages(space, memory, (start.0, end), self);
    }
}

/// RSP in the iret frame that ends at `top`, if what is there is one.
fn interrupted_rsp(copy: &StackCopy, top: u64) -> Option<u64> {
    let frame = |offset: u64| copy.read_u64(top.checked_sub(pt_regs::SIZE - offset)?);
    SavedMode::from_code_segment(frame(pt_regs::CS)?)?;
    frame(pt_regs::SP)
}

/// Copies `start..end` page by page; false at the first page that is not present, or when `into` is full.
fn copy_pages(
    space: &AddressSpace,
    memory: &impl PhysicalMemory,
    (start, end): (u64, u64),
    into: &mut StackCopy,
) -> bool {
    let mut at = start;
    while at < end {
        let Some(page) = space.translate(memory, VirtAddr(at)) else {
            return false;
        };
        let left = page.page_size - (at & (page.page_size - 1));
        let Some(room) = into.room(at, index(left.min(end - at))) else {
            return false;
        };
        let len = room.len();
        if memory.read(page.phys, room).is_none() {
            return false;
        }
        into.keep(at, len);
        at = at.saturating_add(len as u64);
    }
    true
}
