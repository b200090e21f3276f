//! Hostile guests: nothing panics, everything ends.

use super::{STYLES, find};
use crate::fixture::{Config, Guest};
use crate::{PhysAddr, VirtAddr};
use proptest::prelude::*;

/// Asks everything that can be asked.
fn ask_everything(guest: &Guest) {
    let Ok(kernel) = find(guest) else { return };
    let _ = kernel.release();
    if let Ok(tasks) = kernel.tasks(&guest.memory) {
        assert!(tasks.len() <= crate::task::MAX_TASKS);
    }
    if let Ok(modules) = kernel.modules(&guest.memory) {
        for offset in (0..0x8000).step_by(0x100) {
            let _ = modules.symbol_at(guest.module_text(0, offset));
        }
    }
    let modules = kernel.modules(&guest.memory).unwrap_or_default();
    let _ = (kernel.unwinder(&guest.memory, &modules), kernel.stack_reader(&guest.memory));
    let generated = kernel.generated_code(&guest.memory);
    for (_, _, start, size) in generated.iter() {
        for at in [start.0, start.0 + size / 2, start.0 + size - 1, start.0.wrapping_sub(1)] {
            let _ = (
                generated.symbol_at(VirtAddr(at)),
                generated.rule_at(at, true),
                generated.rule_at(at, false),
            );
        }
    }
    for offset in (0..0x40_0000).step_by(0x1_0000) {
        let _ = kernel.symbol_at(guest.text(offset));
    }
    let _ = kernel.symbol_at(VirtAddr(u64::MAX));
    if let Ok(reader) = kernel.current_reader(&guest.memory) {
        for cpu in 0..4 {
            let _ = reader.read(&guest.memory, cpu);
        }
    }
}

/// Places in memory that the guest uses: page tables, kallsyms, BTF, data, per-CPU areas, tasks, modules.
const PLACES: [(u64, u64); 7] = [
    (0x100_0000, 0x8000),
    (0x210_0000, 0x1_0000),
    (0x228_0000, 0x600),
    (0x230_0000, 0x7000),
    (0x240_0000, 0x400),
    (0x280_0000, 0x8000),
    (0x2c0_0000, 0x8000),
];

proptest! {
    #[test]
    fn corrupt_guests_never_panic(
        style in prop::sample::select(STYLES.to_vec()),
        hits in prop::collection::vec(
            (prop::sample::select(PLACES.to_vec()), any::<prop::sample::Index>(), any::<u64>(), 1usize..9),
            1..40,
        ),
    ) {
        let mut guest = Config::new(style).build();
        for ((start, len), pick, value, bytes) in hits {
            let at = start + pick.index(symbols::bytes::index(len) / 8) as u64 * 8;
            guest.put(PhysAddr(at), &value.to_le_bytes()[..bytes]);
        }
        ask_everything(&guest);
    }

    #[test]
    fn swapped_pointers_never_panic(
        style in prop::sample::select(STYLES.to_vec()),
        swaps in prop::collection::vec((0usize..0x1800, 0usize..0x1800), 1..20),
    ) {
        // Pointers of the guest's own, at wrong places: into each other's lists and tables.
        let mut guest = Config::new(style).build();
        let place = |i: usize| match i {
            0..0xe00 => 0x230_0000 + i as u64 * 8,
            0xe00..0x1000 => 0x2c0_2000 + (i as u64 - 0xe00) * 8,
            _ => 0x280_0000 + (i as u64 - 0x1000) * 8,
        };
        for (from, to) in swaps {
            let at = symbols::bytes::index(place(from));
            let value: [u8; 8] = guest.memory.0[at..at + 8].try_into().unwrap();
            guest.put(PhysAddr(place(to)), &value);
        }
        ask_everything(&guest);
    }
}
