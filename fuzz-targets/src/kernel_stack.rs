//! Kernel stacks: copies of a guest's stacks, ORC tables of image and modules, walks by them, by frame
//! pointers, and through generated code.

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use guest_linux::fixture::{Config, Guest, Style, phys_to_virt};
use guest_linux::{
    Kernel, PhysAddr, PhysicalMemory, SleepingTask, StackCopy, StackReader, StackSample, VirtAddr, WalkEnd,
};

use crate::input::guests::{GENERATED, GENERATED_CODE, MODULES, PAGE_TABLES, PER_CPU, TASKS};
use crate::input::patches::{MemoryPatch, MemoryPlace, PatchedMemory};
use crate::input::stacks::{StackWord, registers};
use crate::input::{self, decode};

/// Rules of the image.
const RULES: u64 = 48;
/// Code that a rule covers, bytes.
const COVERS: u64 = 0x100;
/// The first rule's code, from `_text`; the 16 last ones are entry code.
const CODE: u64 = 0x1000;
/// Place of the rules' addresses, and of the rules, from `_text` and in memory.
const ADDRESSES: (u64, MemoryPlace) = (0x5_0000, (0x205_0000, RULES * 4));
const ENTRIES: (u64, MemoryPlace) = (0x6_0000, (0x206_0000, RULES * 6));
/// The module's table follows the image's.
const MODULE_RULES: u64 = 4;
const MODULE_PLACE: (u64, MemoryPlace) = (0x7_0000, (0x207_0000, 0x100));
/// Bytes of a task's stack.
const STACK: u64 = 0x4000;
/// Bytes at its end that the fuzzer fills.
const TAIL: u64 = 0x400;
/// Tops of a CPU's other stacks, in memory.
const INTERRUPT_TOP: u64 = 0x2d0_0000 + 61 * STACK;
const EXCEPTION_TOP: u64 = 0x2d0_0000 + 62 * STACK;
const ENTRY_TOP: u64 = 0x2d0_0000 + 63 * STACK;
/// `cpu_tss_rw` in a per-CPU area.
const TSS: u64 = 0x1100;
/// Frames of a walk, at most.
const LIMIT: usize = 64;

struct SoundStack {
    guest: Guest,
    kernel: Kernel,
    task: u64,
    /// Physical address of the task's stack.
    stack: u64,
    user_cr3: u64,
}

/// Returns an ORC entry (arch/x86/include/asm/orc_types.h): `sp_offset`, `bp_offset`, registers, type.
fn entry(style: Style, number: u64) -> [u8; 6] {
    // 6.1: call 0, regs 1, partial 2, end by bit 2. Since 6.4: undefined 0, end 1, call 2, regs 3, partial 4.
    let kinds: [u8; 4] = if style == Style::V6_1 { [0, 1, 2, 4] } else { [2, 3, 4, 1] };
    // At SP + 8, SP + 16, BP + 16; as registers; indirect by SP.
    let (sp, base, kind) = match number % 8 {
        0 | 1 => (8, 5, kinds[0]),
        2 => (16, 5, kinds[0]),
        3 | 4 => (16, 4, kinds[0]),
        5 => (0, 5, kinds[1]),
        6 => (0, 5, kinds[2]),
        _ => (8, if number > 40 { 9 } else { 5 }, if number > 44 { kinds[3] } else { kinds[0] }),
    };
    let bp: i16 = if number % 8 == 4 { -16 } else { 0 };
    let [low, high] = bp.to_le_bytes();
    [sp, 0, low, high, base | if bp == 0 { 0 } else { 1 << 4 }, kind]
}

fn put_rules(guest: &mut Guest, at: (u64, u64), style: Style, (text, first): (u64, u64), count: u64) {
    for number in 0..count {
        let place = guest.text(at.0 + number * 4).0;
        let distance = (text + number * COVERS).wrapping_sub(place);
        let [a, b, c, d, ..] = distance.to_le_bytes();
        guest.put(PhysAddr(0x200_0000 + at.0 + number * 4), &[a, b, c, d]);
        guest.put(PhysAddr(0x200_0000 + at.1 + number * 6), &entry(style, first + number));
    }
}

static SOUND: LazyLock<Vec<SoundStack>> = LazyLock::new(|| {
    [Style::V6_1, Style::V6_12, Style::V6_15]
        .into_iter()
        .map(|style| {
            let mut config = Config::new(style);
            for (at, name) in [
                (ADDRESSES.0, "__start_orc_unwind_ip"),
                (ADDRESSES.0 + RULES * 4, "__stop_orc_unwind_ip"),
                (ENTRIES.0, "__start_orc_unwind"),
                (ENTRIES.0 + RULES * 6, "__stop_orc_unwind"),
                (CODE + 32 * COVERS, "__entry_text_start"),
                (CODE + RULES * COVERS, "__entry_text_end"),
                (CODE + 0x20, "return_to_handler"),
                (CODE + 0x40, "__switch_to_asm"),
                (CODE + 0x60, "__x86_indirect_thunk_array"),
            ] {
                config.functions.push((at, 'T', name.to_owned()));
            }
            let mut guest = config.build();
            let (text, module) = (guest.text(CODE).0, guest.module_text(0, 0).0);
            put_rules(&mut guest, (ADDRESSES.0, ENTRIES.0), style, (text, 0), RULES);
            put_rules(&mut guest, (MODULE_PLACE.0, MODULE_PLACE.0 + 0x80), style, (module, 0), MODULE_RULES);
            // `module.arch` of the first module: number of rules, addresses, rules.
            let [addresses, rules] = [0, 0x80].map(|offset| guest.text(MODULE_PLACE.0 + offset).0);
            let arch = MODULES.0 + 0x2000 + 0x1c0;
            for (offset, value) in [(0, MODULE_RULES), (8, addresses), (16, rules)] {
                guest.put(PhysAddr(arch + offset), &value.to_le_bytes());
            }
            for cpu in 0..2 {
                let area = PER_CPU.0 + cpu * 0x1_0000;
                let tops = [(0x280, INTERRUPT_TOP - 8), (TSS + 4, ENTRY_TOP), (TSS + 36, EXCEPTION_TOP)];
                for (offset, top) in tops {
                    let top = phys_to_virt(top, guest.five_level);
                    guest.put(PhysAddr(area + offset), &top.to_le_bytes());
                }
            }
            let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a sound guest");
            let modules = kernel.modules(&guest.memory).expect("modules");
            let unwinder = kernel.unwinder(&guest.memory, &modules);
            assert_eq!((unwinder.missing(), unwinder.rules() as u64), (None, RULES + MODULE_RULES));
            kernel.stack_reader(&guest.memory).expect("a reader of stacks");
            let task = guest.task(100).expect("process 100");
            let user_cr3 = kernel.user_memory(&guest.memory, task).expect("its memory").root().0;
            // `task_struct.stack`; all of it is in the direct map.
            let pointer = guest.memory.read_u64(PhysAddr((task & 0xfff_ffff) + 0x20)).unwrap_or(0);
            SoundStack { stack: pointer & 0xfff_ffff, guest, kernel, task, user_cr3 }
        })
        .collect()
});

/// A place on one of the stacks.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum StackPointer {
    /// Words below the top of the task's stack.
    Task(u16),
    /// Of the interrupt stack.
    Interrupt(u16),
    /// Of an exception's stack.
    Exception(u16),
    /// Of the stack on which the kernel is entered.
    Entry(u8),
    /// Of the program's stack.
    User(u16),
    /// Anywhere.
    Any(u64),
}

/// A word of a stack.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum StackSlot {
    /// As on any stack, from RSP up.
    Here(StackWord),
    /// An address among the words of the task's stack.
    Task(u8),
    /// Code of the module.
    Module(u16),
    /// Generated code.
    Generated(u16),
    /// A code segment: kernel or user.
    Segment(bool),
}

#[derive(Debug, Arbitrary)]
struct KernelStackInput {
    guest: u8,
    cpl: u8,
    cpu: u8,
    rip: StackSlot,
    rsp: StackPointer,
    rbp: StackSlot,
    kernel_thread: bool,
    sleeping: bool,
    /// From RSP up.
    words: Vec<StackSlot>,
    /// At the end of the task's stack.
    task_words: Vec<StackSlot>,
    patches: Vec<MemoryPatch>,
}

impl SoundStack {
    fn direct(&self, phys: u64) -> u64 {
        phys_to_virt(phys, self.guest.five_level)
    }

    /// Returns the address and, on a kernel stack, its physical address.
    fn rsp(&self, rsp: StackPointer) -> (u64, Option<u64>) {
        let below = |top: u64, words: u16| {
            let at = top - u64::from(words) % (STACK / 8) * 8;
            (self.direct(at), Some(at))
        };
        match rsp {
            StackPointer::Task(words) => below(self.stack + STACK, words),
            StackPointer::Interrupt(words) => below(INTERRUPT_TOP, words),
            StackPointer::Exception(words) => below(EXCEPTION_TOP, words),
            StackPointer::Entry(words) => below(ENTRY_TOP, u16::from(words)),
            StackPointer::User(words) => (0x7fff_0000_3000 - u64::from(words) % 0x400 * 8, None),
            StackPointer::Any(at) => (at, None),
        }
    }

    fn value(&self, slot: StackSlot, rsp: u64) -> u64 {
        match slot {
            StackSlot::Here(word) => word.value(self.guest.text(CODE).0, rsp),
            StackSlot::Task(word) => self.direct(self.stack + STACK - TAIL) + u64::from(word) * 8,
            StackSlot::Module(offset) => self.guest.module_text(0, u64::from(offset)).0,
            StackSlot::Generated(offset) => self.guest.generated(u64::from(offset)),
            StackSlot::Segment(user) => {
                if user {
                    0x33
                } else {
                    0x10
                }
            }
        }
    }

    fn bytes(&self, slots: &[StackSlot], rsp: u64, most: u64) -> Vec<u8> {
        let most = usize::try_from(most / 8).unwrap_or(0);
        slots.iter().take(most).flat_map(|&slot| self.value(slot, rsp).to_le_bytes()).collect()
    }
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<KernelStackInput>(bytes) else { return };
    let sound = &SOUND[usize::from(input.guest) % SOUND.len()];
    let places = [
        ADDRESSES.1,
        ENTRIES.1,
        MODULE_PLACE.1,
        TASKS,
        PER_CPU,
        MODULES,
        PAGE_TABLES,
        GENERATED,
        GENERATED_CODE,
    ];
    let (rsp, place) = sound.rsp(input.rsp);
    let mut memory = PatchedMemory::new(&sound.guest.memory, &places, &input.patches);
    memory.write(sound.stack + STACK - TAIL, sound.bytes(&input.task_words, rsp, TAIL));
    if let Some(place) = place {
        memory.write(place, sound.bytes(&input.words, rsp, STACK));
    }
    let kernel = &sound.kernel;
    let Ok(reader) = kernel.stack_reader(&memory) else { return };
    let modules = kernel.modules(&memory).unwrap_or_default();
    let generated = Arc::new(kernel.generated_code(&memory));
    let unwinder = kernel.unwinder(&memory, &modules).with_generated(generated);

    let words: Vec<u64> = input.words.iter().map(|&slot| sound.value(slot, rsp)).collect();
    let rip = sound.value(input.rip, rsp);
    let registers = registers(rip, rsp, sound.value(input.rbp, rsp), &words);
    let sample = StackSample {
        registers: &registers,
        cpl: if input.cpl % 4 == 3 { 3 } else { 0 },
        cr3: sound.user_cr3,
        cr2: registers.rip,
        five_level: sound.guest.five_level,
        task: Some(sound.task),
        kernel_thread: input.kernel_thread,
        user_bytes: StackReader::USER_BYTES,
    };
    let mut copy = StackCopy::new();
    reader.copy(&memory, usize::from(input.cpu % 4), &sample, &mut copy);
    assert!(copy.len() <= StackCopy::BYTES);
    let mut frames = 0;
    let end = unwinder.walk_copy(&copy, LIMIT, |_| frames += 1);
    assert!(frames <= LIMIT, "a walk ends");
    if let WalkEnd::User(user) = end {
        let _ = user.system_call();
    }
    if input.sleeping {
        copy.clear();
        if reader
            .copy_sleeping(
                &memory,
                SleepingTask { task: VirtAddr(sound.task), kernel_thread: input.kernel_thread },
                StackReader::USER_BYTES,
                &mut copy,
            )
            .is_some()
        {
            unwinder.walk_copy(&copy, LIMIT, |_| ());
        }
    }
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
