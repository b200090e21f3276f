//! The collector: drains the rings, resolves samples, and hands batches to the sink.

mod counters;
mod ending;
mod exit_sites;
pub(crate) mod finder;
mod finder_events;
mod host_stacks;
mod namer;
pub(crate) mod precision;
mod stall;
pub(crate) mod standstill;
mod steps;
mod waiting;
mod watching;

use std::fmt;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use attach::VcpuCounts;
use vmm::{GuestMemoryMmap, Machine, Observer, ProbeSet, monotonic_ns};

use crate::conditions::SamplingGate;
use crate::console::ConsoleBudget;
use crate::exact::merger::EventMerger;
use crate::initrd::Initrd;
use crate::kexec::KexecDetector;
use crate::managed::RuntimeTable;
use crate::memory::GuestMemory;
use crate::memory_use::MemoryUseCollector;
use crate::microstate::host::{own_schedstat, waited};
use crate::record::{GuestReaders, SampleMessage};
use crate::resolve::resolver::SampleResolver;
use crate::shared::{AddedVcpu, SessionTotals, SharedState};
use crate::task_scan::TaskStateCollector;
use crate::vcpu::RingEnds;
use crate::watch::StandstillFinding;
use counters::VcpuCounters;
use exit_sites::ExitSites;
use finder::{FinderEvent, FinderRequests};
use host_stacks::HostStackTable;
use namer::{NameRequest, NameResult};
use precision::PrecisionTarget;
use profile::rows::{Batch, EventRow, HARDIRQ_BITS, RateRow, Sink};
use stall::{STALL, StallReports};
use standstill::{DueTicks, GuestTimer, STANDSTILL, StandstillDetector};
use steps::{RoundStep, StepTimes};
use symbols::names::OpenFiles;
use watching::StallWatch;

/// Time between drains of the rings: the mappings of a process that has ended meanwhile can no longer be
/// read.
const PERIOD: Duration = Duration::from_millis(10);
/// The same where samples wake the collector: what else it takes may wait for this long.
const WOKEN_PERIOD: Duration = Duration::from_millis(50);
/// Longest time between two writes of a batch: a killed run loses at most this and one period.
const FLUSH_PERIOD: Duration = Duration::from_millis(200);
/// The same where rows are written rarely: with a period less than a second.
const RARE_FLUSH_PERIOD: Duration = Duration::from_millis(900);
/// Samples at which a batch is written at once.
const FLUSH_SAMPLES: usize = 8_192;
/// Window of the live line.
const WINDOW: Duration = Duration::from_secs(1);

/// Excess of a pause between two rounds that means that the process was stopped (SIGSTOP), unless the thread
/// waited for a CPU.
const STOPPED: Duration = Duration::from_millis(500);

/// The guest in which stacks are walked.
pub(crate) struct StackInputs {
    pub memory: GuestMemory,
    pub files: OpenFiles,
    pub initrd: Option<Initrd>,
    /// Frames of a walk, at most.
    pub depth: usize,
    /// Runtimes of the guest's processes, for the vCPUs' threads.
    pub runtimes: RuntimeTable,
}

/// The namer's thread as the collector sees it.
#[derive(Debug)]
struct NamerHandle {
    wanted: Sender<NameRequest>,
    named: Receiver<NameResult>,
    thread: JoinHandle<()>,
}

/// The finder's thread as the collector sees it.
#[derive(Debug)]
pub(crate) struct FinderHandle {
    pub wanted: Arc<FinderRequests>,
    pub events: Receiver<FinderEvent>,
    pub thread: Option<JoinHandle<()>>,
}

impl Drop for FinderHandle {
    /// Stops the finder: it must not outlive the collector for long, whatever happens to the collector.
    fn drop(&mut self) {
        self.wanted.stop();
    }
}

/// Everything that the collector's thread owns.
pub(crate) struct Collector {
    shared: Arc<SharedState>,
    rings: Vec<RingEnds>,
    sink: Box<dyn Sink>,
    finder: Option<FinderHandle>,
    kexec: KexecDetector,
    readers: Arc<OnceLock<GuestReaders>>,
    memory: Option<GuestMemory>,
    stack_inputs: Option<StackInputs>,
    namer: Option<NamerHandle>,
    /// Samples whose stacks were not copied: all buffers were in use.
    stacks_missed: u64,
    counters: VcpuCounters,
    exit_sites: ExitSites,
    /// Stacks of the host, if they are taken.
    host_stacks: Option<HostStackTable>,
    resolver: SampleResolver,
    /// The gate that keeps or drops samples.
    gate: SamplingGate,
    stalls: StallReports,
    standstill: StandstillDetector,
    steps: StepTimes,
    /// The watch for stalls, if it is on.
    watch: Option<StallWatch>,
    /// The precision target of the run.
    precision: Option<PrecisionTarget>,
    /// Exact mode, if it is on.
    exact: Option<EventMerger>,
    /// Task-state sampling, if it is on.
    task_states: Option<TaskStateCollector>,
    /// Readings of the guest's memory, if there are any.
    memory_use: Option<MemoryUseCollector>,
    batch: Batch,
    /// Longest time between two rounds.
    period: Duration,
    /// Longest time between two writes of a batch.
    flush_period: Duration,
    /// Start of the last round.
    round_began: Instant,
    flushed: Instant,
    window_began: Instant,
    lost_reported: bool,
    console_budget: ConsoleBudget,
    /// The run ends when the guest starts another kernel.
    pub(crate) ends_with_kernel: bool,
    totals: SessionTotals,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("rings", &self.rings.len()).field("totals", &self.totals).finish()
    }
}

impl Collector {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        rings: Vec<RingEnds>,
        readers: Arc<OnceLock<GuestReaders>>,
        sink: Box<dyn Sink>,
        meta: Vec<(String, String)>,
    ) -> Self {
        let resolver = SampleResolver::new(shared.zero_ns);
        let now = Instant::now();
        let counters = VcpuCounters::new(&shared.stats());
        Self {
            shared,
            rings,
            sink,
            finder: None,
            kexec: KexecDetector::default(),
            readers,
            memory: None,
            stack_inputs: None,
            namer: None,
            stacks_missed: 0,
            counters,
            exit_sites: ExitSites::default(),
            host_stacks: None,
            resolver,
            gate: SamplingGate::default(),
            stalls: StallReports::default(),
            standstill: StandstillDetector::default(),
            steps: StepTimes::default(),
            watch: None,
            precision: None,
            exact: None,
            task_states: None,
            memory_use: None,
            batch: Batch { meta, ..Batch::default() },
            period: PERIOD,
            flush_period: FLUSH_PERIOD,
            round_began: now,
            flushed: now,
            window_began: now,
            lost_reported: false,
            console_budget: ConsoleBudget::default(),
            ends_with_kernel: false,
            totals: SessionTotals::default(),
        }
    }

    /// Writes the first rows, so that a sink that cannot be written to is known before the guest runs.
    pub(crate) fn begin(&mut self) -> Result<(), profile::SinkError> {
        self.take_waits(Some(0));
        self.flush();
        match &self.totals.sink_error {
            Some(error) => Err(profile::SinkError(error.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn set_finder(&mut self, finder: FinderHandle) {
        self.finder = Some(finder);
    }

    /// Sets the machine whose vCPUs these are.
    pub(crate) fn bind_counters<O: Observer>(&mut self, machine: &mut Machine<O>) {
        self.standstill.watch_ticks();
        self.counters.bind(machine);
    }

    /// Sets what is counted of the vCPUs, which are another process': the threads that sample them wake the
    /// collector.
    pub(crate) fn set_counts(&mut self, counts: Vec<VcpuCounts>) {
        self.period = WOKEN_PERIOD;
        self.counters.set_counts(counts);
    }

    /// Writes rows about once a second.
    pub(crate) fn write_rarely(&mut self) {
        self.flush_period = RARE_FLUSH_PERIOD;
    }

    /// Sets the precision target.
    pub(crate) fn set_precision_target(&mut self, precision: PrecisionTarget) {
        self.precision = Some(precision);
    }

    /// Turns exact mode on.
    pub(crate) fn set_exact(&mut self, exact: EventMerger) {
        self.exact = Some(exact);
    }

    /// Turns task-state sampling on.
    pub(crate) fn set_task_states(&mut self, task_states: TaskStateCollector) {
        self.task_states = Some(task_states);
    }

    /// Turns readings of the guest's memory on.
    pub(crate) fn set_memory_use(&mut self, memory_use: MemoryUseCollector) {
        self.memory_use = Some(memory_use);
    }

    /// Sets the machine in which exact mode sets its probes.
    pub(crate) fn bind_probes(&mut self, probes: ProbeSet, memory: GuestMemoryMmap) {
        if let Some(exact) = &mut self.exact {
            exact.set_machine(probes, memory);
        }
    }

    /// Sets the guest to read.
    pub(crate) fn set_guest(&mut self, guest: StackInputs) {
        self.memory = Some(guest.memory.clone());
        self.stack_inputs = Some(guest);
    }

    /// Runs on the collector's thread until the session ends.
    pub(crate) fn run(mut self) -> SessionTotals {
        let schedstat = own_schedstat();
        while !self.shared.stop.load(Ordering::Acquire) {
            self.round_began = Instant::now();
            self.collect();
            if self.flushed.elapsed() >= self.flush_period || self.shared.flush.swap(false, Ordering::AcqRel)
            {
                self.flush();
            }
            self.rest(schedstat.as_ref());
        }
        self.close()
    }

    /// Waits for the next round, and notes when the host had stopped the whole process meanwhile: the
    /// scheduler's clocks cannot distinguish that from a halted guest. `schedstat` is that of this thread.
    fn rest(&mut self, schedstat: Option<&File>) {
        let waited = || schedstat.and_then(waited).unwrap_or(0);
        let (before, waited_before) = (monotonic_ns(), waited());
        thread::park_timeout(self.period);
        // Rounds for single samples cost more than one for several.
        thread::sleep(PERIOD.saturating_sub(self.round_began.elapsed()));
        let gap = Duration::from_nanos(monotonic_ns().saturating_sub(before));
        if gap < STOPPED {
            return;
        }
        let lacked = Duration::from_nanos(waited().saturating_sub(waited_before));
        let stopped = gap.saturating_sub(self.period).saturating_sub(lacked);
        if stopped >= STOPPED {
            self.event("stopped", format!("the host had stopped vprof for {stopped:.1?}"));
            let ns = u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX);
            self.counters.stopped(ns);
            self.standstill.forget();
            self.forget_watched();
        }
    }

    /// Reads the clocks of all vCPUs into the batch.
    fn read_meters(&mut self, ended: bool) {
        self.counters.read_clocks(self.shared.zero_ns, &mut self.batch);
        if let Some(precision) = &mut self.precision {
            precision.add_clocks(&self.batch, ended);
        }
        if self.counters.read_counts(ended, &mut self.batch) {
            let bits = self.readers.get().and_then(|readers| readers.current.hardirq_bits());
            self.batch.meta.extend(bits.map(|bits| (HARDIRQ_BITS.to_owned(), bits.to_string())));
            self.gate.counted(&self.batch);
            self.exit_sites.write(&self.counters, &mut self.batch);
        }
    }

    /// Drains the rings and takes what has arrived from elsewhere.
    pub(crate) fn collect(&mut self) {
        self.take_waits(None);
        self.take_added();
        // While samples are dropped, the profile shows a rate of 0.
        let changed = self.counters.changed_rates(self.shared.zero_ns);
        self.batch.rates.extend(changed.filter(|_| !self.gate.is_closed()));
        // Finder events first: they describe a time before the samples that are drained now.
        let began = Instant::now();
        self.take_finder_events();
        let mut began = self.steps.note(RoundStep::Finder, began);
        for vcpu in 0..self.rings.len() {
            // No more samples than there are now: a ring that fills as fast as it is drained must not starve
            // the others.
            for _ in 0..self.rings[vcpu].samples.slots() {
                let Ok(SampleMessage { mut record, stack, stack_missed, look }) =
                    self.rings[vcpu].samples.pop()
                else {
                    break;
                };
                self.standstill.sample(vcpu, &record);
                let id = u8::try_from(vcpu).unwrap_or(u8::MAX);
                // After a kexec the task of a record is read from memory of the old kernel: only the position
                // is kept.
                let known = self.trusts(vcpu, &record);
                record.current = record.current.filter(|_| known);
                let task = record.current.and_then(|current| current.task);
                if let Some(task) = &task {
                    self.gate.task(task);
                }
                if look {
                    self.resolver.pass_over(&record);
                } else if self.gate.is_closed() {
                    self.pass_over(vcpu, &record);
                } else {
                    let stack = stack.as_deref().filter(|_| known);
                    self.resolver.sample(id, &record, stack, &mut self.batch);
                    self.stacks_missed += u64::from(stack_missed);
                    if let (Some(watch), Some(sample)) = (&mut self.watch, self.batch.samples.last()) {
                        watch.sample(vcpu, &record, sample);
                    }
                    if let (Some(precision), Some(sample)) = (&mut self.precision, self.batch.samples.last())
                    {
                        precision.sample(sample, task.map(|task| (task.process_comm, task.kernel_thread)));
                    }
                }
                if let Some(stack) = stack {
                    self.rings[vcpu].buffers.give_back(stack);
                }
                began = self.steps.note(RoundStep::Samples, began);
                if self.batch.samples.len() >= FLUSH_SAMPLES {
                    self.flush();
                    began = Instant::now();
                }
            }
        }
        self.take_exits();
        self.take_host_ticks();
        // After the samples: events wait for their turn anyway, but a full sample ring loses samples.
        if let Some(exact) = &mut self.exact {
            exact.step(&mut self.resolver, &mut self.batch);
            if exact.refused().is_some() {
                self.shared.reached.set();
            }
        }
        if let Some(task_states) = &mut self.task_states {
            task_states.step(&mut self.resolver, &mut self.batch);
        }
        if let Some(memory_use) = &mut self.memory_use {
            memory_use.step(&mut self.batch);
        }
        self.steps.note(RoundStep::Events, began);
        self.ask_finder();
        self.ask_namer();
        // Console rows and events come last: a condition that they meet moves the gate for the next round.
        let known = self.batch.console.len();
        let dropped = self.shared.console.take(&mut self.batch.console);
        let reports = self.stalls.in_rows(self.batch.console.get(known..).unwrap_or_default());
        let event = |(time_ns, text)| EventRow { time_ns, kind: STALL.to_owned(), text };
        self.batch.events.extend(reports.into_iter().map(event));
        let dropped = dropped + self.console_budget.dropped();
        if dropped > 0 {
            self.batch.meta.push(("console_dropped_bytes".to_owned(), dropped.to_string()));
        }
        self.batch.events.append(&mut self.shared.events());
        self.wait();
        self.roll_window();
    }

    /// Takes the vCPUs that were added. Their times begin with their clocks.
    fn take_added(&mut self) {
        for AddedVcpu { stats, ends, counts } in self.shared.added() {
            let vcpu = u8::try_from(self.rings.len()).unwrap_or(u8::MAX);
            self.rings.push(ends);
            self.counters.add(stats, counts);
            if self.gate.is_closed() {
                let time_ns = monotonic_ns().saturating_sub(self.shared.zero_ns);
                self.batch.rates.push(RateRow { vcpu, time_ns, rate_hz: 0.0 });
            }
            self.batch.meta.push(("vcpus".to_owned(), self.rings.len().to_string()));
        }
    }

    fn event(&mut self, kind: &str, text: String) {
        let time_ns = monotonic_ns().saturating_sub(self.shared.zero_ns);
        self.batch.events.push(EventRow { time_ns, kind: kind.to_owned(), text });
    }

    fn roll_window(&mut self) {
        let elapsed = self.window_began.elapsed();
        if elapsed < WINDOW {
            return;
        }
        self.window_began = Instant::now();
        // The guest boots until a process has the largest share.
        if self
            .precision
            .as_ref()
            .and_then(PrecisionTarget::largest_share)
            .is_some_and(|found| found.reached && found.process)
        {
            self.shared.precise.store(true, Ordering::Release);
        }
        let window = self.resolver.take_window();
        let mut status = self.shared.status();
        #[expect(clippy::cast_precision_loss, reason = "samples of a second")]
        let samples = window.samples() as f64;
        status.rate_hz = samples / elapsed.as_secs_f64();
        status.top = window.top();
    }

    /// Writes the batch. After the sink's first failure rows are only dropped, so that the rings stay
    /// drained.
    pub(crate) fn flush(&mut self) {
        self.flushed = Instant::now();
        self.read_meters(false);
        let began = Instant::now();
        self.resolver.read_hit(&mut self.batch);
        let began = self.steps.note(RoundStep::Accounting, began);
        self.resolver.name_made(false, &mut self.batch);
        self.steps.note(RoundStep::Maps, began);
        if let Some(exact) = &mut self.exact {
            exact.flush(&mut self.resolver, &mut self.batch);
        }
        if let Some(task_states) = &self.task_states {
            task_states.flush(&mut self.batch);
        }
        let standstill = self.check_standstill();
        let reports = self.check_watch(standstill);
        // Reported once during the run; the end reports the total.
        let lost: u64 = self.batch.vcpus.iter().map(|row| row.lost).sum();
        if lost > 0 && !std::mem::replace(&mut self.lost_reported, true) {
            self.event("lost", "samples are lost: the collector cannot keep up; lower the rate".to_owned());
        }
        self.totals.lost = lost;
        // Written with each batch: a killed run has no end that could write it.
        let duration = monotonic_ns().saturating_sub(self.shared.zero_ns);
        self.batch.meta.push(("duration_ns".to_owned(), duration.to_string()));
        let progress = self.gate.progress_ns().map(|ns| ("progress_ns".to_owned(), ns.to_string()));
        self.batch.meta.extend(progress);
        // Conditions are met by all of the console, the profile has a part of it.
        self.gate.scan(&self.batch);
        self.gate.forget_rows();
        if self.console_budget.withhold(&mut self.batch.console) {
            self.event("missing", ConsoleBudget::SPENT.to_owned());
        }
        if self.totals.sink_error.is_none() {
            let began = Instant::now();
            match self.sink.write(&self.batch) {
                Ok(()) => self.totals.samples += self.batch.samples.len() as u64,
                Err(error) => self.fail(error.0),
            }
            self.steps.note(RoundStep::Write, began);
        }
        self.batch.clear();
        self.send(&reports);
    }

    /// Reports a standstill of the guest once. Returns the present one.
    fn check_standstill(&mut self) -> StandstillFinding {
        let due: Vec<DueTicks> = self.counters.due_ticks().collect();
        let ready = self.task_states.iter().flat_map(TaskStateCollector::ready);
        let (kexec, memory) = (&self.kexec, self.memory.as_ref());
        let timer = || {
            let (kernel, memory) = kexec.kernel().zip(memory)?;
            let (clock, next) = (kernel.clock(memory).ok()?, kernel.next_timer(memory).ok()??);
            Some(GuestTimer { clock_ns: clock.monotonic_ns, next_ns: next })
        };
        let (found, is_new) = self.standstill.check(monotonic_ns(), &due, &self.batch, ready, timer);
        let Some(found) = found else {
            // A batch without rows of the clocks shows nothing of halted vCPUs.
            let known = !self.batch.microstates.is_empty();
            return if known { StandstillFinding::Absent } else { StandstillFinding::Unknown };
        };
        let sentence = found.sentence(|who| self.resolver.thread_name(who));
        if is_new {
            self.event(STANDSTILL, sentence.clone());
        }
        StandstillFinding::Present { length_ns: found.took_ns, sentence }
    }

    fn fail(&mut self, error: String) {
        self.totals.sink_error.get_or_insert(error);
        self.shared.failed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
