//! Finding a kernel in memory: page tables, the image, kallsyms, BTF.

use arbitrary::Arbitrary;
use guest_linux::{Kernel, VirtAddr};

use crate::input::guests::{BANNER, BTF, KALLSYMS, PAGE_TABLES, TOP_TABLE, sound};
use crate::input::patches::{MemoryPatch, PatchedMemory};
use crate::input::{self, decode};

#[derive(Debug, Arbitrary)]
struct KernelInput {
    guest: u8,
    five_level: bool,
    cr3: u64,
    address: u64,
    patches: Vec<MemoryPatch>,
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<KernelInput>(bytes) else { return };
    let guest = &sound(input.guest).guest;
    let places = [PAGE_TABLES, TOP_TABLE, KALLSYMS, KALLSYMS, BTF, BANNER];
    let memory = PatchedMemory::new(&guest.memory, &places, &input.patches);
    // Mostly the guest's own, with wrong low bits now and then.
    let cr3 = if input.cr3 >> 56 == 0xff { input.cr3 } else { guest.cr3 ^ input.cr3 & 0x1fff };
    let Ok(kernel) = Kernel::find(&memory, cr3, guest.five_level ^ input.five_level) else { return };
    let (start, end) = kernel.image();
    assert!(start < end);
    let _ = (kernel.release(), kernel.missing());
    for at in [start.0, start.0 + 0x1000, start.0 + 0x2_0123, end.0 - 1, end.0, input.address, u64::MAX] {
        let _ = kernel.symbol_at(VirtAddr(at));
        let mut bytes = [0; 64];
        let _ = kernel.address_space().translate(&memory, VirtAddr(at));
        let _ = kernel.address_space().read(&memory, VirtAddr(at), &mut bytes);
    }
    for (name, _) in kernel.symbols().step_by(97) {
        assert!(kernel.address_of(name).is_some(), "a symbol is found by its name");
    }
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
