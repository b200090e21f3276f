//! Detects a guest that has started another kernel (kexec). From then on, every name that is read from the
//! memory of the old kernel is wrong.
//!
//! ```text
//!   Running ──low code in kernel mode──> Doubted ──its page tables map the kernel──> Running
//!                                          └──they do not, at three places──> Gone
//! ```
//!
//! A vCPU that is stopped proves nothing, however often it is checked: a vCPU that the host's emulation has
//! frozen may show the registers of another machine.
//!
//! On its way to another kernel a guest runs copying and unpacking code at low addresses, for longer than
//! most sampling intervals. The code that starts a CPU is there, too, so a low address is only a doubt, and
//! only about that vCPU.
//!
//! The page tables are checked while the vCPU is stopped ([`KernelCheck`]). Later, in the collector
//! ([`KexecDetector`]), they may belong to a process that has ended since.

use std::sync::{Arc, OnceLock};

use guest_linux::{CurrentReader, Kernel, KernelIdentity, PhysicalMemory, VirtAddr};

use crate::record::SampleRecord;
use vmm::KnownRegisters;

/// Time between two checks of a vCPU's page tables without a doubt, ns.
const PERIOD_NS: u64 = 1_000_000_000;
/// Checks in a row that have to fail, each at another instruction than the one before: the guest runs
/// meanwhile.
const FAILED_CHECKS: u32 = 3;

/// Part of the address space in which a record found the vCPU.
enum CodeArea {
    /// User code, a guest of the guest, unknown code, or a halted vCPU, which shows nothing of the kernel. A
    /// vCPU that was not started yet counts as halted.
    Elsewhere,
    /// Kernel mode, but not where a 64-bit kernel's code is.
    Low,
    /// A 64-bit kernel.
    High,
}

impl CodeArea {
    fn from_record(record: &SampleRecord) -> Self {
        let shows_none = record.halted || record.nested || record.registers == KnownRegisters::Task;
        if shows_none || record.cpl != 0 {
            Self::Elsewhere
        } else if record.in_64_bit_kernel() {
            Self::High
        } else {
            Self::Low
        }
    }
}

/// The check of the kernel on the vCPU's side.
#[derive(Debug)]
pub(crate) struct KernelCheck {
    /// Identity of the kernel, once it is found.
    identity: Arc<OnceLock<KernelIdentity>>,
    /// Time of the next check, CLOCK_MONOTONIC ns.
    due_ns: u64,
}

impl KernelCheck {
    pub(crate) fn new(identity: Arc<OnceLock<KernelIdentity>>) -> Self {
        Self { identity, due_ns: 0 }
    }

    /// Checks that the page tables of `record` map the kernel that was found; `None` if no check is due.
    /// Allocates nothing, and reads `memory` a few times once a second.
    pub(crate) fn check(&mut self, record: &SampleRecord, memory: &impl PhysicalMemory) -> Option<bool> {
        let identity = self.identity.get()?;
        match CodeArea::from_record(record) {
            CodeArea::High if record.time_ns >= self.due_ns => {
                let mapped = identity.is_mapped(memory, record.cr3, record.five_level);
                self.due_ns = if mapped { record.time_ns.saturating_add(PERIOD_NS) } else { 0 };
                Some(mapped)
            }
            CodeArea::Low => {
                self.due_ns = 0;
                None
            }
            CodeArea::High | CodeArea::Elsewhere => None,
        }
    }
}

/// Trust in a sample: what it may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleTrust {
    /// The sample is of the kernel that was found, or of a time before.
    Known,
    /// Only the position of the sample may be used.
    Doubtful,
    /// As for `Doubtful`; this sample proves that another kernel runs.
    Gone,
}

/// The kexec detector on the collector's side: state of the kernel that was found.
#[derive(Debug, Default)]
pub(crate) enum KexecDetector {
    /// No kernel is found yet.
    #[default]
    NotFound,
    /// The kernel runs, as far as is known.
    Running(RunningKernel),
    /// Another kernel runs.
    Gone,
}

/// A kernel that runs, as far as is known.
#[derive(Debug)]
pub(crate) struct RunningKernel {
    kernel: Arc<Kernel>,
    /// Time since which vCPUs check for the kernel, CLOCK_MONOTONIC ns.
    since_ns: u64,
    /// Doubts by vCPU.
    doubts: Vec<Option<KernelDoubt>>,
}

/// A doubt that the kernel that was found still runs on a vCPU.
#[derive(Debug, Clone, Copy, Default)]
struct KernelDoubt {
    /// Failed checks in a row, each at another instruction than the one before.
    failed: u32,
    /// Instruction of the last failed check.
    rip: VirtAddr,
}

impl KexecDetector {
    /// Notes a kernel that was found at `now_ns`; vCPUs check for it from then on.
    pub(crate) fn found(&mut self, kernel: Arc<Kernel>, now_ns: u64) {
        *self = Self::Running(RunningKernel { kernel, since_ns: now_ns, doubts: Vec::new() });
    }

    /// Returns the kernel, while it runs.
    pub(crate) fn kernel(&self) -> Option<&Arc<Kernel>> {
        match self {
            Self::Running(there) => Some(&there.kernel),
            Self::NotFound | Self::Gone => None,
        }
    }

    /// Returns the trust in `record` of `vcpu`; `reader` reads the current tasks.
    pub(crate) fn judge(
        &mut self,
        vcpu: usize,
        record: &SampleRecord,
        memory: &impl PhysicalMemory,
        reader: Option<&CurrentReader>,
    ) -> SampleTrust {
        let RunningKernel { kernel, doubts, .. } = match self {
            Self::NotFound => return SampleTrust::Known,
            // Before the kernel was found the vCPU may have run anything.
            Self::Running(there) if record.time_ns < there.since_ns => return SampleTrust::Known,
            Self::Running(there) => there,
            Self::Gone => return SampleTrust::Doubtful,
        };
        if doubts.len() <= vcpu {
            doubts.resize(vcpu + 1, None);
        }
        // The vCPU's check was of the page tables, which may be stale by now: the kernel's own data must
        // agree.
        let doubt = &mut doubts[vcpu];
        match (CodeArea::from_record(record), record.kernel_mapped) {
            (_, Some(true)) if kernel.is_there(memory, reader) => *doubt = None,
            (_, Some(_)) => {
                let doubt = doubt.get_or_insert_default();
                if doubt.failed == 0 || doubt.rip != record.rip {
                    *doubt = KernelDoubt { failed: doubt.failed + 1, rip: record.rip };
                }
                if doubt.failed >= FAILED_CHECKS {
                    *self = Self::Gone;
                    return SampleTrust::Gone;
                }
            }
            (CodeArea::Low, None) => {
                doubt.get_or_insert_default();
            }
            (CodeArea::High | CodeArea::Elsewhere, None) => {}
        }
        if doubt.is_none() { SampleTrust::Known } else { SampleTrust::Doubtful }
    }
}

#[cfg(test)]
mod tests {
    use guest_linux::fixture::{Config, Guest, Style};
    use guest_linux::{FlatMemory, PhysAddr};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A guest with its kernel, found, and both sides of the detector.
    struct WatchedGuest {
        guest: Guest,
        memory: FlatMemory<Vec<u8>>,
        check: KernelCheck,
        detector: KexecDetector,
    }

    impl WatchedGuest {
        fn new() -> Self {
            let guest = Config::new(Style::V6_12).build();
            let memory = guest.memory.clone();
            let kernel = Kernel::find(&memory, guest.cr3, guest.five_level).expect("a kernel");
            let identity = Arc::new(OnceLock::from(kernel.identity().expect("a banner")));
            let mut detector = KexecDetector::default();
            detector.found(Arc::new(kernel), SECOND);
            Self { guest, memory, check: KernelCheck::new(identity), detector }
        }

        /// Takes a tick in the kernel at this time, under these page tables, each second at another
        /// instruction.
        fn tick(&mut self, time_ns: u64, cr3: u64) -> SampleRecord {
            let five_level = self.guest.five_level;
            let rip = VirtAddr(self.guest.text(0x1404).0 + time_ns / SECOND);
            let mut record =
                SampleRecord { time_ns, rip, cr3, five_level, long_mode: true, ..SampleRecord::default() };
            record.kernel_mapped = self.check.check(&record, &self.memory);
            record
        }

        fn low(&mut self, time_ns: u64) -> SampleRecord {
            let mut record = SampleRecord { time_ns, rip: VirtAddr(0x9_8000), ..SampleRecord::default() };
            record.kernel_mapped = self.check.check(&record, &self.memory);
            record
        }

        fn judge(&mut self, vcpu: usize, record: &SampleRecord) -> SampleTrust {
            self.detector.judge(vcpu, record, &self.memory, None)
        }
    }

    #[test]
    fn tables_are_looked_at_once_a_second_and_at_a_doubt() {
        let mut watched = WatchedGuest::new();
        let cr3 = watched.guest.cr3;
        let mapped = |watched: &mut WatchedGuest, at| watched.tick(at, cr3).kernel_mapped;
        assert_eq!(mapped(&mut watched, SECOND), Some(true));
        assert_eq!(mapped(&mut watched, SECOND + 1), None);
        assert_eq!(mapped(&mut watched, 2 * SECOND), Some(true));
        assert_eq!(watched.low(2 * SECOND + 1).kernel_mapped, None);
        assert_eq!(mapped(&mut watched, 2 * SECOND + 2), Some(true));
        let nested = SampleRecord { nested: true, time_ns: 9 * SECOND, ..SampleRecord::default() };
        assert!(matches!(CodeArea::from_record(&nested), CodeArea::Elsewhere));
        let user = SampleRecord { cpl: 3, time_ns: 9 * SECOND, ..SampleRecord::default() };
        assert_eq!(watched.check.check(&user, &watched.memory), None);
    }

    #[test]
    fn tables_that_were_right_then_may_be_gone_when_they_are_judged() {
        let mut watched = WatchedGuest::new();
        let cr3 = watched.guest.cr3;
        let records: Vec<_> = (1..9).map(|n| watched.tick(n * SECOND, cr3)).collect();
        watched.guest.put(PhysAddr(cr3), &[0; 4096]);
        for record in &records {
            assert_eq!(watched.judge(0, record), SampleTrust::Known);
        }
    }

    #[test]
    fn three_looks_at_other_tables_are_another_kernel() {
        let mut watched = WatchedGuest::new();
        let cr3 = watched.guest.cr3;
        let record = watched.tick(SECOND, cr3);
        assert_eq!(watched.judge(0, &record), SampleTrust::Known);
        for (n, trust) in [
            (2, SampleTrust::Doubtful),
            (3, SampleTrust::Doubtful),
            (4, SampleTrust::Gone),
            (5, SampleTrust::Doubtful),
        ] {
            let record = watched.tick(n * SECOND, 0);
            assert_eq!(watched.judge(0, &record), trust, "{n}");
        }
    }

    #[test]
    fn a_vcpu_that_stands_still_proves_no_other_kernel() {
        let mut watched = WatchedGuest::new();
        let frozen = watched.tick(SECOND, 0);
        for n in 1..100 {
            let record = SampleRecord { time_ns: n * SECOND, ..frozen };
            assert_eq!(watched.judge(0, &record), SampleTrust::Doubtful, "{n}");
        }
        let two: Vec<_> = [100, 101].map(|n| watched.tick(n * SECOND, 0)).to_vec();
        assert_eq!(watched.judge(0, &two[0]), SampleTrust::Doubtful);
        assert_eq!(watched.judge(0, &two[1]), SampleTrust::Gone, "it runs");
    }

    #[test]
    fn low_code_is_a_doubt_about_its_vcpu() {
        let mut watched = WatchedGuest::new();
        let cr3 = watched.guest.cr3;
        let user = SampleRecord { cpl: 3, time_ns: SECOND, ..SampleRecord::default() };
        let low = watched.low(0);
        assert_eq!(watched.judge(1, &low), SampleTrust::Known, "of a time before");
        let low = watched.low(SECOND);
        assert_eq!(watched.judge(1, &low), SampleTrust::Doubtful);
        assert_eq!(watched.judge(1, &user), SampleTrust::Doubtful);
        assert_eq!(watched.judge(0, &user), SampleTrust::Known);
        let record = watched.tick(SECOND + 1, cr3);
        assert_eq!(watched.judge(1, &record), SampleTrust::Known);
        assert_eq!(watched.judge(1, &user), SampleTrust::Known);
    }

    #[test]
    fn a_kernel_that_was_overwritten_is_gone() {
        let mut watched = WatchedGuest::new();
        let cr3 = watched.guest.cr3;
        let records: Vec<_> = (1..4).map(|n| watched.tick(n * SECOND, cr3)).collect();
        let KexecDetector::Running(there) = &watched.detector else { panic!("found") };
        let kernel = &there.kernel;
        let banner = kernel.address_of("linux_banner").expect("a banner");
        let at = kernel.address_space().translate(&watched.memory, banner).expect("mapped").phys;
        watched.guest.put(at, &[0; 64]);
        watched.memory = watched.guest.memory.clone();
        let judged: Vec<_> = records.iter().map(|record| watched.judge(0, record)).collect();
        assert_eq!(judged, [SampleTrust::Doubtful, SampleTrust::Doubtful, SampleTrust::Gone]);
    }
}
