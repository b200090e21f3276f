//! Layout of guest physical memory in a VMM, and all layouts that are possible.
//!
//! A PC has a hole below 4 GiB, and what does not fit below it continues at 4 GiB:
//!
//! ```text
//! guest   0 ─────────── hole ....... 4 GiB ─────────── end
//! VMM     one mapping cut in two, or two, or one for each NUMA node, in any order
//! ```
//!
//! Start of the hole: QEMU's `pc` 3 GiB (memory below 3.5 GiB is not cut), `q35` 2 GiB (2.75 GiB), both
//! hw/i386/pc_piix.c and pc_q35.c, QEMU 7.2; Firecracker 3.25 GiB (src/vmm/src/arch/x86_64/layout.rs, 1.7), 3
//! GiB since; Cloud Hypervisor (arch/src/x86_64/layout.rs, 40.0) and vprof 3 GiB; crosvm 3.25 GiB.

use guest_linux::PhysAddr;

use super::maps::ProcessMapping;

/// Start addresses of the hole, most common first.
const HOLES: [u64; 5] = [3 << 30, 2 << 30, 0xd000_0000, 0xe000_0000, 0xb000_0000];
/// Address at which memory continues after the hole.
pub(crate) const FOUR_GIB: u64 = 4 << 30;
/// Maximum number of mappings that may be a part of the memory: the largest.
const PARTS: usize = 10;
/// Maximum number of mappings that may be the memory of NUMA nodes together: the largest.
const NODES: usize = 4;
/// Maximum number of layouts that are tried.
const MOST: usize = 512;

/// Address in the VMM's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddr(pub u64);

/// Range of guest physical memory that is contiguous in the VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryPiece {
    /// Guest physical address.
    pub guest: PhysAddr,
    /// Address in the VMM.
    pub host: HostAddr,
    /// Size, bytes.
    pub bytes: u64,
}

impl MemoryPiece {
    /// Makes a piece: guest physical address, address in the VMM, bytes.
    pub fn new(guest: u64, host: u64, bytes: u64) -> Self {
        Self { guest: PhysAddr(guest), host: HostAddr(host), bytes }
    }
}

/// Layout of a whole memory: pieces in rising order, without overlap, each of at least one byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLayout(Vec<MemoryPiece>);

impl MemoryLayout {
    /// Makes a layout; `None` if pieces overlap, are empty, or exceed the address space.
    pub fn new(mut pieces: Vec<MemoryPiece>) -> Option<Self> {
        pieces.sort_unstable();
        let end = |piece: &MemoryPiece| piece.guest.0.checked_add(piece.bytes);
        let sound = |piece: &MemoryPiece| {
            piece.bytes > 0 && end(piece).is_some() && piece.host.0.checked_add(piece.bytes).is_some()
        };
        let apart = pieces.windows(2).all(|two| matches!(two, [a, b] if end(a) <= Some(b.guest.0)));
        (!pieces.is_empty() && apart && pieces.iter().all(sound)).then_some(Self(pieces))
    }

    /// Returns the pieces.
    pub fn pieces(&self) -> &[MemoryPiece] {
        &self.0
    }

    /// Returns the address of `guest` in the VMM, and how many bytes are contiguous from there.
    pub(crate) fn translate(&self, guest: PhysAddr) -> Option<(HostAddr, u64)> {
        let after = self.0.partition_point(|piece| piece.guest <= guest);
        let piece = self.0.get(after.checked_sub(1)?)?;
        let into = guest.0 - piece.guest.0;
        (into < piece.bytes).then(|| (HostAddr(piece.host.0 + into), piece.bytes - into))
    }

    /// Returns the end of the memory that begins below `below`.
    pub(crate) fn end_of(&self, below: u64) -> u64 {
        let ends =
            self.0.iter().filter(|piece| piece.guest.0 < below).map(|piece| piece.guest.0 + piece.bytes);
        ends.max().unwrap_or(0)
    }
}

/// Returns every layout that these mappings may form, most common first, each once.
pub(crate) fn all(mappings: &[ProcessMapping]) -> Vec<MemoryLayout> {
    let parts = mappings.get(..PARTS.min(mappings.len())).unwrap_or_default();
    let mut found: Vec<MemoryLayout> = Vec::new();
    let mut add = |pieces: Vec<MemoryPiece>| {
        if let Some(layout) = MemoryLayout::new(pieces)
            && found.len() < MOST
            && !found.contains(&layout)
        {
            found.push(layout);
        }
    };
    let run = |mapping: &ProcessMapping| (mapping.start, mapping.bytes());
    for part in parts {
        for hole in HOLES {
            add(cut(&[run(part)], hole));
        }
        // Also without a hole below 4 GiB: QEMU's `pc` does not cut small memories.
        add(cut(&[run(part)], FOUR_GIB));
    }
    // One mapping for each side of the hole.
    for low in parts {
        for high in parts.iter().filter(|high| *high != low && low.bytes() <= FOUR_GIB) {
            let piece = |guest, (host, bytes)| MemoryPiece::new(guest, host, bytes);
            add(vec![piece(0, run(low)), piece(FOUR_GIB, run(high))]);
        }
    }
    // Adjacent mappings that were mapped from high addresses down: the second one comes first.
    for part in parts {
        for hole in HOLES {
            if let Some(high) = part.bytes().checked_sub(hole).filter(|high| *high > 0) {
                let low = MemoryPiece::new(0, part.start + high, hole);
                add(vec![low, MemoryPiece::new(FOUR_GIB, part.start, high)]);
            }
        }
    }
    // NUMA nodes are consecutive in the guest, but mapped in any order.
    for count in 2..=NODES.min(parts.len()) {
        for order in orders(count) {
            let runs: Vec<_> = order.iter().filter_map(|index| parts.get(*index)).map(run).collect();
            for hole in HOLES {
                add(cut(&runs, hole));
            }
        }
    }
    found
}

/// Makes the pieces of consecutive runs of host memory (address, bytes), cut at the hole.
fn cut(runs: &[(u64, u64)], hole: u64) -> Vec<MemoryPiece> {
    let mut pieces = Vec::new();
    let mut guest = 0;
    for (mut host, mut bytes) in runs.iter().copied() {
        if guest < hole {
            let low = bytes.min(hole - guest);
            pieces.push(MemoryPiece::new(guest, host, low));
            (guest, host, bytes) = (guest + low, host + low, bytes - low);
        }
        if guest == hole {
            guest = FOUR_GIB;
        }
        if bytes > 0 {
            pieces.push(MemoryPiece::new(guest, host, bytes));
            guest = guest.saturating_add(bytes);
        }
    }
    pieces
}

/// Returns all permutations of so many indices.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count {
        let longer = |order: Vec<usize>| {
            let rest: Vec<usize> = (0..count).filter(|index| !order.contains(index)).collect();
            rest.into_iter().map(move |index| order.iter().copied().chain([index]).collect())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::maps::tests::mapping;

    const GIB: u64 = 1 << 30;

    fn piece(guest: u64, host: u64, bytes: u64) -> MemoryPiece {
        MemoryPiece::new(guest, host, bytes)
    }

    #[test]
    fn the_layouts_of_known_vmms_are_among_them() {
        let has = |mappings: &[ProcessMapping], pieces: &[MemoryPiece]| {
            let wanted = MemoryLayout::new(pieces.to_vec()).unwrap();
            assert!(all(mappings).contains(&wanted), "{pieces:x?}");
        };
        let small = [mapping(0x1000, GIB)];
        has(&small, &[piece(0, 0x1000, GIB)]);
        // pc and q35 with 5 GiB.
        let one = [mapping(0x1000, 5 * GIB)];
        has(&one, &[piece(0, 0x1000, 3 * GIB), piece(4 * GIB, 0x1000 + 3 * GIB, 2 * GIB)]);
        has(&one, &[piece(0, 0x1000, 2 * GIB), piece(4 * GIB, 0x1000 + 2 * GIB, 3 * GIB)]);
        // pc with 3.25 GiB is not cut.
        has(&[mapping(0x1000, 13 * GIB / 4)], &[piece(0, 0x1000, 13 * GIB / 4)]);
        // Two mappings, and two that were joined.
        let two = [mapping(0x1000, 3 * GIB), mapping(8 * GIB, 2 * GIB)];
        has(&two, &[piece(0, 0x1000, 3 * GIB), piece(4 * GIB, 8 * GIB, 2 * GIB)]);
        has(&one, &[piece(0, 0x1000 + 2 * GIB, 3 * GIB), piece(4 * GIB, 0x1000, 2 * GIB)]);
        // Two nodes, the second first, cut in the first.
        let nodes = [mapping(0x1000, 4 * GIB), mapping(8 * GIB, 2 * GIB)];
        let cut =
            [piece(0, 8 * GIB, 2 * GIB), piece(2 * GIB, 0x1000, GIB), piece(4 * GIB, 0x1000 + GIB, 3 * GIB)];
        has(&nodes, &cut);
    }

    #[test]
    fn unsound_pieces_are_rejected() {
        assert_eq!(MemoryLayout::new(Vec::new()), None);
        assert_eq!(MemoryLayout::new(vec![piece(0, 0, 0)]), None);
        assert_eq!(MemoryLayout::new(vec![piece(0, 0, 2), piece(1, 8, 2)]), None);
        assert_eq!(MemoryLayout::new(vec![piece(u64::MAX, 0, 2)]), None);
        let layout = MemoryLayout::new(vec![piece(0, 0x100, 0x10), piece(0x20, 0x200, 0x10)]).unwrap();
        assert_eq!(layout.translate(PhysAddr(0xf)), Some((HostAddr(0x10f), 1)));
        assert_eq!(layout.translate(PhysAddr(0x10)), None);
        assert_eq!(layout.translate(PhysAddr(0x28)), Some((HostAddr(0x208), 8)));
        assert_eq!((layout.end_of(0x20), layout.end_of(u64::MAX)), (0x10, 0x30));
    }

    proptest! {
        /// Any mappings give bounded, sound layouts, with each byte of host memory at most once in a layout.
        #[test]
        fn any_mappings_make_sound_layouts(
            sizes in prop::collection::vec((0_u64..64, 1_u64..8192), 0..12),
        ) {
            let mut at = 0x1000;
            let mappings: Vec<ProcessMapping> = sizes.iter().map(|(gap, mib)| {
                let found = mapping(at + (gap << 20), mib << 20);
                at = found.end;
                found
            }).collect();
            let layouts = all(&mappings);
            prop_assert!(layouts.len() <= MOST);
            for layout in layouts {
                let mut host: Vec<_> = layout.pieces().iter().map(|p| (p.host.0, p.host.0 + p.bytes)).collect();
                host.sort_unstable();
                prop_assert!(host.windows(2).all(|two| two[0].1 <= two[1].0), "{:?}", layout);
            }
        }
    }
}
