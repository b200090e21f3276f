//! Lookup of probes by instruction pointer, which vCPU threads do without a lock.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::{MAX_PROBES, PROBE_PORT, PROBE_PORTS, ProbePoint, port_of};

/// Probes that are set. The table is filled only while all vCPUs are paused; the lock of the pause orders the
/// stores before their loads.
#[derive(Debug, Default)]
pub(crate) struct ProbeTable {
    count: AtomicUsize,
    sites: [TableEntry; MAX_PROBES],
}

#[derive(Debug, Default)]
struct TableEntry {
    virt: AtomicU64,
    kind: AtomicU8,
    /// Length of the instruction, bytes.
    length: AtomicU8,
    /// True if the replaced instruction loads RDI.
    loads: AtomicBool,
    /// Value that it loads.
    rdi: AtomicU64,
}

/// Probe that a vCPU has hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProbeMatch {
    /// [`ProbePoint::kind`].
    pub kind: u8,
    /// Value that RDI must have when the guest continues, if the probe replaced an instruction that loads
    /// RDI.
    pub rdi: Option<u64>,
}

/// Returns true if probes use this port.
pub(crate) fn is_probe_port(port: u16) -> bool {
    (PROBE_PORT..PROBE_PORT + u16::from(PROBE_PORTS)).contains(&port)
}

impl ProbeTable {
    pub(super) fn fill(&self, sites: &[ProbePoint]) {
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

    /// Finds the probe whose OUT to `port` caused an exit at `rip`; `None` for an OUT of the guest. At the
    /// exit KVM leaves RIP at the OUT (`kvm_fast_pio`, arch/x86/kvm/x86.c, Linux 6.1), or after it if KVM
    /// emulates the instruction (`x86_emulate_instruction`, same file).
    pub(crate) fn find(&self, port: u16, rip: u64) -> Option<ProbeMatch> {
        let count = self.count.load(Ordering::Relaxed);
        let matches = |entry: &&TableEntry| {
            let from = rip.wrapping_sub(entry.virt.load(Ordering::Relaxed));
            from == 0 || from == u64::from(entry.length.load(Ordering::Relaxed))
        };
        let entry = self.sites.iter().take(count).find(matches)?;
        let kind = entry.kind.load(Ordering::Relaxed);
        let rdi = entry.loads.load(Ordering::Relaxed).then(|| entry.rdi.load(Ordering::Relaxed));
        (port_of(kind) == port).then_some(ProbeMatch { kind, rdi })
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;

    #[test]
    fn only_ports_without_a_device_are_used() {
        assert!(is_probe_port(0xe0) && is_probe_port(0xe7));
        for port in [0, 0x80, 0xdf, 0xe8, 0xe9, 0xed, 0x1e0, u16::MAX] {
            assert!(!is_probe_port(port), "{port:#x}");
        }
        assert!((0..super::super::PROBE_KINDS).all(|kind| is_probe_port(port_of(kind))));
    }

    #[test]
    fn only_a_set_probe_is_hit_and_only_by_its_own_port() {
        let table = ProbeTable::default();
        assert_eq!(table.find(0xe0, 0), None);
        let site = ProbePoint { virt: 0x10, phys: GuestAddress(1), kind: 2, loads_rdi: None };
        let load = ProbePoint { virt: 0x20, phys: GuestAddress(2), kind: 10, loads_rdi: Some(77) };
        table.fill(&[site, load]);
        let [no_op, loads] =
            [ProbeMatch { kind: 2, rdi: None }, ProbeMatch { kind: 10, rdi: Some(77) }].map(Some);
        assert_eq!([0x10, 0x15, 0x20, 0x27].map(|rip| table.find(0xe2, rip)), [no_op, no_op, loads, loads]);
        assert_eq!([0x11, 0xf, 0x17, 0x25].map(|rip| table.find(0xe2, rip)), [None; 4]);
        assert_eq!(table.find(0xe3, 0x10), None);
        table.fill(&[]);
        assert_eq!(table.find(0xe2, 0x10), None);
    }
}
