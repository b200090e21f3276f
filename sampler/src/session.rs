//! One run's sampling: hands out vCPU observers, collects what they record, writes it to a sink.
//!
//! ```text
//!  vCPU thread ──ring──┐
//!  vCPU thread ──ring──┤                       ┌── candidates, requests ──▶ thread "finder"
//!  console ────queue───┼──▶ thread "collector" ┤                               │ reads guest memory
//!  events ─────queue───┘         │             └◀── kernel, modules, tasks ────┘
//!                                └──▶ Sink
//! ```
//!
//! The reader of current tasks goes from the finder to the vCPU threads through a cell that is set once.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linux::{KernelIdentity, StackReader};
use serde::{Deserialize, Serialize};
use symbols::names::OpenFiles;
use vmm::{Counters, Machine, Observer, monotonic_ns};

use crate::capacity::Capacity;
use crate::collector::aim::Aim;
use crate::collector::console::ConsoleQueue;
use crate::collector::finder::{Finder, LinuxGuest, Wanted};
use crate::collector::{Collector, FinderHandle};
use crate::conditions::{Seen, Wait};
use crate::exact::watch::Watch;
use crate::initrd::Initrd;
use crate::memory::GuestMemory;
use crate::microstate::meter::Meter;
use crate::record::Readers;
use crate::task_scan::{Plan, TaskStateCollector};
use crate::vcpu::Published;
use profile::clock::{ClockKind, Intervals};
use profile::estimate::{ONE_CLOCK, Share};
use profile::rows::{EventRow, Sink, SinkError};

pub use crate::vcpu::VcpuSampler;

/// Events that wait for the collector; more are dropped.
const EVENTS_WAITING: usize = 10_000;

/// How to sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionConfig {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// How they are sampled.
    pub recording: RecordingConfig,
    /// More rows of `meta` (host, image, command line, vprof's version).
    pub meta: Vec<(String, String)>,
}

/// Configuration of a recording, whatever the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordingConfig {
    /// Mean ticks per second and vCPU.
    pub rate_hz: f64,
    /// Distribution of intervals.
    pub clock: ClockKind,
    /// Seed of the intervals: the same seed gives the same intervals.
    pub seed: u64,
    /// Call stacks of at most this many frames; 0 for none.
    pub stack_depth: usize,
    /// Exact mode: events of tasks and interrupts besides the samples.
    pub exact: bool,
    /// Mean moments per second at which all tasks are looked at; 0 for none.
    pub task_scan_hz: f64,
    /// The precision after which the session is [`Session::precise`]: half the interval of the largest share, as a part
    /// of the whole.
    pub precision: Option<f64>,
}

impl Default for RecordingConfig {
    /// Samples without stacks, at the rate that `vprof run` has by default.
    fn default() -> Self {
        Self {
            rate_hz: 1_000.0,
            clock: ClockKind::Uniform,
            seed: 1,
            stack_depth: 0,
            exact: false,
            task_scan_hz: 0.0,
            precision: None,
        }
    }
}

/// Sampling rates that a session accepts, ticks per second and vCPU.
const RATES_HZ: std::ops::RangeInclusive<f64> = 0.1..=50_000.0;

/// A sampling rate out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has to be from {} to {} samples per second", RATES_HZ.start(), RATES_HZ.end())]
pub struct RateOutOfRange;

/// Returns the rate if it is one that a session accepts.
///
/// # Errors
/// It is too low, too high, or not a number.
pub fn checked_rate(rate_hz: f64) -> Result<f64, RateOutOfRange> {
    if RATES_HZ.contains(&rate_hz) { Ok(rate_hz) } else { Err(RateOutOfRange) }
}

/// A look at a running session; cheap.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Time since start.
    pub elapsed: Duration,
    /// Samples so far.
    pub samples: u64,
    /// Lost so far.
    pub lost: u64,
    /// Samples per second of all vCPUs, over the last second or so.
    pub rate_hz: f64,
    /// Process with the most non-idle samples over the last second or so, and its share.
    pub top: Option<(String, f64)>,
    /// The guest's kernel release once it was found.
    pub kernel: Option<String>,
    /// Why the machine stands still, if it does, as a sentence.
    pub standing: Option<String>,
    /// The vCPUs are sampled; else sampling was stopped for a while.
    pub sampling: bool,
    /// The mean rate that is wanted while they are, ticks per second and vCPU.
    pub wanted_hz: f64,
}

/// How well the largest share of those who are charged is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    /// The precision that was asked for.
    pub wanted: f64,
    /// Whose share it is: a program's name, or a name in brackets.
    pub name: String,
    /// It is that of a process, not of a kernel thread, interrupts or early boot.
    pub process: bool,
    /// The share, of all non-idle time in the guest.
    pub share: Share,
    /// The interval ends at most `wanted` from the share.
    pub reached: bool,
    /// How many times as long the run has to be to reach it.
    pub needed: Option<f64>,
}

/// What a session came to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Samples written.
    pub samples: u64,
    /// Samples lost.
    pub lost: u64,
    /// Where the run stands at its end, if a precision was asked for; `None` also without samples.
    pub precision: Option<Precision>,
    /// When what was waited for was seen.
    pub seen: Seen,
    /// The run ended since the guest had started another kernel ([`Session::ends_with_kernel`]).
    pub kernel_gone: bool,
    /// The first failure of the sink; what was written before stays readable.
    pub sink_error: Option<String>,
}

/// How a session is to end.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    pub meta: Vec<(String, String)>,
    /// Ended by [`Session::finish`], not by being dropped.
    pub complete: bool,
}

/// What the collector is asked for.
#[derive(Debug)]
pub(crate) enum Ask {
    Wait(Wait),
    /// Samples count from now on, whatever was waited for.
    Open,
}

/// What the session and its collector share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub zero_ns: u64,
    pub console: ConsoleQueue,
    pub stop: AtomicBool,
    pub failed: AtomicBool,
    pub precise: AtomicBool,
    /// A batch is to be written at once.
    pub flush: AtomicBool,
    /// What was waited for came, and ends the run.
    pub reached: AtomicBool,
    /// Samples that were taken, and not kept.
    pub passed_over: AtomicU64,
    waits: Mutex<Vec<Ask>>,
    published: Vec<Arc<Published>>,
    events: Mutex<Vec<EventRow>>,
    status: Mutex<Status>,
    ending: Mutex<Ending>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// A meter for each vCPU.
    pub(crate) fn meters(&self) -> Vec<Meter> {
        self.published.iter().zip(0..).map(|(published, id)| Meter::new(id, Arc::clone(published))).collect()
    }

    /// Takes what is newly to be waited for.
    pub(crate) fn waits(&self) -> Vec<Ask> {
        std::mem::take(&mut lock(&self.waits))
    }

    /// Takes the events that wait.
    pub(crate) fn events(&self) -> Vec<EventRow> {
        std::mem::take(&mut lock(&self.events))
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        lock(&self.status)
    }

    /// Wants this rate of all vCPUs.
    pub(crate) fn pace(&self, rate_hz: f64) {
        self.published.iter().for_each(|published| published.pace.want(rate_hz));
    }

    /// Takes how the session is to end.
    pub(crate) fn ending(&self) -> Ending {
        std::mem::take(&mut lock(&self.ending))
    }
}

/// Sets `failed` when the collector's thread ends by a panic: the run should end then.
struct FailOnPanic(Arc<Shared>);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
    }
}

/// Sampling of one machine. Dropping it ends the collector; the profile then counts as incomplete.
pub struct Session {
    shared: Arc<Shared>,
    readers: Arc<OnceLock<Readers>>,
    place: Arc<OnceLock<KernelIdentity>>,
    stack_depth: usize,
    files: OpenFiles,
    initrd: Option<Initrd>,
    boots: bool,
    idle: Option<Collector>,
    running: Option<JoinHandle<Totals>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("running", &self.running.is_some()).finish_non_exhaustive()
    }
}

impl Session {
    /// Prepares a session and one observer per vCPU, in order. A rate that is not a positive number means no ticks.
    /// Programs of the guest are read from `files` first.
    pub fn new(config: SessionConfig, sink: Box<dyn Sink>, files: OpenFiles) -> (Session, Vec<VcpuSampler>) {
        let recording = &config.recording;
        let zero_ns = monotonic_ns();
        let readers = Arc::new(OnceLock::new());
        let place = Arc::new(OnceLock::new());
        let capacity = Capacity::new(recording.rate_hz, config.vcpus, recording.stack_depth);
        let mut samplers = Vec::new();
        let mut rings = Vec::new();
        let mut published = Vec::new();
        for vcpu in 0..config.vcpus {
            let intervals = Intervals::new(recording.clock, recording.rate_hz, recording.seed, vcpu);
            let (sampler, ends, clocks) =
                VcpuSampler::new(vcpu, intervals, capacity, (Arc::clone(&readers), Arc::clone(&place)));
            samplers.push(sampler);
            rings.push(ends);
            published.push(clocks);
        }
        let shared = Arc::new(Shared {
            zero_ns,
            console: ConsoleQueue::new(zero_ns),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            precise: AtomicBool::new(false),
            flush: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            passed_over: AtomicU64::new(0),
            waits: Mutex::default(),
            published,
            events: Mutex::default(),
            status: Mutex::new(Status { sampling: true, wanted_hz: recording.rate_hz, ..Status::default() }),
            ending: Mutex::default(),
        });
        let mut collector =
            Collector::new(Arc::clone(&shared), (rings, Arc::clone(&readers)), sink, first_meta(&config));
        if let Some(wanted) = recording.precision {
            let one_clock = config.meta.iter().any(|(key, value)| key == ONE_CLOCK && value == "1");
            let clock = (recording.clock, recording.rate_hz);
            collector.aim_at(Aim::new(wanted, clock, config.vcpus, one_clock));
        }
        if recording.exact {
            let (watch, recorders) = Watch::new(config.vcpus, zero_ns, &readers);
            collector.watch(watch);
            for (sampler, recorder) in samplers.iter_mut().zip(recorders) {
                sampler.record_events(recorder);
            }
        }
        if recording.task_scan_hz > 0.0 {
            let readers = Arc::clone(&readers);
            collector.scan_tasks(TaskStateCollector::new(Plan {
                hz: recording.task_scan_hz,
                seed: recording.seed,
                vcpus: config.vcpus,
                readers,
                zero_ns,
            }));
        }
        let stack_depth = recording.stack_depth;
        let idle = Some(collector);
        (
            Session {
                shared,
                readers,
                place,
                stack_depth,
                files,
                initrd: None,
                boots: false,
                idle,
                running: None,
            },
            samplers,
        )
    }

    /// Programs that are not on the guest's disks are read from the initrd that it was booted with. To be called before
    /// [`Self::start`].
    pub fn booted_with(&mut self, initrd: Initrd) {
        self.initrd = Some(initrd);
    }

    /// The guest is booted by this run: what its systemd says of units is read. To be called before [`Self::start`].
    pub fn boots(&mut self) {
        self.boots = true;
    }

    /// The run is for something that its kernel takes along, like a command: when the guest starts another kernel (kexec) the
    /// session is [`Session::reached`]. To be called before [`Self::start`].
    pub fn ends_with_kernel(&mut self) {
        if let Some(collector) = &mut self.idle {
            collector.ends_with_kernel = true;
        }
    }

    /// Takes what only the machine knows of its vCPUs: KVM's counters, the devices whose names exits get, and the tripwires
    /// of exact mode. To be called before [`Self::start`]; without it the profile has none of them.
    pub fn attach<O: Observer>(&mut self, machine: &mut Machine<O>) {
        if let Some(collector) = &mut self.idle {
            collector.meter(machine);
            collector.trip(machine.probes(), machine.memory());
        }
    }

    /// Takes KVM's counters of the vCPUs, in their order, of a machine of another process. To be called before
    /// [`Self::start`].
    pub fn count_by(&mut self, counters: Vec<Option<Counters>>) {
        if let Some(collector) = &mut self.idle {
            collector.count_by(counters);
        }
    }

    /// Starts the collector thread on the guest's memory. Time zero of the profile is the call to [`Session::new`].
    ///
    /// # Errors
    /// The first rows could not be written, a thread could not be started, or the session was started before.
    pub fn start(&mut self, memory: impl Into<GuestMemory>) -> Result<(), SinkError> {
        let memory = memory.into();
        let Some(mut collector) = self.idle.take() else {
            return Err(SinkError("the session was started before".to_owned()));
        };
        if let Err(error) = collector.begin() {
            self.idle = Some(collector);
            return Err(error);
        }
        let vcpus = u8::try_from(self.shared.published.len()).unwrap_or(u8::MAX);
        let wanted = Arc::new(Wanted::default());
        let (sender, news) = mpsc::channel();
        let user_bytes = if self.stack_depth == 0 { None } else { Some(StackReader::USER_BYTES) };
        let guest = LinuxGuest::new(
            memory.clone(),
            (Arc::clone(&self.readers), Arc::clone(&self.place)),
            (vcpus, user_bytes),
        );
        let finder = Finder::new(guest, Arc::clone(&wanted), sender).follow_units(self.boots);
        let thread = spawn("finder", move || finder.run())?;
        collector.attach(FinderHandle { wanted, news, thread: Some(thread) });
        collector.look_at(memory, (Arc::clone(&self.files), self.initrd.clone()), self.stack_depth);
        let guard = FailOnPanic(Arc::clone(&self.shared));
        self.running = Some(spawn("collector", move || {
            let _guard = guard;
            collector.run()
        })?);
        Ok(())
    }

    /// A handle that console output is copied into (table `console`); never blocks. When more than 1 MiB waits for
    /// the collector, the oldest bytes are dropped, and counted in `meta` as `console_dropped_bytes`.
    pub fn console(&self) -> Box<dyn Write + Send> {
        Box::new(self.shared.console.clone())
    }

    /// Adds a row to table `event`.
    pub fn event(&self, kind: &str, text: &str) {
        let time_ns = monotonic_ns().saturating_sub(self.shared.zero_ns);
        let mut events = lock(&self.shared.events);
        if events.len() < EVENTS_WAITING {
            events.push(EventRow { time_ns, kind: kind.to_owned(), text: text.to_owned() });
        }
    }

    /// Stops or starts sampling, at once for the events that are recorded and at the next tick of each vCPU. The time in
    /// between is not sampled, and no estimate speaks of it; exact times go on.
    pub fn set_sampling(&self, on: bool) {
        if on {
            lock(&self.shared.waits).push(Ask::Open);
        }
        let mut status = self.shared.status();
        if std::mem::replace(&mut status.sampling, on) != on {
            self.pace(&status);
            drop(status);
            self.event("sampling", if on { "sampling goes on" } else { "sampling was stopped" });
        }
    }

    /// Waits for something, from the next round of the collector on (10 ms); before [`Self::start`] from the run's start on.
    /// A condition that does not [compile](crate::conditions::Condition::check) is never seen.
    pub fn wait_for(&self, wait: Wait) {
        lock(&self.shared.waits).push(Ask::Wait(wait));
    }

    /// True once something was seen that ends the run.
    pub fn reached(&self) -> bool {
        self.shared.reached.load(Ordering::Acquire)
    }

    /// Changes the mean rate, ticks per second and vCPU. A session that was made without ticks stays so.
    pub fn set_rate(&self, rate_hz: f64) {
        if !rate_hz.is_finite() || rate_hz <= 0.0 {
            return;
        }
        let mut status = self.shared.status();
        status.wanted_hz = rate_hz;
        self.pace(&status);
        drop(status);
        self.event("sampling", &format!("the rate was set to {rate_hz} Hz"));
    }

    /// Tells whoever looks that the machine stands still, and why, or that it does no more.
    pub fn stands(&self, why: Option<&str>) {
        self.shared.status().standing = why.map(str::to_owned);
    }

    fn pace(&self, status: &Status) {
        let rate_hz = if status.sampling { status.wanted_hz } else { 0.0 };
        self.shared.pace(rate_hz);
    }

    /// Has what was recorded so far written within some 10 ms, instead of a fifth of a second.
    pub fn flush(&self) {
        self.shared.flush.store(true, Ordering::Release);
    }

    /// True once the sink has failed: the run should end.
    pub fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// True once the largest share is that of a process and as precise as was asked for: the run may end. Looked at once
    /// a second.
    pub fn precise(&self) -> bool {
        self.shared.precise.load(Ordering::Acquire)
    }

    /// Where sampling stands.
    pub fn status(&self) -> Status {
        let mut status = self.shared.status().clone();
        status.elapsed = Duration::from_nanos(monotonic_ns().saturating_sub(self.shared.zero_ns));
        for published in &self.shared.published {
            let (samples, lost) = published.samples();
            status.samples += samples;
            status.lost += lost;
        }
        status.samples = status.samples.saturating_sub(self.shared.passed_over.load(Ordering::Relaxed));
        status
    }

    /// Ends the collector after all records and the given rows of `meta` are written. Call it after the machine has ended.
    pub fn finish(mut self, meta: Vec<(String, String)>) -> Totals {
        *lock(&self.shared.ending) = Ending { meta, complete: true };
        self.end()
    }

    /// The collector of a session that was not started, to be run step by step.
    #[cfg(test)]
    pub(crate) fn into_parts(mut self) -> Collector {
        self.idle.take().expect("a session that was not started")
    }

    fn end(&mut self) -> Totals {
        if let Some(collector) = self.idle.take() {
            return collector.close();
        }
        let Some(thread) = self.running.take() else { return Totals::default() };
        self.shared.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        thread.join().unwrap_or_else(|_| Totals {
            sink_error: Some("the collector failed unexpectedly; the profile ends early".to_owned()),
            ..Totals::default()
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, SinkError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map_err(|error| SinkError(format!("cannot start the thread {name}: {error}")))
}

fn first_meta(config: &SessionConfig) -> Vec<(String, String)> {
    let recording = &config.recording;
    let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let own = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("started_unix_ns", unix_ns.to_string()),
        ("rate_hz", recording.rate_hz.to_string()),
        ("clock", recording.clock.name().to_owned()),
        ("seed", recording.seed.to_string()),
        ("vcpus", config.vcpus.to_string()),
        ("exact", u8::from(recording.exact).to_string()),
        ("task_scan_hz", recording.task_scan_hz.to_string()),
    ];
    let aim = recording.precision.map(|wanted| ("until_precision", wanted.to_string()));
    own.into_iter()
        .chain(aim)
        .map(|(key, value)| (key.to_owned(), value))
        .chain(config.meta.iter().cloned())
        .collect()
}
