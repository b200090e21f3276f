//! Memory of a process with CPython, made by the layouts themselves: for tests and fuzz targets.

pub mod hotspot;
pub mod php;
pub mod ruby;
pub mod v8;

use symbols::{LinkAddr, VirtAddr};

use crate::ProcessMemory;
use crate::python::PythonBinary;
use crate::python::layout::{AttributeStorage, FrameChain, Instruction, PythonLayout};

/// First address of the memory.
pub const BASE: u64 = 0x1_0000;
/// Bytes of the memory.
pub const SIZE: usize = 0x8000;
/// Address of `_PyRuntime`.
pub const RUNTIME: VirtAddr = VirtAddr(BASE);
/// Address of `PyCode_Type`.
pub const CODE_TYPE: VirtAddr = VirtAddr(BASE + 0x7f00);
/// FS base of the thread that has frames.
pub const FS_BASE: u64 = 0x7f00_1234_5600;
/// All versions that are supported.
pub const VERSIONS: [(u8, u8); 6] = [(3, 9), (3, 10), (3, 11), (3, 12), (3, 13), (3, 14)];

/// Names of the frames, innermost first. `inner` and `middle` run in one native frame since 3.11.
pub const NAMES: [&str; 3] = ["inner", "middle", "outer"];
/// Addresses on the native stack of the entries since 3.10, innermost first.
pub const ENTRIES: [u64; 2] = [BASE + 0x6000, BASE + 0x6800];

/// Name of the thread in [`python_thread`].
pub const THREAD_NAME: &str = "pool number 1";

const INTERPRETER: u64 = BASE + 0x1000;
const THREADS: [u64; 2] = [BASE + 0x3000, BASE + 0x3400];
const FRAMES: [u64; 3] = [BASE + 0x4000, BASE + 0x4100, BASE + 0x4200];
const CODES: [u64; 3] = [BASE + 0x5000, BASE + 0x5400, BASE + 0x5800];

/// A flat piece of memory.
#[derive(Debug, Clone)]
pub struct FlatMemory {
    /// Bytes from [`BASE`] on.
    pub bytes: Vec<u8>,
}

impl ProcessMemory for FlatMemory {
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        let start = usize::try_from(at.0.checked_sub(BASE)?).ok()?;
        into.copy_from_slice(self.bytes.get(start..start.checked_add(into.len())?)?);
        Some(())
    }
}

impl FlatMemory {
    /// Writes a word.
    ///
    /// # Panics
    /// The address is outside of the memory.
    pub fn put(&mut self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// The address is outside of the memory.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let start = usize::try_from(at - BASE).expect("small");
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

/// Returns the binary of this version, mapped at its own addresses.
pub fn binary(version: (u8, u8)) -> PythonBinary {
    PythonBinary::new(version, LinkAddr(RUNTIME.0), LinkAddr(CODE_TYPE.0))
}

/// Returns the memory of a process with two threads, one of which has the frames [`NAMES`]; each executes the
/// second line of its function.
///
/// # Panics
/// The version is not in [`VERSIONS`].
pub fn python(version: (u8, u8)) -> FlatMemory {
    let mut memory = FlatMemory { bytes: vec![0; SIZE] };
    write_table(&mut memory, version);
    let layout = PythonLayout::new(version, &memory, RUNTIME).expect("a supported version");
    let walk = layout.walk;
    memory.put(RUNTIME.0 + u64::from(walk.interpreters), INTERPRETER);
    memory.put(INTERPRETER + u64::from(walk.threads), THREADS[0]);
    memory.put(THREADS[0] + u64::from(walk.thread_id), 0x7f00_0000_0000);
    memory.put(THREADS[0] + u64::from(walk.next_thread), THREADS[1]);
    memory.put(THREADS[1] + u64::from(walk.previous_thread), THREADS[0]);
    memory.put(THREADS[1] + u64::from(walk.thread_id), FS_BASE);
    for (number, (frame, code)) in FRAMES.into_iter().zip(CODES).enumerate() {
        memory.put(frame + u64::from(walk.previous), FRAMES.get(number + 1).copied().unwrap_or(0));
        memory.put(frame + u64::from(walk.code), code);
        match walk.instruction {
            Instruction::Address(at) => {
                memory.put(frame + u64::from(at), code + u64::from(layout.names.bytecode) + 4);
            }
            Instruction::Index { at, unit } => memory.put(frame + u64::from(at), 4 / u64::from(unit)),
        }
        write_code(&mut memory, &layout, code, NAMES[number]);
    }
    write_chain(&mut memory, &layout);
    memory
}

/// Returns the memory of [`python`], whose thread `threading` has started, with [`THREAD_NAME`].
///
/// # Panics
/// The version is not in [`VERSIONS`].
pub fn python_thread(version: (u8, u8)) -> FlatMemory {
    let [object, class, keys, values, dict, strings] =
        [0x7000, 0x7100, 0x7500, 0x7580, 0x7600, 0x7680].map(|offset| BASE + offset);
    let mut memory = python(version);
    let names = PythonLayout::new(version, &memory, RUNTIME).expect("a supported version").names;
    write_string(&mut memory, names.ascii, CODES[2] + 0x200, "_bootstrap");
    write_string(&mut memory, names.ascii, CODES[2] + 0x280, "/lib/threading.py");
    let Some(threads) = names.threads else { return memory };
    for (number, text) in (0..).zip(["_target", "_name", THREAD_NAME]) {
        write_string(&mut memory, names.ascii, strings + number * 0x80, text);
    }
    memory.put(FRAMES[2] + u64::from(threads.locals), object);
    memory.put(object + 8, class);
    memory.put(class + u64::from(threads.cached_keys), keys);
    // Two keys, 8 bytes of indices: with a hash, or of a class's objects.
    let (entries, entry, key) = if threads.storage == AttributeStorage::Dict {
        memory.put(keys + 8, 8);
        memory.put(keys + 32, 2);
        (keys + 48, 24, 8)
    } else {
        memory.write(keys + 8, &[3, 3, 2]);
        memory.put(keys + 24, 2);
        (keys + 40, 16, 0)
    };
    for number in 0..2 {
        memory.put(entries + number * entry + key, strings + number * 0x80);
    }
    let mut first = values;
    match threads.storage {
        AttributeStorage::Dict => {
            memory.put(class + 288, 16);
            memory.put(object + 16, dict);
            memory.put(dict + 32, keys);
            memory.put(dict + 40, values);
        }
        AttributeStorage::Values => memory.put(object - 32, values),
        AttributeStorage::Tagged => memory.put(object - 24, values - 1),
        AttributeStorage::Inline => {
            memory.write(object + 16, &[2, 2, 1, 1]);
            first = object + 24;
        }
    }
    memory.put(first + 8, strings + 0x100);
    memory
}

/// Writes a string of ASCII.
fn write_string(memory: &mut FlatMemory, ascii: u16, at: u64, text: &str) {
    memory.put(at + 16, text.len() as u64);
    // `state`: compact ASCII, with its characters after it.
    memory.put(at + 32, 1 << 2 | 1 << 5 | 1 << 6);
    memory.write(at + u64::from(ascii), text.as_bytes());
}

/// Writes what leads from the thread to its frames, and the frames' entries.
fn write_chain(memory: &mut FlatMemory, layout: &PythonLayout) {
    let (thread, previous_frame) = (THREADS[1], u64::from(layout.walk.previous));
    let root = thread + 0x100;
    match layout.walk.chain {
        FrameChain::Objects { frame } => memory.put(thread + u64::from(frame), FRAMES[0]),
        FrameChain::ObjectsWithCframes { frame, cframe, previous } => {
            memory.put(thread + u64::from(frame), FRAMES[0]);
            let cframes = [ENTRIES[0], ENTRIES[0] + 0x100, ENTRIES[1], root];
            memory.put(thread + u64::from(cframe), cframes[0]);
            for pair in cframes.windows(2) {
                memory.put(pair[0] + u64::from(previous), pair[1]);
            }
        }
        FrameChain::Cframes { cframe, current, previous, is_entry } => {
            memory.put(thread + u64::from(cframe), ENTRIES[0]);
            for (at, frame, next) in [(ENTRIES[0], FRAMES[0], ENTRIES[1]), (ENTRIES[1], FRAMES[2], root)] {
                memory.put(at + u64::from(current), frame);
                memory.put(at + u64::from(previous), next);
            }
            memory.write(FRAMES[1] + u64::from(is_entry), &[1]);
            memory.write(FRAMES[2] + u64::from(is_entry), &[1]);
        }
        FrameChain::Shims { cframe, current, owner } => {
            let holder = cframe.map_or(thread, |cframe| {
                memory.put(thread + u64::from(cframe), ENTRIES[0] + 0x200);
                ENTRIES[0] + 0x200
            });
            memory.put(holder + u64::from(current), FRAMES[0]);
            memory.put(FRAMES[1] + previous_frame, ENTRIES[0]);
            memory.put(ENTRIES[0] + previous_frame, FRAMES[2]);
            memory.put(FRAMES[2] + previous_frame, ENTRIES[1]);
            for shim in ENTRIES {
                memory.write(shim + u64::from(owner), &[3]);
            }
        }
    }
}

/// Writes a code object in lines 11 and 12 of its own file, with two instructions of two units.
fn write_code(memory: &mut FlatMemory, layout: &PythonLayout, code: u64, name: &str) {
    let names = layout.names;
    memory.put(code + 8, CODE_TYPE.0);
    let [text, file, lines] = [0x200, 0x280, 0x300].map(|offset| code + offset);
    write_string(memory, names.ascii, text, name);
    write_string(memory, names.ascii, file, &format!("/{name}.py"));
    let table: &[u8] = match names.line_format {
        crate::python::layout::LineFormat::Lnotab => &[0, 1, 4, 1],
        crate::python::layout::LineFormat::Ranges => &[4, 1, 4, 1],
        // Two entries without columns, line + 1 each.
        crate::python::layout::LineFormat::Locations => &[0x80 | 13 << 3 | 1, 2, 0x80 | 13 << 3 | 1, 2],
    };
    memory.put(lines + 16, table.len() as u64);
    memory.write(lines + 32, table);
    memory.put(code + u64::from(names.name), text);
    memory.put(code + u64::from(names.identity.pointers[1]), text);
    memory.put(code + u64::from(names.file), file);
    memory.put(code + u64::from(names.lines), lines);
    memory.write(code + u64::from(names.identity.first_line), &10_u32.to_le_bytes());
}

/// Writes the table of offsets that begins `_PyRuntime` since 3.13: those of 3.13.0.
fn write_table(memory: &mut FlatMemory, version: (u8, u8)) {
    // Sizes and offsets in the order of the structures; what no reader uses is 0.
    let table: &[u64] = match version {
        (3, 13) => &[
            0, 0, 0, 0, 632, // version, free_threaded; runtime state
            0, 0, 7264, 7344, 0, 0, 0, 0, 0, 0, 0, 0, 0, // interpreter state
            0, 0, 8, 16, 72, 152, 160, 0, 0, // thread state
            0, 8, 0, 56, 72, 70, // frame
            0, 112, 120, 128, 136, 68, 52, 0, 0, 200, // code object
        ],
        (3, 14) => &[
            0, 0, 0, 0, 632, // version, free_threaded; runtime state
            0, 0, 7264, 7344, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // interpreter state
            0, 0, 8, 16, 72, 152, 160, 0, 0, // thread state
            0, 8, 0, 56, 80, 74, 64, 0, // frame
            0, 112, 120, 128, 136, 68, 52, 0, 0, 200, 0, // code object
        ],
        _ => return,
    };
    memory.write(RUNTIME.0, b"xdebugpy");
    memory.put(RUNTIME.0 + 8, u64::from(version.0) << 24 | u64::from(version.1) << 16);
    for (at, &offset) in (RUNTIME.0 + 16..).step_by(8).zip(table.get(1..).unwrap_or_default()) {
        memory.put(at, offset);
    }
}
