//! Which instruction pointers trip, as vCPU threads look them up: without a lock.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::{MAX_SITES, Site, TRIP_PORT, TRIP_PORTS, port_of};

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
    /// Bytes of the instruction.
    length: AtomicU8,
    /// Whether it loads RDI, and what.
    loads: AtomicBool,
    rdi: AtomicU64,
}

/// A tripwire that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Met {
    /// [`Site::kind`].
    pub kind: u8,
    /// What RDI has to hold when the guest goes on, where the tripwire stands for an instruction that loads it.
    pub rdi: Option<u64>,
}

/// Whether tripwires use this port.
pub(crate) fn is_trip_port(port: u16) -> bool {
    (TRIP_PORT..TRIP_PORT + u16::from(TRIP_PORTS)).contains(&port)
}

impl Table {
    pub(super) fn fill(&self, sites: &[Site]) {
        for (entry, site) in self.sites.iter().zip(sites) {
            entry.virt.store(site.virt, Ordering::Relaxed);
            entry.kind.store(site.kind, Ordering::Relaxed);
            let length = u8::try_from(site.length()).unwrap_or(u8::MAX);
            entry.length.store(length, Ordering::Relaxed);
            entry.loads.store(site.loads_rdi.is_some(), Ordering::Relaxed);
            entry.rdi.store(site.loads_rdi.unwrap_or(0), Ordering::Relaxed);
        }
        self.count.store(sites.len(), Ordering::Relaxed);
    }

    /// The tripwire whose OUT to `port` at `rip` this is; `None` for the guest's own. At the exit KVM leaves RIP at the OUT
    /// (`kvm_fast_pio`, arch/x86/kvm/x86.c, Linux 6.1), or behind it where it has to emulate the instruction
    /// (`x86_emulate_instruction`, same file).
    pub(crate) fn met(&self, port: u16, rip: u64) -> Option<Met> {
        let count = self.count.load(Ordering::Relaxed);
        let at = |entry: &&Entry| {
            let from = rip.wrapping_sub(entry.virt.load(Ordering::Relaxed));
            from == 0 || from == u64::from(entry.length.load(Ordering::Relaxed))
        };
        let entry = self.sites.iter().take(count).find(at)?;
        let kind = entry.kind.load(Ordering::Relaxed);
        let rdi = entry.loads.load(Ordering::Relaxed).then(|| entry.rdi.load(Ordering::Relaxed));
        (port_of(kind) == port).then_some(Met { kind, rdi })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_without_a_device_are_used() {
        assert!(is_trip_port(0xe0) && is_trip_port(0xe7));
        for port in [0, 0x80, 0xdf, 0xe8, 0xe9, 0xed, 0x1e0, u16::MAX] {
            assert!(!is_trip_port(port), "{port:#x}");
        }
        assert!((0..super::super::TRIP_KINDS).all(|kind| is_trip_port(port_of(kind))));
    }

    #[test]
    fn only_a_set_site_trips_and_only_by_its_own_port() {
        let table = Table::default();
        assert_eq!(table.met(0xe0, 0), None);
        let site = Site { virt: 0x10, phys: 1, kind: 2, loads_rdi: None };
        let load = Site { virt: 0x20, phys: 2, kind: 10, loads_rdi: Some(77) };
        table.fill(&[site, load]);
        let [no_op, loads] = [Met { kind: 2, rdi: None }, Met { kind: 10, rdi: Some(77) }].map(Some);
        assert_eq!([0x10, 0x15, 0x20, 0x27].map(|rip| table.met(0xe2, rip)), [no_op, no_op, loads, loads]);
        assert_eq!([0x11, 0xf, 0x17, 0x25].map(|rip| table.met(0xe2, rip)), [None; 4]);
        assert_eq!(table.met(0xe3, 0x10), None);
        table.fill(&[]);
        assert_eq!(table.met(0xe2, 0x10), None);
    }
}
