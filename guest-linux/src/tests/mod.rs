//! The crate against synthetic guests.

mod accounting;
mod allocations;
mod clock;
mod current;
mod find;
mod generated;
mod hostile;
mod iomem;
mod lists;
mod memory_use;
mod probe;
mod process;
mod progress;
mod task_scan;
mod watch;

use crate::fixture::{Config, Guest, Style};
use crate::{FlatMemory, Kernel, Missing};

const STYLES: [Style; 3] = [Style::V6_1, Style::V6_12, Style::V6_15];

/// Returns a guest and its kernel.
fn booted(change: impl FnOnce(&mut Config)) -> (Guest, Kernel) {
    styled(Style::V6_12, change)
}

fn styled(style: Style, change: impl FnOnce(&mut Config)) -> (Guest, Kernel) {
    let mut config = Config::new(style);
    change(&mut config);
    let guest = config.build();
    let kernel = find(&guest).expect("a kernel");
    (guest, kernel)
}

fn find(guest: &Guest) -> Result<Kernel, Missing> {
    Kernel::find(&guest.memory, guest.cr3, guest.five_level)
}

fn comm(bytes: &[u8; 16]) -> &str {
    std::str::from_utf8(symbols::bytes::until_nul(bytes)).expect("text")
}

/// Memory without anything in it.
fn empty() -> FlatMemory<Vec<u8>> {
    FlatMemory(vec![0; 0x4000])
}
