//! Setting the tripwires, and what is read while all vCPUs stand still.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use linux::{Kernel, Missing, ProbeEvent, RunState, SchedState, StackCopy, TaskSnapshot};
use vmm::{
    GuestAddress, GuestMemoryMmap, ProbeError, ProbePoint, ProbeSet, WithdrawReason, Withdrawal, monotonic_ns,
};

use super::record::{EventReaders, STACK_BYTES, USER_BYTES};
use crate::record::Readers;

/// Tasks whose state is read at the beginning, at most: all vCPUs stand still meanwhile.
const MAX_TASKS: usize = 8_192;
/// Tasks whose stack is copied at the beginning, at most.
const SCAN_STACKS: usize = 512;

/// What there was when the tripwires were set.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    /// All tasks but the idle ones, those that sleep with their stacks.
    pub tasks: Vec<(SchedState, Option<StackCopy>)>,
    /// What each vCPU runs.
    pub current: Vec<Option<TaskSnapshot>>,
    /// The kernel's own count of each vCPU's switches.
    pub switches: Vec<Option<u64>>,
}

/// What there was when they were taken away.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// CLOCK_MONOTONIC ns.
    pub time_ns: u64,
    pub switches: Vec<Option<u64>>,
    pub withdrawn: Withdrawal,
}

/// Where the end will be told.
pub(crate) type EndCell = Arc<Mutex<Option<End>>>;

/// Why tripwires are not set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSet {
    /// Worth another try.
    Later(String),
    /// Not in this run.
    Never(String),
}

impl From<Missing> for NotSet {
    fn from(missing: Missing) -> Self {
        if missing.may_come() { Self::Later(missing.to_string()) } else { Self::Never(missing.to_string()) }
    }
}

impl From<ProbeError> for NotSet {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::NotPaused { .. } => Self::Later(error.to_string()),
            _ => Self::Never(error.to_string()),
        }
    }
}

/// What is needed to set tripwires.
pub(crate) struct Guest<'a> {
    pub kernel: &'a Kernel,
    pub memory: &'a GuestMemoryMmap,
    pub readers: &'a Readers,
    pub vcpus: usize,
}

/// Sets tripwires at all events of a kernel that has booted. `events` gets the readers before.
pub(crate) fn set(
    guest: &Guest<'_>,
    tripwires: &ProbeSet,
    events: &OnceLock<EventReaders>,
    end: &EndCell,
) -> Result<(Start, Vec<Missing>), NotSet> {
    let Guest { kernel, memory, vcpus, .. } = *guest;
    if !kernel.has_booted(memory)? {
        return Err(NotSet::Later("the guest's kernel has not booted yet".to_owned()));
    }
    let found = kernel.probe_sites(memory)?;
    let states = kernel.sched_state_reader(memory)?;
    let books = kernel.exit_accounting_reader(memory).ok();
    let missing = found.missing.clone();
    let sites: Vec<ProbePoint> = found
        .sites
        .iter()
        .map(|site| ProbePoint {
            virt: site.virt.0,
            phys: GuestAddress(site.phys.0),
            kind: site.event.number(),
            loads_rdi: site.loads,
        })
        .collect();
    // A second try finds the same.
    let readers = events.get_or_init(|| EventReaders { sites: found, states, books });
    let mut start = Start::default();
    let at_end = (Arc::clone(end), memory.clone(), readers.states.clone());
    let at_withdrawal = move |withdrawn: &Withdrawal| {
        let (end, memory, states) = at_end;
        let switches = (0..vcpus).map(|vcpu| states.switches(&memory, vcpu)).collect();
        let told = End { time_ns: monotonic_ns(), switches, withdrawn: withdrawn.clone() };
        *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    };
    tripwires.set(&sites, || start = look(guest, readers), Box::new(at_withdrawal))?;
    Ok((start, missing))
}

/// Reads who does what, while nobody does anything.
fn look(guest: &Guest<'_>, events: &EventReaders) -> Start {
    let Guest { kernel, memory, readers, vcpus } = *guest;
    // Without a list of tasks each one begins with its first event.
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
    Start {
        time_ns: monotonic_ns(),
        tasks,
        current: (0..vcpus).map(current).collect(),
        switches: (0..vcpus).map(|vcpu| events.states.switches(memory, vcpu)).collect(),
    }
}

impl End {
    /// Why exact data ends here, in one sentence.
    pub(crate) fn sentence(&self) -> String {
        let foreign =
            |site: &ProbePoint| ProbeEvent::from_number(site.kind).map_or("a function", ProbeEvent::function);
        let changed: Vec<&str> = self.withdrawn.foreign.iter().map(foreign).collect();
        match self.withdrawn.reason {
            _ if !changed.is_empty() => {
                format!("the guest has changed the beginning of {} itself", changed.join(", "))
            }
            WithdrawReason::Ended => "the run ended".to_owned(),
            WithdrawReason::Observer => {
                "the guest was about to verify or change its own code, so the tripwires were taken away"
                    .to_owned()
            }
            WithdrawReason::Requested => "the tripwires were taken away".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_one_sentence() {
        let end = |reason, foreign| End {
            time_ns: 0,
            switches: Vec::new(),
            withdrawn: Withdrawal { reason, foreign },
        };
        assert_eq!(end(WithdrawReason::Ended, Vec::new()).sentence(), "the run ended");
        let site =
            ProbePoint { virt: 1, phys: GuestAddress(1), kind: ProbeEvent::Wake.number(), loads_rdi: None };
        let told = end(WithdrawReason::Requested, vec![site]).sentence();
        assert!(told.contains("try_to_wake_up"), "{told}");
        assert!(end(WithdrawReason::Observer, Vec::new()).sentence().contains("its own code"));
    }

    #[test]
    fn what_may_come_is_tried_again() {
        assert!(matches!(NotSet::from(Missing::PerCpuNotReady), NotSet::Later(_)));
        assert!(matches!(NotSet::from(Missing::NoBtf), NotSet::Never(_)));
        assert!(matches!(NotSet::from(ProbeError::NotPaused { missing: 1 }), NotSet::Later(_)));
        assert!(matches!(NotSet::from(ProbeError::Ended), NotSet::Never(_)));
    }
}
