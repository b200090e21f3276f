//! Finds and follows the guest's kernel, on its own thread: reading a kernel's symbols can take a second on a
//! slow host, and the rings must be drained meanwhile.
//!
//! ```text
//!   searching ──find──> no reader ──publish──> following: modules and generated code every 3 s or on
//!                                                         request, tasks every second
//! ```
//!
//! Everything is retried with growing pauses, since the guest is only just booting. A lasting failure is
//! reported once.

mod linux_guest;
mod units;

use std::collections::HashSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guest_linux::{InterruptTables, Kernel, KernelUnwinder, Missing, TaskSnapshot};

use crate::resolve::accounting::AccountingSnapshot;
use crate::resolve::frames::KernelNames;
use crate::resolve::walker::{CodeSource, PresentCode};
pub(crate) use linux_guest::LinuxGuest;
use units::JOURNALD;
pub(crate) use units::{UnitError, UnitEvents};

/// Pauses between attempts grow from the first to the second, while the missing part may still appear.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// Time after which a failure that may still end is reported to the user: longer than an emulated guest with
/// a slow early boot takes from its first kernel code to its per-CPU areas (a PREEMPT_RT kernel took over 3
/// s).
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between attempts after a final failure, which is reported at once.
const HOPELESS_PERIOD: Duration = Duration::from_secs(3);
/// Time between readings of modules and generated code.
const MODULES_PERIOD: Duration = Duration::from_secs(3);
/// Time between readings on request, and the factor of their cost that bounds them to a quarter of a CPU.
const MODULES_AT_MOST: Duration = Duration::from_millis(5);
const MODULES_COST: u32 = 4;
/// Time that a walk waits for code that it lacks, at most: the samples that come meanwhile fit the rings.
const CODE_PATIENCE: Duration = Duration::from_millis(100);
/// Time between lists of all tasks, which include those that no sample hits.
const TASKS_PERIOD: Duration = Duration::from_secs(1);
/// Time between lists while a task is awaited, and the factor of their cost that bounds them to a tenth of a
/// CPU.
const LIST_PERIOD: Duration = Duration::from_millis(20);
const LIST_COST: u32 = 10;
/// Time between readings of a booting guest's journal, bounded to a tenth of a CPU like the lists.
const UNITS_PERIOD: Duration = Duration::from_millis(50);

/// Events that the finder sends to the collector.
#[derive(Debug)]
pub(crate) enum FinderEvent {
    /// The kernel was found.
    Kernel(FoundKernel),
    /// Other modules are loaded than before, or other code has been generated.
    Code(KernelCode),
    /// Interrupts have other handlers than before.
    Interrupts(InterruptTables),
    /// Names of system calls by number.
    SystemCalls(Vec<Option<String>>),
    /// The tasks that exist.
    Tasks(Vec<TaskSnapshot>),
    /// The tasks that exist, read often because a task is awaited.
    List(Vec<TaskSnapshot>),
    /// The guest's accounting of the CPU time of its processes and CPUs.
    Books(AccountingSnapshot),
    /// systemd's messages about its units.
    Units(UnitEvents),
    /// Reason why these messages are not known.
    NoUnits(UnitError),
    /// The kernel's own record of its failures.
    Trouble(KernelTrouble),
    /// Something cannot be read.
    Missing(String),
}

/// The code of the kernel with its modules and its generated code.
#[derive(Debug)]
pub(crate) struct KernelCode {
    pub names: Arc<dyn KernelNames>,
    pub kernel: Option<Arc<Kernel>>,
    pub unwinder: Option<Arc<KernelUnwinder>>,
}

impl KernelCode {
    /// Returns what a walk needs of it; `None` where stacks are not wanted.
    fn present(&self) -> Option<PresentCode> {
        let (unwinder, names) = (self.unwinder.clone()?, Arc::clone(&self.names));
        Some(PresentCode { unwinder, names })
    }
}

/// A kernel that was found.
#[derive(Debug)]
pub(crate) struct FoundKernel {
    pub release: Option<String>,
    pub symbols: usize,
    pub missing: Vec<Missing>,
    pub code: KernelCode,
}

/// A kernel's own record of its failures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KernelTrouble {
    /// A CPU has called `panic`.
    pub panicked: Option<bool>,
    /// The kernel had an oops.
    pub died: Option<bool>,
    /// The kernel printed a warning.
    pub warned: Option<bool>,
}

impl KernelTrouble {
    /// Returns the rows of `meta`.
    pub(crate) fn meta(self) -> impl Iterator<Item = (&'static str, String)> {
        let rows =
            [("kernel_panicked", self.panicked), ("kernel_died", self.died), ("kernel_warned", self.warned)];
        rows.into_iter().filter_map(|(key, value)| Some((key, u8::from(value?).to_string())))
    }
}

/// All tasks, and the guest's accounting of their CPU time.
#[derive(Debug)]
pub(crate) struct TaskListing {
    pub tasks: Vec<TaskSnapshot>,
    pub books: Result<AccountingSnapshot, Missing>,
}

/// A guest in which a kernel can be found.
pub(crate) trait GuestKernel: Send + 'static {
    /// Returns page tables of a kernel that is already known; `None` while kernel code has to run first.
    fn known_tables(&self) -> Option<(u64, bool)>;
    /// Finds the kernel through these page tables.
    fn find(&mut self, cr3: u64, five_level: bool) -> Result<FoundKernel, Missing>;
    /// Hands the reader of current tasks to the vCPUs. Returns the parts that it cannot read, each with the
    /// reason.
    fn publish_reader(&mut self) -> Result<Vec<String>, Missing>;
    /// Returns the code with the present modules and generated code; `None` if nothing has changed.
    fn code(&mut self) -> Result<Option<KernelCode>, Missing>;
    /// Returns the handlers of interrupts; `None` if nothing has changed.
    fn interrupts(&mut self) -> Result<Option<InterruptTables>, Missing>;
    /// Returns the names of system calls by number.
    fn system_calls(&mut self) -> Result<Vec<Option<String>>, Missing>;
    /// Lists all tasks with their CPU accounting, by one walk.
    fn tasks(&mut self) -> Result<TaskListing, Missing>;
    /// Lists all tasks, and nothing else.
    fn list(&mut self) -> Result<Vec<TaskSnapshot>, Missing>;
    /// Returns systemd's messages about its units since the last call; `journald` are the processes that may
    /// write its journal. The error is the reason why the messages cannot be read.
    fn units(&mut self, journald: &[TaskSnapshot]) -> Result<UnitEvents, UnitError>;
    /// Returns the kernel's own record of its failures, as far as it can be read.
    fn trouble(&mut self) -> KernelTrouble;
    /// Returns true if the guest's memory is gone: its process has ended, as QEMU does with its guest.
    fn is_gone(&self) -> bool;
}

#[derive(Debug, Default)]
struct PendingRequests {
    candidate: Option<(u64, bool)>,
    modules: bool,
    /// Readings of modules that have begun, and the last one that has ended.
    begun: u64,
    ended: u64,
    /// The code of the last reading that found a change.
    code: Option<PresentCode>,
    task_lists: bool,
    stop: bool,
}

/// Requests of the collector to the finder.
#[derive(Debug, Default)]
pub(crate) struct FinderRequests {
    requests: Mutex<PendingRequests>,
    bell: Condvar,
    /// Rings when modules have been read.
    read: Condvar,
}

impl CodeSource for FinderRequests {
    fn present(&self) -> Option<PresentCode> {
        self.modules();
        let requests = self.lock();
        if requests.stop {
            return None;
        }
        let last = requests.begun;
        let older = |requests: &mut PendingRequests| !requests.stop && requests.ended <= last;
        let waited = self.read.wait_timeout_while(requests, CODE_PATIENCE, older);
        waited.unwrap_or_else(PoisonError::into_inner).0.code.clone()
    }
}

impl FinderRequests {
    fn lock(&self) -> MutexGuard<'_, PendingRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a CR3 (and CR4.LA57) under which kernel code ran.
    pub(crate) fn candidate(&self, cr3: u64, five_level: bool) {
        if self.lock().candidate.replace((cr3, five_level)).is_none() {
            self.bell.notify_one();
        }
    }

    /// Requests modules: an address outside of the kernel image, all known modules and all known generated
    /// code was met.
    pub(crate) fn modules(&self) {
        if !std::mem::replace(&mut self.lock().modules, true) {
            self.bell.notify_one();
        }
    }

    /// Notes that modules are read from now on.
    fn begin_reading(&self) {
        let mut requests = self.lock();
        requests.modules = false;
        requests.begun += 1;
    }

    /// Notes that modules have been read; `code` is the new one, if it has changed.
    fn end_reading(&self, code: Option<PresentCode>) {
        let mut requests = self.lock();
        requests.ended = requests.begun;
        if code.is_some() {
            requests.code = code;
        }
        drop(requests);
        self.read.notify_all();
    }

    /// Requests frequent lists of tasks, or no longer.
    pub(crate) fn task_lists(&self, wanted: bool) {
        if std::mem::replace(&mut self.lock().task_lists, wanted) != wanted {
            self.bell.notify_one();
        }
    }

    /// Stops the finder: the run is over.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.bell.notify_one();
        self.read.notify_all();
    }

    /// Waits until the run is over, a candidate arrives (if one is `needed`), modules are requested (if they
    /// are `ready`), or `until`; at most `LAST_PAUSE`.
    fn wait(&self, needed: bool, ready: bool, until: Instant) {
        let limit = until.saturating_duration_since(Instant::now()).min(LAST_PAUSE);
        let pending = |requests: &mut PendingRequests| {
            !(requests.stop || needed && requests.candidate.is_some() || ready && requests.modules)
        };
        drop(self.bell.wait_timeout_while(self.lock(), limit, pending));
    }
}

/// A task of the finder that is repeated.
#[derive(Debug)]
struct RetryJob {
    next: Instant,
    pause: Duration,
    failing: Option<(Instant, Missing)>,
}

impl RetryJob {
    fn new() -> Self {
        Self { next: Instant::now(), pause: FIRST_PAUSE, failing: None }
    }

    fn due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Notes the result of an attempt; after a success the next one follows in `period`.
    fn note<T>(&mut self, result: Result<T, Missing>, period: Duration) -> Option<T> {
        let now = Instant::now();
        match result {
            Ok(value) => {
                *self = Self { next: now + period, pause: FIRST_PAUSE, failing: None };
                Some(value)
            }
            Err(reason) => {
                self.next = now + if reason.may_come() { self.pause } else { HOPELESS_PERIOD };
                self.pause = (self.pause * 2).min(LAST_PAUSE);
                let since = self.failing.take().map_or(now, |(since, _)| since);
                self.failing = Some((since, reason));
                None
            }
        }
    }
}

impl UnitFollower {
    /// Notes all tasks that exist.
    fn meet(&mut self, tasks: &[TaskSnapshot]) {
        if self.wanted {
            self.journald.clear();
            let is_leader = |task: &&TaskSnapshot| task.tid == task.pid && !task.kernel_thread;
            let journald = tasks.iter().filter(is_leader).filter(|task| task.process_comm == *JOURNALD);
            self.journald.extend(journald);
        }
    }
}

/// The finder's thread.
#[derive(Debug)]
pub(crate) struct KernelFinder<G> {
    guest: G,
    wanted: Arc<FinderRequests>,
    sender: Sender<FinderEvent>,
    reported: HashSet<String>,
    found: bool,
    published: bool,
    find: RetryJob,
    reader: RetryJob,
    modules: RetryJob,
    modules_read: Instant,
    modules_pause: Duration,
    tasks: RetryJob,
    list: RetryJob,
    units: UnitFollower,
}

/// State of following systemd's messages.
#[derive(Debug)]
struct UnitFollower {
    /// Messages are wanted, and the boot is not over.
    wanted: bool,
    /// Processes that may write the journal, as of the last list of tasks.
    journald: Vec<TaskSnapshot>,
    next: Instant,
    /// Messages were found.
    seen: bool,
    /// Reason for missing messages that was last reported.
    reported: Option<UnitError>,
}

impl<G: GuestKernel> KernelFinder<G> {
    pub(crate) fn new(guest: G, wanted: Arc<FinderRequests>, sender: Sender<FinderEvent>) -> Self {
        Self {
            guest,
            wanted,
            sender,
            reported: HashSet::new(),
            found: false,
            published: false,
            find: RetryJob::new(),
            reader: RetryJob::new(),
            modules: RetryJob::new(),
            modules_read: Instant::now(),
            modules_pause: MODULES_AT_MOST,
            tasks: RetryJob::new(),
            list: RetryJob::new(),
            units: UnitFollower {
                wanted: false,
                journald: Vec::new(),
                next: Instant::now(),
                seen: false,
                reported: None,
            },
        }
    }

    /// Turns the reading of systemd's messages on.
    pub(crate) fn follow_units(mut self, wanted: bool) -> Self {
        self.units.wanted = wanted;
        self
    }

    /// Runs until [`FinderRequests::stop`]; then reads once more what the end of the run may have brought.
    pub(crate) fn run(mut self) {
        loop {
            let stop = self.wanted.lock().stop;
            if self.found && self.guest.is_gone() {
                // What was read before stays.
                if stop {
                    return;
                }
            } else if self.found {
                self.follow(stop);
                self.follow_journal(stop);
            } else {
                self.search(stop);
            }
            // What has failed because the memory went away meanwhile is not worth a message.
            if !(self.found && self.guest.is_gone()) {
                self.report_failures(stop);
            }
            if stop {
                if self.found {
                    let trouble = self.guest.trouble();
                    self.send(FinderEvent::Trouble(trouble));
                }
                return;
            }
            let (needed, until) = self.next();
            let again = self.modules_read + self.modules_pause;
            let ready = self.found && Instant::now() >= again;
            // Modules that are requested again at once are read as soon as the shortest time has passed.
            let until = if self.found && !ready { until.min(again) } else { until };
            self.wanted.wait(needed, ready, until);
        }
    }

    /// Returns true if only a candidate is awaited, and the time at which something is due anyway.
    fn next(&self) -> (bool, Instant) {
        if !self.found {
            let due = self.find.due();
            // Then only a candidate is awaited.
            return (due, if due { Instant::now() + LAST_PAUSE } else { self.find.next });
        }
        let mut next = self.modules.next.min(self.tasks.next);
        if self.wanted.lock().task_lists {
            next = next.min(self.list.next);
        }
        if self.units.wanted && !self.units.journald.is_empty() {
            next = next.min(self.units.next);
        }
        (false, if self.published { next } else { next.min(self.reader.next) })
    }

    fn search(&mut self, stop: bool) {
        if !stop && !self.find.due() {
            return;
        }
        let candidate = self.wanted.lock().candidate.take();
        // A guest may be in user code at each tick.
        let Some((cr3, five_level)) = candidate.or_else(|| self.guest.known_tables()) else {
            return;
        };
        let result = self.guest.find(cr3, five_level);
        if let Some(mut found) = self.find.note(result, Duration::ZERO) {
            self.found = true;
            let missing = std::mem::take(&mut found.missing);
            self.send(FinderEvent::Kernel(found));
            match self.guest.system_calls() {
                Ok(names) => self.send(FinderEvent::SystemCalls(names)),
                Err(reason) => self.report_missing(&reason),
            }
            for reason in missing {
                self.report_missing(&reason);
            }
            self.follow(stop);
        }
    }

    fn follow(&mut self, stop: bool) {
        if !self.published && !stop && self.reader.due() {
            let result = self.guest.publish_reader();
            if let Some(missing) = self.reader.note(result, Duration::ZERO) {
                self.published = true;
                for text in missing {
                    self.report_text(text);
                }
            }
        }
        let asked = self.wanted.lock().modules && self.modules_read.elapsed() >= self.modules_pause;
        if stop || self.modules.due() || asked {
            self.wanted.begin_reading();
            let begun = Instant::now();
            let result = self.guest.code();
            self.modules_read = Instant::now();
            self.modules_pause = MODULES_AT_MOST.max(begun.elapsed() * MODULES_COST);
            let code = self.modules.note(result, MODULES_PERIOD).flatten();
            let present = code.as_ref().and_then(KernelCode::present);
            if let Some(code) = code {
                self.send(FinderEvent::Code(code));
            }
            self.wanted.end_reading(present);
            // Handlers of interrupts are optional: a reason why they cannot be read is not worth a message.
            if let Ok(Some(interrupts)) = self.guest.interrupts() {
                self.send(FinderEvent::Interrupts(interrupts));
            }
        }
        if !stop && self.list.due() && self.wanted.lock().task_lists {
            let begun = Instant::now();
            let result = self.guest.list();
            let period = LIST_PERIOD.max(begun.elapsed() * LIST_COST);
            if let Some(tasks) = self.list.note(result, period) {
                self.units.meet(&tasks);
                self.send(FinderEvent::List(tasks));
            }
        }
        if stop || self.tasks.due() {
            let result = self.guest.tasks();
            if let Some(TaskListing { tasks, books }) = self.tasks.note(result, TASKS_PERIOD) {
                self.units.meet(&tasks);
                self.send(FinderEvent::Tasks(tasks));
                match books {
                    Ok(books) => self.send(FinderEvent::Books(books)),
                    // The per-CPU areas are set up in a moment.
                    Err(reason) if reason.may_come() && (!stop || self.guest.is_gone()) => {}
                    Err(reason) => {
                        self.report_text(format!("cannot read the guest's CPU accounting: {reason}"))
                    }
                }
            }
        }
    }

    /// Reads systemd's messages about its units.
    fn follow_journal(&mut self, stop: bool) {
        if !self.units.wanted || !stop && Instant::now() < self.units.next {
            return;
        }
        let begun = Instant::now();
        let read = if self.units.journald.is_empty() {
            Err(UnitError::NotRunning)
        } else {
            self.guest.units(&self.units.journald)
        };
        self.units.next = begun + UNITS_PERIOD.max(begun.elapsed() * LIST_COST);
        let reason = match read {
            Ok(events) if !events.rows.is_empty() => {
                self.units.seen = true;
                // The boot is over: units that start later are not part of it.
                self.units.wanted = events.startup.is_none();
                return self.send(FinderEvent::Units(events));
            }
            Ok(_) => UnitError::NoMessage,
            Err(reason) => reason,
        };
        // Messages that were read stay, also when systemd-journald ends.
        if !self.units.seen && self.units.reported.as_ref() != Some(&reason) {
            self.units.reported = Some(reason.clone());
            self.send(FinderEvent::NoUnits(reason));
        }
    }

    /// Reports what has failed for long, or until the end of the run.
    fn report_failures(&mut self, stop: bool) {
        let mut reasons = Vec::new();
        for job in [&self.reader, &self.modules, &self.tasks] {
            if let Some((since, reason)) = &job.failing
                && (stop || !reason.may_come() || since.elapsed() >= PATIENCE)
            {
                reasons.push(reason.clone());
            }
        }
        if stop && !self.found {
            match self.find.failing.take() {
                Some((_, reason)) => reasons.push(reason),
                None => {
                    self.report_text("no kernel was found: no code of a 64-bit kernel was sampled".to_owned())
                }
            }
        }
        for reason in reasons {
            self.report_missing(&reason);
        }
    }

    fn report_missing(&mut self, reason: &Missing) {
        self.report_text(reason.to_string());
    }

    fn report_text(&mut self, text: String) {
        if self.reported.insert(text.clone()) {
            self.send(FinderEvent::Missing(text));
        }
    }

    fn send(&self, event: FinderEvent) {
        // The collector is gone only when the session was dropped; then there is no receiver.
        drop(self.sender.send(event));
    }
}

#[cfg(test)]
mod tests;
