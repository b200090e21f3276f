//! Finds and follows the guest's kernel, on its own thread: reading a kernel's symbols can take a second on a
//! slow host, and the rings must be drained meanwhile.
//!
//! ```text
//!   searching ──find──> no reader ──publish──> following: modules and generated code every 3 s or on request,
//!                                                         tasks every second
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

use linux::{Interrupts, Kernel, KernelUnwinder, Missing, TaskSnapshot};

use crate::resolve::accounting::AllBooks;
use crate::resolve::frames::Names;
pub(crate) use linux_guest::LinuxGuest;
use units::JOURNALD;
pub(crate) use units::UnitNews;

/// Pauses between attempts grow from the first to the second, while the missing part may still appear.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// Time after which a failure that may still end is reported to the user: longer than an emulated guest with
/// a slow early boot takes from its first kernel code to its per-CPU areas (a PREEMPT_RT kernel took over 3
/// s).
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between attempts after a final failure, which is reported at once.
const HOPELESS_PERIOD: Duration = Duration::from_secs(3);
/// Time between readings of modules and generated code, and the shortest such time on request.
const MODULES_PERIOD: Duration = Duration::from_secs(3);
const MODULES_AT_MOST: Duration = Duration::from_millis(50);
/// Time between lists of all tasks, which include those that no sample hits.
const TASKS_PERIOD: Duration = Duration::from_secs(1);
/// Time between lists while a task is awaited, and the factor of their cost that bounds them to a tenth of a
/// CPU.
const SIGHT_PERIOD: Duration = Duration::from_millis(20);
const SIGHT_COST: u32 = 10;
/// Time between readings of a booting guest's journal, bounded to a tenth of a CPU like the lists.
const UNITS_PERIOD: Duration = Duration::from_millis(50);

/// Events that the finder sends to the collector.
#[derive(Debug)]
pub(crate) enum News {
    /// The kernel was found.
    Kernel(Found),
    /// Other modules are loaded than before, or other code has been generated.
    Code(Code),
    /// Interrupts have other handlers than before.
    Interrupts(Interrupts),
    /// Names of system calls by number.
    SystemCalls(Vec<Option<String>>),
    /// The tasks that exist.
    Tasks(Vec<TaskSnapshot>),
    /// The tasks that exist, read often because a task is awaited.
    Sight(Vec<TaskSnapshot>),
    /// The guest's accounting of the CPU time of its processes and CPUs.
    Books(AllBooks),
    /// systemd's messages about its units.
    Units(UnitNews),
    /// Reason why these messages are not known, one sentence.
    NoUnits(String),
    /// The kernel's own record of its failures.
    Trouble(Trouble),
    /// Something cannot be read.
    Missing(String),
}

/// The code of the kernel with its modules and its generated code.
#[derive(Debug)]
pub(crate) struct Code {
    pub names: Arc<dyn Names>,
    pub kernel: Option<Arc<Kernel>>,
    pub unwinder: Option<Arc<KernelUnwinder>>,
}

/// A kernel that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub release: Option<String>,
    pub symbols: usize,
    pub missing: Vec<Missing>,
    pub code: Code,
}

/// A kernel's own record of its failures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// A CPU has called `panic`.
    pub panicked: Option<bool>,
    /// The kernel had an oops.
    pub died: Option<bool>,
    /// The kernel printed a warning.
    pub warned: Option<bool>,
}

impl Trouble {
    /// Returns the rows of `meta`.
    pub(crate) fn meta(self) -> impl Iterator<Item = (&'static str, String)> {
        let rows =
            [("kernel_panicked", self.panicked), ("kernel_died", self.died), ("kernel_warned", self.warned)];
        rows.into_iter().filter_map(|(key, value)| Some((key, u8::from(value?).to_string())))
    }
}

/// All tasks, and the guest's accounting of their CPU time.
#[derive(Debug)]
pub(crate) struct Listed {
    pub tasks: Vec<TaskSnapshot>,
    pub books: Result<AllBooks, Missing>,
}

/// A guest in which a kernel can be found.
pub(crate) trait Guest: Send + 'static {
    /// Finds the kernel through these page tables.
    fn find(&mut self, cr3: u64, five_level: bool) -> Result<Found, Missing>;
    /// Hands the reader of current tasks to the vCPUs. Returns the parts that it cannot read, each with the
    /// reason.
    fn publish_reader(&mut self) -> Result<Vec<String>, Missing>;
    /// Returns the code with the present modules and generated code; `None` if nothing has changed.
    fn code(&mut self) -> Result<Option<Code>, Missing>;
    /// Returns the handlers of interrupts; `None` if nothing has changed.
    fn interrupts(&mut self) -> Result<Option<Interrupts>, Missing>;
    /// Returns the names of system calls by number.
    fn system_calls(&mut self) -> Result<Vec<Option<String>>, Missing>;
    /// Lists all tasks with their CPU accounting, by one walk.
    fn tasks(&mut self) -> Result<Listed, Missing>;
    /// Lists all tasks, and nothing else.
    fn sight(&mut self) -> Result<Vec<TaskSnapshot>, Missing>;
    /// Returns systemd's messages about its units since the last call; `journald` are the processes that may
    /// write its journal. The error is the reason why the messages cannot be read.
    fn units(&mut self, journald: &[TaskSnapshot]) -> Result<UnitNews, String>;
    /// Returns the kernel's own record of its failures, as far as it can be read.
    fn trouble(&mut self) -> Trouble;
}

#[derive(Debug, Default)]
struct Wishes {
    candidate: Option<(u64, bool)>,
    modules: bool,
    sights: bool,
    stop: bool,
}

/// Requests of the collector to the finder.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    wishes: Mutex<Wishes>,
    bell: Condvar,
}

impl Wanted {
    fn lock(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Requests frequent lists of tasks, or no longer.
    pub(crate) fn sights(&self, wanted: bool) {
        if std::mem::replace(&mut self.lock().sights, wanted) != wanted {
            self.bell.notify_one();
        }
    }

    /// Stops the finder: the run is over.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.bell.notify_one();
    }

    /// Waits until the run is over, a candidate arrives (if one is `needed`), modules are requested (if they
    /// are `ready`), or `until`; at most `LAST_PAUSE`.
    fn wait(&self, needed: bool, ready: bool, until: Instant) {
        let limit = until.saturating_duration_since(Instant::now()).min(LAST_PAUSE);
        let pending = |wishes: &mut Wishes| {
            !(wishes.stop || needed && wishes.candidate.is_some() || ready && wishes.modules)
        };
        drop(self.bell.wait_timeout_while(self.lock(), limit, pending));
    }
}

/// A task of the finder that is repeated.
#[derive(Debug)]
struct Job {
    next: Instant,
    pause: Duration,
    failing: Option<(Instant, Missing)>,
}

impl Job {
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

impl Units {
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
pub(crate) struct Finder<G> {
    guest: G,
    wanted: Arc<Wanted>,
    news: Sender<News>,
    told: HashSet<String>,
    found: bool,
    published: bool,
    find: Job,
    reader: Job,
    modules: Job,
    modules_read: Instant,
    tasks: Job,
    sight: Job,
    units: Units,
}

/// State of following systemd's messages.
#[derive(Debug)]
struct Units {
    /// Messages are wanted, and the boot is not over.
    wanted: bool,
    /// Processes that may write the journal, as of the last list of tasks.
    journald: Vec<TaskSnapshot>,
    next: Instant,
    /// Messages were found.
    seen: bool,
    /// Reason for missing messages that was last reported.
    told: Option<String>,
}

impl<G: Guest> Finder<G> {
    pub(crate) fn new(guest: G, wanted: Arc<Wanted>, news: Sender<News>) -> Self {
        Self {
            guest,
            wanted,
            news,
            told: HashSet::new(),
            found: false,
            published: false,
            find: Job::new(),
            reader: Job::new(),
            modules: Job::new(),
            modules_read: Instant::now(),
            tasks: Job::new(),
            sight: Job::new(),
            units: Units {
                wanted: false,
                journald: Vec::new(),
                next: Instant::now(),
                seen: false,
                told: None,
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
            if self.found {
                self.follow(stop);
                self.follow_journal(stop);
            } else {
                self.search(stop);
            }
            self.complain(stop);
            if stop {
                if self.found {
                    let trouble = self.guest.trouble();
                    self.tell(News::Trouble(trouble));
                }
                return;
            }
            let (needed, until) = self.next();
            let again = self.modules_read + MODULES_AT_MOST;
            let ready = self.found && Instant::now() >= again;
            // Modules that are requested again at once are read as soon as the shortest time has passed.
            let until = if self.found && !ready { until.min(again) } else { until };
            self.wanted.wait(needed, ready, until);
        }
    }

    /// Returns true if only a candidate is awaited, and the time at which something is due anyway.
    fn next(&self) -> (bool, Instant) {
        if !self.found {
            return (self.find.due(), self.find.next.max(Instant::now() + FIRST_PAUSE));
        }
        let mut next = self.modules.next.min(self.tasks.next);
        if self.wanted.lock().sights {
            next = next.min(self.sight.next);
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
        let Some((cr3, five_level)) = self.wanted.lock().candidate.take() else {
            return;
        };
        let result = self.guest.find(cr3, five_level);
        if let Some(mut found) = self.find.note(result, Duration::ZERO) {
            self.found = true;
            let missing = std::mem::take(&mut found.missing);
            self.tell(News::Kernel(found));
            match self.guest.system_calls() {
                Ok(names) => self.tell(News::SystemCalls(names)),
                Err(reason) => self.tell_missing(&reason),
            }
            for reason in missing {
                self.tell_missing(&reason);
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
                    self.tell_text(text);
                }
            }
        }
        let asked = self.wanted.lock().modules && self.modules_read.elapsed() >= MODULES_AT_MOST;
        if stop || self.modules.due() || asked {
            self.wanted.lock().modules = false;
            self.modules_read = Instant::now();
            let result = self.guest.code();
            if let Some(Some(code)) = self.modules.note(result, MODULES_PERIOD) {
                self.tell(News::Code(code));
            }
            // Handlers of interrupts are optional: a reason why they cannot be read is not worth a message.
            if let Ok(Some(interrupts)) = self.guest.interrupts() {
                self.tell(News::Interrupts(interrupts));
            }
        }
        if !stop && self.sight.due() && self.wanted.lock().sights {
            let begun = Instant::now();
            let result = self.guest.sight();
            let period = SIGHT_PERIOD.max(begun.elapsed() * SIGHT_COST);
            if let Some(tasks) = self.sight.note(result, period) {
                self.units.meet(&tasks);
                self.tell(News::Sight(tasks));
            }
        }
        if stop || self.tasks.due() {
            let result = self.guest.tasks();
            if let Some(Listed { tasks, books }) = self.tasks.note(result, TASKS_PERIOD) {
                self.units.meet(&tasks);
                self.tell(News::Tasks(tasks));
                match books {
                    Ok(books) => self.tell(News::Books(books)),
                    // The per-CPU areas are set up in a moment.
                    Err(reason) if reason.may_come() && !stop => {}
                    Err(reason) => self.tell_text(format!("no CPU time as the guest keeps it: {reason}")),
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
            Err("no process systemd-journald was seen".to_owned())
        } else {
            self.guest.units(&self.units.journald)
        };
        self.units.next = begun + UNITS_PERIOD.max(begun.elapsed() * SIGHT_COST);
        let reason = match read {
            Ok(news) if !news.rows.is_empty() => {
                self.units.seen = true;
                // The boot is over: units that start later are not part of it.
                self.units.wanted = news.startup.is_none();
                return self.tell(News::Units(news));
            }
            Ok(_) => "systemd's journal has no message about a unit".to_owned(),
            Err(reason) => reason,
        };
        // Messages that were read stay, also when systemd-journald ends.
        if !self.units.seen && self.units.told.as_ref() != Some(&reason) {
            self.units.told = Some(reason.clone());
            self.tell(News::NoUnits(reason));
        }
    }

    /// Reports what has failed for long, or until the end of the run.
    fn complain(&mut self, stop: bool) {
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
                    self.tell_text("no kernel was found: no code of a 64-bit kernel was sampled".to_owned())
                }
            }
        }
        for reason in reasons {
            self.tell_missing(&reason);
        }
    }

    fn tell_missing(&mut self, reason: &Missing) {
        self.tell_text(reason.to_string());
    }

    fn tell_text(&mut self, text: String) {
        if self.told.insert(text.clone()) {
            self.tell(News::Missing(text));
        }
    }

    fn tell(&self, news: News) {
        // The collector is gone only when the session was dropped; then there is no receiver.
        drop(self.news.send(news));
    }
}

#[cfg(test)]
mod tests;
