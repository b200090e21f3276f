//! Cost of the stack of a sample, on the memory of a real guest that was stopped.

use std::sync::Arc;

use guest_linux::{Kernel, KernelUnwinder, StackCopy, StackReader};
use kvm_bindings::{kvm_regs, kvm_sregs};
use vmm::{GuestMemoryMmap, TickContext, monotonic_ns};

use super::{BATCH, BenchError, MeasuredCost, measured};
use crate::VcpuSampler;
use crate::capacity::QueueCapacity;
use crate::collector::finder::{GuestKernel, LinuxGuest};
use crate::record::{GuestCells, SampleMessage, SampleRecord};
use crate::resolve::frames::KernelNames;
use crate::resolve::resolver::SampleResolver;
use crate::resolve::walker::{GuestSource, StackOwner, StackStep, StackWalker};
use crate::vcpu::RingEnds;
use profile::rows::{Batch, Sink};
use symbols::names::OpenFiles;

/// Frames of a stack, at most: vprof's default.
const DEPTH: usize = 127;
/// Number of repetitions of each timed step.
const ROUNDS: u32 = 5_000;

/// The first vCPU of a stopped guest.
#[derive(Debug, Clone)]
pub struct StoppedGuest {
    /// General registers.
    pub regs: kvm_regs,
    /// Segment and control registers.
    pub sregs: kvm_sregs,
    /// All of the guest's memory.
    pub memory: GuestMemoryMmap,
}

/// Size and cost of one stack.
#[derive(Debug, Clone, Copy, Default)]
pub struct StackFigures {
    /// Bytes that are copied.
    pub bytes: usize,
    /// Frames of the kernel.
    pub kernel_frames: u32,
    /// Frames of the program.
    pub user_frames: u32,
    /// True if frames are missing.
    pub broken: bool,
    /// Cost of serving one tick: current task, copy of the stacks, ring.
    pub serve: MeasuredCost,
    /// Cost of walking the kernel's part.
    pub kernel: MeasuredCost,
    /// Cost of walking the program's part.
    pub user: MeasuredCost,
    /// Cost of the whole sample in collector and writer.
    pub collect: MeasuredCost,
}

impl StoppedGuest {
    fn moment(&self) -> TickContext<'_, GuestMemoryMmap> {
        let now_ns = monotonic_ns();
        TickContext {
            due_ns: now_ns,
            now_ns,
            in_run: true,
            regs: &self.regs,
            sregs: &self.sregs,
            memory: &self.memory,
        }
    }
}

/// State of the collector for a guest.
struct FoundGuest {
    kernel: Arc<Kernel>,
    unwinder: Arc<KernelUnwinder>,
    names: Arc<dyn KernelNames>,
    sampler: VcpuSampler,
    ends: RingEnds,
}

impl FoundGuest {
    fn find(stopped: &StoppedGuest) -> Result<Self, BenchError> {
        let cells = GuestCells::default();
        let mut guest =
            LinuxGuest::new(stopped.memory.clone().into(), cells.clone(), 1, Some(StackReader::USER_BYTES));
        let record = crate::record::read_record(&stopped.moment(), |_| None, || None);
        let found = guest.find(record.cr3, record.five_level)?;
        if let Some(reason) = guest.publish_reader()?.into_iter().next() {
            return Err(BenchError::NotRead(reason));
        }
        let code = guest.code()?.unwrap_or(found.code);
        let (sampler, ends, _) =
            VcpuSampler::new(0, None, QueueCapacity { ring: 1, pool: 1, reserve: 0 }, cells);
        let (Some(kernel), Some(unwinder)) = (code.kernel, code.unwinder) else {
            return Err(BenchError::NoStack);
        };
        Ok(Self { kernel, unwinder, names: code.names, sampler, ends })
    }

    /// Serves one tick. The caller returns the stack's buffer to the pool with [`FoundGuest::give_back`].
    fn tick(&mut self, stopped: &StoppedGuest) -> Result<(SampleRecord, Box<StackCopy>), BenchError> {
        self.sampler.serve(&stopped.moment(), || None);
        match self.ends.samples.pop() {
            Ok(SampleMessage { record, stack: Some(stack), .. }) => Ok((record, stack)),
            _ => Err(BenchError::NoStack),
        }
    }

    fn give_back(&mut self, stack: Box<StackCopy>) {
        self.ends.buffers.give_back(stack);
    }

    fn walker(&self, stopped: &StoppedGuest, files: &OpenFiles) -> StackWalker {
        let (kernel, unwinder) = (Arc::clone(&self.kernel), Arc::clone(&self.unwinder));
        StackWalker::new(
            Some(unwinder),
            GuestSource::new(kernel, stopped.memory.clone().into(), files()),
            DEPTH,
        )
    }
}

/// Returns the mean cost of [`ROUNDS`] rounds, and the last round's result.
fn mean<T>(mut round: impl FnMut() -> Result<T, BenchError>) -> Result<(MeasuredCost, T), BenchError> {
    let mut last = round()?;
    let (cost, done) = measured(|| -> Result<(), BenchError> {
        for _ in 0..ROUNDS {
            last = std::hint::black_box(round()?);
        }
        Ok(())
    });
    done?;
    Ok((MeasuredCost { wall: cost.wall / ROUNDS, cpu: cost.cpu / ROUNDS }, last))
}

/// Serves, walks and collects the same sample again and again; writes rows of the profile to `sink`.
///
/// # Errors
/// Returns an error if the guest's kernel cannot be read, the sample has no stack, or the sink fails.
pub fn stack_figures(
    stopped: &StoppedGuest,
    files: &OpenFiles,
    sink: &mut dyn Sink,
) -> Result<StackFigures, BenchError> {
    let mut known = FoundGuest::find(stopped)?;
    let mut figures = StackFigures::default();
    (figures.serve, ()) = mean(|| {
        let (_, stack) = known.tick(stopped)?;
        known.give_back(stack);
        Ok(())
    })?;
    let (record, stack) = known.tick(stopped)?;
    figures.bytes = stack.len();
    (figures.kernel, figures.kernel_frames) = mean(|| {
        let mut frames = 0;
        std::hint::black_box(known.unwinder.walk_copy(&stack, DEPTH, |_| frames += 1));
        Ok(frames)
    })?;
    let task = record.current.and_then(|current| current.task);
    let owner = task.map(|task| StackOwner { instance: 1, task });
    let (mut walker, mut steps, mut batch) = (known.walker(stopped, files), Vec::new(), Batch::default());
    let (whole, ()) = mean(|| {
        steps.clear();
        batch.clear();
        walker.walk(&stack, owner, &mut steps, &mut batch);
        Ok(())
    })?;
    let user = |step: &&StackStep| matches!(step, StackStep::File { .. } | StackStep::Memory { .. });
    figures.user_frames = u32::try_from(steps.iter().filter(user).count()).unwrap_or(u32::MAX);
    figures.broken = steps.iter().any(|step| matches!(step, StackStep::Reason { .. }));
    figures.user = MeasuredCost {
        wall: whole.wall.saturating_sub(figures.kernel.wall),
        cpu: whole.cpu.saturating_sub(figures.kernel.cpu),
    };
    figures.collect = collect(&known, walker, (&record, &stack), sink)?;
    Ok(figures)
}

/// Measures resolver and writer, as in the collector's thread, for one of many equal samples.
fn collect(
    known: &FoundGuest,
    walker: StackWalker,
    (record, stack): (&SampleRecord, &StackCopy),
    sink: &mut dyn Sink,
) -> Result<MeasuredCost, BenchError> {
    let (mut resolver, mut batch) = (SampleResolver::new(record.time_ns), Batch::default());
    resolver.kernel_found(Arc::clone(&known.names), Some(walker), &mut batch);
    let mut record = *record;
    let (cost, ()) = mean(|| {
        record.time_ns += 1_000_000;
        resolver.sample(0, &record, Some(stack), &mut batch);
        resolver.nameless.clear();
        if batch.samples.len() as u64 >= BATCH.min(u64::from(ROUNDS) / 2) {
            sink.write(&batch)?;
            batch.clear();
        }
        Ok(())
    })?;
    Ok(cost)
}
