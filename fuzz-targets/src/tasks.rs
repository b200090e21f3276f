//! Lists and tables of a kernel that was found: modules, generated code, tasks, current tasks, interrupts,
//! system calls.

use arbitrary::Arbitrary;
use guest_linux::VirtAddr;

use crate::input::guests::{DATA, GENERATED, GENERATED_CODE, MODULES, PER_CPU, PROCESS, TASKS, sound};
use crate::input::patches::{MemoryPatch, PatchedMemory};
use crate::input::{self, decode};

#[derive(Debug, Arbitrary)]
struct TasksInput {
    guest: u8,
    patches: Vec<MemoryPatch>,
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<TasksInput>(bytes) else { return };
    let guest = sound(input.guest);
    let places = [DATA, MODULES, TASKS, PER_CPU, GENERATED, GENERATED_CODE, PROCESS];
    let memory = PatchedMemory::new(&guest.guest.memory, &places, &input.patches);
    let kernel = &guest.kernel;
    if let Ok(tasks) = kernel.tasks(&memory) {
        assert!(tasks.len() <= 65_536);
        for task in tasks.iter().take(64) {
            let _ = kernel.work_function(&memory, task.task);
        }
    }
    if let Ok(modules) = kernel.modules(&memory) {
        assert!(modules.iter().count() <= 4096);
        for offset in (0..0x8000).step_by(0x200) {
            let _ = modules.symbol_at(guest.guest.module_text(0, offset));
        }
        let _ = modules.symbol_at(VirtAddr(u64::MAX));
        let _ = kernel.unwinder(&memory, &modules);
        let _ = kernel.other_modules(&memory, &modules);
    }
    let generated = kernel.generated_code(&memory);
    assert!(generated.iter().count() <= 4 * 4096);
    for offset in (0..0x6000).step_by(0x40) {
        let _ = generated.symbol_at(VirtAddr(guest.guest.generated(offset)));
    }
    if let Ok(reader) = kernel.current_reader(&memory) {
        for cpu in reader.cpus().take(16).chain([0, 1, usize::MAX]) {
            let _ = reader.read(&memory, cpu);
        }
    }
    if let Ok(lists) = kernel.task_list_reader(&memory) {
        let mut seen = 0;
        let _ = lists.walk(&memory, |_| seen += 1);
        assert!(seen <= 1 << 17);
    }
    let _ = kernel.stack_reader(&memory);
    let _ = kernel.interrupts(&memory);
    let _ = kernel.system_calls(&memory);
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
