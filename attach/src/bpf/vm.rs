//! A machine whose vCPUs the kernel samples.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kvm_bindings::{kvm_regs, kvm_sregs};
use linux::{Kernel, PhysAddr, PhysicalMemory, SampleReads, StackReader, StructurePart};

use super::area::{difference, registers};
use super::finder::{self, KernelReader, KernelThread, KernelVcpu};
use super::offsets::{self, HostOffsets};
use super::program::KernelPrograms;
use super::refusal::{BpfRefusal, host_refusal};
use super::shared::{
    ABSENT, RawGuest, RawSlot, RawSpan, RawState, RawTarget, SLOTS, SMALL, SPANS, ThreadFinding,
};
use crate::memory::MemoryLayout;

/// Link of the initial namespace of processes (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const HOST_NAMESPACE: &str = "pid:[4026531836]";
/// CPUs that a sample is asked of, at most: a thread may move meanwhile.
const MOST_CPUS: usize = 4;

/// A machine, and the programs that sample it.
#[derive(Debug)]
pub(crate) struct SampledVm {
    programs: KernelPrograms,
    offsets: HostOffsets,
    vcpus: Vec<SampledVcpu>,
    /// Address of the kernel's data of the machine.
    kvm: u64,
    /// Number of the last change of the memory that is known.
    generation: AtomicU64,
    /// The addresses in the guest's kernel are set.
    planned: AtomicBool,
}

/// A vCPU of a [`SampledVm`].
#[derive(Debug)]
struct SampledVcpu {
    target: Mutex<RawTarget>,
    /// The programs do not have that target yet.
    changed: AtomicBool,
    /// CPU that the thread was on last.
    cpu: AtomicU64,
}

/// Outcome of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleOutcome {
    pub finding: ThreadFinding,
    pub state: RawState,
}

/// A machine that was found, its memory, and the threads of its vCPUs in the order of the descriptors. vCPUs
/// without a thread are not in the machine.
pub(crate) type FoundVm = (SampledVm, MemoryLayout, Vec<Option<KernelThread>>);

impl SampledVm {
    /// Finds the machine of a process in the kernel's data, by the descriptors of its vCPUs (number and
    /// descriptor), for each vendor's module that the host has. `check` decides whether the registers are
    /// right.
    ///
    /// # Errors
    /// The reason of the last vendor.
    pub(crate) fn find(
        pid: i32,
        descriptors: &[(u32, i32)],
        mut check: impl FnMut(&FoundVm) -> Result<(), BpfRefusal>,
    ) -> Result<FoundVm, BpfRefusal> {
        let namespace = fs::read_link("/proc/self/ns/pid").map_err(host_refusal("read this namespace"))?;
        if namespace.as_os_str() != HOST_NAMESPACE {
            return Err(BpfRefusal::Namespace);
        }
        let types = offsets::types()?;
        let layouts = types.layouts();
        let mut refusal = BpfRefusal::NoThreads;
        for vendor in offsets::vendors()? {
            let found = HostOffsets::new(&layouts, vendor, pid)
                .and_then(|offsets| Self::find_with(offsets, descriptors))
                .and_then(|found| check(&found).map(|()| found));
            match found {
                Ok(found) => return Ok(found),
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }

    fn find_with(offsets: HostOffsets, descriptors: &[(u32, i32)]) -> Result<FoundVm, BpfRefusal> {
        let mut programs = KernelPrograms::load(&offsets.options, descriptors.len())?;
        let (found, slots) = finder::find(&mut programs, &offsets, descriptors)?;
        let layout = slots.layout.ok_or(BpfRefusal::NoThreads)?;
        let kvm = found.first().ok_or(BpfRefusal::NoThreads)?.kvm;
        let threads: Vec<_> = found.iter().map(|vcpu| vcpu.thread).collect();
        if threads.iter().all(Option::is_none) {
            return Err(BpfRefusal::NoThreads);
        }
        let seen = found.iter().filter_map(|vcpu| Some((vcpu, vcpu.thread?)));
        let vcpus = seen.map(|(vcpu, thread)| SampledVcpu::new(vcpu, thread, &layout)).collect();
        let vm = Self {
            programs,
            offsets,
            vcpus,
            kvm,
            generation: AtomicU64::new(slots.generation),
            planned: AtomicBool::new(false),
        };
        // Here, so that a kernel that is too old is known before the first tick.
        let state = vm.programs.sample(0, None).map_err(host_refusal("run a program in the kernel"))?;
        state.ok_or(BpfRefusal::Unknown(0, "it cannot be sampled"))?;
        Ok((vm, layout, threads))
    }

    /// Takes a sample of a vCPU, by its index. `None` if it changes its CPU all the time.
    ///
    /// # Errors
    /// The program cannot be run.
    pub(crate) fn sample(&self, index: usize) -> Option<SampleOutcome> {
        let vcpu = self.vcpus.get(index)?;
        vcpu.publish(index, &self.programs)?;
        let mut cpu = Some(vcpu.cpu.load(Ordering::Relaxed)).filter(|cpu| *cpu != NO_CPU);
        for _ in 0..MOST_CPUS {
            let number = cpu.and_then(|cpu| u32::try_from(cpu).ok());
            // A CPU that is offline by now has no thread: here, the thread's own CPU is found.
            let Ok(finding) = self.programs.sample(index, number) else {
                cpu.take()?;
                continue;
            };
            let state = self.programs.record(index)?.state();
            match finding? {
                ThreadFinding::Elsewhere => cpu = u64::try_from(state.cpu).ok(),
                finding => {
                    // A thread that is not on a CPU needs no interrupt the next time either.
                    let off = matches!(finding, ThreadFinding::Blocked | ThreadFinding::Gone);
                    let on = u64::try_from(state.cpu).unwrap_or(NO_CPU);
                    vcpu.cpu.store(if off { NO_CPU } else { on }, Ordering::Relaxed);
                    return Some(SampleOutcome { finding, state });
                }
            }
        }
        None
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
        Ok(difference(&registers(&sampled.state), kvm))
    }

    /// Updates the ranges of the guest's memory if they have changed.
    pub(crate) fn refresh(&self) {
        let reader = KernelReader { programs: &self.programs, offsets: &self.offsets };
        if reader.generation(self.kvm) == Some(self.generation.load(Ordering::Relaxed)) {
            return;
        }
        // While the machine ends nothing is found.
        let Some(slots) = reader.slots(self.kvm) else { return };
        let Some(layout) = &slots.layout else { return };
        for vcpu in &self.vcpus {
            vcpu.change(|target| set_slots(target, layout));
        }
        self.generation.store(slots.generation, Ordering::Relaxed);
    }

    /// Returns true once the addresses in the guest's kernel are set.
    pub(crate) fn is_planned(&self) -> bool {
        self.planned.load(Ordering::Acquire)
    }

    /// Sets the addresses that samples read in the guest's kernel, as soon as that has its per-CPU areas.
    pub(crate) fn plan(&self, kernel: &Kernel, memory: &impl PhysicalMemory) {
        let Ok(reads) = kernel.sample_reads(memory, self.vcpus.len()) else { return };
        for (vcpu, reads) in self.vcpus.iter().zip(&reads) {
            if let Some(reads) = reads {
                vcpu.change(|target| target.guest = guest(reads));
            }
        }
        self.planned.store(true, Ordering::Release);
    }
}

/// Value for no CPU.
const NO_CPU: u64 = u64::MAX;

impl SampledVcpu {
    fn new(found: &KernelVcpu, thread: KernelThread, layout: &MemoryLayout) -> Self {
        let KernelThread { task, start, tid, pid } = thread;
        let mut target =
            RawTarget { vcpu: found.vcpu, task, start, pid: tid, tgid: pid, ..RawTarget::default() };
        set_slots(&mut target, layout);
        Self { target: Mutex::new(target), changed: AtomicBool::new(true), cpu: AtomicU64::new(NO_CPU) }
    }

    /// Changes the target; the programs get it before the next sample.
    fn change(&self, change: impl FnOnce(&mut RawTarget)) {
        change(&mut self.target.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.store(true, Ordering::Release);
    }

    /// Gives the programs the target if it has changed. Only the thread that samples the vCPU calls this, so
    /// no program reads the target meanwhile.
    fn publish(&self, index: usize, programs: &KernelPrograms) -> Option<()> {
        if self.changed.swap(false, Ordering::AcqRel) {
            let target = *self.target.lock().unwrap_or_else(PoisonError::into_inner);
            programs.set_target(index, &target).ok()?;
        }
        Some(())
    }
}

/// Sets the largest pieces of a layout.
fn set_slots(target: &mut RawTarget, layout: &MemoryLayout) {
    let mut pieces = layout.pieces().to_vec();
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.bytes));
    target.slot = [RawSlot::default(); SLOTS];
    let slots = target.slot.iter_mut().zip(&pieces);
    for (slot, piece) in slots {
        *slot = RawSlot { guest: piece.guest.0, bytes: piece.bytes, host: piece.host.0 };
    }
    target.slots = u32::try_from(pieces.len().min(SLOTS)).unwrap_or(0);
}

pub(super) fn guest(reads: &SampleReads) -> RawGuest {
    let small = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
    let spans = |parts: &[StructurePart]| {
        let mut spans = [RawSpan::default(); SPANS];
        let parts = parts.iter().filter(|part| part.bytes <= SMALL);
        for (span, part) in spans.iter_mut().zip(parts) {
            *span = RawSpan { offset: small(part.offset), bytes: small(part.bytes) };
        }
        spans
    };
    let count = |parts: &[StructurePart]| small(parts.len().min(SPANS));
    let (init_task, init_task_phys) = reads.init_task;
    let (task_mm, mm_pgd) = reads.page_tables.map_or((ABSENT, ABSENT), |(mm, pgd)| (small(mm), small(pgd)));
    RawGuest {
        known: 1,
        five_level: u32::from(reads.five_level),
        kernel_root: reads.kernel_root.0,
        identity: reads.identity.map_or(0, |at| at.0),
        preempt_count: reads.preempt_count.0,
        current_task: reads.current_task.0,
        irq_stack: reads.irq_stack.map_or(0, |at| at.0),
        tss: reads.tss.map_or(0, |at| at.0),
        direct_map: reads.direct_map,
        init_task,
        init_task_phys: init_task_phys.0,
        task_leader: small(reads.task_leader),
        task_stack: small(reads.task_stack),
        task_mm,
        mm_pgd,
        stack_bytes: u32::try_from(reads.stack_bytes).unwrap_or(0),
        irq_stack_bytes: u32::try_from(reads.irq_stack_bytes).unwrap_or(0),
        padding: u32::try_from(reads.padding).unwrap_or(0),
        user_bytes: small(StackReader::USER_BYTES),
        task_spans: count(&reads.task),
        leader_spans: count(&reads.leader),
        task: spans(&reads.task),
        leader: spans(&reads.leader),
    }
}
