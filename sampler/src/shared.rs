//! State that a session and its collector share, and the data that they exchange.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};

use attach::VcpuCounts;
use serde::{Deserialize, Serialize};
use vmm::monotonic_ns;

use crate::console::ConsoleQueue;
use crate::microstate::stats::VcpuStats;
use crate::sampling_rate::TickPlan;
use crate::vcpu::RingEnds;
use profile::conditions::{ConditionTimes, RunTrigger};
use profile::rows::EventRow;
use profile::session::SessionStatus;
use statistics::estimate::Share;

/// Events that wait for the collector, at most; more are dropped.
const EVENTS_WAITING: usize = 10_000;

/// Precision of the largest share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrecisionStatus {
    /// Wanted precision.
    pub wanted: f64,
    /// Owner of the share: a program's name, or a name in brackets.
    pub name: String,
    /// True if the owner is a process, not a kernel thread, interrupts or early boot.
    pub process: bool,
    /// The share, of all non-idle time in the guest.
    pub share: Share,
    /// True if the interval ends at most `wanted` from the share.
    pub reached: bool,
    /// Factor by which the run has to be longer to reach the wanted precision.
    pub needed: Option<f64>,
}

/// Final counters of a session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SessionTotals {
    /// Samples written.
    pub samples: u64,
    /// Samples lost.
    pub lost: u64,
    /// Precision at the end, if one was asked for; `None` also without samples.
    pub precision: Option<PrecisionStatus>,
    /// Times at which awaited conditions were met.
    pub seen: ConditionTimes,
    /// Alerts of the watch.
    pub alerts: u32,
    /// True if the run ended since the guest had started another kernel
    /// ([`crate::Session::ends_with_kernel`]).
    pub kernel_gone: bool,
    /// Reason why the functions of [`RecordingConfig::trips`](crate::RecordingConfig) were not watched.
    pub trip_refused: Option<String>,
    /// The first failure of the sink; rows written before stay readable.
    pub sink_error: Option<String>,
}

/// End of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionEnding {
    pub meta: Vec<(String, String)>,
    /// True if ended by [`crate::Session::finish`], not by being dropped.
    pub complete: bool,
}

/// Commands of the session to the collector's gate.
#[derive(Debug)]
pub(crate) enum GateCommand {
    Await(RunTrigger),
    /// Samples count from now on; the start condition is dropped.
    Open,
}

/// vCPU that is added to a session.
#[derive(Debug)]
pub(crate) struct AddedVcpu {
    pub stats: Arc<VcpuStats>,
    pub ends: RingEnds,
    pub counts: VcpuCounts,
}

/// Flag that is set once, and that one task at a time may await.
#[derive(Debug, Default)]
pub(crate) struct ReachedFlag {
    reached: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl ReachedFlag {
    pub(crate) fn set(&self) {
        self.reached.store(true, Ordering::Release);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }

    /// Returns whether it is set; otherwise the task is woken then.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        // Before the check, so that no change is missed.
        *lock(&self.waker) = Some(context.waker().clone());
        if self.reached.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// State that the session and its collector share.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub zero_ns: u64,
    pub console: ConsoleQueue,
    pub stop: AtomicBool,
    pub failed: AtomicBool,
    pub precise: AtomicBool,
    /// Requests that a batch is written at once.
    pub flush: AtomicBool,
    /// A condition that ends the run was met.
    pub reached: ReachedFlag,
    /// Samples that were taken, but dropped.
    pub passed_over: AtomicU64,
    commands: Mutex<Vec<GateCommand>>,
    stats: RwLock<Vec<Arc<VcpuStats>>>,
    /// vCPUs that the collector does not know yet.
    added: Mutex<Vec<AddedVcpu>>,
    events: Mutex<Vec<EventRow>>,
    status: Mutex<SessionStatus>,
    ending: Mutex<SessionEnding>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedState {
    pub(crate) fn new(zero_ns: u64, rate_hz: f64, stats: Vec<Arc<VcpuStats>>) -> Self {
        Self {
            zero_ns,
            console: ConsoleQueue::new(zero_ns),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            precise: AtomicBool::new(false),
            flush: AtomicBool::new(false),
            reached: ReachedFlag::default(),
            passed_over: AtomicU64::new(0),
            commands: Mutex::default(),
            stats: RwLock::new(stats),
            added: Mutex::default(),
            events: Mutex::default(),
            status: Mutex::new(SessionStatus {
                sampling: true,
                wanted_hz: rate_hz,
                ..SessionStatus::default()
            }),
            ending: Mutex::default(),
        }
    }

    /// Returns the statistics of each vCPU.
    pub(crate) fn stats(&self) -> RwLockReadGuard<'_, Vec<Arc<VcpuStats>>> {
        self.stats.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a vCPU, the next one. It gets the rate that is requested of the others.
    pub(crate) fn add_vcpu(&self, added: AddedVcpu) {
        // A change of the rate waits for this.
        let mut all = self.stats.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = all.first() {
            added.stats.pace.want(first.pace.wanted());
        }
        all.push(Arc::clone(&added.stats));
        lock(&self.added).push(added);
    }

    /// Takes the vCPUs that were added since the last call.
    pub(crate) fn added(&self) -> Vec<AddedVcpu> {
        std::mem::take(&mut lock(&self.added))
    }

    /// Sends a command to the collector.
    pub(crate) fn command(&self, command: GateCommand) {
        lock(&self.commands).push(command);
    }

    /// Adds an event at the present time, unless too many wait.
    pub(crate) fn add_event(&self, kind: &str, text: &str) {
        let time_ns = monotonic_ns().saturating_sub(self.zero_ns);
        let mut events = lock(&self.events);
        if events.len() < EVENTS_WAITING {
            events.push(EventRow { time_ns, kind: kind.to_owned(), text: text.to_owned() });
        }
    }

    /// Sets the way in which the session ends.
    pub(crate) fn end(&self, ending: SessionEnding) {
        *lock(&self.ending) = ending;
    }

    /// Takes the commands since the last call.
    pub(crate) fn commands(&self) -> Vec<GateCommand> {
        std::mem::take(&mut lock(&self.commands))
    }

    /// Takes the waiting events.
    pub(crate) fn events(&self) -> Vec<EventRow> {
        std::mem::take(&mut lock(&self.events))
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, SessionStatus> {
        lock(&self.status)
    }

    /// Changes the status, and requests the ticks of all vCPUs that follow from it. Returns what `change`
    /// returns.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut SessionStatus) -> T) -> T {
        // Held until all vCPUs have their plan: two changes at once must not leave the older plan in force.
        let mut status = self.status();
        let result = change(&mut status);
        let plan = if status.sampling {
            TickPlan::Samples(status.wanted_hz)
        } else {
            TickPlan::while_off(status.wanted_hz, status.kernel.is_some(), status.awaits_start)
        };
        self.stats().iter().for_each(|stats| stats.pace.want(plan));
        result
    }

    /// Takes the way in which the session ends.
    pub(crate) fn ending(&self) -> SessionEnding {
        std::mem::take(&mut lock(&self.ending))
    }
}
