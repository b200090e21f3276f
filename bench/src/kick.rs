//! Cost of a tick for the guest: a sample against a bare kick that reads nothing, on a guest that only
//! counts.
//!
//! The guest runs at privilege level 3, which every KVM executes natively. Its memory holds that of a real
//! guest, which was stopped in its kernel: each sample is of that state, task and stacks included. All
//! variants take turns within one run, so that a noisy machine disturbs them alike.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_regs, kvm_sregs};
use profile::rows::{FrameKind, SampleRow};
use profile::{Batch, Sink, SinkError};
use sampler::bench::{ChangedSampler, StoppedGuest};
use sampler::{RecordingConfig, Session, SessionConfig, VcpuSampler};
use statistics::clock::{ClockKind, Intervals};
use symbols::names::OpenFiles;
use vmm::{Exit, GuestMemoryMmap, Machine, Observer, Tick, TickContext, VmConfig, monotonic_ns};

use crate::dump;
use crate::table::{TableRow, median};

/// `again: inc %rax; jmp again`: counts as fast as the processor can.
pub const COUNT: &[u8] = &[0x48, 0xff, 0xc0, 0xeb, 0xfb];
/// Number of rounds; the median of them counts.
const ROUNDS: usize = 9;
/// Running time of each variant in a round.
const TURN: Duration = Duration::from_millis(500);
pub const SEED: u64 = 1;
/// Frames of a stack, at most: vprof's default.
pub const DEPTH: usize = 127;
/// Time to wait until the kernel is found, which takes a tenth of a second.
pub const FOUND_LIMIT: Duration = Duration::from_secs(20);

/// Observer that kicks at random intervals and reads nothing.
pub struct BareKicks(pub Intervals);

impl Observer for BareKicks {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_nanos(self.0.next_ns()))
    }
    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        Some(Duration::from_nanos(self.0.next_ns()))
    }
}

/// Registers of the stopped guest.
type StoppedRegisters = (kvm_regs, kvm_sregs);

/// Serves a tick as if it had hit a real guest in the stopped state: with that guest's registers, on its
/// memory, which the counting guest carries along.
fn serve_stopped(
    sampler: &mut VcpuSampler,
    (regs, sregs): &mut StoppedRegisters,
    tick: &Tick<'_>,
) -> Option<Duration> {
    let context = TickContext { regs, sregs, ..tick.context };
    sampler.serve(&context, || tick.activity())
}

/// Registers of the stopped guest, where every other tick has no FS base, through which vprof finds the
/// functions of managed languages.
#[derive(Debug)]
struct EveryOther {
    registers: StoppedRegisters,
    fs_base: u64,
    ticks: u64,
}

impl EveryOther {
    /// Serves a tick as [`serve_stopped`] does. Ticks with odd numbers, from 0, have no FS base.
    fn serve(sampler: &mut VcpuSampler, state: &mut Self, tick: &Tick<'_>) -> Option<Duration> {
        state.registers.1.fs.base = if is_odd(state.ticks) { 0 } else { state.fs_base };
        state.ticks += 1;
        serve_stopped(sampler, &mut state.registers, tick)
    }
}

fn is_odd(number: u64) -> bool {
    number % 2 == 1
}

/// Sink that counts the rows and drops them: the disk is measured elsewhere.
#[derive(Debug, Default, Clone)]
pub struct CountingSink {
    tasks: Arc<AtomicU64>,
    stacks: Arc<AtomicU64>,
    /// Functions of a managed language that were new.
    functions: Arc<AtomicU64>,
}

impl CountingSink {
    /// Returns the number of samples with a stack.
    pub fn stacks(&self) -> u64 {
        self.stacks.load(Ordering::Relaxed)
    }
}

impl Sink for CountingSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let count =
            |is: &dyn Fn(&SampleRow) -> bool| batch.samples.iter().filter(|row| is(row)).count() as u64;
        self.tasks.fetch_add(count(&|row| row.instance.is_some()), Ordering::Relaxed);
        self.stacks.fetch_add(count(&|row| row.stack.is_some()), Ordering::Relaxed);
        let functions = batch.frames.iter().filter(|frame| frame.kind == FrameKind::Managed).count();
        self.functions.fetch_add(functions as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Wrapper that measures another observer from outside, once `measuring` is set.
struct MeasuredObserver<O> {
    inner: O,
    measuring: Arc<AtomicBool>,
    exited_ns: u64,
    /// Number of ticks.
    ticks: u64,
    ticked: bool,
    /// Number of a tick, from 0, and the time from its exit to the next entry, ns.
    gaps_ns: Vec<(u64, u64)>,
    first: Option<(u64, u64)>,
    last: (u64, u64),
}

impl<O> MeasuredObserver<O> {
    fn new(inner: O, measuring: Arc<AtomicBool>) -> Self {
        // Room for every tick of a turn: nothing is allocated while it runs.
        Self {
            inner,
            measuring,
            exited_ns: 0,
            ticks: 0,
            ticked: false,
            gaps_ns: Vec::with_capacity(100_000),
            first: None,
            last: (0, 0),
        }
    }

    /// Returns the time between the first and the last tick, ns, and the guest's loops in it.
    fn counted(&self) -> (u64, u64) {
        let first = self.first.expect("ticks arrive");
        let (ns, loops) = (self.last.0 - first.0, self.last.1 - first.1);
        assert!(loops > 0, "the guest counts");
        (ns, loops)
    }

    /// Returns the loops of the guest per second.
    fn speed(&self) -> f64 {
        let (ns, loops) = self.counted();
        loops as f64 / ns as f64 * 1e9
    }

    /// Returns the median time from an exit to the next entry, ns.
    fn gap(&self) -> f64 {
        self.gap_of(|_| true)
    }

    /// Returns the same of the ticks with some numbers.
    fn gap_of(&self, chosen: impl Fn(u64) -> bool) -> f64 {
        let gaps = self.gaps_ns.iter().filter(|(tick, _)| chosen(*tick));
        median(&gaps.map(|&(_, ns)| ns as f64).collect::<Vec<_>>())
    }
}

impl<O: Observer> Observer for MeasuredObserver<O> {
    fn started(&mut self) -> Option<Duration> {
        self.inner.started()
    }
    fn entering(&mut self, now_ns: u64) {
        self.inner.entering(now_ns);
        if std::mem::take(&mut self.ticked) && self.gaps_ns.len() < self.gaps_ns.capacity() {
            self.gaps_ns.push((self.ticks - 1, monotonic_ns() - self.exited_ns));
        }
    }
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.exited_ns = now_ns;
        self.inner.exited(exit, now_ns);
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        self.ticks += 1;
        if self.measuring.load(Ordering::Relaxed) {
            self.ticked = true;
            self.last = (tick.now_ns, tick.regs.rax);
            self.first.get_or_insert(self.last);
        }
        self.inner.ticked(tick)
    }
    fn stopped(&mut self) {
        self.inner.stopped();
    }
}

/// Runs the counting guest; measures from the end of `start` on.
fn turn<O: Observer>(
    inner: O,
    kvm: Option<OwnedFd>,
    start: impl FnOnce(GuestMemoryMmap),
) -> MeasuredObserver<O> {
    let config = VmConfig { kvm, memory_bytes: dump::MEMORY as u64, ..VmConfig::flat(COUNT) };
    let measuring = Arc::new(AtomicBool::new(false));
    let mut inner = Some(inner);
    let machine = Machine::start(config, |_| {
        MeasuredObserver::new(inner.take().expect("one vCPU"), Arc::clone(&measuring))
    })
    .unwrap_or_else(|error| panic!("the counting guest does not start: {error}"));
    start(machine.memory());
    measuring.store(true, Ordering::Relaxed);
    std::thread::sleep(TURN);
    machine.stop();
    let mut ended = machine.wait(Some(Duration::from_secs(5))).expect("the machine ends");
    ended.observers.remove(0)
}

fn bare(rate_hz: f64) -> MeasuredObserver<BareKicks> {
    turn(BareKicks(Intervals::new(ClockKind::Uniform, rate_hz, SEED, 0).expect("a rate")), None, |_| {})
}

/// Measures samples with the current task and, if `stack_depth` is not 0, with stacks.
fn sampled(
    rate_hz: f64,
    stack_depth: usize,
    stopped: &StoppedGuest,
) -> MeasuredObserver<ChangedSampler<StoppedRegisters>> {
    let files = symbols::names::no_files();
    sampled_with(rate_hz, stack_depth, stopped, files, |sampler| {
        ChangedSampler::new(sampler, (stopped.regs, stopped.sregs), serve_stopped)
    })
    .0
}

/// Measures samples likewise, in a guest whose disk has `files`, with ticks that `change` changes; also
/// returns the sink.
fn sampled_with<S: Send + 'static>(
    rate_hz: f64,
    stack_depth: usize,
    stopped: &StoppedGuest,
    files: OpenFiles,
    change: impl FnOnce(VcpuSampler) -> ChangedSampler<S>,
) -> (MeasuredObserver<ChangedSampler<S>>, CountingSink) {
    let config = SessionConfig {
        vcpus: 1,
        recording: RecordingConfig { rate_hz, seed: SEED, stack_depth, ..RecordingConfig::default() },
        meta: Vec::new(),
    };
    let sink = CountingSink::default();
    let (mut session, mut samplers) = Session::new(config, Box::new(sink.clone()), files);
    let complete = if stack_depth == 0 { &sink.tasks } else { &sink.stacks };
    let measured = turn(change(samplers.remove(0)), None, |memory| {
        dump::copy(&stopped.memory, &memory);
        session.start(memory).expect("the collector starts");
        let deadline = Instant::now() + FOUND_LIMIT;
        while complete.load(Ordering::Relaxed) < 10 {
            assert!(Instant::now() < deadline, "the kernel in the counting guest's memory is not found");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let counted = measured.gaps_ns.len() as u64;
    let totals = session.finish(Vec::new());
    assert_eq!(totals.lost, 0, "the ring is never full here");
    assert!(counted > 0, "samples arrive");
    assert!(complete.load(Ordering::Relaxed) >= counted, "{sink:?}: not all of {counted} are complete");
    (measured, sink)
}

/// Measures a sample of a thread in Python against the same one without the thread's functions, as of a
/// thread that is in no interpreter; `files` are those of the guest's disk.
///
/// # Errors
/// Returns an error if there is no KVM to measure on.
pub fn managed(stopped: &StoppedGuest, files: &OpenFiles) -> anyhow::Result<TableRow> {
    let (ratio, gaps) = with_functions(stopped, files, true)?;
    let what = "exit to re-entry: sample of a thread in Python / the same with stacks alone";
    let functions = format!("{} functions", dump::PYTHON_FUNCTIONS);
    Ok(TableRow::ratio(what, ratio, "at most 1.5").detail(format!("{gaps}; {functions}")))
}

/// Measures a sample of a program without a runtime against the same one for which vprof looks for no
/// functions of managed languages.
///
/// # Errors
/// Returns an error if there is no KVM to measure on.
pub fn unmanaged(stopped: &StoppedGuest, files: &OpenFiles) -> anyhow::Result<TableRow> {
    let (ratio, gaps) = with_functions(stopped, files, false)?;
    let what = "exit to re-entry: sample of a program without a runtime / the same with stacks alone";
    Ok(TableRow::ratio(what, ratio, "at most 1.02").detail(gaps))
}

/// Measures samples against the same ones without the FS base of their thread, through which vprof finds the
/// functions of managed languages. Both take turns within a run. Returns the ratio, and both times as text.
fn with_functions(
    stopped: &StoppedGuest,
    files: &OpenFiles,
    has_functions: bool,
) -> anyhow::Result<(f64, String)> {
    vmm::kvm_check::open()?;
    let (mut ratios, mut all) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..ROUNDS {
        let (measured, sink) = sampled_with(1000.0, DEPTH, stopped, Arc::clone(files), |sampler| {
            let registers = (stopped.regs, stopped.sregs);
            let state = EveryOther { registers, fs_base: stopped.sregs.fs.base, ticks: 0 };
            ChangedSampler::new(sampler, state, EveryOther::serve)
        });
        let functions = sink.functions.load(Ordering::Relaxed);
        assert_eq!(functions > 0, has_functions, "{functions} functions of managed languages");
        let [with, without] = [false, true].map(|odd| measured.gap_of(|tick| is_odd(tick) == odd));
        ratios.push(with / without);
        all[0].push(with);
        all[1].push(without);
    }
    let [with, without] = all.map(|gaps| median(&gaps) / 1000.0);
    Ok((median(&ratios), format!("{with:.2} us / {without:.2} us")))
}

/// A turn of the counting guest.
#[derive(Debug)]
pub struct CountedTurn {
    /// Length, ns.
    pub ns: u64,
    /// Loops of the guest.
    pub loops: u64,
    /// Median time from exit to re-entry at a tick, ns.
    pub gap_ns: u64,
}

/// Samples the counting guest as it is, on `kvm`.
pub fn sampled_alone(rate_hz: f64, kvm: OwnedFd) -> CountedTurn {
    let recording = RecordingConfig { rate_hz, seed: SEED, ..RecordingConfig::default() };
    let config = SessionConfig { vcpus: 1, recording, meta: Vec::new() };
    let sink = Box::new(CountingSink::default());
    let (mut session, mut samplers) = Session::new(config, sink, symbols::names::no_files());
    let measured = turn(samplers.remove(0), Some(kvm), |memory| {
        session.start(memory).expect("the collector starts");
    });
    session.finish(Vec::new());
    let (ns, loops) = measured.counted();
    let mut gaps_ns: Vec<u64> = measured.gaps_ns.iter().map(|&(_, ns)| ns).collect();
    gaps_ns.sort_unstable();
    CountedTurn { ns, loops, gap_ns: gaps_ns[gaps_ns.len() / 2] }
}

/// Measures exit to re-entry, and the guest's slow-down at several rates.
///
/// # Errors
/// Returns an error if there is no KVM to measure on.
pub fn rows(stopped: &StoppedGuest) -> anyhow::Result<Vec<TableRow>> {
    vmm::kvm_check::open()?;
    let mut rows = gaps(stopped);
    rows.extend([100.0, 1000.0, 5000.0].map(|rate_hz| slow_down(rate_hz, stopped)));
    Ok(rows)
}

fn gaps(stopped: &StoppedGuest) -> Vec<TableRow> {
    let (mut bare_ns, mut task_ns, mut stack_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare_ns.push(bare(1000.0).gap());
        task_ns.push(sampled(1000.0, 0, stopped).gap());
        stack_ns.push(sampled(1000.0, DEPTH, stopped).gap());
    }
    let bare = median(&bare_ns);
    let row = |what: &str, budget: &str, sample: f64| {
        let what = format!("exit to re-entry: sample {what} / bare kick");
        TableRow::ratio(&what, sample / bare, budget).detail(format!(
            "{:.2} us / {:.2} us",
            sample / 1000.0,
            bare / 1000.0
        ))
    };
    vec![
        row("with its task", "at most 1.25", median(&task_ns)),
        row("with task and stacks", "at most 2", median(&stack_ns)),
    ]
}

fn slow_down(rate_hz: f64, stopped: &StoppedGuest) -> TableRow {
    let (mut ratios, mut kicked, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let with_stacks = || sampled(rate_hz, DEPTH, stopped).speed();
    for round in 0..ROUNDS {
        // Ten ticks a second show the speed and cost next to nothing.
        let quiet = bare(10.0).speed();
        // Runs next to each other in time are compared, and take turns in being first: a noisy machine
        // drifts.
        let (bare, sampled) = if round % 2 == 0 {
            (bare(rate_hz).speed(), with_stacks())
        } else {
            let sampled = with_stacks();
            (bare(rate_hz).speed(), sampled)
        };
        ratios.push(bare / sampled);
        kicked.push((1.0 - bare / quiet) * 100.0);
        seen.push((1.0 - sampled / quiet) * 100.0);
    }
    let what = format!("guest's time at {rate_hz} Hz: sampled with stacks / bare kicks");
    TableRow::ratio(&what, median(&ratios), "at most 1.1").detail(format!(
        "slow-down {:.1} % / {:.1} %",
        median(&seen),
        median(&kicked)
    ))
}
