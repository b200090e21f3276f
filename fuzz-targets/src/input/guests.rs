//! Guests of every style, each made once, with the kernel that is found in it.

use std::sync::LazyLock;

use guest_linux::Kernel;
use guest_linux::fixture::{Config, Guest, Style};

use crate::input::patches::MemoryPlace;

/// Page tables of the synthetic guest.
pub const PAGE_TABLES: MemoryPlace = (0x100_0000, 0x1_0000);
/// Its top page table.
pub const TOP_TABLE: MemoryPlace = (0x230_1000, 0x1000);
/// Its kallsyms.
pub const KALLSYMS: MemoryPlace = (0x210_0000, 0x1_0000);
/// Its BTF.
pub const BTF: MemoryPlace = (0x228_0000, 0x4000);
/// Its banner.
pub const BANNER: MemoryPlace = (0x22f_0000, 0x80);
/// Its variables, `init_task` and the tables of interrupts and system calls among them.
pub const DATA: MemoryPlace = (0x230_2000, 0x5000);
/// Its per-CPU areas.
pub const PER_CPU: MemoryPlace = (0x240_0000, 0x1_1000);
/// Its tasks.
pub const TASKS: MemoryPlace = (0x280_0000, 0xa000);
/// Data of process 100: mappings, files, names, trees.
pub const PROCESS: MemoryPlace = (0x2a0_0000, 0x1_0000);
/// Its arguments, and the array of all `struct page`.
pub const PAGES: MemoryPlace = (0x2b4_0000, 0x400);
/// Arguments of process 100.
pub const ARGUMENTS: MemoryPlace = (0x2b0_0f00, 0x200);
/// Its modules.
pub const MODULES: MemoryPlace = (0x2c0_0000, 0x8000);

/// Accounting of its memory: counters, control groups, slab caches, file systems.
pub const MEMORY: MemoryPlace = (0x230_8000, 0x6000);

/// Lists of the code that its kernel has generated.
pub const GENERATED: MemoryPlace = (0x230_5000, 0x600);
/// That code.
pub const GENERATED_CODE: MemoryPlace = (0x2c1_0000, 0x1000);

/// A guest, and the kernel that is found in it without changes.
#[derive(Debug)]
pub struct SoundGuest {
    /// The guest.
    pub guest: Guest,
    /// Its kernel.
    pub kernel: Kernel,
}

static SOUND: LazyLock<Vec<SoundGuest>> = LazyLock::new(|| {
    let styles = [Style::V6_1, Style::V6_12, Style::V6_15];
    styles
        .into_iter()
        .flat_map(|style| [false, true].map(|list| (style, list)))
        .map(|(style, list)| {
            let mut config = Config::new(style);
            config.mapping_list = list;
            let guest = config.build();
            let kernel =
                Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel in a sound guest");
            assert!(kernel.missing().is_empty(), "a sound guest lacks nothing: {:?}", kernel.missing());
            SoundGuest { guest, kernel }
        })
        .collect()
});

/// Returns one of the guests.
pub fn sound(which: u8) -> &'static SoundGuest {
    &SOUND[usize::from(which) % SOUND.len()]
}
