//! The memory of a process with the runtime of a managed language: threads, frames, code objects.
//!
//! ```text
//! input   version and language, then changes of the memory: position of a word (u16), the word (u64)
//! ```

use runtimes::fixture::{self, BASE, FlatMemory, SIZE, hotspot, php, ruby, v8};
use runtimes::hotspot::JavaProcess;
use runtimes::{
    CopyPlan, FrameWords, MAX_FRAMES, ManagedStep, NativeCode, NativeFrame, NativeStack, RuntimeBinary,
    RuntimeNames, RuntimePlan, ThreadRegisters, place,
};
use symbols::VirtAddr;

/// Bytes of a change.
const CHANGE: usize = 10;

/// Walks the thread with frames, puts these among native ones, and names them.
fn walk(runtime: RuntimePlan, names: &RuntimeNames, memory: &FlatMemory, fs_base: u64) {
    let registers = ThreadRegisters { fs_base, stack_pointer: php::STACK };
    let steps = runtime.copies().map_or(0, |plan| plan.steps().len());
    assert!(steps <= CopyPlan::MAX_STEPS, "{steps} steps");
    let hint = runtime.thread(memory, registers, None);
    let Some(thread) = runtime.thread(memory, registers, hint.or(Some(VirtAddr(BASE)))) else { return };
    let name = names.thread_name(memory, &runtime, thread);
    assert!(name.is_none_or(|name| name.chars().count() <= 1024));
    let mut words = Vec::new();
    runtime.walk(memory, thread, |word| {
        words.push(word);
        true
    });
    assert!(words.len() <= 4 * MAX_FRAMES + 1, "{} words", words.len());
    let steps: Vec<ManagedStep> = FrameWords::new(words.into_iter()).collect();
    let code = [NativeCode::Made, NativeCode::Interpreter, NativeCode::Runtime, NativeCode::Other];
    let frames: Vec<NativeFrame> = (0..16)
        .zip(code.into_iter().cycle())
        .map(|(at, code)| NativeFrame { stack: BASE + at * 0x800, code })
        .collect();
    for is_whole in [false, true] {
        let natives = NativeStack { frames: &frames, is_whole, may_begin: runtime.pushes_before_native() };
        if let Ok((placed, _)) = place(steps.iter().copied(), natives) {
            assert!(placed.len() <= MAX_FRAMES);
            assert!(placed.is_sorted_by_key(|(place, _)| *place), "{placed:?}");
        }
    }
    for step in steps {
        if let ManagedStep::Frame(frame) = step {
            names.interpreter(memory, &frame);
            if let Some(code) = names.read(memory, &frame) {
                assert!(
                    code.name.len() <= 3 * 4096
                        && code.file.as_ref().is_none_or(|file| file.len() <= 3 * 4096)
                );
                code.line(&frame);
            }
        }
    }
}

/// Makes the changes in a memory of `size` bytes.
fn change(memory: &mut FlatMemory, size: usize, changes: &[u8]) {
    for change in changes.as_chunks::<CHANGE>().0 {
        let [low, high, word @ ..] = *change;
        let at = usize::from(u16::from_le_bytes([low, high])) % (size / 8);
        memory.put(BASE + 8 * at as u64, u64::from_le_bytes(word));
    }
}

/// Walks the thread of a Java virtual machine before and after the changes, and names its frames.
fn java(version: hotspot::Version, changes: &[u8]) {
    let mut memory = hotspot::java(version);
    let before = JavaProcess::new(&hotspot::binary(), &memory, 0).expect("a layout");
    change(&mut memory, hotspot::SIZE, changes);
    let after = JavaProcess::new(&hotspot::binary(), &memory, 0).ok();
    for mut java in [Some(before), after].into_iter().flatten() {
        let (frames, _) = hotspot::walk(&mut java, &memory);
        assert!(frames.len() <= 100 * 256, "{} frames", frames.len());
        for frame in frames {
            if let Some(method) = java.method(&memory, &frame) {
                assert!(method.name.len() <= 3 * 8200, "{} bytes", method.name.len());
                method.line(&frame);
            }
        }
    }
}

/// Walks the thread of a process with V8 before and after the changes, and names its frames.
fn javascript(version: v8::Version, changes: &[u8]) {
    let mut memory = v8::javascript(version);
    let mut before = v8::process(version, &memory);
    // What it remembers must not be believed afterwards.
    v8::walk(&mut before, version, &memory);
    change(&mut memory, v8::SIZE, changes);
    for mut process in [before, v8::process(version, &memory)] {
        let (frames, _) = v8::walk(&mut process, version, &memory);
        assert!(frames.len() <= 100 * 65, "{} frames", frames.len());
        for frame in frames {
            if let Some(function) = process.function(&memory, &frame) {
                assert!(function.name.chars().count() <= 1024);
                function.line(&frame);
            }
        }
    }
}

/// Processes with a runtime whose frames are read at a tick: the binary, the memory, and the FS base of the
/// thread that has frames.
fn processes() -> impl Iterator<Item = (RuntimeBinary, FlatMemory, u64)> {
    let python = fixture::VERSIONS.into_iter().map(|version| {
        (RuntimeBinary::Python(fixture::binary(version)), fixture::python_thread(version), fixture::FS_BASE)
    });
    let ruby = ruby::VERSIONS
        .into_iter()
        .map(|version| (RuntimeBinary::Ruby(ruby::binary(version)), ruby::ruby(version), ruby::FS_BASE));
    let php = php::VERSIONS
        .into_iter()
        .map(|version| (RuntimeBinary::Php(php::binary()), php::php(version), fixture::FS_BASE));
    python.chain(ruby).chain(php)
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..18_u8).map(|version| vec![version; 1 + CHANGE]).collect()
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some((&version, changes)) = bytes.split_first() else { return };
    let copied = processes().count();
    let number = usize::from(version) % (copied + hotspot::VERSIONS.len() + v8::VERSIONS.len());
    let Some((binary, mut memory, fs_base)) = processes().nth(number) else {
        return match hotspot::VERSIONS.get(number - copied) {
            Some(&version) => java(version, changes),
            None => javascript(v8::VERSIONS[number - copied - hotspot::VERSIONS.len()], changes),
        };
    };
    let before = binary.plan(&memory, 0).expect("a layout");
    change(&mut memory, SIZE, changes);
    // The plan from before the changes, as when memory changes while a process is known, and theirs.
    let after = binary.plan(&memory, 0).ok();
    for (plan, names) in [Some(before), after].into_iter().flatten() {
        walk(plan, &names, &memory, fs_base);
    }
}
