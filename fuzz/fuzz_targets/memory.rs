//! The guest's memory by holder: counters, processes, control groups, slab caches, file systems, files.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use linux::Holders;
use vprof_fuzz::guests::{DATA, MEMORY, PAGE_TABLES, PER_CPU, PROCESS, TASKS, sound};
use vprof_fuzz::memory::{MemoryPatch, PatchedMemory};

#[derive(Debug, Arbitrary)]
struct MemoryInput {
    guest: u8,
    most: u8,
    patches: Vec<MemoryPatch>,
}

/// At most `most` rows are there, and not more than are counted.
fn check<T, E>(holders: &Result<Holders<T>, E>, most: usize) {
    if let Ok(holders) = holders {
        assert!(holders.rows.len() <= most && holders.rows.len() as u64 <= holders.count);
    }
}

fuzz_target!(|input: MemoryInput| {
    let guest = sound(input.guest);
    let places = [MEMORY, MEMORY, MEMORY, MEMORY, PER_CPU, TASKS, PROCESS, DATA, PAGE_TABLES];
    let memory = PatchedMemory::new(&guest.guest.memory, &places, &input.patches);
    let Ok(reader) = guest.kernel.memory_reader(&memory) else { return };
    let _ = reader.read_counters(&memory);
    let most = usize::from(input.most);
    let Ok(read) = reader.read(&memory, most) else { return };
    check(&read.processes, most);
    check(&read.groups, most);
    check(&read.slabs, most);
    check(&read.filesystems, most);
    assert!(read.files.len() <= most);
    let _ = read.counters.parts();
});
