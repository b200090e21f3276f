//! Copies out of a memory that is made by hand.

use proptest::prelude::*;

use super::reader::PerCpu;
use super::{SleepingTask, StackCopy, StackGaps, StackReader, StackSample};
use crate::current::TaskAddresses;
use crate::layout::{MmLayout, StackLayout};
use crate::memory::FlatMemory;
use crate::paging::AddressSpace;
use crate::per_cpu::CpuTable;
use crate::pt_regs;
use symbols::AddressKind;
use symbols::{PhysAddr, VirtAddr};
use symbols::{Registers, StackMemory};

/// Physical addresses: page tables of kernel and user, per-CPU variables, a task, and its stack.
const KERNEL: u64 = 0x1000;
const USER: u64 = 0x5000;
const IRQ_POINTER: u64 = 0x9000;
const TSS: u64 = 0x9100;
const TASK: u64 = 0x9800;
const MM: u64 = 0x9900;
const PAGES: u64 = 0x1_0000;
const RAM: usize = 0x4_0000;

/// Virtual addresses.
const DIRECT: u64 = 0xffff_8880_0000_0000;
const STACKS: u64 = 0xffff_c900_0000_0000;
const TOP: u64 = STACKS + 0x4000;
const IRQ_TOP: u64 = STACKS + 0x9000;
const ENTRY_TOP: u64 = STACKS + 0xb000;
const NMI_TOP: u64 = STACKS + 0xe000;
const USER_STACK: u64 = 0x7fff_ffff_8000;
/// The kernel's entry code.
pub(crate) const ENTRY: u64 = 0xffff_ffff_8108_0000;

/// A guest of one CPU: task stack at pages 0 to 3, interrupt stack at 5 to 8, entry stack at 10, NMI stack at
/// 12 and 13; user stack of five pages.
pub(crate) struct Guest {
    pub(crate) memory: FlatMemory<Vec<u8>>,
    pub(crate) reader: StackReader,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let tasks = TaskAddresses::from_parts(DIRECT, 0xffff_ffff_8200_0000, PhysAddr(0));
        let layout = StackLayout {
            stack: 0x10,
            saved_sp: 0x18,
            size: 0x4000,
            irq_size: 0x4000,
            saved_bp: 40,
            return_address: 48,
            mm: Some(MmLayout { mm: 0x20, pgd: 0x8 }),
        };
        let per_cpu = PerCpu { irq_stack: Some(PhysAddr(IRQ_POINTER)), tss: Some(PhysAddr(TSS)) };
        let reader = StackReader {
            cpus: CpuTable::from_known(vec![None, Some(per_cpu)]),
            layout,
            tasks,
            kernel: AddressSpace::new(KERNEL, false),
            padding: 0,
            fork: [1, 2],
            entry: (ENTRY, ENTRY + 0x1000),
        };
        let mut guest = Self { memory: FlatMemory(vec![0; RAM]), reader };
        for page in (0..4).chain(5..9).chain([10, 12, 13]) {
            guest.map(KERNEL, STACKS + page * 0x1000, PAGES + page * 0x1000);
        }
        for page in 0..5 {
            guest.map(USER, USER_STACK + page * 0x1000, PAGES + (16 + page) * 0x1000);
        }
        guest.put(IRQ_POINTER, IRQ_TOP - 8);
        guest.put(TSS + 4, ENTRY_TOP);
        guest.put(TSS + 44, NMI_TOP);
        guest.put(TASK + 0x10, STACKS);
        guest
    }

    fn put(&mut self, at: u64, value: u64) {
        let at = symbols::bytes::index(at);
        self.memory.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns a word of a kernel stack.
    fn put_stack(&mut self, at: u64, value: u64) {
        self.put(at - STACKS + PAGES, value);
    }

    /// The tables of a space follow each other, from its root.
    fn map(&mut self, root: u64, virt: u64, phys: u64) {
        let mut table = root;
        for shift in [39, 30, 21] {
            self.put(table + ((virt >> shift) & 511) * 8, (table + 0x1000) | 7);
            table += 0x1000;
        }
        self.put(table + ((virt >> 12) & 511) * 8, phys | 7);
    }

    /// Copies with RSP `depth` bytes below the top of the task's stack.
    pub(crate) fn copy_at(&self, rip: u64, cpl: u8, depth: u64, into: &mut StackCopy) {
        self.copy_in(USER, (rip, cpl, TOP - depth), false, into);
    }

    /// Copies in entry code, at `rip`, with RSP `depth` bytes below the top of the stack that the processor
    /// enters the kernel on.
    pub(crate) fn copy_on_entry_stack(&mut self, rip: u64, depth: u64, into: &mut StackCopy) {
        self.put_stack(ENTRY_TOP - 32, 0x33);
        self.put_stack(ENTRY_TOP - 16, USER_STACK + 0x4900);
        self.copy_in(USER, (rip, 0, ENTRY_TOP - depth), false, into);
    }

    /// Puts a word `depth` bytes below the top of the task's stack.
    pub(crate) fn put_below_top(&mut self, depth: u64, value: u64) {
        self.put_stack(TOP - depth, value);
    }

    pub(crate) fn copy(&self, cpl: u8, rsp: u64, kernel_thread: bool, into: &mut StackCopy) {
        self.copy_in(USER, (0x1234, cpl, rsp), kernel_thread, into);
    }

    fn copy_in(&self, cr3: u64, (rip, cpl, rsp): (u64, u8, u64), kernel_thread: bool, into: &mut StackCopy) {
        let mut registers = Registers { rip, ..Registers::default() };
        registers.gpr[Registers::RSP] = rsp;
        let sample = StackSample {
            registers: &registers,
            cpl,
            cr3,
            cr2: 0,
            five_level: false,
            task: Some(DIRECT + TASK),
            kernel_thread,
            user_bytes: 0x4000,
        };
        self.reader.copy(&self.memory, 1, &sample, into);
    }

    fn copied(&self, cpl: u8, rsp: u64, kernel_thread: bool) -> StackCopy {
        let mut copy = StackCopy::new();
        self.copy(cpl, rsp, kernel_thread, &mut copy);
        copy
    }

    /// Puts the user's registers on top of the task's stack.
    pub(crate) fn enter_kernel(&mut self) {
        let at = TOP - pt_regs::SIZE;
        self.put_stack(at + pt_regs::IRET, 0x40_1000);
        self.put_stack(at + pt_regs::CS, 0x33);
        self.put_stack(at + pt_regs::SP, USER_STACK + 0x4800);
    }
}

impl Guest {
    /// Lets the task sleep in the kernel, with user memory.
    pub(crate) fn fall_asleep(&mut self) {
        self.enter_kernel();
        self.put(TASK + 0x18, TOP - 0x400);
        self.put(TASK + 0x20, DIRECT + MM);
        self.put(MM + 8, DIRECT + USER);
    }

    /// Copies the stacks of the task that sleeps.
    pub(crate) fn sleeping(&self, into: &mut StackCopy) -> Option<()> {
        self.reader.copy_sleeping(&self.memory, asleep(false), 0x4000, into)
    }
}

fn segments(copy: &StackCopy) -> Vec<(u64, usize)> {
    copy.segments().map(|(start, bytes)| (start, bytes.len())).collect()
}

const NO_MORE_USER_PAGES: StackGaps =
    StackGaps { user_not_present: true, kernel_not_present: false, full: false };

#[test]
fn a_user_stack_starts_with_its_red_zone_and_ends_where_no_page_is() {
    let mut guest = Guest::new();
    guest.put(PAGES + 0x14_800 - 128, 77);
    let copy = guest.copied(3, USER_STACK + 0x4800, false);
    assert_eq!(segments(&copy), [(USER_STACK + 0x4780, 0x880)]);
    assert_eq!(copy.gaps(), NO_MORE_USER_PAGES);
    assert_eq!(copy.read_u64(USER_STACK + 0x4780), Some(77));
    assert_eq!(copy.read_u64(USER_STACK + 0x4ff9), None);
    assert_eq!(copy.task_pt_regs().map(|user| user.registers.rip), Some(0x1234));
    // A red zone that is below the stack's lowest page.
    let copy = guest.copied(3, USER_STACK + 64, false);
    assert_eq!(segments(&copy), [(USER_STACK + 64, 0x4000)]);
    // To the limit, then.
    let copy = guest.copied(3, USER_STACK + 128, false);
    assert_eq!((segments(&copy), copy.gaps()), (vec![(USER_STACK, 0x4000)], StackGaps::default()));
}

#[test]
fn another_part_of_a_user_stack_may_be_added() {
    let mut guest = Guest::new();
    guest.put(PAGES + 0x12_010, 77);
    let mut copy = guest.copied(3, USER_STACK + 0x4800, false);
    copy.gaps = StackGaps::default();
    let space = AddressSpace::new(USER, false);
    copy.add_user(&space, &guest.memory, (VirtAddr(USER_STACK + 0x1ff0), 0x100));
    let expected = [(USER_STACK + 0x4780, 0x880), (USER_STACK + 0x1ff0, 0x100)];
    assert_eq!((segments(&copy), copy.gaps()), (expected.to_vec(), StackGaps::default()));
    assert_eq!(copy.read_u64(USER_STACK + 0x2010), Some(77));
    for (start, what) in [(USER_STACK + 0x4800, "copied already"), (TOP - 0x100, "the kernel's")] {
        copy.add_user(&space, &guest.memory, (VirtAddr(start), 0x100));
        assert_eq!(segments(&copy), expected, "{what}");
    }
    copy.add_user(&space, &guest.memory, (VirtAddr(USER_STACK + 0x5000), 0x1000));
    assert_eq!((segments(&copy), copy.gaps()), (expected.to_vec(), NO_MORE_USER_PAGES));
    assert!(copy.note(5) && copy.notes().eq([5]));
}

#[test]
fn a_hole_in_a_user_stack_is_left_out() {
    let mut guest = Guest::new();
    // The second page, and one that is outside of the guest's memory.
    for (page, entry) in [(1, 0), (3, 0x80_0000_0007)] {
        guest.put(USER + 0x3000 + ((USER_STACK + page * 0x1000) >> 12 & 511) * 8, entry);
    }
    guest.put(PAGES + 0x12_000, 42);
    guest.put(PAGES + 0x14_010, 77);
    let copy = guest.copied(3, USER_STACK + 0x880, false);
    let expected = [(USER_STACK + 0x800, 0x800), (USER_STACK + 0x2000, 0x1000), (USER_STACK + 0x4000, 0x800)];
    assert_eq!(segments(&copy), expected);
    assert_eq!(copy.gaps(), NO_MORE_USER_PAGES);
    let words =
        [0x1000, 0xffc, 0x1ff8, 0x1ffc, 0x2000, 0x3000, 0x4010].map(|at| copy.read_u64(USER_STACK + at));
    assert_eq!(words, [None, None, None, None, Some(42), None, Some(77)]);
}

#[test]
fn a_system_call_has_both_stacks() {
    let mut guest = Guest::new();
    guest.enter_kernel();
    let copy = guest.copied(0, TOP - 0x200, false);
    assert_eq!(segments(&copy), [(TOP - 0x200, 0x200), (USER_STACK + 0x4780, 0x880)]);
    assert_eq!(copy.gaps(), NO_MORE_USER_PAGES);
    let user = copy.task_pt_regs().expect("registers");
    assert_eq!((user.registers.rip, user.registers.rsp()), (0x40_1000, USER_STACK + 0x4800));
    // A kernel thread has no user stack, whatever is there.
    let copy = guest.copied(0, TOP - 0x200, true);
    assert_eq!((segments(&copy), copy.task_pt_regs()), (vec![(TOP - 0x200, 0x200)], None));
}

#[test]
fn stacks_are_followed_to_those_that_they_interrupted() {
    let mut guest = Guest::new();
    guest.enter_kernel();
    guest.put_stack(IRQ_TOP - 8, TOP - 0x300);
    // An NMI came while an interrupt was handled.
    guest.put_stack(NMI_TOP - 32, 0x10);
    guest.put_stack(NMI_TOP - 16, IRQ_TOP - 0x100);
    let copy = guest.copied(0, NMI_TOP - 0x80, false);
    let expected = [
        (NMI_TOP - 0x80, 0x80),
        (IRQ_TOP - 0x100, 0x100),
        (TOP - 0x300, 0x300),
        (USER_STACK + 0x4780, 0x880),
    ];
    assert_eq!(segments(&copy), expected);
    // Until 5.11 the pointer was to the end.
    guest.put(IRQ_POINTER, IRQ_TOP);
    assert_eq!(segments(&guest.copied(0, NMI_TOP - 0x80, false)), expected);
}

#[test]
fn an_entry_stack_leads_to_user_mode() {
    let mut guest = Guest::new();
    guest.put_stack(ENTRY_TOP - 32, 0x33);
    guest.put_stack(ENTRY_TOP - 16, USER_STACK + 0x4900);
    let copy = guest.copied(0, ENTRY_TOP - 40, false);
    let regs = (TOP - pt_regs::SIZE - 8, symbols::bytes::index(pt_regs::SIZE + 8));
    assert_eq!(segments(&copy), [(ENTRY_TOP - 40, 40), regs, (USER_STACK + 0x4880, 0x780)]);
    // Without an iret frame there, by what is saved on the task's stack.
    guest.enter_kernel();
    guest.put_stack(ENTRY_TOP - 32, 0x7ff0);
    let copy = guest.copied(0, ENTRY_TOP - 40, false);
    assert_eq!(segments(&copy)[2], (USER_STACK + 0x4780, 0x880));
    // The first instructions of a system call are still on the user's.
    let copy = guest.copied(0, USER_STACK + 0x4900, false);
    assert_eq!(segments(&copy), [regs, (USER_STACK + 0x4880, 0x780)]);
}

#[test]
fn while_the_kernel_switches_a_user_stack_is_found_by_its_own_tables() {
    let mut guest = Guest::new();
    guest.enter_kernel();
    guest.put(TASK + 0x20, DIRECT + MM);
    guest.put(MM + 8, DIRECT + USER);
    let switching = |guest: &Guest, rsp: u64| {
        let mut copy = StackCopy::new();
        guest.copy_in(KERNEL, (0x1234, 0, rsp), false, &mut copy);
        (segments(&copy).last().copied(), copy.user_root())
    };
    // CR3 is the next task's, which has no such stack.
    let own = Some((USER_STACK + 0x4780, 0x880));
    assert_eq!(switching(&guest, TOP - 0x200), (own, Some(USER)));
    // The stack is the next task's, too: whose user stack that is, is not known.
    for page in 16..20 {
        guest.map(KERNEL, STACKS + page * 0x1000, PAGES + (page + 6) * 0x1000);
    }
    let (_, root) = switching(&guest, STACKS + 0x1_0100);
    assert_eq!(root, None);
    // What leads nowhere is not followed.
    for (at, value) in [(MM + 8, 0x1000), (MM + 8, DIRECT + 3), (TASK + 0x20, 0), (TASK + 0x20, u64::MAX - 7)]
    {
        guest.put(at, value);
        assert_eq!(switching(&guest, TOP - 0x200).1, Some(KERNEL), "{at:x} {value:x}");
    }
}

#[test]
fn what_is_not_mapped_is_told() {
    let guest = Guest::new();
    let copy = guest.copied(0, STACKS + 0x10_0000, true);
    assert!(copy.is_empty() && copy.gaps().kernel_not_present);
    let mut copy = StackCopy::new();
    let big = vec![1; StackCopy::BYTES - 8];
    copy.room(0x1000, big.len()).expect("room").copy_from_slice(&big);
    copy.keep(0x1000, big.len());
    assert_eq!(copy.room(0x1000 + big.len() as u64, 100).map(|room| room.len()), Some(8));
    assert!(!copy.gaps().full);
    copy.keep(0x1000 + big.len() as u64, 8);
    assert_eq!(copy.room(0, 1), None);
    assert!(copy.gaps().full);
    copy.clear();
    assert_eq!((copy.len(), copy.gaps()), (0, StackGaps::default()));
}

#[test]
fn a_task_that_sleeps_goes_on_where_it_called() {
    let mut guest = Guest::new();
    guest.enter_kernel();
    let sp = TOP - 0x400;
    guest.put(TASK + 0x18, sp);
    guest.put_stack(sp + 40, 0xb9);
    guest.put_stack(sp + 48, 0xadd);
    let mut copy = StackCopy::new();
    let task = asleep(false);
    guest.reader.copy_sleeping(&guest.memory, task, 0, &mut copy).expect("a stack");
    assert_eq!((copy.registers().rip, copy.first()), (0xadd, AddressKind::Return));
    assert_eq!((copy.registers().rsp(), copy.registers().rbp()), (sp + 56, 0xb9));
    assert_eq!((segments(&copy), copy.task_pt_regs().is_some()), (vec![(sp, 0x400)], true));
    // One that has never run.
    guest.put_stack(sp + 48, 2);
    guest.reader.copy_sleeping(&guest.memory, task, 0, &mut copy).expect("a stack");
    assert_eq!(copy.first(), AddressKind::Exact);
    guest.put(TASK + 0x18, TOP);
    assert_eq!(guest.reader.copy_sleeping(&guest.memory, task, 0, &mut copy), None);
}

#[test]
fn a_fault_at_the_next_instruction_is_seen_by_its_page() {
    const RIP: u64 = 0x40_1000;
    let mut guest = Guest::new();
    guest.fall_asleep();
    let mut copy = StackCopy::new();
    let mut sleeping = |guest: &Guest| {
        guest.sleeping(&mut copy).expect("a stack");
        copy.is_fetching()
    };
    assert_eq!(sleeping(&guest), None, "in a system call");
    let saved = TOP - pt_regs::SIZE;
    guest.put_stack(saved + pt_regs::ORIG_AX, u64::MAX);
    assert_eq!(sleeping(&guest), Some(true));
    // Without a user stack, as a scan copies, too.
    let mut small = StackCopy::new();
    guest.reader.copy_sleeping(&guest.memory, asleep(false), 0, &mut small).expect("a stack");
    assert_eq!((small.is_fetching(), small.user_root()), (Some(true), None));
    // Tables after those of the stack.
    let tables = USER + 0x3000;
    guest.put(tables + ((USER_STACK + 0x5000) >> 12 & 511) * 8, (PAGES + 0x2_0000) | 7);
    guest.put_stack(saved + pt_regs::IRET, USER_STACK + 0x5ff8);
    assert_eq!(sleeping(&guest), Some(false));
    let mut sampled_at = |guest: &Guest, rsp: u64, cr2: u64| {
        let mut registers = Registers::default();
        registers.gpr[Registers::RSP] = rsp;
        let task = Some(DIRECT + TASK);
        let (cpl, cr3, five_level, kernel_thread, user_bytes) = (0, USER, false, false, 0);
        let registers = &registers;
        let sample = StackSample { registers, cpl, cr3, cr2, five_level, task, kernel_thread, user_bytes };
        guest.reader.copy(&guest.memory, 1, &sample, &mut small);
        small.is_fetching()
    };
    // Saved by an earlier entry: this one is still on the entry stack, or pushes its own.
    for rsp in [ENTRY_TOP - 40, TOP - 8] {
        assert_eq!(sampled_at(&guest, rsp, 0), None, "{rsp:x}");
    }
    let mut sampled = |guest: &Guest, cr2: u64| sampled_at(guest, TOP - 0x200, cr2);
    // Its page is there by now; the processor's register still says where it has faulted.
    for (cr2, fetching) in [(0x5ff8, true), (0x6000, true), (0x5000, false), (0x6001, false)] {
        assert_eq!(sampled(&guest, USER_STACK + cr2), Some(fetching), "{cr2:x}");
    }
    guest.put_stack(saved + pt_regs::IRET, USER_STACK + 0x5100);
    assert_eq!(sampled(&guest, USER_STACK + 0x6000), Some(false), "no instruction is that long");
    guest.put_stack(saved + pt_regs::IRET, RIP);
    assert_eq!(sampled(&guest, 0), Some(true));
    guest.put_stack(saved + pt_regs::IRET, u64::MAX);
    assert_eq!(sampled(&guest, 0), None);
}

#[test]
fn a_program_that_sleeps_has_its_own_stack_whatever_runs() {
    let mut guest = Guest::new();
    guest.enter_kernel();
    let sp = TOP - 0x400;
    guest.put(TASK + 0x18, sp);
    let mut copy = StackCopy::with_room(0x400 + 0x200);
    let mut copied = |guest: &Guest, kernel_thread, bytes| {
        guest.reader.copy_sleeping(&guest.memory, asleep(kernel_thread), bytes, &mut copy).expect("a stack");
        (segments(&copy), copy.user_root(), copy.gaps().full)
    };
    let kernel = (sp, 0x400);
    assert_eq!(copied(&guest, false, 0x100), (vec![kernel], None, false), "it has left its memory");
    guest.put(TASK + 0x20, DIRECT + MM);
    guest.put(MM + 8, DIRECT + USER);
    let user = USER_STACK + 0x4780;
    assert_eq!(copied(&guest, false, 0x100), (vec![kernel, (user, 0x100)], Some(USER), false));
    assert_eq!(
        copied(&guest, false, 0x1000),
        (vec![kernel, (user, 0x200)], Some(USER), true),
        "no more room"
    );
    assert_eq!(copied(&guest, false, 0), (vec![kernel], None, false));
    assert_eq!(copied(&guest, true, 0x100), (vec![kernel], None, false));
}

proptest! {
    #[test]
    fn hostile_guests_never_panic(
        hits in prop::collection::vec(
            (0usize..RAM / 8, prop_oneof![
                any::<u64>(), (0u64..0xf000).prop_map(|o| STACKS + o), (0u64..0x40).prop_map(|p| p << 12 | 0x87),
            ]), 0..60),
        places in prop::collection::vec((prop::sample::select(vec![
            IRQ_POINTER, TSS + 4, TSS + 36, TSS + 44, TASK + 0x10, TASK + 0x18,
        ]), any::<u64>()), 0..3),
        rsp in prop_oneof![any::<u64>(), (0u64..0xf000).prop_map(|o| STACKS + o), Just(u64::MAX), Just(1 << 63)],
        cpl in prop::sample::select(vec![0u8, 3]),
        kernel_thread: bool,
    ) {
        let mut guest = Guest::new();
        guest.enter_kernel();
        for (word, value) in hits {
            guest.put(word as u64 * 8, value);
        }
        for (at, value) in places {
            guest.put(at, value);
        }
        let mut copy = guest.copied(cpl, rsp, kernel_thread);
        prop_assert!(copy.len() <= StackCopy::BYTES);
        let _ = (copy.task_pt_regs(), copy.entry_registers());
        for (start, bytes) in copy.segments() {
            prop_assert!(bytes.len() < 8 || copy.read_u64(start).is_some());
        }
        let _ = guest.reader.copy_sleeping(&guest.memory, asleep(kernel_thread), 0x4000, &mut copy);
        prop_assert!(copy.len() <= StackCopy::BYTES);
    }
}

fn asleep(kernel_thread: bool) -> SleepingTask {
    SleepingTask { task: VirtAddr(DIRECT + TASK), kernel_thread }
}
