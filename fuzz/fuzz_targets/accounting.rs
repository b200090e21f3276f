//! The guest's CPU accounting: of tasks, of processes, of CPUs.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vprof_fuzz::guests::{DATA, PAGE_TABLES, PER_CPU, TASKS, sound};
use vprof_fuzz::memory::{MemoryPatch, PatchedMemory};

#[derive(Debug, Arbitrary)]
struct AccountingInput {
    guest: u8,
    task: u64,
    reported: (u64, u64),
    patches: Vec<MemoryPatch>,
}

fuzz_target!(|input: AccountingInput| {
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
});
