//! Event merger on the collector's side: sets the probes once the kernel is found, merges the events of all
//! vCPUs by time, keeps the accounts, and turns sums into rows. Calls of watched functions, which need no
//! order, go to a [`TripCollector`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use guest_linux::{IrqContext, Kernel, ProbeEvent, TaskSnapshot};
use vmm::{GuestMemoryMmap, ProbeSet, monotonic_ns};

use super::accounts::TaskAccounts;
use super::probes::{self, EndCell, ProbePurpose, ProbeStart, SetFailure};
use super::record::{EventReaders, EventRecord, EventRecorder, EventRingEnds};
use super::rows::{self, UnnamedSources};
use super::task::{outcome, task_id};
use super::trip::TripCollector;
use crate::record::GuestReaders;
use crate::resolve::resolver::SampleResolver;
use crate::task_state::{InterruptSource, SwitchOutcome, WakeSource};
use profile::rows::WaitReason;
use profile::rows::{Batch, EventRow, ExactVcpuRow, ReapedRow};

/// Time between attempts to set probes until the kernel has booted, and between checks of the probes
/// afterwards.
const SET_PERIOD: Duration = Duration::from_millis(100);
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Time between settlements of all accounts: a killed run loses at most this much.
const SETTLE: Duration = Duration::from_secs(1);
/// Age that events must have: older ones of another vCPU's thread may not be in their ring yet.
const SLACK_NS: u64 = 20_000_000;
/// Attempts to stop all vCPUs.
const TRIES: u32 = 20;

/// Time for which an event that a vCPU's thread records delays all others: a stopped thread must not do so
/// for ever.
const LONGEST_NS: u64 = 1_000_000_000;

/// An item that waits for its turn.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are events")]
enum QueuedItem {
    Event {
        record: EventRecord,
        /// Wait reason of the task that was switched from.
        wait_reason: WaitReason,
        stack: u32,
    },
    /// Events are missing from this time on, CLOCK_MONOTONIC ns.
    Loss(u64),
}

impl QueuedItem {
    fn time_ns(&self) -> u64 {
        match self {
            Self::Event { record, .. } => record.time_ns,
            Self::Loss(time_ns) => *time_ns,
        }
    }
}

/// Phase of exact mode.
#[derive(Debug)]
enum ExactPhase {
    /// The kernel is not found yet: failed attempts to stop the vCPUs, and the reason.
    Before(u32, String),
    /// Probes are set.
    On,
    /// Probes were removed, or cannot be set.
    Over,
}

/// Merger of the events of all vCPUs.
pub(crate) struct EventMerger {
    /// Exact mode is wanted, and possible as far as is known.
    exact: bool,
    /// Watched functions, if there are any.
    trips: Option<TripCollector>,
    /// Why functions are not watched, as a sentence.
    refused: Option<String>,
    readers: Arc<OnceLock<GuestReaders>>,
    events: Arc<OnceLock<EventReaders>>,
    ends: Vec<EventRingEnds>,
    kernel: Option<Arc<Kernel>>,
    machine: Option<(ProbeSet, GuestMemoryMmap)>,
    end: EndCell,
    phase: ExactPhase,
    zero_ns: u64,
    checked: Instant,
    settled: Instant,
    accounts: TaskAccounts,
    sources: UnnamedSources,
    waiting: Vec<VecDeque<QueuedItem>>,
    /// By vCPU: start of the last loss that is among `waiting` or was accounted for, CLOCK_MONOTONIC ns.
    losses: Vec<u64>,
    start_switches: Vec<Option<u64>>,
    /// Time up to which all tasks are charged, CLOCK_MONOTONIC ns.
    settled_ns: u64,
    /// Time of the last event that was accounted for, CLOCK_MONOTONIC ns.
    done_ns: u64,
}

impl fmt::Debug for EventMerger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventMerger").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl EventMerger {
    /// Creates the merger for `vcpus`, and a recorder for each of them.
    pub(crate) fn new(
        vcpus: u8,
        zero_ns: u64,
        readers: &Arc<OnceLock<GuestReaders>>,
    ) -> (Self, Vec<EventRecorder>) {
        let events = Arc::default();
        let (recorders, ends) = (0..vcpus)
            .map(|vcpu| EventRecorder::new(vcpu, vcpus, Arc::clone(readers), Arc::clone(&events)))
            .unzip();
        let merger = Self {
            exact: true,
            trips: None,
            refused: None,
            readers: Arc::clone(readers),
            events,
            ends,
            kernel: None,
            machine: None,
            end: EndCell::default(),
            phase: ExactPhase::Before(0, "the guest's kernel was not found".to_owned()),
            zero_ns,
            checked: Instant::now(),
            settled: Instant::now(),
            accounts: TaskAccounts::new(usize::from(vcpus)),
            sources: UnnamedSources::default(),
            waiting: (0..vcpus).map(|_| VecDeque::new()).collect(),
            losses: vec![0; usize::from(vcpus)],
            start_switches: Vec::new(),
            settled_ns: 0,
            done_ns: 0,
        };
        (merger, recorders)
    }

    /// Has functions watched, with exact mode or instead of it.
    pub(crate) fn watch(&mut self, trips: TripCollector, exact: bool) {
        (self.trips, self.exact) = (Some(trips), exact);
    }

    /// Returns the reason why functions are not watched, once it is known that they are not.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Sets the machine whose vCPUs these are.
    pub(crate) fn set_machine(&mut self, probes: ProbeSet, memory: GuestMemoryMmap) {
        self.machine = Some((probes, memory));
    }

    /// Sets the kernel that was found. A name that is not one of its functions is known before it has booted.
    pub(crate) fn kernel_found(&mut self, kernel: Option<Arc<Kernel>>, batch: &mut Batch) {
        if let (Some(kernel), Some((_, memory)), Some(trips)) = (&kernel, &self.machine, &self.trips)
            && let Err(refusal) = kernel.check_watched(memory, trips.names())
        {
            self.refuse(&refusal.to_string(), batch);
        }
        self.kernel = kernel;
    }

    /// Ends exact mode: another kernel runs than the one that was found.
    pub(crate) fn kernel_gone(&mut self, batch: &mut Batch) {
        self.kernel = None;
        match (&self.phase, &self.machine) {
            (ExactPhase::Before(..), _) => self.give_up("the guest started another kernel", batch),
            (ExactPhase::On, Some((probes, _))) => {
                if let Err(error) = probes.withdraw() {
                    let text = format!("the guest started another kernel, but the probes stay: {error}");
                    self.add_event(batch, text);
                }
            }
            _ => {}
        }
    }

    /// Runs one round: sets probes if that is due, takes events, accounts for those that are old enough.
    pub(crate) fn step(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        if matches!(self.phase, ExactPhase::Before(..)) && self.checked.elapsed() >= SET_PERIOD {
            self.checked = Instant::now();
            self.try_to_set(resolver, batch);
        }
        let until_ns = self.complete_until(monotonic_ns());
        self.drain(resolver, batch);
        if let Some(trips) = &mut self.trips {
            trips.drain(resolver, batch);
        }
        self.account(until_ns, resolver, batch);
        if matches!(self.phase, ExactPhase::On) {
            self.check_probes(batch);
        }
        if self.settled.elapsed() >= SETTLE && !matches!(self.phase, ExactPhase::Before(..)) {
            self.settled = Instant::now();
            self.settle(until_ns);
        }
    }

    /// Returns the time up to which all events are in the rings.
    fn complete_until(&self, now_ns: u64) -> u64 {
        let slack_ns = now_ns.saturating_sub(SLACK_NS);
        let serving = self.ends.iter().map(|ends| ends.counters.serving_ns.load(Ordering::Acquire));
        let first = serving.filter(|ns| *ns != 0).min();
        first.map_or(slack_ns, |ns| slack_ns.min(ns - 1)).max(now_ns.saturating_sub(LONGEST_NS))
    }

    fn try_to_set(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        let (Some(kernel), Some((machine_probes, memory)), Some(readers)) =
            (&self.kernel, &self.machine, self.readers.get())
        else {
            return;
        };
        let guest = probes::GuestParts { kernel, memory, readers, vcpus: self.ends.len() };
        let watched = self.trips.as_ref().map_or(&[][..], TripCollector::names);
        let purpose = ProbePurpose { exact: self.exact, watched };
        match probes::set(&guest, purpose, machine_probes, &self.events, &self.end) {
            Ok((start, missing)) => {
                for reason in missing {
                    self.add_event(batch, format!("interrupt data is incomplete: {reason}"));
                }
                self.begin(start, resolver, batch);
            }
            Err(SetFailure::Refused(reason)) => self.refuse(&reason, batch),
            // Functions can be watched in a kernel that has no exact mode.
            Err(SetFailure::Never(reason)) if self.exact && self.trips.is_some() => {
                self.no_exact(&reason, batch);
            }
            Err(SetFailure::Never(reason)) => self.give_up(&reason, batch),
            // A booting kernel takes its time, so such attempts do not count.
            Err(SetFailure::Later(reason)) => self.phase = ExactPhase::Before(self.tries(), reason),
            // vCPUs that repeatedly fail to stop never will.
            Err(SetFailure::NotStopped(reason)) if self.tries() >= TRIES => self.give_up(&reason, batch),
            Err(SetFailure::NotStopped(reason)) => {
                self.phase = ExactPhase::Before(self.tries() + 1, reason);
            }
        }
    }

    /// Returns the failed attempts to stop all vCPUs.
    fn tries(&self) -> u32 {
        if let ExactPhase::Before(tries, _) = self.phase { tries } else { 0 }
    }

    /// Ends the attempts to set probes.
    fn give_up(&mut self, reason: &str, batch: &mut Batch) {
        self.phase = ExactPhase::Over;
        if self.exact {
            self.no_exact(reason, batch);
        }
        if self.trips.is_some() {
            self.refuse(&format!("no function was watched: {reason}"), batch);
        }
    }

    fn no_exact(&mut self, reason: &str, batch: &mut Batch) {
        self.exact = false;
        batch.meta.push(("exact_missing".to_owned(), reason.to_owned()));
        self.add_event(batch, format!("exact mode is not possible: {reason}"));
    }

    /// Notes that functions cannot be watched: the run ends.
    fn refuse(&mut self, reason: &str, batch: &mut Batch) {
        self.phase = ExactPhase::Over;
        self.refused = Some(reason.to_owned());
        self.add_event(batch, format!("--trip is not possible: {reason}"));
    }

    /// Starts the data, exact data with the tasks at the start.
    fn begin(&mut self, start: ProbeStart, resolver: &mut SampleResolver, batch: &mut Batch) {
        self.phase = ExactPhase::On;
        let from_ns = start.time_ns.saturating_sub(self.zero_ns);
        if let (Some(trips), Some(events)) = (&mut self.trips, self.events.get()) {
            let count = events.watched.len();
            trips.begin(events.watched.clone(), batch);
            batch.meta.push(("trip_from_ns".to_owned(), from_ns.to_string()));
            let functions = if count == 1 { "function is" } else { "functions are" };
            self.add_event(batch, format!("{count} {functions} watched from now on"));
        }
        if !self.exact {
            return;
        }
        self.done_ns = start.time_ns;
        batch.meta.push(("exact_from_ns".to_owned(), from_ns.to_string()));
        self.add_event(batch, format!("exact mode begins with {} tasks", start.tasks.len()));
        for (task, stack) in &start.tasks {
            let Some(id) = task_id(&task.task, start.time_ns, resolver, batch) else { continue };
            let slept = |stack| resolver.sleeping(stack, &task.task, start.time_ns, batch);
            let (stack, wait_reason) = stack.as_ref().map_or((0, WaitReason::Other), slept);
            if let SwitchOutcome::In(doing) = outcome(task, wait_reason, stack) {
                self.accounts.exists(start.time_ns, id, doing);
            }
        }
        for (vcpu, task) in start.current.iter().enumerate() {
            let task = task.as_ref().and_then(|task| task_id(task, start.time_ns, resolver, batch));
            self.accounts.runs(start.time_ns, vcpu, task);
        }
        self.start_switches = start.switches;
    }

    /// Checks that the probes are still set.
    fn check_probes(&mut self, batch: &mut Batch) {
        let ended = self.end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(end) = ended {
            self.phase = ExactPhase::Over;
            let to_ns = end.time_ns.saturating_sub(self.zero_ns);
            let parts = [("exact", "exact mode", self.exact), ("trip", "watching", self.trips.is_some())];
            for (key, what, _) in parts.into_iter().filter(|(_, _, is_on)| *is_on) {
                batch.meta.push((format!("{key}_to_ns"), to_ns.to_string()));
                batch.meta.push((format!("{key}_end"), end.sentence()));
                self.add_event(batch, format!("{what} ends: {}", end.sentence()));
            }
        } else if self.checked.elapsed() >= CHECK_PERIOD {
            self.checked = Instant::now();
            if let Some((probes, _)) = &self.machine
                && !probes.foreign().is_empty()
                // If a vCPU does not stop, the next check tries again.
                && let Err(error) = probes.withdraw()
            {
                let text = format!("the guest changes its own code, but the probes stay: {error}");
                self.add_event(batch, text);
            }
        }
    }

    fn add_event(&self, batch: &mut Batch, text: String) {
        let time_ns = monotonic_ns().saturating_sub(self.zero_ns);
        batch.events.push(EventRow { time_ns, kind: "exact".to_owned(), text });
    }

    /// Takes the events out of the rings.
    fn drain(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        for ((ends, waiting), loss_ns) in self.ends.iter_mut().zip(&mut self.waiting).zip(&mut self.losses) {
            // Read before the ring: the ring's events are older than this loss.
            let losing_ns = ends.counters.losing_ns.load(Ordering::Acquire);
            let mut lose = |waiting: &mut VecDeque<QueuedItem>, from_ns: u64| {
                if from_ns != 0 && std::mem::replace(loss_ns, from_ns) != from_ns {
                    waiting.push_back(QueuedItem::Loss(from_ns));
                }
            };
            for _ in 0..ends.events.slots() {
                let Ok(message) = ends.events.pop() else { break };
                lose(waiting, message.record.lost_ns);
                let (mut stack, mut wait_reason) = (0, WaitReason::Other);
                if let (Some(copy), Some(task)) = (message.stack, message.record.task) {
                    let time_ns = message.record.time_ns;
                    (stack, wait_reason) = resolver.sleeping(&copy, &task.task, time_ns, batch);
                    // The pool has room for all of its buffers.
                    drop(ends.pool.push(copy));
                }
                waiting.push_back(QueuedItem::Event { record: message.record, wait_reason, stack });
            }
            lose(waiting, losing_ns);
        }
    }

    /// Accounts for all events up to `until_ns`, ordered by time.
    fn account(&mut self, until_ns: u64, resolver: &mut SampleResolver, batch: &mut Batch) {
        loop {
            let time = |queue: &VecDeque<QueuedItem>| queue.front().map(QueuedItem::time_ns);
            let first =
                self.waiting.iter().enumerate().filter_map(|(vcpu, queue)| Some((time(queue)?, vcpu)));
            let Some((_, vcpu)) = first.min().filter(|(time, _)| *time <= until_ns) else { break };
            let Some(next) = self.waiting.get_mut(vcpu).and_then(VecDeque::pop_front) else { break };
            self.done_ns = self.done_ns.max(next.time_ns());
            match next {
                QueuedItem::Event { record, wait_reason, stack } => {
                    self.event(vcpu, (&record, wait_reason, stack), resolver, batch);
                }
                QueuedItem::Loss(time_ns) => self.accounts.lose(time_ns),
            }
        }
    }

    fn event(
        &mut self,
        vcpu: usize,
        (record, wait_reason, stack): (&EventRecord, WaitReason, u32),
        resolver: &mut SampleResolver,
        batch: &mut Batch,
    ) {
        let time_ns = record.time_ns;
        let mut id = |task: &TaskSnapshot| task_id(task, time_ns, resolver, batch);
        let task = record.task.as_ref().and_then(|task| Some((id(&task.task)?, task)));
        let accounts = &mut self.accounts;
        // Charged first: vprof's time before the event belongs to the state that the event ends.
        accounts.served(vcpu, record.served_ns);
        match record.event {
            ProbeEvent::Switch => {
                let next = record.next.as_ref().and_then(id);
                let previous = task.map(|(id, task)| (id, outcome(task, wait_reason, stack)));
                accounts.switch(time_ns, vcpu, previous, next);
            }
            ProbeEvent::Wake => {
                // The context, not the current task, shows the source: an interrupt wakes tasks on behalf of
                // others.
                let by = match record.serving {
                    IrqContext::HardIrq | IrqContext::Nmi => Some(WakeSource::Hard),
                    IrqContext::SoftIrq => Some(WakeSource::Soft),
                    IrqContext::Task => None,
                };
                if let Some((id, _)) = task {
                    accounts.wake(time_ns, vcpu, by, id);
                }
            }
            ProbeEvent::New => {
                if let Some((id, _)) = task {
                    accounts.starts(time_ns, id);
                }
            }
            ProbeEvent::Release => {
                if let Some((id, task)) = task {
                    // `wait_task_zombie` (kernel/exit.c) adds the child's accounting to that of the waiting
                    // process, which is running. A task whose end is not reported to a parent releases
                    // itself.
                    let parent = accounts.runs_on(vcpu).map_or(0, |who| who.instance);
                    if task.task.tid == task.task.pid && parent != 0 && parent != id.who.instance {
                        let time_ns = time_ns.saturating_sub(self.zero_ns);
                        batch.reaped.push(ReapedRow { child: id.who.instance, parent, time_ns });
                    }
                    accounts.release(time_ns, id.address);
                    if let Some(accounting) = &record.accounting {
                        resolver.ended(id.who.instance, &task.task, time_ns, accounting, batch);
                    }
                }
            }
            ProbeEvent::InterruptBegin => {
                let source = if record.number == 0 {
                    InterruptSource::Unknown
                } else {
                    InterruptSource::Entry(record.number)
                };
                accounts.interrupt_begin(time_ns, vcpu, source);
            }
            ProbeEvent::Vector => {
                // Only the lowest byte is the vector (`DEFINE_IDTENTRY_IRQ`,
                // arch/x86/include/asm/idtentry.h).
                let [vector, ..] = record.number.to_le_bytes();
                accounts.interrupt_vector(vcpu, vector);
            }
            ProbeEvent::InterruptEnd => accounts.interrupt_end(time_ns, vcpu),
            ProbeEvent::Trace | ProbeEvent::Patch | ProbeEvent::Core => {}
        }
    }

    fn settle(&mut self, until_ns: u64) {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|end| end.time_ns);
        let until_ns = end.map_or(until_ns, |end| end.min(until_ns));
        if self.done_ns > 0 && until_ns > self.settled_ns {
            self.settled_ns = until_ns;
            self.accounts.settle(until_ns);
        }
    }

    fn sum(&self, counter: impl Fn(&super::record::EventCounters) -> &AtomicU64) -> u64 {
        self.ends.iter().map(|ends| counter(&ends.counters).load(Ordering::Relaxed)).sum()
    }

    /// Adds rows of the sums since the last call.
    pub(crate) fn flush(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        if let Some(trips) = &self.trips {
            trips.flush(batch);
        }
        if self.done_ns == 0 {
            return;
        }
        let mut sums = self.accounts.take();
        rows::push(&sums, self.zero_ns, batch);
        rows::push_runs(&sums, self.zero_ns, batch);
        self.sources.add(std::mem::take(&mut sums.sources));
        self.sources.push(false, resolver, batch);
        self.flush_vcpus(batch);
        for (key, value) in [
            ("exact_runs", self.accounts.runs),
            ("exact_events", self.sum(|counters| &counters.trips)),
            ("exact_lost", self.sum(|counters| &counters.lost)),
            ("exact_cost_ns", self.sum(|counters| &counters.cost_ns)),
            ("exact_switching_ns", self.sum(|counters| &counters.switching_ns)),
            ("exact_switching_samples", self.sum(|counters| &counters.switching)),
        ] {
            batch.meta.push((key.to_owned(), value.to_string()));
        }
    }

    fn flush_vcpus(&self, batch: &mut Batch) {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        for (vcpu, ends) in self.ends.iter().enumerate() {
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let before = self.start_switches.get(vcpu).copied().flatten();
            let after = end.as_ref().and_then(|end| end.switches.get(vcpu).copied().flatten());
            batch.exact_vcpus.push(ExactVcpuRow {
                vcpu: u8::try_from(vcpu).unwrap_or(u8::MAX),
                probe_exits: load(&ends.counters.trips),
                lost: load(&ends.counters.lost),
                switches: load(&ends.counters.switches),
                guest_switches: before.zip(after).and_then(|(before, after)| after.checked_sub(before)),
                idle_ns: self.accounts.idle_ns(vcpu),
                stacks_missed: load(&ends.counters.stacks_missed),
                cost_ns: load(&ends.counters.cost_ns),
            });
        }
    }

    /// Accounts for everything that is left: the machine has ended.
    pub(crate) fn close(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        if let ExactPhase::Before(_, reason) = &self.phase {
            let reason = reason.clone();
            self.give_up(&reason, batch);
        }
        self.drain(resolver, batch);
        if let Some(trips) = &mut self.trips {
            trips.drain(resolver, batch);
        }
        self.account(u64::MAX, resolver, batch);
        if matches!(self.phase, ExactPhase::On) {
            self.check_probes(batch);
        }
        if !self.exact {
            return self.flush(resolver, batch);
        }
        self.settle(monotonic_ns());
        self.accounts.finish();
        self.flush(resolver, batch);
        self.sources.push(true, resolver, batch);
        for (count, what) in [
            (self.sum(|counters| &counters.lost), "events were lost: exact times are incomplete"),
            (
                self.accounts.untracked,
                "events were ignored: they are of tasks beyond the limit of followed tasks",
            ),
        ] {
            if count > 0 {
                self.add_event(batch, format!("{count} {what}"));
            }
        }
        let unseen = self.accounts.unseen_wakes.to_string();
        batch.meta.push(("exact_unseen_wakes".to_owned(), unseen));
    }
}

#[cfg(test)]
mod tests;
