//! Measures the path of a sample behind the vCPU: from the ring to the file, and from the file to the report.
//!
//! The same functions serve the project's benchmark and its tests, and check the answer that they time.

mod made_up;
mod stopped;

use std::path::Path;
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_regs, kvm_sregs};
use symbols::{Current, Missing, Serving, TaskSnapshot};
use vmm::GuestMemoryMmap;

use crate::batch::{Batch, Fell, Sink, VcpuRow};
use crate::capacity::Capacity;
use crate::clock::{ClockKind, Intervals};
use crate::collector::resolver::Resolver;
use crate::microstate::States;
use crate::profile::{CreateError, Profile, ProfileError, ProfileWriter};
use crate::record::{Moment, Record};
use crate::report::{Breakdown, By, Filter, Report, ReportError, Request};
use crate::{SinkError, VcpuSampler};
pub use stopped::{StackFigures, Stopped, stack_figures};
use vmm::monotonic_ns;

/// What something took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time on the wall.
    pub wall: Duration,
    /// Time of this thread on a processor: the figure to compare where other programs run too.
    pub cpu: Duration,
}

/// Runs `what` and measures it.
pub fn measured<T>(what: impl FnOnce() -> T) -> (Cost, T) {
    let (wall, cpu) = (Instant::now(), thread_cpu());
    let value = what();
    (Cost { wall: wall.elapsed(), cpu: thread_cpu().saturating_sub(cpu) }, value)
}

/// CLOCK_THREAD_CPUTIME_ID.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that outlives the call; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_nanos(time.tv_nsec.cast_unsigned())
}

/// Samples per batch, as in a run at a high rate.
const BATCH: u64 = 8_192;

/// Why a measurement has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The profile could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The profile could not be written.
    #[error(transparent)]
    Write(#[from] SinkError),
    /// The profile could not be read.
    #[error(transparent)]
    Read(#[from] ProfileError),
    /// The report could not be made.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The guest's kernel is not understood.
    #[error("the guest is not understood: {0}")]
    Missing(#[from] Missing),
    /// Samples of the guest are not all that they could be.
    #[error("the guest is not understood: {0}")]
    NotRead(String),
    /// A sample came without its stack.
    #[error("a sample has no stack")]
    NoStack,
    /// The report does not say what was written.
    #[error("the report says {found} samples of {written}")]
    Wrong {
        /// What the report says.
        found: u64,
        /// What was written.
        written: u64,
    },
}

/// The `n`th record of a made-up run: 2 vCPUs, 64 processes, half user code with 20,000 addresses, half kernel code with
/// 2,000 addresses, a tenth of that in interrupts.
fn record(n: u64) -> Record {
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
    Record {
        time_ns: n * 500_000,
        late_ns: 20_000 + spread % 50_000,
        rip: if user { 0x55_0000_0000 + spread % 20_000 } else { 0xffff_ffff_8100_0000 + spread % 2_000 },
        rsp: 0x7ffc_0000_0000 + spread,
        cr3: 0x1_0000 + slot * 0x1000,
        cpl: if user { 3 } else { 0 },
        interrupts_on: !interrupt,
        long_mode: true,
        five_level: false,
        halted: false,
        fell: Fell::Guest,
        current: Some(Current {
            serving: if interrupt { Serving::HardIrq } else { Serving::Task },
            task: Some(task),
            ..Default::default()
        }),
        kernel_mapped: None,
    }
}

/// Writes a profile of `samples` made-up samples through resolver and writer, on this thread, as the collector does.
///
/// # Errors
/// The profile could not be created or written.
pub fn write_profile(path: &Path, force: bool, samples: u64) -> Result<Cost, BenchError> {
    write_profile_with_stacks(path, force, samples, 0)
}

/// Like [`write_profile`]. Each sample has one of `stacks` stacks, at most 65,536, 20 frames deep, half of user code and
/// half of kernel code; none where `stacks` is 0.
///
/// # Errors
/// The profile could not be created or written.
pub fn write_profile_with_stacks(
    path: &Path,
    force: bool,
    samples: u64,
    stacks: u32,
) -> Result<Cost, BenchError> {
    let mut writer = ProfileWriter::create(path, force)?;
    let (cost, written) = measured(|| write_samples(&mut writer, samples, stacks));
    written?;
    Ok(cost)
}

fn write_samples(writer: &mut ProfileWriter, samples: u64, stacks: u32) -> Result<(), SinkError> {
    let mut resolver = Resolver::new(0);
    let mut batch = Batch::default();
    let leaves = made_up::stacks(stacks, &mut batch);
    for n in 0..samples {
        resolver.sample(u8::from(n % 4 > 1), &record(n), None, &mut batch);
        if let Some(sample) = batch.samples.last_mut() {
            made_up::put(&leaves, n, sample);
        }
        if n % BATCH == BATCH - 1 {
            writer.write(&batch)?;
            batch = Batch::default();
        }
    }
    let half = samples / 2;
    for id in 0..2 {
        batch.vcpus.push(VcpuRow {
            id,
            samples: half,
            lost: 0,
            exits: half,
            states: States { guest: samples * 498_000, sampler: samples * 2_000, ..States::default() },
        });
    }
    made_up::times(&mut batch);
    let duration = samples * 500_000;
    let meta = [
        ("duration_ns", duration.to_string()),
        ("rate_hz", "1000".into()),
        ("clock", "uniform".into()),
        ("complete", "1".into()),
    ];
    batch.meta.extend(meta.map(|(key, value)| (key.to_owned(), value)));
    writer.write(&batch)?;
    writer.finish()
}

/// Makes the report over a profile, opening included, and compares its number of samples with `written`.
///
/// # Errors
/// The profile could not be read, or says something else.
pub fn read_report(path: &Path, written: u64) -> Result<(Cost, Report), BenchError> {
    let (cost, report) = measured(|| -> Result<Report, BenchError> {
        Ok(Report::read(&Profile::open(path)?, &Filter::default())?)
    });
    let report = report?;
    let charged: u64 = report.processes.iter().map(|process| process.estimate.samples).sum();
    match [report.samples, charged].into_iter().find(|&found| found != written) {
        Some(found) => Err(BenchError::Wrong { found, written }),
        None => Ok((cost, report)),
    }
}

/// Makes the table of functions over a profile, opening included, and compares its sum with `written`.
///
/// # Errors
/// The profile could not be read, or says something else.
pub fn read_functions(path: &Path, written: u64) -> Result<(Cost, Breakdown), BenchError> {
    let (cost, report) = measured(|| -> Result<Report, BenchError> {
        let request = Request::By(By::Function);
        Ok(Report::read_with(&Profile::open(path)?, &Filter::default(), &request)?)
    });
    let breakdown = report?.by;
    let found = breakdown.iter().flat_map(|by| &by.rows).map(|row| row.own.samples).sum();
    match breakdown {
        Some(breakdown) if found == written => Ok((cost, breakdown)),
        _ => Err(BenchError::Wrong { found, written }),
    }
}

/// Serves `ticks` ticks of one vCPU on made-up registers and empty memory: the record path without the reading of the
/// current task.
pub fn serve_ticks(ticks: u32) -> Cost {
    let intervals = Intervals::new(ClockKind::Uniform, 1_000.0, 1, 0);
    let (mut sampler, mut ends, _) =
        VcpuSampler::new(0, intervals, Capacity { ring: 1_024, pool: 1, reserve: 0 }, Default::default());
    let Ok(memory) = GuestMemoryMmap::<()>::from_ranges(&[(vm_memory::GuestAddress(0), 0x1000)]) else {
        return Cost::default();
    };
    let (regs, sregs) = (kvm_regs::default(), kvm_sregs::default());
    let serve = || {
        for _ in 0..ticks {
            let now_ns = monotonic_ns();
            let moment =
                Moment { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory: &memory };
            std::hint::black_box(sampler.serve(&moment, || None));
            std::hint::black_box(ends.samples.pop().is_ok());
        }
    };
    measured(serve).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_what_the_made_up_run_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made-up.vprof");
        write_profile(&path, false, 100_000).expect("a profile");
        let (_, report) = read_report(&path, 100_000).expect("a report");
        assert_eq!(report.vcpus.iter().map(|v| v.user).collect::<Vec<_>>(), [0.5, 0.5]);
        let interrupts =
            report.processes.iter().find(|p| p.comm == "[hard interrupts]").expect("a pseudo-row");
        assert_eq!((interrupts.estimate.samples, interrupts.estimate.share), (5_000, 0.05));
        assert!(matches!(read_report(&path, 1), Err(BenchError::Wrong { found: 100_000, written: 1 })));
        write_profile_with_stacks(&path, true, 100_000, 1_000).expect("a profile");
        let (_, report) = read_report(&path, 100_000).expect("a report");
        assert_eq!((report.stacks.kernel.walks, report.stacks.user.complete), (50_000, 50_000));
        let (_, functions) = read_functions(&path, 100_000).expect("functions");
        let total: u64 = functions.rows.iter().map(|row| row.total.samples).sum();
        assert!(total > 1_000_000, "{total}: 20 frames per sample");
        let stacks = Profile::open(&path).expect("a profile");
        let stacks = stacks.query("SELECT count(DISTINCT stack) FROM sample").expect("an answer");
        assert_eq!(stacks.rows[0][0], crate::profile::Value::Integer(1_000));
        assert!(serve_ticks(1_000).wall > Duration::ZERO);
    }
}
