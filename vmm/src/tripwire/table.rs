//! Which instruction pointers trip, as vCPU threads look them up: without a lock.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::{MAX_SITES, Site, TRIP_KINDS, TRIP_NOP, TRIP_PORT};

/// Bytes of a tripwire.
const LENGTH: u64 = TRIP_NOP.len() as u64;

/// The sites that are set. Filled only while all vCPUs stand still, whose lock orders the stores before their loads.
#[derive(Debug, Default)]
pub(crate) struct Table {
    count: AtomicUsize,
    sites: [Entry; MAX_SITES],
}

#[derive(Debug, Default)]
struct Entry {
    virt: AtomicU64,
    kind: AtomicU8,
}

/// The kind of tripwire that this port belongs to.
pub(crate) fn kind_of(port: u16) -> Option<u8> {
    let kind = u8::try_from(port.checked_sub(TRIP_PORT)?).ok()?;
    (kind < TRIP_KINDS).then_some(kind)
}

impl Table {
    pub(super) fn fill(&self, sites: &[Site]) {
        for (entry, site) in self.sites.iter().zip(sites) {
            entry.virt.store(site.virt, Ordering::Relaxed);
            entry.kind.store(site.kind, Ordering::Relaxed);
        }
        self.count.store(sites.len(), Ordering::Relaxed);
    }

    /// Whether an OUT of this kind at `rip` is a tripwire's, not the guest's own. At the exit KVM leaves RIP at the OUT
    /// (`kvm_fast_pio`, arch/x86/kvm/x86.c, Linux 6.1), or behind it where it has to emulate the instruction
    /// (`x86_emulate_instruction`, same file).
    pub(crate) fn trips(&self, kind: u8, rip: u64) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        self.sites.iter().take(count).any(|entry| {
            let from = rip.wrapping_sub(entry.virt.load(Ordering::Relaxed));
            (from == 0 || from == LENGTH) && entry.kind.load(Ordering::Relaxed) == kind
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_kinds_correspond() {
        assert_eq!((kind_of(0xdf), kind_of(0xe0), kind_of(0xe7)), (None, Some(0), Some(7)));
        for port in [0, 0x80, 0xe8, 0xe9, 0xed, 0x1e0, u16::MAX] {
            assert_eq!(kind_of(port), None, "{port:#x}");
        }
    }

    #[test]
    fn only_a_set_site_trips_and_only_by_its_own_port() {
        let table = Table::default();
        assert!(!table.trips(0, 0));
        table.fill(&[Site { virt: 0x10, phys: 1, kind: 2 }, Site { virt: 0x20, phys: 2, kind: 3 }]);
        assert!(table.trips(2, 0x10) && table.trips(2, 0x15) && table.trips(3, 0x20));
        assert!(!table.trips(3, 0x10) && !table.trips(2, 0x11) && !table.trips(2, 0xf));
        table.fill(&[]);
        assert!(!table.trips(2, 0x10));
    }
}
