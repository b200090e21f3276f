//! The guest's memory by holder: counters, processes, control groups, slab caches, file systems, files.

use arbitrary::Arbitrary;
use guest_linux::Holders;

use crate::input::guests::{DATA, MEMORY, PAGE_TABLES, PER_CPU, PROCESS, TASKS, sound};
use crate::input::patches::{MemoryPatch, PatchedMemory};
use crate::input::{self, decode};

#[derive(Debug, Arbitrary)]
struct MemoryInput {
    guest: u8,
    most: u8,
    patches: Vec<MemoryPatch>,
}

/// At most `most` rows are there, and not more than are counted.
fn check_holders<T, E>(holders: &Result<Holders<T>, E>, most: usize) {
    if let Ok(holders) = holders {
        assert!(holders.rows.len() <= most && holders.rows.len() as u64 <= holders.count);
    }
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<MemoryInput>(bytes) else { return };
    let guest = sound(input.guest);
    let places = [MEMORY, MEMORY, MEMORY, MEMORY, PER_CPU, TASKS, PROCESS, DATA, PAGE_TABLES];
    let memory = PatchedMemory::new(&guest.guest.memory, &places, &input.patches);
    let Ok(reader) = guest.kernel.memory_reader(&memory) else { return };
    let _ = reader.read_counters(&memory);
    let most = usize::from(input.most);
    let Ok(read) = reader.read(&memory, most) else { return };
    check_holders(&read.processes, most);
    check_holders(&read.groups, most);
    check_holders(&read.slabs, most);
    check_holders(&read.filesystems, most);
    assert!(read.files.len() <= most);
    let _ = read.counters.parts();
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
