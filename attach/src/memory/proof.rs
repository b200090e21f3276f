//! Proves a layout by the guest's own kernel.
//!
//! 1. The page tables of a vCPU lead to a kernel's image, and in it are its symbols and types: what lies below the hole is
//!    right, or nothing of this could be read.
//! 2. The kernel's own list of its RAM (`iomem_resource`, what /proc/iomem shows) fits: each range lies in a piece, and the
//!    memory below 4 GiB ends where the layout says.
//! 3. The kernel's tasks can be walked, which lie all over the memory. Of several layouts the one with the most tasks is right.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::kvm_sregs;
use linux::Kernel;

use super::layout::{self, FOUR_GIB, Layout};
use super::{ForeignMemory, Supposed, mappings};
use crate::observer::EFER_LMA;

/// CR4.LA57, 5-level paging (Intel SDM vol. 3, 2.5).
pub(crate) const CR4_LA57: u64 = 1 << 12;
/// What firmware keeps of the memory below 4 GiB, at most; holes of different machines lie at least 256 MiB apart.
const FIRMWARE: u64 = 128 << 20;

/// Page tables that a vCPU was seen with.
#[derive(Debug, Default)]
pub(crate) struct Table(AtomicU64);

impl Table {
    /// A vCPU uses these; only those of long mode can be walked.
    pub(crate) fn tell(&self, sregs: &kvm_sregs) {
        if sregs.efer & EFER_LMA == 0 {
            return;
        }
        // CR3 has no bit 0 and its low bits mean nothing here.
        self.0.store(sregs.cr3 & !1 | u64::from(sregs.cr4 & CR4_LA57 != 0), Ordering::Relaxed);
    }

    /// CR3 and CR4.LA57 of the last that were told.
    pub(crate) fn last(&self) -> Option<(u64, bool)> {
        let told = self.0.load(Ordering::Relaxed);
        (told & !1 != 0).then_some((told & !1, told & 1 != 0))
    }
}

/// Looks for the layout.
#[derive(Debug)]
pub(crate) struct Prover {
    memory: ForeignMemory,
}

impl Prover {
    pub(crate) fn new(memory: ForeignMemory) -> Self {
        Self { memory }
    }

    /// Tries every layout with the tables of a vCPU; true once one is proven.
    pub(crate) fn attempt(&self, (cr3, five_level): (u64, bool)) -> io::Result<bool> {
        let pid = self.memory.pid;
        let layouts = layout::all(&mappings(pid)?);
        // Found by any layout that is at least right below the hole.
        let found = layouts.iter().find_map(|layout| {
            let kernel = Kernel::find(&Supposed { pid, layout }, cr3, five_level).ok()?;
            (kernel.symbol_count() > 0).then_some(kernel)
        });
        let Some(kernel) = found else { return Ok(false) };
        let best = layouts
            .into_iter()
            .filter_map(|layout| Some((tasks(&kernel, &Supposed { pid, layout: &layout })?, layout)))
            // The first of equals, which is the most common.
            .rev()
            .max_by_key(|(tasks, _)| *tasks);
        let Some((_, layout)) = best else { return Ok(false) };
        self.memory.prove(layout, kernel);
        Ok(true)
    }
}

/// The number of tasks where the kernel's RAM fits the layout.
fn tasks(kernel: &Kernel, memory: &Supposed<'_>) -> Option<usize> {
    let ranges = kernel.system_ram(memory).ok()?;
    let ranges: Vec<_> = ranges.into_iter().map(|(first, last)| (first.0, last.0)).collect();
    let tasks = || kernel.tasks(memory).ok().map(|tasks| tasks.len()).filter(|tasks| *tasks > 0);
    if fits(memory.layout, &ranges) { tasks() } else { None }
}

/// Whether RAM of these ranges (first and last address) lies in the layout, and ends where it does below 4 GiB.
fn fits(layout: &Layout, ranges: &[(u64, u64)]) -> bool {
    let inside = |(first, last): &(u64, u64)| {
        let bytes = last.checked_sub(*first).and_then(|bytes| bytes.checked_add(1));
        let piece = layout.translate(*first);
        bytes.is_some_and(|bytes| {
            bytes > 0 && piece.is_some_and(|(_, left)| left >= bytes || whole(layout, *first, *last))
        })
    };
    let low_end = ranges.iter().filter(|(first, _)| *first < FOUR_GIB).map(|(_, last)| *last).max();
    let has_high = ranges.iter().any(|(first, _)| *first >= FOUR_GIB);
    // Without memory above, what follows the RAM in its mapping is never asked for.
    let ends = low_end.is_some_and(|end| {
        !has_high || layout.end_of(FOUR_GIB) - end.min(layout.end_of(FOUR_GIB)) <= FIRMWARE
    });
    !ranges.is_empty() && ends && ranges.iter().all(inside)
}

/// Whether all of first to last is backed, by several pieces.
fn whole(layout: &Layout, first: u64, last: u64) -> bool {
    let mut at = first;
    while let Some((_, left)) = layout.translate(at) {
        match at.checked_add(left) {
            Some(next) if next <= last => at = next,
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use linux::fixture::{Config, Style};
    use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

    use super::*;
    use crate::memory::Piece;

    const GIB: u64 = 1 << 30;

    fn layout(pieces: &[(u64, u64)]) -> Layout {
        let piece =
            |(guest, bytes): &(u64, u64)| Piece { guest: *guest, host: *guest + (1 << 40), bytes: *bytes };
        Layout::new(pieces.iter().map(piece).collect()).unwrap()
    }

    #[test]
    fn a_hole_in_the_wrong_place_does_not_fit() {
        // What a q35 of 5 GiB tells.
        let ranges = [(0x1000, 0x9_fbff), (0x10_0000, 2 * GIB - 0x2_1000), (4 * GIB, 7 * GIB - 1)];
        assert!(fits(&layout(&[(0, 2 * GIB), (4 * GIB, 3 * GIB)]), &ranges));
        assert!(fits(&layout(&[(0, 2 * GIB), (4 * GIB, GIB), (5 * GIB, 2 * GIB)]), &ranges), "two nodes");
        assert!(!fits(&layout(&[(0, 3 * GIB), (4 * GIB, 3 * GIB)]), &ranges), "the hole of a pc");
        assert!(!fits(&layout(&[(0, 3 * GIB), (4 * GIB, 2 * GIB)]), &ranges));
        assert!(!fits(&layout(&[(0, 5 * GIB)]), &ranges));
        assert!(!fits(&layout(&[(0, 2 * GIB)]), &ranges), "nothing above");
        assert!(!fits(&layout(&[(0, 2 * GIB), (4 * GIB, GIB), (6 * GIB, GIB)]), &ranges), "a gap");
    }

    #[test]
    fn hostile_ranges_do_not_fit() {
        let all = layout(&[(0, GIB)]);
        assert!(fits(&all, &[(0, GIB - 1)]));
        for ranges in [&[][..], &[(5, 4)], &[(0, u64::MAX)], &[(0, GIB)], &[(0, 1), (GIB, GIB)]] {
            assert!(!fits(&all, ranges), "{ranges:x?}");
        }
    }

    /// This process stands for the VMM: a made-up guest in a mapping of its own.
    #[test]
    fn a_kernel_in_memory_proves_where_it_lies() {
        let guest = Config::new(Style::V6_12).build();
        let ram = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), guest.memory.0.len())]).unwrap();
        ram.write_slice(&guest.memory.0, GuestAddress(0)).unwrap();
        let host = ram.get_host_address(GuestAddress(0)).unwrap() as u64;
        let memory = ForeignMemory::new(i32::try_from(std::process::id()).unwrap());
        let prover = Prover::new(memory.clone());
        assert!(!prover.attempt((0x5000, false)).unwrap(), "tables that lead nowhere prove nothing");
        assert!(!memory.is_proven());
        assert!(prover.attempt((guest.cr3, guest.five_level)).unwrap());
        assert!(memory.kernel().is_some_and(|kernel| kernel.symbol_count() > 1_000));
        let first = memory.layout().unwrap().pieces()[0];
        assert_eq!((first.guest, first.host), (0, host));
        assert!(first.bytes >= guest.memory.0.len() as u64);
    }

    #[test]
    fn tables_are_told_with_their_levels() {
        let table = Table::default();
        assert_eq!(table.last(), None);
        table.tell(&kvm_sregs { cr3: 0x5000, ..Default::default() });
        assert_eq!(table.last(), None, "not in long mode");
        table.tell(&kvm_sregs { cr3: 0x1_2001, cr4: CR4_LA57, efer: EFER_LMA, ..Default::default() });
        assert_eq!(table.last(), Some((0x1_2000, true)));
    }
}
