//! The guest's CPU accounting: of tasks, of processes, of CPUs.

use arbitrary::Arbitrary;

use crate::input::guests::{DATA, PAGE_TABLES, PER_CPU, TASKS, sound};
use crate::input::patches::{MemoryPatch, PatchedMemory};
use crate::input::{self, decode};

#[derive(Debug, Arbitrary)]
struct AccountingInput {
    guest: u8,
    task: u64,
    reported: (u64, u64),
    patches: Vec<MemoryPatch>,
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<AccountingInput>(bytes) else { return };
    let guest = sound(input.guest);
    let places = [TASKS, TASKS, TASKS, PER_CPU, PER_CPU, DATA, PAGE_TABLES];
    let memory = PatchedMemory::new(&guest.guest.memory, &places, &input.patches);
    let kernel = &guest.kernel;
    if let Ok(processes) = kernel.process_cpu_times(&memory) {
        let threads: usize = processes.iter().map(|process| process.threads.len()).sum();
        assert!(processes.len() <= 65_536 && threads <= 65_536, "as many as tasks");
        for process in &processes {
            let reported = process.time.reported(input.reported);
            assert!(
                reported.0 >= input.reported.0 && reported.1 >= input.reported.1,
                "a reported time never shrinks"
            );
        }
    }
    for task in [guest.guest.task(100), guest.guest.task(103), Some(input.task)].into_iter().flatten() {
        let _ = kernel.process_cpu_times_of(&memory, task);
    }
    if let Ok(cpus) = kernel.cpu_stats(&memory) {
        assert!(cpus.len() <= 8192);
    }
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
