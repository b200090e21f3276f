//! Proof of a memory layout by the guest's own kernel.
//!
//! 1. The page tables of a vCPU lead to a kernel's image, which contains its symbols and types. So the layout
//!    below the hole is right: otherwise none of this could be read.
//! 2. The kernel's own list of its RAM (`iomem_resource`, shown in /proc/iomem) fits. Each range is within
//!    the pieces, and the memory below 4 GiB ends where the layout does.
//! 3. The kernel's tasks, which are spread over the memory, can be walked. Of several layouts the one with
//!    the most tasks is right.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use guest_linux::{Kernel, PhysAddr};
use kvm_bindings::kvm_sregs;
use vmm::x86::{CR4_LA57, EFER_LMA};

use super::layout::{self, FOUR_GIB, MemoryLayout};
use super::{AssumedMemory, ForeignMemory, LayoutSource, mappings};

/// Maximum size of the memory below 4 GiB that firmware reserves, bytes. Holes of different machines are at
/// least 256 MiB apart.
const FIRMWARE: u64 = 128 << 20;
/// Number of attempts in a row without a kernel's image after which a guest counts as one without Linux. In
/// fewer, firmware may have interrupted Linux, or a guest of the guest may have run.
const WITHOUT_IMAGE: u32 = 5;

/// Page tables that a vCPU used last: CR3, with CR4.LA57 in bit 0.
#[derive(Debug, Default)]
pub(crate) struct LastTables(AtomicU64);

impl LastTables {
    /// Records the page tables of a vCPU, in long mode only: others cannot be walked.
    pub(crate) fn record(&self, sregs: &kvm_sregs) {
        if sregs.efer & EFER_LMA == 0 {
            return;
        }
        // Bit 0 of CR3 is not part of the address, and its low bits do not matter here.
        self.0.store(sregs.cr3 & !1 | u64::from(sregs.cr4 & CR4_LA57 != 0), Ordering::Relaxed);
    }

    /// Returns CR3 and CR4.LA57 of the last recorded tables.
    pub(crate) fn last(&self) -> Option<(u64, bool)> {
        let last = self.0.load(Ordering::Relaxed);
        (last & !1 != 0).then_some((last & !1, last & 1 != 0))
    }
}

/// Search for the layout.
#[derive(Debug)]
pub(crate) struct LayoutProver {
    memory: ForeignMemory,
}

/// Result of an attempt to prove a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProofAttempt {
    /// A layout is proven.
    Proven,
    /// A kernel's image is mapped, of which not enough can be read.
    Unproven,
    /// The page tables map no kernel's image, under any layout.
    WithoutImage,
}

/// Search for the layout before the first sample. It ends early in a guest without Linux.
#[derive(Debug)]
pub(crate) struct FirstSearch {
    prover: LayoutProver,
    /// Number of attempts in a row without a kernel's image.
    without_image: u32,
}

impl FirstSearch {
    pub(crate) fn new(memory: ForeignMemory) -> Self {
        Self { prover: LayoutProver::new(memory), without_image: 0 }
    }

    /// Tries the page tables of a vCPU. Returns true if the search is over: a layout is proven, or
    /// [`WITHOUT_IMAGE`] attempts in a row found no kernel's image.
    pub(crate) fn attempt(&mut self, tables: (u64, bool)) -> bool {
        match self.prover.attempt(tables) {
            Ok(ProofAttempt::Proven) => return true,
            Ok(ProofAttempt::WithoutImage) => self.without_image += 1,
            Ok(ProofAttempt::Unproven) | Err(_) => self.without_image = 0,
        }
        self.without_image >= WITHOUT_IMAGE
    }
}

impl LayoutProver {
    pub(crate) fn new(memory: ForeignMemory) -> Self {
        Self { memory }
    }

    /// Tries every layout with the page tables of a vCPU.
    ///
    /// # Errors
    /// The process's mappings cannot be read.
    pub(crate) fn attempt(&self, (cr3, five_level): (u64, bool)) -> io::Result<ProofAttempt> {
        let pid = self.memory.pid;
        let maps = match &self.memory.layouts {
            LayoutSource::Mappings(maps) => maps,
            LayoutSource::Kernel(layout) => {
                let layout = Arc::clone(&layout.read().unwrap_or_else(PoisonError::into_inner));
                let memory = AssumedMemory { pid, layout: &layout };
                let Ok(kernel) = Kernel::find(&memory, cr3, five_level) else {
                    return Ok(ProofAttempt::WithoutImage);
                };
                let has_tasks = || kernel.tasks(&memory).is_ok_and(|tasks| !tasks.is_empty());
                if kernel.symbol_count() == 0 || !has_tasks() {
                    return Ok(ProofAttempt::Unproven);
                }
                self.memory.prove(MemoryLayout::clone(&layout), kernel);
                return Ok(ProofAttempt::Proven);
            }
        };
        let layouts = layout::all(&mappings(maps)?);
        let mut unproven = ProofAttempt::WithoutImage;
        // Any layout that is right below the hole finds the kernel.
        let found = layouts.iter().find_map(|layout| {
            let kernel = Kernel::find(&AssumedMemory { pid, layout }, cr3, five_level).ok()?;
            unproven = ProofAttempt::Unproven;
            (kernel.symbol_count() > 0).then_some(kernel)
        });
        let Some(kernel) = found else { return Ok(unproven) };
        let best = layouts
            .into_iter()
            .filter_map(|layout| Some((tasks(&kernel, &AssumedMemory { pid, layout: &layout })?, layout)))
            // `max_by_key` returns the last of equals: with `rev` the most common layout.
            .rev()
            .max_by_key(|(tasks, _)| *tasks);
        let Some((_, layout)) = best else { return Ok(ProofAttempt::Unproven) };
        self.memory.prove(layout, kernel);
        Ok(ProofAttempt::Proven)
    }
}

/// Returns the number of tasks if the kernel's RAM fits the layout.
fn tasks(kernel: &Kernel, memory: &AssumedMemory<'_>) -> Option<usize> {
    let ranges = kernel.system_ram(memory).ok()?;
    let ranges: Vec<_> = ranges.into_iter().map(|(first, last)| (first.0, last.0)).collect();
    let tasks = || kernel.tasks(memory).ok().map(|tasks| tasks.len()).filter(|tasks| *tasks > 0);
    if fits(memory.layout, &ranges) { tasks() } else { None }
}

/// Returns true if RAM of these ranges (first and last address) is within the layout, and ends where the
/// layout does below 4 GiB.
fn fits(layout: &MemoryLayout, ranges: &[(u64, u64)]) -> bool {
    let inside = |(first, last): &(u64, u64)| {
        let bytes = last.checked_sub(*first).and_then(|bytes| bytes.checked_add(1));
        let piece = layout.translate(PhysAddr(*first));
        bytes.is_some_and(|bytes| {
            bytes > 0 && piece.is_some_and(|(_, left)| left >= bytes || is_covered(layout, *first, *last))
        })
    };
    let low_end = ranges.iter().filter(|(first, _)| *first < FOUR_GIB).map(|(_, last)| *last).max();
    let has_high = ranges.iter().any(|(first, _)| *first >= FOUR_GIB);
    // Without memory above 4 GiB, what follows the RAM in its mapping is never read.
    let ends = low_end.is_some_and(|end| {
        !has_high || layout.end_of(FOUR_GIB) - end.min(layout.end_of(FOUR_GIB)) <= FIRMWARE
    });
    !ranges.is_empty() && ends && ranges.iter().all(inside)
}

/// Returns true if several pieces together hold all of `first` to `last`.
fn is_covered(layout: &MemoryLayout, first: u64, last: u64) -> bool {
    let mut at = first;
    while let Some((_, left)) = layout.translate(PhysAddr(at)) {
        match at.checked_add(left) {
            Some(next) if next <= last => at = next,
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guest_linux::fixture::{Config, Guest, Style};
    use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

    use super::*;
    use crate::memory::MemoryPiece;

    const GIB: u64 = 1 << 30;

    fn layout(pieces: &[(u64, u64)]) -> MemoryLayout {
        let piece = |(guest, bytes): &(u64, u64)| MemoryPiece::new(*guest, *guest + (1 << 40), *bytes);
        MemoryLayout::new(pieces.iter().map(piece).collect()).unwrap()
    }

    #[test]
    fn a_hole_in_the_wrong_place_does_not_fit() {
        // The RAM that a q35 of 5 GiB reports.
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

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    /// Uses this process as the VMM: a made-up guest in a separate mapping.
    #[test]
    fn a_kernel_in_memory_proves_its_layout() {
        let guest = Config::new(Style::V6_12).build();
        let ram = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), guest.memory.0.len())]).unwrap();
        ram.write_slice(&guest.memory.0, GuestAddress(0)).unwrap();
        let host = ram.get_host_address(GuestAddress(0)).unwrap() as u64;
        let memory = ForeignMemory::new(own_pid()).unwrap();
        let prover = LayoutProver::new(memory.clone());
        // The guest of another test may be in this process's memory meanwhile.
        testkit::eventually("tables that lead nowhere prove nothing", Duration::from_secs(20), || {
            (prover.attempt((0x5000, false)).unwrap() == ProofAttempt::WithoutImage).then_some(())
        });
        assert!(!memory.is_proven());
        assert_eq!(prover.attempt((guest.cr3, guest.five_level)).unwrap(), ProofAttempt::Proven);
        assert!(memory.kernel().is_some_and(|kernel| kernel.symbol_count() > 1_000));
        let first = memory.layout().unwrap().pieces()[0];
        assert_eq!((first.guest.0, first.host.0), (0, host));
        assert!(first.bytes >= guest.memory.0.len() as u64);
    }

    /// Returns the search in a guest of this process whose layout is known. The guest is not at the start of
    /// a mapping, where the search of another test would find it.
    fn first_search(guest: &Guest) -> FirstSearch {
        let bytes = &guest.memory.0;
        let piece = MemoryPiece::new(0, bytes.as_ptr() as u64, bytes.len() as u64);
        FirstSearch::new(ForeignMemory::with_layout(own_pid(), MemoryLayout::new(vec![piece]).unwrap()))
    }

    #[test]
    fn the_first_search_ends_with_a_kernel_or_after_tables_without_one() {
        let guest = Config::new(Style::V6_12).build();
        let (linux, foreign) = ((guest.cr3, guest.five_level), (0x5000, false));
        let mut search = first_search(&guest);
        assert!((1..WITHOUT_IMAGE).all(|_| !search.attempt(foreign)));
        assert!(search.attempt(foreign) && !search.prover.memory.is_proven());
        // Firmware had interrupted Linux.
        let mut search = first_search(&guest);
        assert!(!search.attempt(foreign) && search.attempt(linux) && search.prover.memory.is_proven());
    }

    #[test]
    fn an_image_that_proves_nothing_yet_does_not_end_the_first_search() {
        let guest = Config { kallsyms: None, ..Config::new(Style::V6_12) }.build();
        let (linux, foreign) = ((guest.cr3, guest.five_level), (0x5000, false));
        let mut search = first_search(&guest);
        assert!((0..3 * WITHOUT_IMAGE).all(|_| !search.attempt(linux)));
        assert!((1..WITHOUT_IMAGE).all(|_| !search.attempt(foreign)) && !search.attempt(linux), "in a row");
        assert!((1..WITHOUT_IMAGE).all(|_| !search.attempt(foreign)));
    }

    #[test]
    fn tables_are_recorded_with_their_levels() {
        let table = LastTables::default();
        assert_eq!(table.last(), None);
        table.record(&kvm_sregs { cr3: 0x5000, ..Default::default() });
        assert_eq!(table.last(), None, "not in long mode");
        table.record(&kvm_sregs { cr3: 0x1_2001, cr4: CR4_LA57, efer: EFER_LMA, ..Default::default() });
        assert_eq!(table.last(), Some((0x1_2000, true)));
    }
}
