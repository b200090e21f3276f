//! The memory of a process with the runtime of a managed language: threads, frames, code objects.
//!
//! ```text
//! input   version, then changes of the memory: position of a word (u16), the word (u64)
//! ```

#![no_main]

use libfuzzer_sys::fuzz_target;
use runtimes::fixture::{self, BASE, FS_BASE, FlatMemory, SIZE, VERSIONS};
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

fuzz_target!(
    init: seeds::offer(|| (0..6_u8).map(|version| vec![version; 1 + CHANGE])),
    |bytes: &[u8]| {
        let Some((&version, changes)) = bytes.split_first() else { return };
        let version = VERSIONS[usize::from(version) % VERSIONS.len()];
        let mut memory = fixture::python(version);
        let before = fixture::binary(version).plan(&memory, 0).expect("a layout");
        for change in changes.as_chunks::<CHANGE>().0 {
            let [low, high, word @ ..] = *change;
            let at = usize::from(u16::from_le_bytes([low, high])) % (SIZE / 8);
            memory.put(BASE + 8 * at as u64, u64::from_le_bytes(word));
        }
        // The plan from before the changes, as when memory changes while a process is known, and theirs.
        let after = fixture::binary(version).plan(&memory, 0).ok();
        for (plan, names) in [Some(before), after].into_iter().flatten() {
            walk(plan, &names, &memory);
        }
    }
);
