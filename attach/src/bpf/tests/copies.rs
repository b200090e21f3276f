//! Comparison of walks of what the program copies of a process with walks of its memory.

use guest_linux::AddressSpace;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use runtimes::fixture::{self, BASE, php, ruby};
use runtimes::{
    FrameWords, ManagedStep, ProcessMemory, RuntimeBinary, RuntimePlan, ThreadRegisters, WalkFailure,
};

use super::*;
use crate::bpf::plans::raw;
use crate::bpf::shared::{PIECES, RawPiece};

/// Bytes that the first native frames of a thread have (sampler/src/managed.rs).
const ABOVE: u64 = 4096;

/// Memory of a process in a guest, or in a copy of a part of it.
struct GuestProcess<'a, M>(AddressSpace, &'a M);

impl<M: PhysicalMemory> ProcessMemory for GuestProcess<'_, M> {
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        self.0.read(self.1, at, into)
    }
}

/// A process with a runtime, whose thread has frames.
struct RuntimeProcess {
    plan: RuntimePlan,
    memory: fixture::FlatMemory,
    registers: ThreadRegisters,
}

impl RuntimeProcess {
    fn new(binary: &RuntimeBinary, memory: fixture::FlatMemory, registers: ThreadRegisters) -> Self {
        let (plan, _) = binary.plan(&memory, 0).unwrap();
        Self { plan, memory, registers }
    }

    fn python(version: (u8, u8)) -> Self {
        let registers = ThreadRegisters { fs_base: fixture::FS_BASE, stack_pointer: USER };
        Self::new(&RuntimeBinary::Python(fixture::binary(version)), fixture::python(version), registers)
    }

    /// Returns one of each version.
    fn all() -> impl Iterator<Item = Self> {
        let ruby = ruby::VERSIONS.into_iter().map(|version| {
            let registers = ThreadRegisters { fs_base: ruby::FS_BASE, stack_pointer: BASE };
            Self::new(&RuntimeBinary::Ruby(ruby::binary(version)), ruby::ruby(version), registers)
        });
        let php = php::VERSIONS.into_iter().map(|version| {
            let registers = ThreadRegisters { fs_base: 1 << 40, stack_pointer: php::STACK };
            Self::new(&RuntimeBinary::Php(php::binary()), php::php(version), registers)
        });
        fixture::VERSIONS.into_iter().map(Self::python).chain(ruby).chain(php)
    }

    /// Puts the memory into a guest, page by page; returns the plan of its copies.
    fn place(&self, guest: &mut TestGuest) -> RawPlan {
        for (virt, bytes) in (BASE..).step_by(4096).zip(self.memory.bytes.chunks(4096)) {
            let phys = guest.take_page();
            guest.guest.put(PhysAddr(phys), bytes);
            guest.map(virt, phys);
            // The pages of a process are anywhere.
            guest.take_page();
        }
        RawPlan { root: guest.user_root & !0x1fff, step: raw(&self.plan.copies().unwrap()) }
    }

    /// Returns a sample in the process.
    fn state(&self, guest: &TestGuest, (cpl, rsp): (u32, u64)) -> RawState {
        RawState { fs_base: self.registers.fs_base, ..guest.state(cpl, rsp) }
    }

    /// Returns the thread, the address above which its stack continues, and the words of its frames.
    fn walk(&self, memory: &impl ProcessMemory) -> Option<(VirtAddr, Option<VirtAddr>, Vec<u64>)> {
        let thread = self.plan.thread(memory, self.registers, None)?;
        let above = self.plan.stack_above(memory, thread, self.registers.stack_pointer);
        let mut words = Vec::new();
        self.plan.walk(memory, thread, |word| {
            words.push(word);
            true
        });
        Some((thread, above, words))
    }
}

fn steps(words: &[u64]) -> Vec<ManagedStep> {
    FrameWords::new(words.iter().copied()).collect()
}

fn is_failure(step: &ManagedStep) -> bool {
    matches!(step, ManagedStep::Failure(_))
}

/// Asserts that each byte that the program has copied is the guest's.
fn assert_true_copies(record: &[u8], memory: &FlatMemory<Vec<u8>>) {
    let count = usize::try_from(state(record).pieces).unwrap();
    assert!(count <= PIECES);
    let first = std::mem::offset_of!(RawRecord, piece);
    let half = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
    for piece in 0..count {
        let at = first + piece * size_of::<RawPiece>();
        let phys = usize::try_from(u64::from_le_bytes(record[at..at + 8].try_into().unwrap())).unwrap();
        let [bytes, from] = [half(at + 8), half(at + 12)].map(|half| usize::try_from(half).unwrap());
        assert!(record[from..from + bytes] == memory.0[phys..phys + bytes], "piece {piece} at {phys:#x}");
    }
}

/// Runs the program for a sample in each state; returns the records.
fn copied(
    harness: &Path,
    directory: &Path,
    guest: &TestGuest,
    states: &[RawState],
    plan: &RawPlan,
) -> Vec<Vec<u8>> {
    let cases: Vec<_> = states.iter().map(|state| (guest.target(), *state, *plan)).collect();
    let records = run_with(harness, directory, &guest.guest.memory, &cases, None);
    assert_eq!(records.len(), cases.len() * size_of::<RawRecord>());
    records.chunks_exact(size_of::<RawRecord>()).map(<[u8]>::to_vec).collect()
}

/// Calls `check` with the process in a record, and in the memory of the guest.
fn with_copy<T>(
    guest: &TestGuest,
    record: &[u8],
    check: impl FnOnce(&GuestProcess<'_, Copied<'_>>, &GuestProcess<'_, FlatMemory<Vec<u8>>>) -> T,
) -> T {
    assert_true_copies(record, &guest.guest.memory);
    let area = anonymous(record);
    let copied = Copied(RecordView::new(&area, 0).unwrap());
    let space = AddressSpace::new(guest.user_root, guest.guest.five_level);
    check(&GuestProcess(space, &copied), &GuestProcess(space, &guest.guest.memory))
}

#[test]
fn a_walk_of_what_is_copied_finds_the_frames_of_each_runtime() {
    let directory = Directory::new("frames");
    let harness = compile(&directory.0);
    for process in RuntimeProcess::all() {
        for style in [Style::V6_1, Style::V6_12] {
            let mut guest = TestGuest::new(style);
            let plan = process.place(&mut guest);
            guest.save(SP, USER + 0x1238);
            guest.save(CS, 0x33);
            let (_, top) = guest.stack();
            let states =
                [(3, USER), (0, top - guest.reads.padding - 0x800)].map(|place| process.state(&guest, place));
            for record in copied(&harness, &directory.0, &guest, &states, &plan) {
                let name = format!("{:?}, {style:?}, cpl {}", process.plan, state(&record).cpl);
                with_copy(&guest, &record, |copied, whole| {
                    let wanted = process.walk(whole).expect("a thread");
                    let frames = steps(&wanted.2);
                    assert!(frames.len() > 3 && !frames.iter().any(is_failure), "{frames:?}: {name}");
                    assert_eq!(process.walk(copied).as_ref(), Some(&wanted), "{name}");
                    if let Some(above) = wanted.1 {
                        let [copied, whole] =
                            [copied.read_bytes(above, ABOVE), whole.read_bytes(above, ABOVE)];
                        assert!(copied.is_some() && copied == whole, "the stack above: {name}");
                    }
                });
            }
        }
    }
}

#[test]
fn only_processes_with_a_plan_are_copied() {
    let directory = Directory::new("plans");
    let harness = compile(&directory.0);
    let process = RuntimeProcess::python((3, 11));
    let mut guest = TestGuest::new(Style::V6_12);
    let plan = process.place(&mut guest);
    let own = process.state(&guest, (3, USER));
    let pieces = |state: RawState, plan: &RawPlan| {
        super::state(&copied(&harness, &directory.0, &guest, &[state], plan)[0]).pieces
    };
    let other = RawPlan { root: plan.root + 0x2000, ..plan };
    let stack = pieces(own, &other);
    assert!(pieces(own, &plan) > stack, "its own");
    // The second table of page-table isolation is the same process.
    let isolated = RawState { cr3: own.cr3 | 0x1000, ..own };
    assert_eq!(pieces(RawState { fs_base: 0, ..own }, &plan), stack, "no FS base");
    assert_eq!(
        pieces(isolated, &RawPlan { root: other.root, ..plan }),
        pieces(isolated, &RawPlan::default())
    );
    let idle = RawState { nested: 1, ..own };
    assert_eq!(pieces(idle, &plan), pieces(idle, &other), "a guest of the guest");
}

/// Returns the process with `count` more frames of the innermost function.
fn deep(count: u64) -> RuntimeProcess {
    const FRAME: u64 = BASE + 0x4000;
    const CALLER: u64 = BASE + 0x4100;
    const PREVIOUS: u64 = 48;
    let mut process = RuntimeProcess::python((3, 11));
    let memory = &mut process.memory;
    let start = BASE + memory.bytes.len() as u64;
    let at = |number: u64| start + number * 0x58;
    memory.bytes.resize(usize::try_from(at(count) - BASE).unwrap().next_multiple_of(4096), 0);
    let first = usize::try_from(FRAME - BASE).unwrap();
    let head = memory.bytes[first..first + 80].to_vec();
    for number in 0..count {
        memory.write(at(number), &head);
        memory.put(at(number) + PREVIOUS, if number + 1 == count { CALLER } else { at(number + 1) });
    }
    memory.put(FRAME + PREVIOUS, at(0));
    process
}

#[test]
fn deep_stacks_are_whole_up_to_a_bound_and_cut_beyond_it() {
    let directory = Directory::new("deep");
    let harness = compile(&directory.0);
    for (count, is_whole) in [(100, true), (250, true), (450, false)] {
        let process = deep(count);
        let mut guest = TestGuest::new(Style::V6_12);
        let plan = process.place(&mut guest);
        let states = [process.state(&guest, (3, USER))];
        let record = &copied(&harness, &directory.0, &guest, &states, &plan)[0];
        with_copy(&guest, record, |copied, whole| {
            let (.., whole) = process.walk(whole).expect("a thread");
            let (.., found) = process.walk(copied).expect("a thread");
            if is_whole {
                assert_eq!(found, whole, "{count}");
                return;
            }
            let (last, frames) = found.split_last().expect("frames");
            assert_eq!(steps(&[*last]), [ManagedStep::Failure(WalkFailure::NotPresent)]);
            assert!(frames.len() > 500 && whole.starts_with(frames), "{} words", frames.len());
        });
    }
}

/// Whatever is in the process's memory, and whichever of its pages are missing, what is copied is what the
/// process has there, and a walk of it begins as one of the whole memory does.
#[test]
fn any_memory_of_a_process_leads_to_the_same_frames_or_fewer() {
    let directory = Directory::new("any");
    let harness = compile(&directory.0);
    let size = fixture::SIZE as u64;
    let value = prop_oneof![any::<u64>(), (BASE..BASE + size).prop_map(|at| at & !7), 0_u64..16];
    let words = prop::collection::vec((0..size / 8, value), 0..40);
    let processes: Vec<_> = RuntimeProcess::all().collect();
    let input = (0..processes.len(), words, prop::option::of(0..size / PAGE));
    let mut runner =
        TestRunner::new(ProptestConfig { cases: testkit::repetitions(16, 60), ..ProptestConfig::default() });
    let check = |(number, words, missing): (usize, Vec<(u64, u64)>, Option<u64>)| {
        let RuntimeProcess { plan, memory, registers } = &processes[number];
        let mut process = RuntimeProcess { plan: *plan, memory: memory.clone(), registers: *registers };
        for (at, word) in words {
            process.memory.put(BASE + at * 8, word);
        }
        let mut guest = TestGuest::new(Style::V6_12);
        let plan = process.place(&mut guest);
        if let Some(page) = missing {
            guest.map(BASE + page * PAGE, 0);
        }
        let states = [process.state(&guest, (3, USER))];
        let record = &copied(&harness, &directory.0, &guest, &states, &plan)[0];
        with_copy(&guest, record, |copied, whole| {
            let Some((thread, _, found)) = process.walk(copied) else { return };
            let (expected, _, whole) = process.walk(whole).expect("a thread, as in the copy");
            assert_eq!(thread, expected);
            if let (Some(ManagedStep::Failure(_)), Some((_, frames))) =
                (steps(&found).last(), found.split_last())
            {
                assert!(whole.starts_with(frames), "{:?} of {:?}", steps(&found), steps(&whole));
            } else {
                assert_eq!(found, whole);
            }
        });
        Ok(())
    };
    runner.run(&input, check).unwrap();
}
