//! A machine whose vCPUs the kernel samples.

mod search;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use guest_linux::{Kernel, PhysAddr, PhysicalMemory};
use kvm_bindings::{kvm_regs, kvm_sregs};
use vmm::{KnownRegisters, ThreadStatistics, ThreadTimes};

use super::area::{difference, registers};
use super::course::{CourseView, ExitsView, KernelCounter};
use super::finder::{KernelReader, KernelThread};
use super::host_stack::{HostQueue, HostStacksView, HostState, HostTick};
use super::notes::NotesView;
use super::offsets::{HostOffsets, Vendor};
use super::partial::{self, CompletedRegisters};
use super::program::KernelPrograms;
use super::refusal::BpfRefusal;
use super::shared::{ABSENT, NO_RIP, RawGuest, RawState, RawTarget, ThreadFinding};
use super::target::{guest, set_slots};
use crate::memory::MemoryLayout;
use crate::target::VcpuRoom;
pub(crate) use search::{FoundVm, VmSearch};

/// CPUs that a sample is asked of, at most: a thread may move meanwhile.
const MOST_CPUS: usize = 4;

/// A machine, and the programs that sample it.
#[derive(Debug)]
pub(crate) struct SampledVm {
    pub(super) programs: KernelPrograms,
    offsets: HostOffsets,
    /// The vCPUs, as far as there are any yet, and room for those that come later.
    vcpus: Box<[OnceLock<SampledVcpu>]>,
    /// Address of the kernel's data of the machine.
    kvm: u64,
    /// Number of the last change of the memory that is known.
    generation: AtomicU64,
    /// The addresses in the guest's kernel are known.
    planned: AtomicBool,
    counters: Vec<KernelCounter>,
    vendor: Vendor,
    /// The threads of the vCPUs are those that the kernel's counts are of.
    follows: bool,
    /// The kernel counts waits, and exits as far as KVM shows them.
    counts: bool,
    /// Registers that the programs use.
    registers: KernelRegisters,
    /// Room for later vCPUs.
    room: VcpuRoom,
}

/// Registers of vCPUs that the programs in the kernel use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelRegisters {
    /// All that the host's KVM has in its memory.
    #[default]
    Available,
    /// Those that KVM has of Intel's processors, on any host and also of a guest without a kernel. For tests.
    Partial,
    /// The same without an instruction pointer.
    NoRip,
}

/// A vCPU of a [`SampledVm`].
#[derive(Debug)]
struct SampledVcpu {
    /// Address of its kvm_vcpu.
    address: u64,
    /// KVM's number, which is its APIC id.
    number: u32,
    thread: KernelThread,
    /// It was plugged in later.
    late: bool,
    /// The target has the addresses in the guest's kernel, or the kernel does not use this vCPU.
    planned: AtomicBool,
    /// The target has them, and those of the current process's page tables.
    completes: AtomicBool,
    target: Mutex<RawTarget>,
    /// The programs do not have that target yet.
    changed: AtomicBool,
    /// CPU that the thread was on last.
    cpu: AtomicU64,
    /// Ticks with stacks of the host.
    host_ticks: Mutex<HostQueue>,
}

/// Outcome of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleOutcome {
    pub finding: ThreadFinding,
    pub state: RawState,
}

impl SampleOutcome {
    /// Returns true if the sample has the guest's instruction pointer; `None` if the vCPU was not in the
    /// guest.
    pub(crate) fn has_rip(&self) -> Option<bool> {
        let in_guest = matches!(self.finding, ThreadFinding::Guest | ThreadFinding::Kvm);
        in_guest.then_some(self.state.registers != NO_RIP)
    }
}

/// Place of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundPlace {
    pub state: HostState,
    pub on_cpu: bool,
}

impl SampledVm {
    fn vcpu(&self, index: usize) -> Option<&SampledVcpu> {
        self.vcpus.get(index)?.get()
    }

    /// Returns the vCPUs that are known, with their indices.
    fn known(&self) -> impl Iterator<Item = (usize, &SampledVcpu)> {
        self.vcpus.iter().enumerate().filter_map(|(index, place)| Some((index, place.get()?)))
    }

    fn reader(&self) -> KernelReader<'_, KernelPrograms> {
        KernelReader { memory: &self.programs, offsets: &self.offsets }
    }

    /// Takes a sample of a vCPU, by its index. `None` if it changes its CPU all the time, or the program
    /// cannot be run.
    pub(crate) fn sample(&self, index: usize) -> Option<SampleOutcome> {
        let vcpu = self.vcpu(index)?;
        vcpu.publish(index, &self.programs).ok()?;
        let first = u32::try_from(vcpu.cpu.load(Ordering::Relaxed)).ok();
        let outcome = ask_cpus(first, |cpu| {
            let finding = self.programs.sample(index, cpu).ok()??;
            Some(SampleOutcome { finding, state: self.programs.record(index)?.state() })
        })?;
        let next = first_cpu(outcome.finding, &outcome.state).map_or(NO_CPU, u64::from);
        vcpu.cpu.store(next, Ordering::Relaxed);
        Some(outcome)
    }

    /// Adds the tick of a sample that has found the thread of a vCPU in this place, at `now_ns`. The sample
    /// is the vCPU's last one.
    pub(crate) fn add_host_tick(&self, index: usize, (now_ns, sampled_ns): (u64, u64), found: FoundPlace) {
        let Some(vcpu) = self.vcpu(index).filter(|_| self.takes_host_stacks()) else { return };
        let stacks = self.programs.host_stacks(index);
        let stack = match found.on_cpu {
            true => stacks.and_then(HostStacksView::ticked),
            false => stacks.and_then(|stacks| stacks.left(sampled_ns)),
        };
        let tick = HostTick { time_ns: now_ns, state: found.state, on_cpu: found.on_cpu, stack };
        vcpu.host_ticks.lock().unwrap_or_else(PoisonError::into_inner).push(tick);
    }

    /// Returns true if ticks have stacks of the host.
    pub(crate) fn takes_host_stacks(&self) -> bool {
        self.offsets.options.host_stacks != 0
    }

    /// Takes the ticks of a vCPU that have stacks of the host, and the number of those for which there was no
    /// room.
    pub(crate) fn take_host_ticks(&self, index: usize) -> (Vec<HostTick>, u64) {
        let queue = self.vcpu(index).map(|vcpu| &vcpu.host_ticks);
        queue.map_or_else(Default::default, |queue| {
            queue.lock().unwrap_or_else(PoisonError::into_inner).take()
        })
    }

    /// Fills `into` from the memory that the last sample of a vCPU has copied.
    pub(crate) fn read(&self, index: usize, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        self.programs.record(index)?.read(at, into)
    }

    /// Returns the difference of the registers of a vCPU, whose thread is stopped, from those that KVM
    /// reports.
    pub(crate) fn compare(
        &self,
        index: usize,
        kvm: &(kvm_regs, kvm_sregs),
    ) -> Result<Option<String>, BpfRefusal> {
        let sampled = self.sample(index).ok_or(BpfRefusal::NotCompared)?;
        Ok(match self.is_partial() {
            true => partial::difference(&sampled.state, kvm),
            false => difference(&registers(&sampled.state), kvm),
        })
    }

    /// Returns true if samples have only some of the registers, and so no stacks.
    pub(crate) fn is_partial(&self) -> bool {
        self.offsets.options.partial != 0
    }

    /// Returns true if the registers of samples of a vCPU can be completed from the guest's memory.
    pub(crate) fn completes(&self, index: usize) -> bool {
        let is_test = self.registers != KernelRegisters::Available;
        is_test || self.vcpu(index).is_some_and(|vcpu| vcpu.completes.load(Ordering::Acquire))
    }

    /// Returns the registers of a sample of a vCPU, and what is known of them. `memory` is the guest's at the
    /// sample.
    pub(crate) fn complete(
        &self,
        index: usize,
        state: &RawState,
        memory: &impl PhysicalMemory,
    ) -> CompletedRegisters {
        let (regs, sregs) = registers(state);
        match self.vcpu(index).filter(|_| self.is_partial()) {
            Some(vcpu) => {
                let guest = vcpu.target.lock().unwrap_or_else(PoisonError::into_inner).guest;
                partial::complete(state, &guest, memory)
            }
            None => CompletedRegisters { regs, sregs, known: KnownRegisters::All },
        }
    }

    /// Updates the ranges of the guest's memory if the kernel has changed them, and returns the layout then.
    pub(crate) fn refresh(&self) -> Option<MemoryLayout> {
        let reader = self.reader();
        if reader.generation(self.kvm) == Some(self.generation.load(Ordering::Relaxed)) {
            return None;
        }
        // While the machine ends nothing is found.
        let slots = reader.slots(self.kvm)?;
        let layout = slots.layout?;
        for (_, vcpu) in self.known() {
            vcpu.change(|target| set_slots(target, &layout));
        }
        self.generation.store(slots.generation, Ordering::Relaxed);
        Some(layout)
    }

    /// Lets the kernel count waits and exits from here on, and those that KVM serves itself where it has
    /// trace points for them.
    pub(crate) fn count(&mut self) -> Result<(), BpfRefusal> {
        self.follows = true;
        (0..self.known().count()).try_for_each(|index| self.follow(index))?;
        self.programs.count(self.vendor)?;
        self.counts = true;
        Ok(())
    }

    /// Returns the vCPUs that are not known yet, by KVM's number and thread, each once a thread has entered
    /// it: no two threads may call this at once. Those for which there is no room have no index. `gone` are
    /// the indices of vCPUs whose threads have ended: another thread may enter such a vCPU, as a new one.
    /// `passed` are the addresses of vCPUs that were returned without an index; this adds to them.
    pub(crate) fn take_new(
        &self,
        gone: &[usize],
        passed: &mut Vec<u64>,
    ) -> Vec<(u32, KernelThread, Option<usize>)> {
        let reader = self.reader();
        let most = self.vcpus.len();
        let mut new = Vec::new();
        for address in reader.vcpus_of(self.kvm, most).unwrap_or_default() {
            let runs =
                |(index, vcpu): (usize, &SampledVcpu)| vcpu.address == address && !gone.contains(&index);
            let is_known = passed.contains(&address) || self.known().any(runs);
            let Some((number, thread)) = (!is_known).then(|| reader.entered(self.kvm, address)).flatten()
            else {
                continue;
            };
            let index = self.add(address, number, thread);
            if index.is_none() {
                passed.push(address);
            }
            new.push((number, thread, index));
        }
        new
    }

    /// Returns true if [`Self::take_new`] finds vCPUs on this kernel.
    pub(crate) fn lists_vcpus(&self) -> bool {
        // The threads that may be stopped for stacks are those of the start.
        self.offsets.finder.vcpu_list.is_some() && !self.is_partial()
    }

    /// Returns true if a vCPU for which there is no room can be profiled by another attachment.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.room == VcpuRoom::Present
    }

    /// Returns what the kernel does not count with this KVM, as the beginning of a sentence.
    pub(crate) fn uncounted(&self) -> &'static str {
        self.vendor.uncounted()
    }

    /// Adds a vCPU; returns its index, `None` if there is no room.
    fn add(&self, address: u64, number: u32, thread: KernelThread) -> Option<usize> {
        let index = self.known().count();
        let place = self.vcpus.get(index)?;
        // All vCPUs have the same memory.
        let first = *self.vcpu(0)?.target.lock().unwrap_or_else(PoisonError::into_inner);
        let target = RawTarget { vcpu: address, guest: RawGuest::default(), ..first };
        place.set(SampledVcpu::new(number, thread, target, true)).ok()?;
        Some(index)
    }

    /// Returns the APIC id of a vCPU.
    pub(crate) fn apic_id(&self, index: usize) -> usize {
        self.vcpu(index).map_or(index, SampledVcpu::apic_id)
    }

    /// Lets the kernel count the waits, and the exits, of a vCPU that was added after [`Self::count`]. Must
    /// not be called while the vCPU is being sampled.
    pub(crate) fn follow(&self, index: usize) -> Result<(), BpfRefusal> {
        // The programs need the vCPU's address from their first run on.
        if let Some(vcpu) = self.vcpu(index).filter(|_| self.follows) {
            vcpu.publish(index, &self.programs)?;
        }
        self.count_for(index, u32::try_from(index).unwrap_or(ABSENT))
    }

    /// Ends what [`Self::follow`] has begun: another thread may have the address of a thread that has ended.
    pub(crate) fn unfollow(&self, index: usize) -> Result<(), BpfRefusal> {
        self.count_for(index, ABSENT)
    }

    /// Lets what is counted of a vCPU's thread be that of the vCPU `counted`, if the kernel counts.
    fn count_for(&self, index: usize, counted: u32) -> Result<(), BpfRefusal> {
        match self.vcpu(index).filter(|_| self.follows) {
            Some(vcpu) => self.programs.follow(vcpu.thread.task, counted),
            None => Ok(()),
        }
    }

    /// Returns true if the VMM keeps a vCPU out of the guest, and not because the vCPU has halted; `None` if
    /// the vCPU's thread has ended.
    pub(crate) fn is_kept_out(&self, index: usize) -> Option<bool> {
        let vcpu = self.vcpu(index)?;
        self.reader().is_kept_out(vcpu.address, vcpu.thread)
    }

    /// Returns true if the thread of a vCPU has ended.
    pub(crate) fn has_ended(&self, index: usize) -> bool {
        self.vcpu(index).is_none_or(|vcpu| !self.reader().is_alive(vcpu.thread))
    }

    /// Returns KVM's counters.
    pub(crate) fn counters(&self) -> &[KernelCounter] {
        &self.counters
    }

    /// Returns the present values of KVM's counters of a vCPU.
    pub(crate) fn read_counters(&self, index: usize) -> Option<Vec<u64>> {
        let offsets = self.counters.iter().map(|counter| counter.offset);
        self.reader().words(self.vcpu(index)?.address, offsets)
    }

    /// Returns true if the kernel counts returns of KVM_RUN.
    pub(crate) fn counts_returns(&self) -> bool {
        self.counts
    }

    /// Returns true if the kernel counts entries of the guest, and so all exits.
    pub(crate) fn counts_entries(&self) -> bool {
        self.counts && self.vendor.shows_exits()
    }

    /// Returns true if exits are counted by their reasons.
    pub(crate) fn counts_exits(&self) -> bool {
        self.offsets.options.exits != 0
    }

    /// Returns what the kernel counts of a vCPU.
    pub(crate) fn course(&self, index: usize) -> Option<CourseView<'_>> {
        self.programs.course(index)
    }

    /// Returns the exits that the kernel counts of a vCPU by their reasons; `None` if it counts none.
    pub(crate) fn exits(&self, index: usize) -> Option<ExitsView<'_>> {
        self.programs.exits(index).filter(|_| self.counts && self.counts_exits())
    }

    /// Returns the noted exits of a vCPU; `None` if there are none.
    pub(crate) fn notes(&self, index: usize) -> Option<NotesView<'_>> {
        self.programs.notes(index).filter(|_| self.counts && self.counts_exits() && !self.is_partial())
    }

    /// Returns true once the addresses in the guest's kernel are known.
    pub(crate) fn is_planned(&self) -> bool {
        self.planned.load(Ordering::Acquire)
    }

    /// Returns true if the addresses are to be set of a vCPU that was plugged in after they were known.
    pub(crate) fn lacks_plan(&self) -> bool {
        self.is_planned() && self.known().any(|(_, vcpu)| !vcpu.planned.load(Ordering::Acquire))
    }

    /// Sets the addresses that samples read in the guest's kernel, as soon as that has its per-CPU areas.
    pub(crate) fn plan(&self, kernel: &Kernel, memory: &impl PhysicalMemory) {
        let open = self.known().map(|(_, vcpu)| vcpu).filter(|vcpu| !vcpu.planned.load(Ordering::Acquire));
        let vcpus: Vec<_> = open.collect();
        let ids: Vec<_> = vcpus.iter().map(|vcpu| vcpu.apic_id()).collect();
        let Ok(reads) = kernel.sample_reads(memory, &ids) else { return };
        for (vcpu, reads) in vcpus.into_iter().zip(&reads) {
            if let Some(reads) = reads {
                // The reader of a sample has read the APIC ids of the others.
                let apic_id = reads.apic_id.filter(|_| vcpu.late).map_or(0, |at| at.0);
                vcpu.change(|target| target.guest = RawGuest { apic_id, ..guest(reads) });
                vcpu.completes.store(reads.page_tables.is_some(), Ordering::Release);
            }
            // A kernel takes a vCPU into use some time after it was plugged in.
            vcpu.planned.store(reads.is_some() || !vcpu.late, Ordering::Release);
        }
        self.planned.store(true, Ordering::Release);
    }
}

/// Scheduler statistics of a vCPU's thread, in the kernel's memory.
#[derive(Debug)]
pub(crate) struct KernelStatistics {
    pub vm: Arc<SampledVm>,
    pub index: usize,
}

impl ThreadStatistics for KernelStatistics {
    fn read(&self) -> Option<ThreadTimes> {
        let vcpu = self.vm.vcpu(self.index)?;
        self.vm.reader().times(vcpu.thread)
    }
}

/// Value for no CPU.
const NO_CPU: u64 = u64::MAX;

/// Asks the CPU `first`, or this one, and then the one that each answer names, for a sample of a thread.
/// `None` if that thread moves all the time, a CPU is always busy, or this CPU has no answer.
fn ask_cpus(
    first: Option<u32>,
    mut ask: impl FnMut(Option<u32>) -> Option<SampleOutcome>,
) -> Option<SampleOutcome> {
    let mut cpu = first;
    for _ in 0..MOST_CPUS {
        match ask(cpu) {
            Some(SampleOutcome { finding: ThreadFinding::Elsewhere, state }) => {
                cpu = u32::try_from(state.cpu).ok();
            }
            // For some µs: an interrupt found it at a sample without one.
            Some(SampleOutcome { finding: ThreadFinding::Busy, .. }) => {}
            Some(outcome) => return Some(outcome),
            // A CPU that is offline by now has no thread: from here, the thread's own CPU is found.
            None => {
                cpu.take()?;
            }
        }
    }
    None
}

/// Returns the CPU to ask first for the next sample; `None` for the one that asks. An interrupt on another
/// CPU costs more than all the rest of a sample, and a thread that had no CPU probably still has none.
fn first_cpu(finding: ThreadFinding, state: &RawState) -> Option<u32> {
    let has_cpu = match finding {
        ThreadFinding::Guest | ThreadFinding::Kvm | ThreadFinding::Vmm | ThreadFinding::Elsewhere => true,
        // The one that asks has taken the CPU only now.
        ThreadFinding::Queued => state.preempted != 0,
        ThreadFinding::Blocked | ThreadFinding::Gone | ThreadFinding::Busy => false,
    };
    u32::try_from(state.cpu).ok().filter(|_| has_cpu)
}

impl SampledVcpu {
    /// Makes a vCPU; `target` has its address, and `thread` is its thread.
    fn new(number: u32, thread: KernelThread, target: RawTarget, late: bool) -> Self {
        let target = RawTarget { task: thread.task, start: thread.start, ..target };
        Self {
            address: target.vcpu,
            number,
            thread,
            late,
            planned: AtomicBool::new(false),
            completes: AtomicBool::new(false),
            target: Mutex::new(target),
            changed: AtomicBool::new(true),
            cpu: AtomicU64::new(NO_CPU),
            host_ticks: Mutex::default(),
        }
    }

    fn apic_id(&self) -> usize {
        usize::try_from(self.number).unwrap_or(usize::MAX)
    }

    /// Changes the target; the programs get it before the next sample.
    fn change(&self, change: impl FnOnce(&mut RawTarget)) {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut target);
        target.version = target.version.wrapping_add(1);
        target.end_version = target.version;
        drop(target);
        self.changed.store(true, Ordering::Release);
    }

    /// Gives the programs the target if it has changed. Only the thread that samples the vCPU calls this,
    /// or one before it, so no sample reads the target meanwhile. A note of an exit may, which the version
    /// shows.
    fn publish(&self, index: usize, programs: &KernelPrograms) -> Result<(), BpfRefusal> {
        if self.changed.swap(false, Ordering::AcqRel) {
            let target = *self.target.lock().unwrap_or_else(PoisonError::into_inner);
            programs.set_target(index, &target)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(finding: ThreadFinding, cpu: i32) -> Option<SampleOutcome> {
        Some(SampleOutcome { finding, state: RawState { cpu, ..RawState::default() } })
    }

    /// Returns what a search for a thread on CPU `at` finds, and the CPUs that were asked. CPU 9 is offline.
    fn search(first: Option<u32>, at: u32) -> (Option<ThreadFinding>, Vec<Option<u32>>) {
        let mut asked = Vec::new();
        let found = ask_cpus(first, |cpu| {
            asked.push(cpu);
            let on = i32::try_from(at).unwrap();
            match cpu {
                Some(9) => None,
                Some(cpu) if cpu == at => outcome(ThreadFinding::Guest, on),
                _ => outcome(ThreadFinding::Elsewhere, on),
            }
        });
        (found.map(|found| found.finding), asked)
    }

    #[test]
    fn a_thread_is_found_on_its_cpu_also_when_the_last_one_is_offline() {
        use ThreadFinding::Guest;
        assert_eq!(search(Some(3), 3), (Some(Guest), vec![Some(3)]));
        assert_eq!(search(Some(2), 3), (Some(Guest), vec![Some(2), Some(3)]));
        assert_eq!(search(None, 3), (Some(Guest), vec![None, Some(3)]));
        assert_eq!(search(Some(9), 3), (Some(Guest), vec![Some(9), None, Some(3)]));
        // It goes offline while the thread is on it.
        assert_eq!(search(None, 9), (None, vec![None, Some(9), None, Some(9)]));
        let mut asked = 0;
        let unanswered = ask_cpus(None, |_| {
            asked += 1;
            None
        });
        assert!(unanswered.is_none() && asked == 1, "{asked} times");
    }

    #[test]
    fn a_thread_that_moves_all_the_time_has_no_sample() {
        let mut cpu = 0;
        let found = ask_cpus(Some(0), |_| {
            cpu += 1;
            outcome(ThreadFinding::Elsewhere, cpu)
        });
        assert!(found.is_none() && cpu == 4, "{cpu}");
    }

    #[test]
    fn a_cpu_that_takes_another_sample_is_asked_again() {
        let after = |busy: usize| {
            let mut asked = Vec::new();
            let found = ask_cpus(Some(3), |cpu| {
                asked.push(cpu);
                let finding = if asked.len() > busy { ThreadFinding::Guest } else { ThreadFinding::Busy };
                outcome(finding, 7)
            });
            (found.map(|found| found.finding), asked)
        };
        assert_eq!(after(2), (Some(ThreadFinding::Guest), vec![Some(3); 3]));
        assert_eq!(after(9), (None, vec![Some(3); MOST_CPUS]));
    }

    #[test]
    fn only_a_thread_that_had_a_cpu_is_asked_for_by_an_interrupt() {
        let first =
            |finding, preempted| first_cpu(finding, &RawState { cpu: 5, preempted, ..RawState::default() });
        use ThreadFinding::{Blocked, Gone, Guest, Kvm, Queued, Vmm};
        assert_eq!([Guest, Kvm, Vmm].map(|finding| first(finding, 0)), [Some(5); 3]);
        assert_eq!((first(Queued, 0), first(Queued, 1)), (None, Some(5)));
        assert_eq!([Blocked, Gone].map(|finding| first(finding, 0)), [None; 2]);
    }
}
