//! VMM time by exit reason and address: a table that the vCPU's thread writes and the collector reads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use attach::CourseExit;
use vmm::Exit;

use profile::histogram::{Histogram, low_ns};

/// Distinct pairs of reason and address; later ones share one row per reason. Booting Linux uses about 90.
const SLOTS: usize = 192;
/// Slots that are probed for a key, at most.
const PROBES: usize = 32;
/// Address of the row that later addresses of a reason share.
const OTHERS: u64 = (1 << 56) - 1;

/// Key of an exit in one number: the reason's code in the highest byte, the address below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitKey(u64);

/// Codes of reasons; 0 marks an empty slot.
const PORT_READ: u64 = 1;
const PORT_WRITE: u64 = 2;
const MEMORY_READ: u64 = 3;
const MEMORY_WRITE: u64 = 4;
const INTERRUPTED: u64 = 5;
const HALT: u64 = 6;
const SHUTDOWN: u64 = 7;
const OTHER: u64 = 8;
/// Exit of the processor that KVM itself serves. The address is AMD's exit code.
const KVM: u64 = 9;

/// Names of AMD's exit codes (AMD64 Architecture Programmer's Manual vol. 2, appendix C).
static SVM_EXITS: [(std::ops::RangeInclusive<u64>, &str); 31] = [
    (0x00..=0x0f, "kvm: control register read"),
    (0x10..=0x1f, "kvm: control register write"),
    (0x20..=0x3f, "kvm: debug register"),
    (0x4e..=0x4e, "kvm: page fault"),
    (0x40..=0x5f, "kvm: exception"),
    (0x60..=0x60, "kvm: interrupt of the host"),
    (0x61..=0x61, "kvm: NMI"),
    (0x62..=0x62, "kvm: SMI"),
    (0x64..=0x64, "kvm: interrupt window"),
    (0x65..=0x65, "kvm: control register write"),
    (0x6e..=0x6e, "kvm: rdtsc"),
    (0x72..=0x72, "kvm: cpuid"),
    (0x74..=0x74, "kvm: iret"),
    (0x76..=0x76, "kvm: invd"),
    (0x77..=0x77, "kvm: pause"),
    (0x78..=0x78, "kvm: hlt"),
    (0x79..=0x79, "kvm: invlpg"),
    (0x7b..=0x7b, "kvm: port"),
    (0x7c..=0x7c, "kvm: msr"),
    (0x7f..=0x7f, "kvm: shutdown"),
    (0x80..=0x80, "kvm: vmrun"),
    (0x81..=0x81, "kvm: vmmcall"),
    (0x82..=0x86, "kvm: nested virtualization"),
    (0x87..=0x87, "kvm: rdtscp"),
    (0x89..=0x89, "kvm: wbinvd"),
    (0x8a..=0x8a, "kvm: monitor"),
    (0x8b..=0x8c, "kvm: mwait"),
    (0x8d..=0x8d, "kvm: xsetbv"),
    (0x400..=0x400, "kvm: nested page fault"),
    (0x401..=0x401, "kvm: interrupt to another vCPU"),
    (0x402..=0x402, "kvm: interrupt controller"),
];

impl ExitKey {
    fn new(exit: Exit) -> Self {
        let (code, address) = match exit {
            Exit::Io { port, write: false } => (PORT_READ, port.into()),
            Exit::Io { port, write: true } => (PORT_WRITE, port.into()),
            Exit::Mmio { address, write: false } => (MEMORY_READ, address.0),
            Exit::Mmio { address, write: true } => (MEMORY_WRITE, address.0),
            Exit::Interrupted => (INTERRUPTED, 0),
            Exit::Halt => (HALT, 0),
            Exit::Shutdown => (SHUTDOWN, 0),
            Exit::Other(reason) => (OTHER, reason.into()),
        };
        Self(code << 56 | address & OTHERS)
    }

    /// Returns the key of the row that later addresses of the same reason share.
    fn others(self) -> Self {
        Self(self.0 | OTHERS)
    }

    fn code(self) -> u64 {
        self.0 >> 56
    }

    /// Returns the key as one number.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the name of the reason.
    pub(crate) fn reason(self) -> &'static str {
        match self.code() {
            PORT_READ => "port read",
            PORT_WRITE => "port write",
            MEMORY_READ => "mmio read",
            MEMORY_WRITE => "mmio write",
            INTERRUPTED => "interrupted",
            HALT => "halt",
            SHUTDOWN => "shutdown",
            KVM => self.svm_name().unwrap_or("kvm: exit"),
            _ => "other",
        }
    }

    fn svm_name(self) -> Option<&'static str> {
        let code = self.0 & OTHERS;
        SVM_EXITS.iter().find(|(codes, _)| codes.contains(&code)).map(|(_, name)| *name)
    }

    /// Returns the port, the guest physical address, the number of another reason, or the code of an exit
    /// that has no name. `None` if the reason has no address, and for the row that later addresses share.
    pub(crate) fn address(self) -> Option<u64> {
        let address = self.0 & OTHERS;
        let is_named = match self.code() {
            INTERRUPTED | HALT | SHUTDOWN => true,
            KVM => self.svm_name().is_some(),
            _ => false,
        };
        (!is_named && address != OTHERS).then_some(address)
    }

    /// Returns the address space of the key: ports or memory.
    pub(crate) fn space(self) -> Option<vmm::Space> {
        match self.code() {
            PORT_READ | PORT_WRITE => Some(vmm::Space::Ports),
            MEMORY_READ | MEMORY_WRITE => Some(vmm::Space::Memory),
            _ => None,
        }
    }

    /// Returns the first slot to probe: the product spreads neighbouring addresses.
    fn first_slot(self) -> usize {
        let spread = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        usize::try_from(spread).unwrap_or(0) % SLOTS
    }
}

#[derive(Debug, Default)]
struct ExitSlot {
    key: AtomicU64,
    count: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    times: Histogram,
}

/// One row as the collector reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExitCount {
    pub key: ExitKey,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    pub times: Vec<(u64, u64)>,
    /// Exits that were to be noted and were not, and their time, ns.
    pub unnoted: (u64, u64),
}

impl From<CourseExit> for ExitCount {
    fn from(exit: CourseExit) -> Self {
        let CourseExit { key, count, total_ns, max_ns, buckets, unnoted } = exit;
        let times = buckets.into_iter().map(|(bucket, count)| (low_ns(bucket), count)).collect();
        Self { key: ExitKey(key), count, total_ns, max_ns, times, unnoted }
    }
}

/// The table of one vCPU.
#[derive(Debug)]
pub(crate) struct ExitTable {
    /// Is made where exits are served: a vCPU of another process has none, and they are 0.4 MB.
    slots: OnceLock<Box<[ExitSlot]>>,
    /// Slot of the exit that is being served; `u32::MAX` for none.
    open: AtomicU32,
}

impl Default for ExitTable {
    fn default() -> Self {
        Self { slots: OnceLock::new(), open: AtomicU32::new(u32::MAX) }
    }
}

impl ExitTable {
    /// Makes room for exits. Before this, none is counted.
    pub(crate) fn make_room(&self) {
        self.slots.get_or_init(|| (0..SLOTS).map(|_| ExitSlot::default()).collect());
    }

    fn slots(&self) -> &[ExitSlot] {
        self.slots.get().map_or(&[], |slots| slots)
    }

    /// Starts an exit. Only the vCPU's thread calls this.
    pub(crate) fn begin(&self, exit: Exit) {
        let key = ExitKey::new(exit);
        let slot = self.find(key).or_else(|| self.find(key.others()));
        let index = slot.and_then(|index| u32::try_from(index).ok()).unwrap_or(u32::MAX);
        self.open.store(index, Ordering::Relaxed);
    }

    /// Ends the exit, which took `ns`. Only the vCPU's thread calls this.
    pub(crate) fn end(&self, ns: u64) {
        let open = self.open.swap(u32::MAX, Ordering::Relaxed);
        let Some(slot) = usize::try_from(open).ok().and_then(|open| self.slots().get(open)) else { return };
        let add = |to: &AtomicU64, more: u64| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        slot.times.count(ns);
        add(&slot.total_ns, ns);
        slot.max_ns.store(slot.max_ns.load(Ordering::Relaxed).max(ns), Ordering::Relaxed);
        add(&slot.count, 1);
    }

    /// Returns the key's slot; takes a free one if the key is new.
    fn find(&self, key: ExitKey) -> Option<usize> {
        // One in eight slots stays free for the rows that all later addresses share.
        let shared = key.0 & OTHERS == OTHERS;
        let slots = self.slots();
        (0..PROBES).map(|step| (key.first_slot() + step) % SLOTS).find(|index| {
            let Some(ExitSlot { key: slot, .. }) = slots.get(*index) else { return false };
            let found = slot.load(Ordering::Relaxed);
            if found == 0 && (shared || index % 8 != 0) {
                slot.store(key.0, Ordering::Relaxed);
                return true;
            }
            found == key.0
        })
    }

    /// Returns all rows with a count.
    pub(crate) fn read(&self) -> Vec<ExitCount> {
        let read = |slot: &ExitSlot| {
            let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
            let count = load(&slot.count);
            (count > 0).then(|| ExitCount {
                key: ExitKey(load(&slot.key)),
                count,
                total_ns: load(&slot.total_ns),
                max_ns: load(&slot.max_ns),
                times: slot.times.read(),
                unnoted: (0, 0),
            })
        };
        self.slots().iter().filter_map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(table: &ExitTable, exit: Exit, ns: u64) {
        table.begin(exit);
        table.end(ns);
    }

    #[test]
    fn exits_that_the_hosts_kernel_counts_have_the_same_keys() {
        let count = |key| {
            let buckets = vec![(0, 1), (3, 2)];
            ExitCount::from(CourseExit { key, count: 3, total_ns: 200, max_ns: 90, buckets, unnoted: (0, 0) })
        };
        // The codes of attach/bpf/record.c.
        let port = count(2 << 56 | 0x3f8);
        assert_eq!(port.key, ExitKey::new(Exit::Io { port: 0x3f8, write: true }));
        assert_eq!(port.times, [(0, 1), (low_ns(3), 2)]);
        let mmio = Exit::Mmio { address: vm_memory::GuestAddress(0xfee0_0000), write: false };
        assert_eq!(count(3 << 56 | 0xfee0_0000).key, ExitKey::new(mmio));
        let keys = [(5, Exit::Interrupted), (6, Exit::Halt), (7, Exit::Shutdown)];
        assert!(keys.into_iter().all(|(code, exit)| ExitKey(code << 56) == ExitKey::new(exit)));
        let kvm = |code: u64| (ExitKey(9 << 56 | code).reason(), ExitKey(9 << 56 | code).address());
        assert_eq!(kvm(0x78), ("kvm: hlt", None));
        assert_eq!(kvm(0x4e), ("kvm: page fault", None));
        assert_eq!(kvm(0x46), ("kvm: exception", None));
        assert_eq!(kvm(0x3ff), ("kvm: exit", Some(0x3ff)));
        assert_eq!(
            (ExitKey(8 << 56 | OTHERS).reason(), ExitKey(8 << 56 | OTHERS).address()),
            ("other", None)
        );
    }

    #[test]
    fn reasons_and_addresses_are_distinguished() {
        let table = ExitTable::default();
        table.make_room();
        let port = |port, write| Exit::Io { port, write };
        for ns in [1_000, 3_000] {
            serve(&table, port(0x3f8, true), ns);
        }
        serve(&table, port(0x3f8, false), 500);
        serve(&table, Exit::Mmio { address: vmm::GuestAddress(0xc000_0014), write: true }, 2_000);
        serve(&table, Exit::Halt, 10);
        // An end without a start does not count.
        table.end(1_000_000);
        let mut rows = table.read();
        rows.sort_by_key(|row| row.key.0);
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (row.key.reason(), row.key.address(), row.count, row.total_ns, row.max_ns))
            .collect();
        assert_eq!(
            seen,
            [
                ("port read", Some(0x3f8), 1, 500, 500),
                ("port write", Some(0x3f8), 2, 4_000, 3_000),
                ("mmio write", Some(0xc000_0014), 1, 2_000, 2_000),
                ("halt", None, 1, 10, 10),
            ]
        );
        assert_eq!(rows[1].times.iter().map(|(_, count)| count).sum::<u64>(), 2);
    }

    /// A guest that touches every port there is fills the table; nothing is lost and nothing else suffers.
    #[test]
    fn a_full_table_counts_what_comes_later_together() {
        let table = ExitTable::default();
        table.make_room();
        for round in 0..3 {
            for port in 0..=u16::MAX {
                serve(&table, Exit::Io { port, write: round == 1 }, 100);
            }
        }
        let rows = table.read();
        assert!(rows.len() <= SLOTS);
        for (reason, count) in [("port read", 2 * 65_536), ("port write", 65_536)] {
            let of = rows.iter().filter(|row| row.key.reason() == reason);
            assert_eq!(of.clone().map(|row| row.count).sum::<u64>(), count, "{reason}");
            assert_eq!(of.filter(|row| row.key.address().is_none()).count(), 1, "{reason}");
        }
    }
}
