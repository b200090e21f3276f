//! Measures the path of a sample from the tick to the sink, for the project's benchmarks.

mod changed;
mod stopped;

use std::time::{Duration, Instant};

use guest_linux::{CurrentContext, IrqContext, Missing, TaskSnapshot};
use kvm_bindings::{kvm_regs, kvm_sregs};
use vmm::{GuestMemoryMmap, TickContext};

use crate::VcpuSampler;
use crate::capacity::QueueCapacity;
use crate::record::SampleRecord;
use crate::resolve::resolver::SampleResolver;
pub use changed::ChangedSampler;
use profile::SinkError;
use profile::rows::{Batch, SampleRow, Sink, VcpuState};
use statistics::clock::{ClockKind, Intervals};
pub use stopped::{StackFigures, StoppedGuest, stack_figures};
use vmm::monotonic_ns;

/// Cost of a measured operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredCost {
    /// Elapsed time.
    pub wall: Duration,
    /// CPU time of this thread: the figure to compare when other programs run, too.
    pub cpu: Duration,
}

/// Runs `what` and measures its cost.
pub fn measured<T>(what: impl FnOnce() -> T) -> (MeasuredCost, T) {
    let (wall, cpu) = (Instant::now(), thread_cpu());
    let value = what();
    (MeasuredCost { wall: wall.elapsed(), cpu: thread_cpu().saturating_sub(cpu) }, value)
}

/// Returns the thread's CPU time (CLOCK_THREAD_CPUTIME_ID).
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that outlives the call; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_nanos(time.tv_nsec.cast_unsigned())
}

/// Samples per batch, as in a run at a high rate.
const BATCH: u64 = 8_192;

/// Reasons why a measurement has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The sink has rejected a batch.
    #[error(transparent)]
    Write(#[from] SinkError),
    /// The guest's kernel cannot be read.
    #[error("the guest is not understood: {0}")]
    Missing(#[from] Missing),
    /// Samples of the guest are incomplete.
    #[error("the guest is not understood: {0}")]
    NotRead(String),
    /// A sample has no stack.
    #[error("a sample has no stack")]
    NoStack,
}

/// Returns the `n`th record of a made-up run: 2 vCPUs, 64 processes, half user code with 20,000 addresses,
/// half kernel code with 2,000 addresses, a tenth of that in interrupts.
fn record(n: u64) -> SampleRecord {
    // A fixed permutation of 32 bits (Knuth's multiplicative hash): spread out, and the same in every run.
    let spread = n.wrapping_mul(2_654_435_761) & 0xffff_ffff;
    let slot = (spread >> 16) % 64;
    let digit = |value: u64| b'0' + u8::try_from(value).unwrap_or(0);
    let pid = 100 + i32::try_from(slot).unwrap_or(0);
    let mut comm = *b"program-00\0\0\0\0\0\0";
    (comm[8], comm[9]) = (digit(slot / 10), digit(slot % 10));
    let user = n.is_multiple_of(2);
    let interrupt = n % 20 == 1;
    let task = TaskSnapshot {
        task: 0xffff_8880_0000_0000 + slot * 0x2000,
        tid: pid,
        pid,
        start_ns: 1_000,
        process_comm: comm,
        comm,
        kernel_thread: false,
    };
    SampleRecord {
        time_ns: n * 500_000,
        late_ns: 20_000 + spread % 50_000,
        rip: guest_linux::VirtAddr(if user {
            0x55_0000_0000 + spread % 20_000
        } else {
            0xffff_ffff_8100_0000 + spread % 2_000
        }),
        rsp: 0x7ffc_0000_0000 + spread,
        cr3: 0x1_0000 + slot * 0x1000,
        cpl: if user { 3 } else { 0 },
        interrupts_on: !interrupt,
        long_mode: true,
        five_level: false,
        halted: false,
        nested: false,
        registers: vmm::KnownRegisters::All,
        vcpu_state: VcpuState::Guest,
        current: Some(CurrentContext {
            serving: if interrupt { IrqContext::HardIrq } else { IrqContext::Task },
            task: Some(task),
            ..Default::default()
        }),
        kernel_mapped: None,
    }
}

/// Sends `samples` made-up samples through the resolver to `sink`, on this thread, as the collector does.
/// `change` may change each row, by its number, before the row is written.
///
/// # Errors
/// Returns the sink's error.
pub fn collect_samples(
    sink: &mut dyn Sink,
    samples: u64,
    mut change: impl FnMut(u64, &mut SampleRow),
) -> Result<(), SinkError> {
    let mut resolver = SampleResolver::new(0);
    let mut batch = Batch::default();
    for n in 0..samples {
        resolver.sample(u8::from(n % 4 > 1), &record(n), None, &mut batch);
        if let Some(sample) = batch.samples.last_mut() {
            change(n, sample);
        }
        if n % BATCH == BATCH - 1 {
            sink.write(&batch)?;
            batch = Batch::default();
        }
    }
    sink.write(&batch)
}

/// Serves `ticks` ticks of one vCPU on made-up registers and empty memory: the record path without reading
/// the current task.
pub fn serve_ticks(ticks: u32) -> MeasuredCost {
    let intervals = Intervals::new(ClockKind::Uniform, 1_000.0, 1, 0);
    let (mut sampler, mut ends, _) = VcpuSampler::new(
        0,
        intervals,
        QueueCapacity { ring: 1_024, pool: 1, reserve: 0 },
        Default::default(),
    );
    let Ok(memory) = GuestMemoryMmap::<()>::from_ranges(&[(vm_memory::GuestAddress(0), 0x1000)]) else {
        return MeasuredCost::default();
    };
    let (regs, sregs) = (kvm_regs::default(), kvm_sregs::default());
    let serve = || {
        for _ in 0..ticks {
            let now_ns = monotonic_ns();
            let moment = TickContext {
                due_ns: now_ns,
                now_ns,
                in_run: true,
                regs: &regs,
                sregs: &sregs,
                memory: &memory,
            };
            std::hint::black_box(sampler.serve(&moment, || None));
            std::hint::black_box(ends.samples.pop().is_ok());
        }
    };
    measured(serve).0
}
