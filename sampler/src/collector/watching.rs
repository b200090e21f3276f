//! The watch for stalls, as the collector feeds it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_linux::{Kernel, Missing, SchedStateReader};
use profile::rows::SampleRow;
use profile::watch::{AlertStep, WATCH, WatchCondition, WatchReport, unjudged_sentence};
use vmm::monotonic_ns;

use super::Collector;
use crate::guest_cpu::GuestCpu;
use crate::memory::GuestMemory;
use crate::record::{GuestReaders, SampleRecord};
use crate::task_scan::TaskStateCollector;
use crate::watch::{KernelCounters, Sleeper, StandstillFinding, Watch, WatchConfig, WatchInputs};

/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(1);
/// Time after which a counter that cannot be read, or a kernel that is not found, is reported: longer than an
/// emulated guest takes from its first kernel code to its per-CPU areas.
const PATIENCE: Duration = Duration::from_secs(30);
/// Conditions that need the guest's kernel.
const OF_KERNEL: [WatchCondition; 6] = [
    WatchCondition::IrqsOff,
    WatchCondition::SoftLockup,
    WatchCondition::RcuStall,
    WatchCondition::BlockedTask,
    WatchCondition::LostTimer,
    WatchCondition::Oom,
];

/// Reason why a condition cannot be judged.
struct JudgingFailure {
    reason: String,
    since: Instant,
    reported: bool,
}

impl JudgingFailure {
    fn new(reason: String, since: Instant) -> Self {
        Self { reason, since, reported: false }
    }
}

/// Reader of the counters of the guest's kernel.
struct CounterReader {
    kernel: Arc<Kernel>,
    states: Option<SchedStateReader>,
}

/// The watch, and the way to the guest's counters.
pub(super) struct StallWatch {
    watch: Watch,
    reader: Option<CounterReader>,
    started: Instant,
    checked: Instant,
    /// Scans of tasks at the last check.
    scans: u64,
    /// The latest standstill that a batch showed.
    standstill: StandstillFinding,
    /// Conditions that cannot be judged.
    failing: BTreeMap<WatchCondition, JudgingFailure>,
}

impl StallWatch {
    fn new(config: WatchConfig, zero_ns: u64) -> Self {
        let now = Instant::now();
        let unjudged = config.unjudged.clone();
        let failing =
            unjudged.into_iter().map(|(condition, reason)| (condition, JudgingFailure::new(reason, now)));
        Self {
            failing: failing.collect(),
            watch: Watch::new(config, zero_ns),
            reader: None,
            started: now,
            checked: now,
            scans: 0,
            standstill: StandstillFinding::Unknown,
        }
    }

    /// Notes a sample: the record, and its row.
    pub(super) fn sample(&mut self, vcpu: usize, record: &SampleRecord, row: &SampleRow) {
        self.watch.sample(vcpu, record, row);
    }

    /// Returns the number of alerts so far.
    pub(super) fn alerts(&self) -> u32 {
        self.watch.count()
    }

    /// Takes the reasons why conditions that are watched for cannot be judged, each once.
    fn take_unjudged(&mut self) -> Vec<WatchReport> {
        let config = self.watch.config();
        let mut reports: BTreeMap<String, Vec<WatchCondition>> = BTreeMap::new();
        for (condition, failure) in &mut self.failing {
            let wanted = config.conditions.iter().any(|wanted| wanted.condition == *condition);
            let lasting = config.unjudged.iter().any(|(unjudged, _)| unjudged == condition);
            if wanted && !failure.reported && (lasting || failure.since.elapsed() >= PATIENCE) {
                failure.reported = true;
                reports.entry(failure.reason.clone()).or_default().push(*condition);
            }
        }
        reports.into_iter().map(|(reason, conditions)| WatchReport::Unjudged(conditions, reason)).collect()
    }

    /// Notes that a condition can be judged, or the reason why not.
    fn judged<T>(&mut self, condition: WatchCondition, read: Result<T, Missing>) -> Option<T> {
        match read {
            Ok(value) => {
                self.failing.remove(&condition);
                Some(value)
            }
            Err(reason) => {
                let failure = || JudgingFailure::new(reason.to_string(), Instant::now());
                self.failing.entry(condition).or_insert_with(failure);
                None
            }
        }
    }

    /// Reads the counters of the guest's kernel, for these vCPUs.
    fn read(
        &mut self,
        cpus: &[GuestCpu],
        readers: Option<&GuestReaders>,
        memory: &GuestMemory,
    ) -> Option<KernelCounters> {
        let mut reader = self.reader.take()?;
        let kernel = Arc::clone(&reader.kernel);
        if reader.states.is_none() {
            reader.states = self.judged(WatchCondition::SoftLockup, kernel.sched_state_reader(memory));
        }
        let switches = |states: &SchedStateReader| {
            let apic_id = |cpu: &GuestCpu| cpu.apic_id(readers?.current.cpus());
            cpus.iter().map(|cpu| states.switches(memory, apic_id(cpu)?)).collect()
        };
        let counters = KernelCounters {
            switches: reader.states.as_ref().map_or_else(Vec::new, switches),
            grace_period: self.judged(WatchCondition::RcuStall, kernel.grace_period(memory)),
            oom_kills: self.judged(WatchCondition::Oom, kernel.oom_kills(memory)),
            clock_ns: self
                .judged(WatchCondition::LostTimer, kernel.clock(memory))
                .map(|clock| clock.monotonic_ns),
        };
        self.reader = Some(reader);
        Some(counters)
    }
}

impl Collector {
    /// Turns the watch on.
    pub(crate) fn set_watch(&mut self, config: WatchConfig) {
        self.watch = Some(StallWatch::new(config, self.shared.zero_ns));
    }

    /// Forgets what the watch has seen of the guest.
    pub(super) fn forget_watched(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.watch.forget();
            (watch.reader, watch.standstill) = (None, StandstillFinding::Unknown);
        }
    }

    /// Checks the guest once a second, and adds an event for each report. The reports are to be sent after
    /// the batch.
    pub(super) fn check_watch(&mut self, standstill: StandstillFinding) -> Vec<WatchReport> {
        let Some(mut watch) = self.watch.take() else { return Vec::new() };
        watch.watch.rows(&self.batch.microstates, &self.batch.host_waits);
        if standstill != StandstillFinding::Unknown {
            watch.standstill = standstill;
        }
        let reports = if watch.checked.elapsed() < PERIOD { Vec::new() } else { self.check(&mut watch) };
        self.watch = Some(watch);
        for report in &reports {
            match report {
                WatchReport::Alert(alert) => self.event(WATCH, alert.sentence.clone()),
                WatchReport::Unjudged(conditions, reason) => {
                    self.event("missing", unjudged_sentence(conditions, reason));
                }
            }
        }
        reports
    }

    fn check(&mut self, watch: &mut StallWatch) -> Vec<WatchReport> {
        watch.checked = Instant::now();
        if watch.reader.is_none() {
            watch.reader =
                self.kexec.kernel().map(|kernel| CounterReader { kernel: Arc::clone(kernel), states: None });
        }
        if watch.reader.is_none() && watch.started.elapsed() >= PATIENCE {
            for condition in OF_KERNEL {
                let reason = "the guest's kernel is not found yet".to_owned();
                let started = watch.started;
                watch.failing.entry(condition).or_insert_with(|| JudgingFailure::new(reason, started));
            }
        }
        let cpus: Vec<GuestCpu> = self.counters.guest_cpus().collect();
        let kernel = self.memory.as_ref().and_then(|memory| watch.read(&cpus, self.readers.get(), memory));
        let scans = self.task_states.as_ref().map_or(0, TaskStateCollector::scans);
        let scanned = std::mem::replace(&mut watch.scans, scans) != scans;
        let sleepers: Vec<Sleeper> = self.task_states.iter().flat_map(TaskStateCollector::sleepers).collect();
        let rates_hz: Vec<f64> = self.counters.sampled_hz().collect();
        let inputs = WatchInputs {
            now_ns: monotonic_ns(),
            rates_hz: &rates_hz,
            kernel,
            sleepers: scanned.then_some(sleepers.as_slice()),
            standstill: std::mem::take(&mut watch.standstill),
        };
        let alerts = watch.watch.check(&inputs, |who| self.resolver.thread_name(who));
        let begins = alerts.iter().any(|alert| alert.step == AlertStep::Begin);
        if begins && watch.watch.config().exit {
            self.shared.reached.set();
        }
        let mut reports = watch.take_unjudged();
        reports.extend(alerts.into_iter().map(|alert| WatchReport::Alert(Box::new(alert))));
        reports
    }

    /// Sends reports, whose rows are written.
    pub(super) fn send(&mut self, reports: &[WatchReport]) {
        for report in reports.iter().filter(|_| self.totals.sink_error.is_none()) {
            if let Err(error) = self.sink.report(report) {
                return self.fail(error.0);
            }
        }
    }
}
