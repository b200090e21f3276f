//! Exits and waits of vCPUs, as programs in the kernel count them, and KVM's own counters.

use std::sync::Arc;

use super::area::ArrayMapping;
use super::host_stack::HostTick;
use super::notes::ExitNote;
use super::shared::{EXITS, RawCourse, RawExit, RawTaker, RawTurns, TAKERS};
use super::vm::SampledVm;

/// KVM's counter of a vCPU in the kernel's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelCounter {
    /// KVM's name, like `halt_wait_ns`.
    pub name: String,
    /// Offset in kvm_vcpu.
    pub(super) offset: u32,
}

impl KernelCounter {
    /// Returns true if the counter only grows: the others are those of KVM that hold a present value
    /// (`KVM_STATS_TYPE_INSTANT` in `kvm_vcpu_stats_desc`, arch/x86/kvm/x86.c, Linux 6.18).
    pub fn grows(&self) -> bool {
        !["guest_mode", "blocking"].contains(&self.name.as_str())
    }
}

/// Exits for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CourseExit {
    /// Code of the reason in the highest byte, address below.
    pub key: u64,
    /// Number of exits.
    pub count: u64,
    /// Time from the exits to the next entries, ns.
    pub total_ns: u64,
    /// The longest of them, ns.
    pub max_ns: u64,
    /// Buckets that are not empty, and the number of exits in each.
    pub buckets: Vec<(usize, u64)>,
    /// Number of exits that have no note since there was no room, by the weights that their notes would have
    /// had, and their time, ns.
    pub unnoted: (u64, u64),
}

/// Waits of a vCPU's thread for a CPU that a process of the host had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTaker {
    /// The process; `None` for all that share one row.
    pub pid: Option<u32>,
    /// Its name: of its main thread if that has had the CPU, else of the first thread that had it; empty for
    /// all that share one row.
    pub name: String,
    /// Number of waits.
    pub count: u64,
    /// Length of the waits, ns.
    pub total_ns: u64,
}

/// Times of a vCPU's thread in its VMM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VmmTimes {
    /// On a CPU, from returns of KVM_RUN to the next entries of the guest, ns.
    pub on_cpu_ns: u64,
    /// Blocked in the VMM, or in KVM_RUN on memory of the host, ns.
    pub blocked_ns: u64,
}

/// Reader of what the kernel counts of one vCPU.
#[derive(Debug, Clone)]
pub struct VcpuCourse {
    vm: Arc<SampledVm>,
    index: usize,
}

impl VcpuCourse {
    pub(crate) fn new(vm: Arc<SampledVm>, index: usize) -> Self {
        Self { vm, index }
    }

    /// Returns KVM's counters.
    pub fn counters(&self) -> &[KernelCounter] {
        self.vm.counters()
    }

    /// Replaces `values` by the present values of the counters; leaves them as they are if they cannot be
    /// read.
    pub fn read_counters(&self, values: &mut Vec<u64>) {
        if let Some(read) = self.vm.read_counters(self.index) {
            *values = read;
        }
    }

    /// Returns the exits by reason, those to the VMM alone where KVM does not show the others; `None` if the
    /// kernel does not count them.
    pub fn exits(&self) -> Option<Vec<CourseExit>> {
        let view = self.vm.exits(self.index)?;
        let rows = (0..EXITS).filter_map(|row| view.exit(row)).filter(|row| row.key != 0 && row.count > 0);
        let exit = |row: RawExit| {
            let times = row.times.iter().copied().enumerate();
            let buckets = times.filter(|(_, count)| *count > 0).collect();
            let RawExit { key, count, total_ns, max_ns, unnoted, unnoted_ns, .. } = row;
            CourseExit { key, count, total_ns, max_ns, buckets, unnoted: (unnoted, unnoted_ns) }
        };
        Some(rows.map(exit).collect())
    }

    /// Returns the APIC id of the vCPU.
    pub fn apic_id(&self) -> usize {
        self.vm.apic_id(self.index)
    }

    /// Takes the exits that were noted since the last call. The kernel notes none before the first one.
    pub fn take_notes(&self) -> Vec<ExitNote> {
        let mut taken = Vec::new();
        if let Some(view) = self.vm.notes(self.index) {
            view.take(&mut taken);
        }
        taken
    }

    /// Takes the ticks with stacks of the host since the last call, and the number of those for which there
    /// was no room. There are none without [`TargetChoice::host_stacks`](crate::TargetChoice::host_stacks).
    pub fn take_host_ticks(&self) -> (Vec<HostTick>, u64) {
        self.vm.take_host_ticks(self.index)
    }

    /// Returns the number of returns of KVM_RUN; `None` if the kernel does not count them.
    pub fn returns(&self) -> Option<u64> {
        let turns = self.vm.course(self.index)?.turns();
        self.vm.counts_returns().then_some(turns.returns)
    }

    /// Returns the waits for CPUs by the process that had the CPU.
    pub fn takers(&self) -> Vec<CpuTaker> {
        let Some(view) = self.vm.course(self.index) else { return Vec::new() };
        let taker = |index: usize| {
            let row = view.taker(index).filter(|row| row.used != 0 && row.count > 0)?;
            let name = row.comm.split(|byte| *byte == 0).next().unwrap_or_default();
            Some(CpuTaker {
                pid: Some(row.tgid).filter(|tgid| *tgid != 0),
                name: String::from_utf8_lossy(name).into_owned(),
                count: row.count,
                total_ns: row.total_ns,
            })
        };
        (0..TAKERS).filter_map(taker).collect()
    }

    /// Returns the times in the VMM; `None` if the kernel does not count entries of the guest.
    pub fn vmm_times(&self) -> Option<VmmTimes> {
        let turns = self.vm.course(self.index)?.turns();
        self.vm.counts_entries().then(|| vmm_times(&turns))
    }
}

fn vmm_times(turns: &RawTurns) -> VmmTimes {
    let blocked_in_vmm = turns.vmm_off_ns.saturating_sub(turns.vmm_waited_ns);
    VmmTimes {
        on_cpu_ns: turns.vmm_ns.saturating_sub(turns.vmm_off_ns),
        blocked_ns: blocked_in_vmm.saturating_add(turns.page_ns),
    }
}

/// Course of a vCPU in the array of courses. The kernel writes it at any time, each word at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CourseView<'a> {
    course: *const RawCourse,
    _area: &'a ArrayMapping<RawCourse>,
}

impl<'a> CourseView<'a> {
    pub(super) fn new(area: &'a ArrayMapping<RawCourse>, index: usize) -> Option<Self> {
        Some(Self { course: area.element(index)?, _area: area })
    }

    fn turns(self) -> RawTurns {
        // SAFETY: the course is in the mapping, aligned, and valid for all bit patterns.
        unsafe { (&raw const (*self.course).turns).read_volatile() }
    }

    fn taker(self, index: usize) -> Option<RawTaker> {
        // SAFETY: as above; the index is within the array.
        (index < TAKERS).then(|| unsafe {
            (&raw const (*self.course).takers).cast::<RawTaker>().add(index).read_volatile()
        })
    }
}

/// Exits of a vCPU in the array of exits. The kernel writes them at any time, each word at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExitsView<'a> {
    area: &'a ArrayMapping<RawExit>,
    /// Of its first row.
    first: usize,
}

impl<'a> ExitsView<'a> {
    /// Makes the view of a vCPU; `None` if the array has no rows of it.
    pub(super) fn new(area: &'a ArrayMapping<RawExit>, index: usize) -> Option<Self> {
        let first = index.checked_mul(EXITS)?;
        area.element(first.checked_add(EXITS - 1)?).map(|_| Self { area, first })
    }

    fn exit(self, row: usize) -> Option<RawExit> {
        let exit = self.area.element(self.first + row).filter(|_| row < EXITS)?;
        // SAFETY: the row is in the mapping, aligned, and valid for all bit patterns.
        Some(unsafe { exit.read_volatile() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_a_cpu_are_no_time_in_the_vmm() {
        let turns = RawTurns {
            vmm_ns: 1_000,
            vmm_off_ns: 700,
            vmm_waited_ns: 200,
            page_ns: 40,
            ..RawTurns::default()
        };
        assert_eq!(vmm_times(&turns), VmmTimes { on_cpu_ns: 300, blocked_ns: 540 });
        let odd = RawTurns { vmm_off_ns: 5, vmm_waited_ns: 9, ..RawTurns::default() };
        assert_eq!(vmm_times(&odd), VmmTimes::default(), "read in the middle of a change");
    }
}
