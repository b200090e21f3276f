//! Sampling of one run: hands out vCPU observers, collects their records, writes rows to a sink.
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
use std::future::poll_fn;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use attach::{HostNames, ProcessCopies, VcpuCounts};
use guest_linux::StackReader;
use sandbox::ThreadKind;
use serde::{Deserialize, Serialize};
use symbols::names::OpenFiles;
use vmm::config::MAX_VCPUS;
use vmm::{Machine, Observer, monotonic_ns};

use crate::capacity::QueueCapacity;
use crate::collector::finder::{FinderRequests, KernelFinder, LinuxGuest};
use crate::collector::precision::PrecisionTarget;
use crate::collector::{Collector, FinderHandle, StackInputs};
use crate::exact::merger::EventMerger;
use crate::exact::record::EventRecorder;
use crate::exact::trip::{TripCollector, TripRecorder};
use crate::initrd::Initrd;
use crate::memory::GuestMemory;
use crate::memory_use::MemoryUseCollector;
use crate::record::GuestCells;
use crate::shared::{AddedVcpu, GateCommand, SessionEnding, SharedState};
use crate::task_scan::{ScanConfig, TaskStateCollector};
use crate::watch::WatchConfig;
use profile::conditions::RunTrigger;
use profile::rows::{Sink, SinkError};
use profile::session::SessionStatus;
use statistics::clock::{ClockKind, Intervals};
use statistics::estimate::ONE_CLOCK;

pub use crate::shared::{PrecisionStatus, SessionTotals};
pub use crate::vcpu::VcpuSampler;

/// Configuration of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionConfig {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Configuration of the recording.
    pub recording: RecordingConfig,
    /// More rows of `meta` (host, image, command line, vprof's version).
    pub meta: Vec<(String, String)>,
}

/// Configuration of a recording, for any machine.
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
    /// Functions of the guest's kernel whose calls are recorded, at most [`guest_linux::MAX_WATCHED`].
    pub trips: Vec<String>,
    /// Mean scans of all tasks per second; 0 for none.
    pub task_scan_hz: f64,
    /// Time between two readings of the guest's memory by holder; `None` for none.
    pub memory_interval: Option<Duration>,
    /// Precision after which the session is [`Session::precise`]: half the interval of the largest share, as
    /// a part of the whole.
    pub precision: Option<f64>,
    /// Watch for stalls of the guest.
    pub watch: Option<WatchConfig>,
    /// Rows are written about once a second instead of five times: each time takes CPU time, however few rows
    /// there are.
    pub rare_writes: bool,
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
            trips: Vec::new(),
            task_scan_hz: 0.0,
            memory_interval: None,
            precision: None,
            watch: None,
            rare_writes: false,
        }
    }
}

/// Guard that sets `failed` when the collector's thread ends by a panic: the run should end then.
struct FailOnPanic(Arc<SharedState>);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
    }
}

/// Sampling of one machine. Dropping it ends the collector; the profile then counts as incomplete.
pub struct Session {
    shared: Arc<SharedState>,
    cells: GuestCells,
    recording: RecordingConfig,
    files: OpenFiles,
    initrd: Option<Initrd>,
    boots: bool,
    idle: Option<Collector>,
    running: Option<JoinHandle<SessionTotals>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("running", &self.running.is_some()).finish_non_exhaustive()
    }
}

impl Session {
    /// Prepares a session and one observer per vCPU, in order. A rate that is not a positive number means no
    /// ticks. Programs of the guest are read from `files` first.
    pub fn new(config: SessionConfig, sink: Box<dyn Sink>, files: OpenFiles) -> (Session, Vec<VcpuSampler>) {
        let recording = &config.recording;
        let zero_ns = monotonic_ns();
        let cells = GuestCells::default();
        let capacity = QueueCapacity::new(recording.rate_hz, config.vcpus, recording.stack_depth);
        let mut samplers = Vec::new();
        let mut rings = Vec::new();
        let mut stats = Vec::new();
        for vcpu in 0..config.vcpus {
            let intervals = Intervals::new(recording.clock, recording.rate_hz, recording.seed, vcpu);
            let (sampler, ends, own_stats) = VcpuSampler::new(vcpu, intervals, capacity, cells.clone());
            samplers.push(sampler);
            rings.push(ends);
            stats.push(own_stats);
        }
        // Each vCPU has its own ring and statistics, so that its thread never waits for another.
        let shared = Arc::new(SharedState::new(zero_ns, recording.rate_hz, stats));
        let mut collector =
            Collector::new(Arc::clone(&shared), rings, Arc::clone(&cells.readers), sink, first_meta(&config));
        if recording.rare_writes {
            collector.write_rarely();
        }
        // Exact mode, scans and the precision target are parts of the collector that exist only on request.
        if let Some(wanted) = recording.precision {
            let one_clock = config.meta.iter().any(|(key, value)| key == ONE_CLOCK && value == "1");
            collector.set_precision_target(PrecisionTarget::new(
                wanted,
                recording.clock,
                recording.rate_hz,
                one_clock,
            ));
        }
        if let Some(watch) = &recording.watch {
            collector.set_watch(watch.clone());
        }
        if recording.exact || !recording.trips.is_empty() {
            let (merger, recorders) = observe_events(&config, zero_ns, &cells);
            collector.set_exact(merger);
            for (sampler, recorder) in samplers.iter_mut().zip(recorders) {
                sampler.record_events(recorder);
            }
        }
        if recording.task_scan_hz > 0.0 {
            let readers = Arc::clone(&cells.readers);
            collector.set_task_states(TaskStateCollector::new(ScanConfig {
                hz: recording.task_scan_hz,
                seed: recording.seed,
                readers,
                zero_ns,
            }));
        }
        if let Some(interval) = recording.memory_interval {
            collector.set_memory_use(MemoryUseCollector::new(interval, zero_ns));
        }
        let (recording, idle) = (config.recording, Some(collector));
        (
            Session { shared, cells, recording, files, initrd: None, boots: false, idle, running: None },
            samplers,
        )
    }

    /// Adds a vCPU of another process to a session that was started: the next one. Returns its observer;
    /// `None` if there are as many as one machine may have. Samples and times of the vCPU begin when the
    /// observer is attached.
    pub fn add_vcpu(&self, counts: VcpuCounts) -> Option<VcpuSampler> {
        let id = u8::try_from(self.shared.stats().len()).ok().filter(|id| *id < MAX_VCPUS)?;
        let RecordingConfig { rate_hz, clock, seed, stack_depth, .. } = self.recording;
        let intervals = Intervals::new(clock, rate_hz, seed, id);
        let capacity = QueueCapacity::new(rate_hz, id.saturating_add(1), stack_depth);
        let (sampler, ends, stats) = VcpuSampler::new(id, intervals, capacity, self.cells.clone());
        self.shared.add_vcpu(AddedVcpu { stats, ends, counts });
        Some(sampler)
    }

    /// Sets the initrd that the guest was booted with. Programs that are not on the guest's disks are read
    /// from it. Call before [`Self::start`].
    pub fn booted_with(&mut self, initrd: Initrd) {
        self.initrd = Some(initrd);
    }

    /// Turns on the reading of systemd's messages about units: this run boots the guest. Call before
    /// [`Self::start`].
    pub fn boots(&mut self) {
        self.boots = true;
    }

    /// Ends the session ([`Session::reached`]) when the guest starts another kernel (kexec): the run is for
    /// something that ends with its kernel, like a command. Call before [`Self::start`].
    pub fn ends_with_kernel(&mut self) {
        if let Some(collector) = &mut self.idle {
            collector.ends_with_kernel = true;
        }
    }

    /// Takes from the machine what only it knows of its vCPUs: KVM's counters, the devices that name exits,
    /// and the probes of exact mode. Call before [`Self::start`]; without this call the profile has none of
    /// these.
    pub fn bind<O: Observer>(&mut self, machine: &mut Machine<O>) {
        if let Some(collector) = &mut self.idle {
            collector.bind_counters(machine);
            collector.bind_probes(machine.probes(), machine.memory());
        }
    }

    /// Sets what is counted of the vCPUs, in their order, of a machine of another process. Call before
    /// [`Self::start`].
    pub fn set_counts(&mut self, counts: Vec<VcpuCounts>) {
        if let Some(collector) = &mut self.idle {
            collector.set_counts(counts);
        }
    }

    /// Sets what copies the memory of processes at ticks, where that is not the vCPU's thread. Call before
    /// [`Self::start`].
    pub fn set_copies(&self, copies: ProcessCopies) {
        self.cells.runtimes.copy_by(copies);
    }

    /// Sets the names of the host's functions, whose stacks are taken
    /// ([`attach::TargetChoice::host_stacks`]). Call before [`Self::start`].
    pub fn set_host_names(&mut self, names: HostNames) {
        if let Some(collector) = &mut self.idle {
            collector.set_host_names(names);
        }
    }

    /// Starts the collector thread on the guest's memory. Time zero of the profile is the call to
    /// [`Session::new`].
    ///
    /// # Errors
    /// Returns an error if the first rows cannot be written, a thread cannot be started, or the session was
    /// started before.
    pub fn start(&mut self, memory: impl Into<GuestMemory>) -> Result<(), SinkError> {
        let memory = memory.into();
        let Some(mut collector) = self.idle.take() else {
            return Err(SinkError("the session is already started".to_owned()));
        };
        if let Err(error) = collector.begin() {
            self.idle = Some(collector);
            return Err(error);
        }
        let vcpus = u8::try_from(self.shared.stats().len()).unwrap_or(u8::MAX);
        let wanted = Arc::new(FinderRequests::default());
        let (sender, events) = mpsc::channel();
        let user_bytes = if self.recording.stack_depth == 0 { None } else { Some(StackReader::USER_BYTES) };
        let guest = LinuxGuest::new(memory.clone(), self.cells.clone(), vcpus, user_bytes);
        let finder = KernelFinder::new(guest, Arc::clone(&wanted), sender).follow_units(self.boots);
        let thread = spawn("finder", move || finder.run())?;
        collector.set_finder(FinderHandle { wanted, events, thread: Some(thread) });
        collector.set_guest(StackInputs {
            memory,
            files: Arc::clone(&self.files),
            initrd: self.initrd.clone(),
            depth: self.recording.stack_depth,
            runtimes: self.cells.runtimes.clone(),
        });
        let guard = FailOnPanic(Arc::clone(&self.shared));
        let running = spawn("collector", move || {
            let _guard = guard;
            collector.run()
        })?;
        // Set once: a session is started once.
        drop(self.cells.collector.set(running.thread().clone()));
        self.running = Some(running);
        Ok(())
    }

    /// Returns a handle that console output is copied into (table `console`); never blocks. When more than 1
    /// MiB waits for the collector, the oldest bytes are dropped, and counted in `meta` as
    /// `console_dropped_bytes`.
    pub fn console(&self) -> Box<dyn Write + Send> {
        Box::new(self.shared.console.clone())
    }

    /// Adds a row to table `event`.
    pub fn event(&self, kind: &str, text: &str) {
        self.shared.add_event(kind, text);
    }

    /// Stops or starts sampling: at once for the recorded events, and at the next tick of each vCPU. The time
    /// in between is not sampled, and no estimate includes it; exact times continue.
    pub fn set_sampling(&self, on: bool) {
        if on {
            self.shared.command(GateCommand::Open);
        }
        if self.shared.change(|status| std::mem::replace(&mut status.sampling, on) != on) {
            self.event("sampling", if on { "sampling was resumed" } else { "sampling was stopped" });
        }
    }

    /// Awaits a condition, from the collector's next round on (10 ms); before [`Self::start`] from the run's
    /// start on. A condition that does not [compile](profile::conditions::Condition::check) is never met.
    pub fn wait_for(&self, wait: RunTrigger) {
        self.shared.command(GateCommand::Await(wait));
        self.wake();
    }

    /// Waits until a condition that ends the run is met. One task at a time may wait.
    pub async fn reached(&self) {
        poll_fn(|context| self.shared.reached.poll(context)).await;
    }

    /// Changes the mean rate, ticks per second and vCPU. A session that was created without ticks stays
    /// without.
    pub fn set_rate(&self, rate_hz: f64) {
        if !rate_hz.is_finite() || rate_hz <= 0.0 {
            return;
        }
        self.shared.change(|status| status.wanted_hz = rate_hz);
        self.event("sampling", &format!("the rate was set to {rate_hz} Hz"));
    }

    /// Sets the reason why the machine is stopped, for [`SessionStatus::stopped`]; `None` when it runs.
    pub fn set_stopped(&self, why: Option<&str>) {
        self.shared.status().stopped = why.map(str::to_owned);
    }

    /// Requests that all records are written within some 10 ms, instead of a fifth of a second.
    pub fn flush(&self) {
        self.shared.flush.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the collector.
    fn wake(&self) {
        if let Some(collector) = self.cells.collector.get() {
            collector.unpark();
        }
    }

    /// Returns true once the sink has failed: the run should end.
    pub fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Returns true once the largest share is that of a process and as precise as wanted: the run may end.
    /// Checked once a second.
    pub fn precise(&self) -> bool {
        self.shared.precise.load(Ordering::Acquire)
    }

    /// Returns the present status.
    pub fn status(&self) -> SessionStatus {
        let mut status = self.shared.status().clone();
        status.elapsed = Duration::from_nanos(monotonic_ns().saturating_sub(self.shared.zero_ns));
        for stats in self.shared.stats().iter() {
            let (samples, lost) = stats.samples();
            status.samples += samples;
            status.lost += lost;
        }
        status.samples = status.samples.saturating_sub(self.shared.passed_over.load(Ordering::Relaxed));
        status
    }

    /// Ends the collector after all records and the given rows of `meta` are written. Call after the machine
    /// has ended.
    pub fn finish(mut self, meta: Vec<(String, String)>) -> SessionTotals {
        self.shared.end(SessionEnding { meta, complete: true });
        self.end()
    }

    /// Returns the collector of a session that was not started, to be run step by step.
    #[cfg(test)]
    pub(crate) fn into_parts(mut self) -> Collector {
        self.idle.take().expect("a session that was not started")
    }

    fn end(&mut self) -> SessionTotals {
        if let Some(collector) = self.idle.take() {
            return collector.close();
        }
        let Some(thread) = self.running.take() else { return SessionTotals::default() };
        self.shared.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        thread.join().unwrap_or_else(|_| SessionTotals {
            sink_error: Some("the collector failed unexpectedly; the profile ends early".to_owned()),
            ..SessionTotals::default()
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the merger and the recorders of exact mode and of watched functions.
fn observe_events(
    config: &SessionConfig,
    zero_ns: u64,
    cells: &GuestCells,
) -> (EventMerger, Vec<EventRecorder>) {
    let SessionConfig { vcpus, recording, .. } = config;
    let (mut merger, mut recorders) = EventMerger::new(*vcpus, zero_ns, &cells.readers);
    if !recording.trips.is_empty() {
        let mut all = Vec::new();
        for (recorder, vcpu) in recorders.iter_mut().zip(0..) {
            let (watch, ends) = TripRecorder::new((vcpu, *vcpus), recording.seed, cells.runtimes.clone());
            recorder.watch(watch);
            all.push(ends);
        }
        let names = recording.trips.iter().take(guest_linux::MAX_WATCHED).cloned().collect();
        merger.watch(TripCollector::new(names, all, zero_ns), recording.exact);
    }
    (merger, recorders)
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, SinkError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    let behind_wall = move || {
        sandbox::enter_thread(ThreadKind::Sampler);
        run()
    };
    builder.spawn(behind_wall).map_err(|error| SinkError(format!("cannot start the thread {name}: {error}")))
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
    let precision = recording.precision.map(|wanted| ("until_precision", wanted.to_string()));
    let memory =
        recording.memory_interval.map(|interval| ("memory_interval_s", interval.as_secs_f64().to_string()));
    own.into_iter()
        .chain(precision)
        .chain(memory)
        .map(|(key, value)| (key.to_owned(), value))
        .chain(config.meta.iter().cloned())
        .collect()
}
