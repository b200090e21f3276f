//! The memory of a process with the runtime of a managed language: threads, frames, code objects.
//!
//! ```text
//! input   version and language, then changes of the memory: position of a word (u16), the word (u64)
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use runtimes::fixture::{self, BASE, FS_BASE, FlatMemory, SIZE, VERSIONS, hotspot};
use runtimes::hotspot::JavaProcess;
use runtimes::python::{PythonNames, PythonPlan};
use runtimes::{FrameWords, MAX_FRAMES, ManagedStep, RuntimePlan};
use symbols::VirtAddr;
use vprof_fuzz::seeds;

/// Bytes of a change.
const CHANGE: usize = 10;

/// Walks the thread with frames, and names them.
fn walk(plan: PythonPlan, names: &PythonNames, memory: &FlatMemory) {
    let runtime = RuntimePlan::Python(plan);
    let hint = runtime.thread(memory, FS_BASE, None);
    let Some(thread) = runtime.thread(memory, FS_BASE, hint.or(Some(VirtAddr(BASE)))) else { return };
    let mut words = Vec::new();
    runtime.walk(memory, thread, |word| {
        words.push(word);
        true
    });
    assert!(words.len() <= 4 * MAX_FRAMES + 1, "{} words", words.len());
    for step in FrameWords::new(words.into_iter()) {
        if let ManagedStep::Frame(frame) = step
            && let Some(code) = names.read(memory, &frame)
        {
            assert!(code.name.chars().count() <= 1024 && code.file.chars().count() <= 1024);
            code.line(&frame);
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

fuzz_target!(
    init: seeds::offer(|| (0..8_u8).map(|version| vec![version; 1 + CHANGE])),
    |bytes: &[u8]| {
        let Some((&version, changes)) = bytes.split_first() else { return };
        let number = usize::from(version) % (VERSIONS.len() + hotspot::VERSIONS.len());
        let Some(&version) = VERSIONS.get(number) else {
            return java(hotspot::VERSIONS[number - VERSIONS.len()], changes);
        };
        let mut memory = fixture::python(version);
        let before = fixture::binary(version).plan(&memory, 0).expect("a layout");
        change(&mut memory, SIZE, changes);
        // The plan from before the changes, as when memory changes while a process is known, and theirs.
        let after = fixture::binary(version).plan(&memory, 0).ok();
        for (plan, names) in [Some(before), after].into_iter().flatten() {
            walk(plan, &names, &memory);
        }
    }
);
