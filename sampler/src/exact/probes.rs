//! Setting of the probes, and reading of the tasks while all vCPUs are stopped.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use guest_linux::{CannotWatch, Kernel, Missing, ProbeEvent, RunState, SchedState, StackCopy, TaskSnapshot};
use vmm::{
    GuestAddress, GuestMemoryMmap, ProbeError, ProbePoint, ProbeSet, WithdrawReason, Withdrawal, monotonic_ns,
};

use super::record::{EventReaders, STACK_BYTES, USER_BYTES};
use crate::record::GuestReaders;

/// Tasks whose state is read at the start, at most: all vCPUs are stopped meanwhile.
const MAX_TASKS: usize = 8_192;
/// Tasks whose stack is copied at the start, at most.
const SCAN_STACKS: usize = 512;

/// Tasks at the time when the probes were set.
#[derive(Debug, Default)]
pub(crate) struct ProbeStart {
    /// CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// All tasks but the idle ones; sleeping ones with their stacks.
    pub tasks: Vec<(SchedState, Option<StackCopy>)>,
    /// Current task of each vCPU.
    pub current: Vec<Option<TaskSnapshot>>,
    /// The kernel's own count of each vCPU's switches.
    pub switches: Vec<Option<u64>>,
}

/// Counts at the time when the probes were removed.
#[derive(Debug, Clone)]
pub(crate) struct ProbeEnd {
    /// CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    pub switches: Vec<Option<u64>>,
    pub withdrawn: Withdrawal,
}

/// Cell that receives the end.
pub(crate) type EndCell = Arc<Mutex<Option<ProbeEnd>>>;

/// Reasons why probes are not set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SetFailure {
    /// Setting may succeed later.
    Later(String),
    /// The vCPUs did not stop in time; they may at another attempt.
    NotStopped(String),
    /// Setting fails in this run.
    Never(String),
    /// A function cannot be watched.
    Refused(String),
}

impl From<CannotWatch> for SetFailure {
    fn from(refusal: CannotWatch) -> Self {
        match refusal {
            CannotWatch::Missing(missing) => missing.into(),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<Missing> for SetFailure {
    fn from(missing: Missing) -> Self {
        if missing.may_come() { Self::Later(missing.to_string()) } else { Self::Never(missing.to_string()) }
    }
}

impl From<ProbeError> for SetFailure {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::NotPaused { .. } => Self::NotStopped(error.to_string()),
            _ => Self::Never(error.to_string()),
        }
    }
}

/// Parts of the guest that the probes need.
pub(crate) struct GuestParts<'a> {
    pub kernel: &'a Kernel,
    pub memory: &'a GuestMemoryMmap,
    pub readers: &'a GuestReaders,
    pub vcpus: usize,
}

/// Purpose of the probes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbePurpose<'a> {
    /// The events of exact mode.
    pub exact: bool,
    /// Names of functions to watch.
    pub watched: &'a [String],
}

/// Sets the probes of a kernel that has booted. Stores the readers in `events` before. Tasks at the start are
/// read for exact mode only.
pub(crate) fn set(
    guest: &GuestParts<'_>,
    purpose: ProbePurpose<'_>,
    probes: &ProbeSet,
    events: &OnceLock<EventReaders>,
    end: &EndCell,
) -> Result<(ProbeStart, Vec<Missing>), SetFailure> {
    let GuestParts { kernel, memory, vcpus, .. } = *guest;
    if !kernel.has_booted(memory)? {
        return Err(SetFailure::Later("the guest's kernel has not booted yet".to_owned()));
    }
    let watched = kernel.watched(memory, purpose.watched)?;
    let found = kernel.probe_sites(memory, purpose.exact, &watched)?;
    let states = kernel.sched_state_reader(memory)?;
    let accounting = kernel.exit_accounting_reader(memory).ok();
    let missing = found.missing.clone();
    let sites: Vec<ProbePoint> = found
        .sites
        .iter()
        .map(|site| ProbePoint {
            virt: site.virt.0,
            phys: GuestAddress(site.phys.0),
            kind: site.kind(),
            loads_rdi: site.loads,
        })
        .collect();
    // A second attempt finds the same sites.
    let readers = events.get_or_init(|| EventReaders { sites: found, states, accounting, watched });
    let mut start = ProbeStart::default();
    let at_end = (Arc::clone(end), memory.clone(), readers.states.clone());
    let at_withdrawal = move |withdrawn: &Withdrawal| {
        let (end, memory, states) = at_end;
        let switches = (0..vcpus).map(|vcpu| states.switches(&memory, vcpu)).collect();
        let ended = ProbeEnd { time_ns: monotonic_ns(), switches, withdrawn: withdrawn.clone() };
        *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
    };
    let at_start = || {
        start.time_ns = monotonic_ns();
        if purpose.exact {
            start = read_tasks(guest, readers);
        }
    };
    probes.set(&sites, at_start, Box::new(at_withdrawal))?;
    Ok((start, missing))
}

/// Reads the state of all tasks while all vCPUs are stopped.
fn read_tasks(guest: &GuestParts<'_>, events: &EventReaders) -> ProbeStart {
    let GuestParts { kernel, memory, readers, vcpus } = *guest;
    // Without a list of tasks, each task starts with its first event.
    let tasks = kernel.tasks(memory).unwrap_or_default();
    let mut stacks = 0;
    let mut with_stack = |task: SchedState| {
        let asleep = matches!(
            task.run_state(),
            RunState::Interruptible | RunState::Uninterruptible | RunState::Stopped
        );
        let (reader, user_bytes) = readers.stacks.as_ref().filter(|_| asleep && stacks < SCAN_STACKS)?;
        stacks += 1;
        let mut copy = StackCopy::with_room(STACK_BYTES);
        let (whose, user_bytes) = (task.task.sleeping(), USER_BYTES.min(*user_bytes));
        reader.copy_sleeping(memory, whose, user_bytes, &mut copy)?;
        Some(copy)
    };
    let tasks = tasks
        .iter()
        .take(MAX_TASKS)
        .filter_map(|task| events.states.read(memory, task.task))
        .filter(|task| !task.is_new())
        .map(|task| (task, with_stack(task)))
        .collect();
    let current = |vcpu| readers.current.read(memory, vcpu)?.task;
    ProbeStart {
        time_ns: monotonic_ns(),
        tasks,
        current: (0..vcpus).map(current).collect(),
        switches: (0..vcpus).map(|vcpu| events.states.switches(memory, vcpu)).collect(),
    }
}

impl ProbeEnd {
    /// Returns the reason why exact data ends, in one sentence.
    pub(crate) fn sentence(&self) -> String {
        let foreign = |site: &ProbePoint| {
            ProbeEvent::from_number(site.kind).map_or("a watched function", ProbeEvent::function)
        };
        let changed: Vec<&str> = self.withdrawn.foreign.iter().map(foreign).collect();
        match self.withdrawn.reason {
            _ if !changed.is_empty() => {
                format!("the guest has changed the start of {}", changed.join(", "))
            }
            WithdrawReason::Ended => "the run ended".to_owned(),
            WithdrawReason::Observer => {
                "the guest was about to read or change its own code, so the probes were removed".to_owned()
            }
            WithdrawReason::Requested => "the probes were removed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_one_sentence() {
        let end = |reason, foreign| ProbeEnd {
            time_ns: 0,
            switches: Vec::new(),
            withdrawn: Withdrawal { reason, foreign },
        };
        assert_eq!(end(WithdrawReason::Ended, Vec::new()).sentence(), "the run ended");
        let site =
            ProbePoint { virt: 1, phys: GuestAddress(1), kind: ProbeEvent::Wake.number(), loads_rdi: None };
        let sentence = end(WithdrawReason::Requested, vec![site]).sentence();
        assert!(sentence.contains("try_to_wake_up"), "{sentence}");
        assert!(end(WithdrawReason::Observer, Vec::new()).sentence().contains("its own code"));
    }

    #[test]
    fn what_may_come_is_tried_again() {
        assert!(matches!(SetFailure::from(Missing::PerCpuNotReady), SetFailure::Later(_)));
        assert!(matches!(SetFailure::from(Missing::NoBtf), SetFailure::Never(_)));
        assert!(matches!(SetFailure::from(ProbeError::NotPaused { missing: 1 }), SetFailure::NotStopped(_)));
        assert!(matches!(SetFailure::from(ProbeError::Ended), SetFailure::Never(_)));
    }
}
