//! Comparison of the program's copies of a guest with what a sample reads: the program's source runs as an
//! ordinary program (attach/bpf/harness.c).

mod copies;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest_linux::fixture::{Config, Guest, Style};
use guest_linux::{
    FlatMemory, Kernel, PhysAddr, PhysicalMemory, SampleReads, StackCopy, StackReader, StackSample, VirtAddr,
};
use symbols::{Registers, StackMemory};
use vmm::KnownRegisters;

use super::area::{RecordView, anonymous};
use super::notes::ExitNote;
use super::partial::complete;
use super::shared::{
    ABSENT, BUCKETS, NO_RIP, PARTIAL, RawNote, RawOptions, RawPlan, RawRecord, RawSlot, RawState, RawTarget,
    VENDOR_VMX,
};
use super::target::guest as raw_guest;

/// Address in the "VMM" of the guest's memory (HOST in harness.c).
const HOST: u64 = 0x1000_0000_0000;
/// Lowest address of the user stack, of six pages of which the fourth is missing.
const USER: u64 = 0x7ffc_1234_5000;
const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;
/// Bytes that are added to the guest's memory, for page tables and the user stack.
const MORE: u64 = 1 << 20;
/// Offsets in pt_regs (arch/x86/include/asm/ptrace.h).
const PT_REGS: u64 = 168;
const ORIG_AX: u64 = 120;
const IP: u64 = 128;
const CS: u64 = 136;
const SP: u64 = 152;

/// Directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vprof-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _busy = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles the program's source with the harness.
fn compile(directory: &Path) -> PathBuf {
    let harness = directory.join("harness");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf/harness.c");
    let status = Command::new("cc").args(["-O1", "-w", "-o"]).arg(&harness).arg(source).status().unwrap();
    assert!(status.success());
    harness
}

/// A guest with a program that has a user stack.
struct TestGuest {
    guest: Guest,
    kernel: Kernel,
    reads: SampleReads,
    /// Page tables of the program.
    user_root: u64,
    /// Start of the free memory.
    free: u64,
}

impl TestGuest {
    fn new(style: Style) -> Self {
        let mut config = Config::new(style);
        config.running = vec![100, 102];
        let mut guest = config.build();
        let free = guest.memory.0.len() as u64;
        guest.memory.0.resize(usize::try_from(free + MORE).unwrap(), 0);
        let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).unwrap();
        let reads = kernel.sample_reads(&guest.memory, &[0]).unwrap().remove(0).unwrap();
        let mut guest = Self { guest, kernel, reads, user_root: 0, free };
        let (mm_at, pgd_at) = guest.reads.page_tables.unwrap();
        let task = guest.direct(guest.word(guest.reads.current_task.0));
        let mm = guest.direct(guest.word(task + mm_at as u64));
        guest.user_root = guest.direct(guest.word(mm + pgd_at as u64));
        for page in [0, 1, 2, 4, 5] {
            let phys = guest.take_page();
            guest.map(USER + page * PAGE, phys);
            for at in (0..PAGE).step_by(8) {
                guest.put(phys + at, (page << 32 | at) ^ 0x5555);
            }
        }
        let (start, top) = guest.stack();
        for at in (start..top).step_by(8) {
            guest.put(guest.direct(at), at ^ 0xaaaa);
        }
        guest
    }

    fn direct(&self, virt: u64) -> u64 {
        virt - self.reads.direct_map
    }

    fn word(&self, phys: u64) -> u64 {
        self.guest.memory.read_u64(PhysAddr(phys)).unwrap()
    }

    fn put(&mut self, phys: u64, value: u64) {
        self.guest.put(PhysAddr(phys), &value.to_le_bytes());
    }

    fn take_page(&mut self) -> u64 {
        self.free += PAGE;
        self.free - PAGE
    }

    /// Maps a page of the program.
    fn map(&mut self, virt: u64, phys: u64) {
        let shifts: &[u32] = if self.guest.five_level { &[48, 39, 30, 21] } else { &[39, 30, 21] };
        let mut table = self.user_root;
        for shift in shifts {
            let entry = table + (virt >> shift & 511) * 8;
            if self.word(entry) & 1 == 0 {
                let next = self.take_page();
                self.put(entry, next | 7);
            }
            table = self.word(entry) & 0x000f_ffff_ffff_f000;
        }
        self.put(table + (virt >> 12 & 511) * 8, phys | 7);
    }

    /// Maps the large page of the program that contains an address; fills 16 pages from there on.
    fn map_large(&mut self, virt: u64) {
        let phys = (self.guest.memory.0.len() as u64).next_multiple_of(LARGE_PAGE);
        self.guest.memory.0.resize(usize::try_from(phys + LARGE_PAGE).unwrap(), 0);
        let shifts: &[u32] = if self.guest.five_level { &[48, 39, 30] } else { &[39, 30] };
        let table = shifts.iter().fold(self.user_root, |table, shift| {
            self.word(table + (virt >> shift & 511) * 8) & 0x000f_ffff_ffff_f000
        });
        self.put(table + (virt >> 21 & 511) * 8, phys | 0x87);
        let first = phys + virt % LARGE_PAGE;
        for at in (first..first + 16 * PAGE).step_by(8) {
            self.put(at, at ^ 0x3333);
        }
    }

    /// Returns start and top of the current task's stack.
    fn stack(&self) -> (u64, u64) {
        let task = self.direct(self.word(self.reads.current_task.0));
        let start = self.word(task + self.reads.task_stack as u64);
        (start, start + self.reads.stack_bytes)
    }

    /// Puts a word of the registers that are saved at the top of the current task's stack.
    fn save(&mut self, offset: u64, value: u64) {
        let at = self.stack().1 - self.reads.padding - PT_REGS + offset;
        self.put(self.direct(at), value);
    }

    /// Adds an interrupt stack of 16 KiB, on which the vCPU came from `rsp`. Returns its top.
    fn add_irq_stack(&mut self, rsp: u64) -> u64 {
        self.free = self.free.next_multiple_of(4 * PAGE);
        let top = self.reads.direct_map + self.free + 4 * PAGE;
        for at in (self.free..self.free + 4 * PAGE).step_by(8) {
            self.put(at, at ^ 0x7777);
        }
        self.free += 4 * PAGE;
        self.put(self.reads.irq_stack.unwrap().0, top - 8);
        self.put(self.direct(top) - 8, rsp);
        top
    }

    /// Returns the top of the interrupt stack; 0 if there is none.
    fn irq_top(&self) -> u64 {
        self.reads.irq_stack.map_or(0, |at| (self.word(at.0) + 8) & !(PAGE - 1))
    }

    fn target(&self) -> RawTarget {
        let mut target = RawTarget { slots: 1, guest: raw_guest(&self.reads), ..RawTarget::default() };
        target.slot[0] = RawSlot { guest: 0, bytes: self.guest.memory.0.len() as u64, host: HOST };
        target
    }

    fn state(&self, cpl: u32, rsp: u64) -> RawState {
        let cr3 = if cpl == 3 { self.user_root } else { self.guest.cr3 };
        let cr4 = u64::from(self.guest.five_level) << 12;
        let mut state =
            RawState { cpl, cr3, cr4, efer: 0x500, rip: self.guest.text(0x1404).0, ..RawState::default() };
        state.gpr[4] = rsp;
        state
    }

    /// Compares a record of the program with the memory.
    fn check(&self, state: &RawState, record: &[u8]) {
        let area = anonymous(record);
        let copied = Copied(RecordView::new(&area, 0).unwrap());
        let memory = &self.guest.memory;
        let current = self.kernel.current_reader(memory).unwrap();
        let found = current.read(memory, 0).unwrap();
        assert_eq!(current.read(&copied, 0), Some(found), "the current task");
        if state.cpl != 3 {
            let identity = self.kernel.identity().unwrap();
            assert!(identity.is_mapped(&copied, state.cr3, self.guest.five_level), "the kernel is mapped");
        }
        let reader = self.kernel.stack_reader(memory).unwrap();
        let (expected, own) = (
            self.stacks(&reader, memory, state, found.task),
            self.stacks(&reader, &copied, state, found.task),
        );
        assert_eq!((own.gaps(), own.user_root()), (expected.gaps(), expected.user_root()), "{state:x?}");
        assert_eq!(own.is_fetching(), expected.is_fetching(), "{state:x?}");
        let (start, top) = self.stack();
        let mut words = 0;
        for at in (start..top).chain(USER..USER + 16 * PAGE).step_by(8) {
            assert_eq!(own.read_u64(at), expected.read_u64(at), "at {at:#x}: {state:x?}");
            words += usize::from(own.read_u64(at).is_some());
        }
        assert!(words > 10, "{words} words: {state:x?}");
        let irq_top = self.irq_top();
        for at in (irq_top.saturating_sub(0x4000)..irq_top).step_by(8) {
            assert_eq!(own.read_u64(at), expected.read_u64(at), "at {at:#x}: {state:x?}");
        }
    }

    fn stacks(
        &self,
        reader: &StackReader,
        memory: &impl PhysicalMemory,
        state: &RawState,
        task: Option<guest_linux::TaskSnapshot>,
    ) -> StackCopy {
        let mut registers = Registers { rip: state.rip, ..Registers::default() };
        registers.gpr[Registers::RSP] = state.gpr[4];
        let sample = StackSample {
            registers: &registers,
            cpl: u8::try_from(state.cpl).unwrap(),
            cr3: state.cr3,
            cr2: 0,
            five_level: self.guest.five_level,
            task: task.map(|task| task.task),
            kernel_thread: false,
            user_bytes: StackReader::USER_BYTES,
        };
        let mut copy = StackCopy::new();
        reader.copy(memory, 0, &sample, &mut copy);
        copy
    }
}

/// Memory that the program has copied.
struct Copied<'a>(RecordView<'a>);

impl PhysicalMemory for Copied<'_> {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        self.0.read(at, into)
    }
}

/// Returns the bytes of plain data.
fn bytes<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the structures have no padding, and live as long as the result.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Runs the program in each of the states, without plans; returns the records.
fn run(
    harness: &Path,
    directory: &Path,
    memory: &FlatMemory<Vec<u8>>,
    cases: &[(RawTarget, RawState)],
) -> Vec<u8> {
    run_with(harness, directory, memory, &without_plans(cases), None)
}

fn without_plans(cases: &[(RawTarget, RawState)]) -> Vec<(RawTarget, RawState, RawPlan)> {
    cases.iter().map(|(target, state)| (*target, *state, RawPlan::default())).collect()
}

/// Runs the program in each of the states; with an argument, returns notes of exits instead of records.
fn run_with(
    harness: &Path,
    directory: &Path,
    memory: &FlatMemory<Vec<u8>>,
    cases: &[(RawTarget, RawState, RawPlan)],
    notes: Option<&str>,
) -> Vec<u8> {
    let file = directory.join("memory");
    std::fs::write(&file, &memory.0).unwrap();
    let mut command = Command::new(harness);
    command.arg(&file).args(notes).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let case = |(target, state, plan): &(_, _, _)| {
        [bytes::<RawTarget>(target), bytes::<RawState>(state), bytes::<RawPlan>(plan)].concat()
    };
    let cases: Vec<u8> = cases.iter().flat_map(case).collect();
    let writer = std::thread::spawn(move || input.write_all(&cases));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn the_program_copies_all_that_a_sample_reads() {
    let directory = Directory::new("copies");
    let harness = compile(&directory.0);
    for style in [Style::V6_1, Style::V6_12, Style::V6_15] {
        for exception in [false, true] {
            let mut guest = TestGuest::new(style);
            guest.save(SP, USER + 0x1238);
            guest.save(CS, 0x33);
            guest.save(IP, USER + 5);
            guest.save(ORIG_AX, if exception { u64::MAX } else { 7 });
            let (start, top) = guest.stack();
            let mut states = Vec::new();
            for depth in [PT_REGS, 256, 0x800, 0x1008, 0x3000, 0x3ff8] {
                states.push(guest.state(0, top - guest.reads.padding - depth));
            }
            states.push(guest.state(0, start));
            // An interrupt of the kernel's code, and one whose stack leads nowhere.
            let irq_top = guest.add_irq_stack(top - 0x900);
            states.extend([8, 0x10, 0x1800, 0x4000].map(|depth| guest.state(0, irq_top - depth)));
            // A stack of no known kind, which ends where the kernel maps nothing.
            states.push(guest.state(0, guest.reads.direct_map + guest.free - 0x100));
            for rsp in [USER, USER + 64, USER + 0x1ff8, USER + 0x2800, USER + 0x5f00] {
                states.push(guest.state(3, rsp));
            }
            let cases: Vec<_> = states.iter().map(|state| (guest.target(), *state)).collect();
            let records = run(&harness, &directory.0, &guest.guest.memory, &cases);
            assert_eq!(records.len(), cases.len() * size_of::<RawRecord>());
            for (state, record) in states.iter().zip(records.chunks_exact(size_of::<RawRecord>())) {
                guest.check(state, record);
                assert_eq!(missing(record), 0, "the host has all of its memory: {state:x?}");
            }
        }
    }
}

/// Offsets in the vCPU of the test of its registers.
const REGS: u32 = 0x100;
const AVAILABLE: u32 = 0x80;
const CONTROL: u32 = 0x400;

/// Returns the registers that the program has of a vCPU whose KVM has the registers with these bits.
fn partial_registers(harness: &Path, directory: &Path, available: u32) -> RawState {
    let mut memory = vec![0; 8192];
    let mut put = |at: u32, value: u64| {
        let at = usize::try_from(at).unwrap();
        memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    (0..17).for_each(|register| put(REGS + register * 8, 0x1000 + u64::from(register)));
    (0..5).for_each(|register| put(CONTROL + register * 8, 0x2000 + u64::from(register)));
    put(AVAILABLE, u64::from(available) | 0x5555_5555_0000_0000);
    let options = RawOptions {
        vendor: VENDOR_VMX,
        partial: 1,
        vcpu_regs: REGS,
        vcpu_rip: REGS + 16 * 8,
        vcpu_available: AVAILABLE,
        rip_available: 1 << 16,
        vcpu_cr0: CONTROL,
        vcpu_cr2: CONTROL + 8,
        vcpu_cr3: CONTROL + 16,
        vcpu_cr4: CONTROL + 24,
        vcpu_efer: CONTROL + 32,
        vcpu_nested: ABSENT,
        ..RawOptions::default()
    };
    let file = directory.join("vcpu");
    std::fs::write(&file, &memory).unwrap();
    let mut command = Command::new(harness);
    command.arg(&file).arg("registers").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes(&options)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    state(&output.stdout)
}

#[test]
fn a_register_that_is_not_available_is_not_used() {
    let directory = Directory::new("partial");
    let harness = compile(&directory.0);
    // All bits but that of RIP, and no other bit than that.
    for (available, rip) in [(!(1 << 16), 0), (0, 0), (1 << 16, 0x1010), (u32::MAX, 0x1010)] {
        let found = partial_registers(&harness, &directory.0, available);
        let registers = if rip == 0 { NO_RIP } else { PARTIAL };
        assert_eq!((found.registers, found.rip), (registers, rip), "{available:#x}");
        let others = (found.gpr[4], found.cr3, found.rflags, found.cpl, found.code_base, found.code_64_bit);
        assert_eq!(others, (0, 0, 0, 0, 0, 0), "{available:#x}");
        assert_eq!((found.gpr[0], found.gpr[15], found.cr4, found.efer), (0x1000, 0x100f, 0x2003, 0x2004));
    }
}

#[test]
fn a_sample_with_some_registers_has_the_current_process() {
    let directory = Directory::new("flat");
    let harness = compile(&directory.0);
    for style in [Style::V6_1, Style::V6_12, Style::V6_15] {
        let guest = TestGuest::new(style);
        let flat = |rip, registers| RawState { rip, registers, cr3: 0, cpl: 0, ..guest.state(3, 0) };
        let kernel = guest.guest.text(0x1404).0;
        // The fourth page is missing.
        let rips = [(kernel, PARTIAL), (USER + 5, PARTIAL), (USER + 3 * PAGE, PARTIAL), (0, NO_RIP)];
        let states = rips.map(|(rip, registers)| flat(rip, registers));
        let cases = states.map(|state| (guest.target(), state));
        let records = run(&harness, &directory.0, &guest.guest.memory, &cases);
        let memory = &guest.guest.memory;
        let current = guest.kernel.current_reader(memory).unwrap();
        let raw = raw_guest(&guest.reads);
        let expected = [
            (KnownRegisters::Code, 0),
            (KnownRegisters::Code, 3),
            (KnownRegisters::Task, 0),
            (KnownRegisters::Task, 0),
        ];
        for ((state, record), (known, level)) in
            states.iter().zip(records.chunks_exact(size_of::<RawRecord>())).zip(expected)
        {
            let area = anonymous(record);
            let copied = Copied(RecordView::new(&area, 0).unwrap());
            assert_eq!(current.read(&copied, 0), current.read(memory, 0), "the current task");
            for found in [complete(state, &raw, &copied), complete(state, &raw, memory)] {
                let level_and_root = (found.sregs.ss.dpl, found.sregs.cr3);
                assert_eq!((found.known, level_and_root), (known, (level, guest.user_root)), "{state:x?}");
            }
        }
    }
}

#[test]
fn a_note_has_all_that_shows_the_current_task() {
    let directory = Directory::new("notes");
    let harness = compile(&directory.0);
    for style in [Style::V6_1, Style::V6_12, Style::V6_15] {
        let guest = TestGuest::new(style);
        let mut swapped = guest.target();
        swapped.slot[0].bytes = 5;
        let cases = [(guest.target(), guest.state(0, USER)), (swapped, guest.state(0, USER))];
        let cases = without_plans(&cases);
        let bytes = run_with(&harness, &directory.0, &guest.guest.memory, &cases, Some("notes"));
        let notes: Vec<ExitNote> =
            bytes.chunks_exact(size_of::<RawNote>()).map(ExitNote::from_bytes).collect();
        let current = guest.kernel.current_reader(&guest.guest.memory).unwrap();
        let expected = current.read(&guest.guest.memory, 0).unwrap();
        assert!(expected.task.is_some());
        assert_eq!(current.read(&notes[0], 0), Some(expected));
        assert_eq!(current.read(&notes[1], 0), None, "none of its memory is there");
    }
}

/// Returns the first part of a record.
fn state(record: &[u8]) -> RawState {
    RecordView::new(&anonymous(record), 0).unwrap().state()
}

/// Returns how many reads of a record found no memory of the host.
fn missing(record: &[u8]) -> u32 {
    state(record).missing
}

#[test]
fn pages_of_one_large_page_are_translated_by_one_walk() {
    let directory = Directory::new("large");
    let harness = compile(&directory.0);
    let mut guest = TestGuest::new(Style::V6_12);
    guest.map_large(USER);
    let cases = [USER, USER + 0x5f00].map(|rsp| (guest.target(), guest.state(3, rsp)));
    let records = run(&harness, &directory.0, &guest.guest.memory, &cases);
    for ((_, case), record) in cases.iter().zip(records.chunks_exact(size_of::<RawRecord>())) {
        guest.check(case, record);
        let RawState { words, pages, .. } = state(record);
        // Preempt count, current task, its leader, and a walk of at most four tables.
        assert!(pages >= 10 && words <= 7, "{words} words for {pages} pages");
    }
}

#[test]
fn memory_that_the_host_has_swapped_out_is_counted() {
    let directory = Directory::new("swapped");
    let harness = compile(&directory.0);
    let mut guest = TestGuest::new(Style::V6_12);
    let mut target = guest.target();
    // The file with the memory ends where the slot continues: a read there fails.
    let beyond = target.slot[0].bytes;
    target.slot[0].bytes += 16 * PAGE;
    guest.map(USER + 2 * PAGE, beyond);
    let cases = [USER, USER + 4 * PAGE].map(|rsp| (target, guest.state(3, rsp)));
    let records = run(&harness, &directory.0, &guest.guest.memory, &cases);
    let counts: Vec<_> = records.chunks_exact(size_of::<RawRecord>()).map(missing).collect();
    assert_eq!(counts, [1, 0]);
}

/// Returns the shortest duration of a bucket, as profile/src/histogram.rs has it.
fn low_ns(bucket: u64) -> u64 {
    if bucket == 0 { 0 } else { (8 + (bucket - 1) % 8) << (3 + (bucket - 1) / 8) }
}

#[test]
fn durations_are_in_the_buckets_of_a_profile() {
    let directory = Directory::new("buckets");
    let harness = compile(&directory.0);
    let lows = (0..BUCKETS as u64).map(low_ns);
    let durations: Vec<u64> = lows.flat_map(|low| [low, low + low / 16, low.saturating_sub(1)]).collect();
    let buckets = numbers(&harness, &[], durations.iter().copied().chain([u64::MAX]));
    assert_eq!(buckets.len(), durations.len() + 1);
    for (ns, bucket) in durations.iter().zip(&buckets) {
        assert!(low_ns(*bucket) <= *ns, "{ns} is in bucket {bucket}");
        let is_last = *bucket == BUCKETS as u64 - 1;
        assert!(is_last || *ns < low_ns(bucket + 1), "{ns} is in bucket {bucket}");
    }
    assert_eq!(buckets.last(), Some(&(BUCKETS as u64 - 1)));
}

/// Returns the numbers that the program makes of these.
fn numbers(harness: &Path, arguments: &[&str], input: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut command = Command::new(harness);
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut into, bytes) =
        (child.stdin.take().unwrap(), input.flat_map(u64::to_le_bytes).collect::<Vec<_>>());
    let writer = std::thread::spawn(move || into.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

const SECOND: u64 = 1_000_000_000;

/// Returns the weights of exits, this many in each second.
fn weights(harness: &Path, rates: &[u64]) -> Vec<Vec<u64>> {
    let times = (1..)
        .zip(rates)
        .flat_map(|(second, rate)| (0..*rate).map(move |exit| second * SECOND + exit * SECOND / rate));
    let mut all = numbers(harness, &["-"], times).into_iter();
    rates.iter().map(|rate| all.by_ref().take(usize::try_from(*rate).unwrap()).collect()).collect()
}

#[test]
fn few_exits_are_all_noted_and_of_many_some_that_count_for_all() {
    let directory = Directory::new("weights");
    let harness = compile(&directory.0);
    let few = weights(&harness, &[1_000; 5]);
    assert!(few.iter().flatten().all(|weight| *weight == 1), "each is noted");
    // A burst, and what follows it.
    let rates = [100, 300_000, 300_000, 300_000, 20_000, 0, 0, 1_000, 1_000];
    let seconds = weights(&harness, &rates);
    for (rate, weights) in rates.iter().zip(&seconds) {
        let noted = weights.iter().filter(|weight| **weight > 0).count();
        // 1,024, and half of it for each doubling.
        assert!(noted <= 1024 + 512 * 10, "{noted} of {rate}");
        let sum: u64 = weights.iter().sum();
        let most = weights.iter().max().copied().unwrap_or(0);
        // The variance of the sum is at most that of as many as are noted, of the largest weight each.
        let error = (*rate as f64 * most.saturating_sub(1) as f64).sqrt();
        assert!((sum as f64 - *rate as f64).abs() <= 4.0 * error, "{sum} instead of {rate}, {error}");
    }
    assert!(seconds[7..].iter().flatten().all(|weight| *weight == 1), "after a pause each is noted");
    let steady = seconds[3].iter().filter(|weight| **weight > 0).count();
    assert!((256..2048).contains(&steady), "{steady} of 300,000");
}

#[test]
fn hostile_tables_and_pointers_end() {
    let directory = Directory::new("hostile");
    let harness = compile(&directory.0);
    let mut guest = TestGuest::new(Style::V6_12);
    let (root, target) = (guest.user_root, guest.target());
    // Tables that lead to themselves, and pointers to nowhere.
    for entry in 0..512 {
        guest.put(root + entry * 8, root | 7);
    }
    let (_, top) = guest.stack();
    guest.save(SP, u64::MAX - 5);
    let states: Vec<_> = [0, 7, USER, u64::MAX, top - 8, guest.reads.direct_map, VirtAddr(1 << 63).0]
        .into_iter()
        .flat_map(|rsp| [guest.state(0, rsp), guest.state(3, rsp)])
        .collect();
    let mut cases: Vec<_> = states.iter().map(|state| (target, *state)).collect();
    for (wrong, state) in states.iter().enumerate() {
        let mut target = target;
        match wrong % 4 {
            0 => target.guest.current_task = u64::MAX - 7,
            1 => target.guest.task_stack = u32::MAX,
            2 => target.guest.stack_bytes = 0,
            _ => target.slot[0].bytes = 5,
        }
        cases.push((target, *state));
    }
    let records = run(&harness, &directory.0, &guest.guest.memory, &cases);
    assert_eq!(records.len(), cases.len() * size_of::<RawRecord>());
}
