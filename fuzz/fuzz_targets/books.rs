//! The guest's books of CPU time: of tasks, of processes, of CPUs.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vprof_fuzz::guests::{DATA, PAGE_TABLES, PER_CPU, TASKS, sound};
use vprof_fuzz::memory::{Patch, Patched};

#[derive(Debug, Arbitrary)]
struct Input {
    guest: u8,
    task: u64,
    told: (u64, u64),
    patches: Vec<Patch>,
}

fuzz_target!(|input: Input| {
    let guest = sound(input.guest);
    let places = [TASKS, TASKS, TASKS, PER_CPU, PER_CPU, DATA, PAGE_TABLES];
    let memory = Patched::new(&guest.guest.memory, &places, &input.patches);
    let kernel = &guest.kernel;
    if let Ok(books) = kernel.process_cpu_times(&memory) {
        let threads: usize = books.iter().map(|process| process.threads.len()).sum();
        assert!(books.len() <= 65_536 && threads <= 65_536, "as many as tasks");
        for process in &books {
            let told = process.time.reported(input.told);
            assert!(told.0 >= input.told.0 && told.1 >= input.told.1, "what is told never shrinks");
        }
    }
    for task in [guest.guest.task(100), guest.guest.task(103), Some(input.task)].into_iter().flatten() {
        let _ = kernel.process_cpu_times_of(&memory, task);
    }
    if let Ok(books) = kernel.cpu_stats(&memory) {
        assert!(books.len() <= 8192);
    }
});
