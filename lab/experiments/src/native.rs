//! A program in step with the clock, on this machine's own KVM: a few bytes of code at privilege level 3,
//! which every KVM executes natively, and which count their own running time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use profile::rows::VcpuState;
use profile::{Batch, Sink, SinkError};
use sampler::bench::ChangedSampler;
use sampler::{RecordingConfig, Session, SessionConfig, VcpuSampler};
use statistics::clock::ClockKind;
use vmm::{FLAT_ENTRY, Machine, Observer, Tick, VmConfig};

/// Running time of the program for each clock and run, s.
pub const LENGTH: u64 = 30;
/// Time for which its clock is compared with the host's, s.
const PILOT: Duration = Duration::from_secs(1);

/// Program that works in the first part of each period, and rests in the other; both are loops that read the
/// time-stamp counter. The time since the last reading is added to R12 (work) or R13 (rest), unless it is so
/// long that the program did not run.
///
/// ```text
///       movabs $PERIOD, %r9; movabs $WORK, %r10
///       rdtsc (into %rax); mov %rax, %rbx; mov %rax, %r8
/// work: rdtsc; mov %rax, %rcx; sub %rbx, %rcx; mov %rax, %rbx
///       cmp $1500, %rcx; jae 1f; add %rcx, %r12
/// 1:    sub %r8, %rax; cmp %r10, %rax; jb work
/// rest: the same with %r13 and %r9
///       add %r9, %r8; jmp work
/// ```
const CODE: &[u8] = &[
    0x49, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, 0x49, 0xba, 0, 0, 0, 0, 0, 0, 0, 0, 0x0f, 0x31, 0x48, 0xc1, 0xe2,
    0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0xc3, 0x49, 0x89, 0xc0, // work:
    0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0xc1, 0x48, 0x29, 0xd9, 0x48, 0x89,
    0xc3, 0x48, 0x81, 0xf9, 0xdc, 0x05, 0x00, 0x00, 0x73, 0x03, 0x49, 0x01, 0xcc, 0x4c, 0x29, 0xc0, 0x4c,
    0x39, 0xd0, 0x72, 0xda, // rest:
    0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0xc1, 0x48, 0x29, 0xd9, 0x48, 0x89,
    0xc3, 0x48, 0x81, 0xf9, 0xdc, 0x05, 0x00, 0x00, 0x73, 0x03, 0x49, 0x01, 0xcd, 0x4c, 0x29, 0xc0, 0x4c,
    0x39, 0xc8, 0x72, 0xda, 0x4d, 0x01, 0xc8, 0xeb, 0xaf,
];
/// Offsets of the immediate operands and the loops in [`CODE`].
const PERIOD: usize = 2;
const WORK: usize = 12;
const LOOP_OF_WORK: std::ops::Range<u64> = FLAT_ENTRY + 0x23..FLAT_ENTRY + 0x49;

/// A program and the clock that samples it.
#[derive(Debug, Clone, Copy)]
pub struct NativeCase {
    /// Length of a period, us.
    pub period_us: u64,
    /// Work in each, us.
    pub work_us: u64,
    /// Mean rate, Hz.
    pub rate_hz: f64,
    /// Distribution of the intervals.
    pub clock: ClockKind,
}

/// Results of one run.
#[derive(Debug, Clone, Copy)]
pub struct WorkShares {
    /// Part of the program's time that it worked, by its own account.
    pub own: f64,
    /// The same by the ticks that fell into the guest.
    pub sampled: f64,
    /// Number of those ticks.
    pub ticks: u64,
}

impl NativeCase {
    /// Runs it on this machine's KVM.
    ///
    /// # Errors
    /// Returns an error if there is no KVM, or the machine does not run.
    /// There is no KVM, or the machine does not run.
    pub fn run(&self, seed: u64) -> Result<WorkShares> {
        // The pilot only measures the counter's frequency, so its times do not matter.
        let pilot = run(self, (1 << 20, 1 << 10), seed, PILOT)?.1;
        let per_us = pilot.counts_per_us();
        let counts = |us: u64| us * per_us;
        let (counted, account) =
            run(self, (counts(self.period_us), counts(self.work_us)), seed, Duration::from_secs(LENGTH))?;
        let (work, rest) = account.worked_and_rested();
        let (met, ticks) = counted.met();
        ensure!(ticks > 0, "no tick fell into the guest");
        Ok(WorkShares { own: work as f64 / (work + rest) as f64, sampled: met as f64 / ticks as f64, ticks })
    }
}

/// Frames of samples that fell into the guest.
#[derive(Debug, Default)]
struct GuestFrames {
    /// Addresses of instructions, by frame.
    addresses: HashMap<u32, u64>,
    /// Frame of each sample.
    samples: Vec<u32>,
}

/// A sink that keeps these frames.
#[derive(Debug, Default, Clone)]
struct FrameSink(Arc<Mutex<GuestFrames>>);

impl FrameSink {
    /// Returns the ticks that met the work, and all.
    fn met(&self) -> (u64, u64) {
        let counted = self.0.lock().expect("no thread panics with it");
        let is_work = |frame: &&u32| counted.addresses.get(frame).is_some_and(|at| LOOP_OF_WORK.contains(at));
        (counted.samples.iter().filter(is_work).count() as u64, counted.samples.len() as u64)
    }
}

impl Sink for FrameSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut counted = self.0.lock().expect("no thread panics with it");
        counted.addresses.extend(batch.frames.iter().map(|frame| (frame.id, frame.address)));
        let in_guest = batch.samples.iter().filter(|row| row.vcpu_state == VcpuState::Guest);
        counted.samples.extend(in_guest.map(|row| row.frame));
        Ok(())
    }
}

/// The program's registers at the first and at the last tick.
#[derive(Debug, Clone, Copy, Default)]
struct WorkAccount {
    first: Option<RegisterReading>,
    last: RegisterReading,
}

#[derive(Debug, Clone, Copy, Default)]
struct RegisterReading {
    time_ns: u64,
    counter: u64,
    worked: u64,
    rested: u64,
}

impl WorkAccount {
    fn counts_per_us(&self) -> u64 {
        let first = self.first.unwrap_or_default();
        (self.last.counter - first.counter) * 1_000 / (self.last.time_ns - first.time_ns).max(1)
    }

    fn worked_and_rested(&self) -> (u64, u64) {
        let first = self.first.unwrap_or_default();
        (self.last.worked - first.worked, self.last.rested - first.rested)
    }
}

/// Serves a tick as the product does, and reads the program's registers.
fn watch_work(sampler: &mut VcpuSampler, account: &mut WorkAccount, tick: &Tick<'_>) -> Option<Duration> {
    let regs = tick.regs;
    account.last =
        RegisterReading { time_ns: tick.now_ns, counter: regs.rbx, worked: regs.r12, rested: regs.r13 };
    // The program has read the counter by then.
    if regs.rbx > 0 {
        account.first.get_or_insert(account.last);
    }
    sampler.ticked(tick)
}

/// Runs the program with this period and this work, in counts of the time-stamp counter.
fn run(
    case: &NativeCase,
    (period, work): (u64, u64),
    seed: u64,
    length: Duration,
) -> Result<(FrameSink, WorkAccount)> {
    let mut code = CODE.to_vec();
    code[PERIOD..PERIOD + 8].copy_from_slice(&period.to_le_bytes());
    code[WORK..WORK + 8].copy_from_slice(&work.to_le_bytes());
    let config = SessionConfig {
        vcpus: 1,
        recording: RecordingConfig {
            rate_hz: case.rate_hz,
            clock: case.clock,
            seed,
            ..RecordingConfig::default()
        },
        meta: Vec::new(),
    };
    let counted = FrameSink::default();
    let (mut session, mut samplers) =
        Session::new(config, Box::new(counted.clone()), symbols::names::no_files());
    let machine = VmConfig::flat(code);
    let machine = Machine::start(machine, |_| {
        ChangedSampler::new(samplers.remove(0), WorkAccount::default(), watch_work)
    })?;
    session.start(machine.memory())?;
    std::thread::sleep(length);
    machine.stop();
    let ended = machine.wait(Some(Duration::from_secs(20)))?;
    let account = ended.observers.first().context("a machine without a vCPU")?.state;
    let totals = session.finish(Vec::new());
    ensure!(totals.lost == 0 && account.first.is_some(), "{} samples were lost", totals.lost);
    Ok((counted, account))
}
