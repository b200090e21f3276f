//! The machine of a process by stops of its threads.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use vmm::ThreadId;

use super::opened::OpenedProcess;
use super::{
    EngineReason, PAUSE, PROVE_PAUSE_MS, SEARCH_SLOT, Target, TargetVcpu, host_error, new_heartbeat,
};
use crate::bpf::{VmList, VmSummary};
use crate::error::AttachError;
use crate::guard::{GuardProcess, GuardedMeans, Heartbeat, StopSlot};
use crate::memory::ForeignMemory;
use crate::process::{Process, step_error, tracer_of};
use crate::run_page::REQUESTED;
use crate::stop::{StopError, ThreadStop};
use crate::thread::{ThreadActivity, ThreadFiles};
use crate::trial::{self, TrialOutcome};

/// Time limit of the search for threads: a vCPU that serves exits all the time is in the guest again within
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time after which a part of the threads is enough.
const PARTIAL_PATIENCE: Duration = Duration::from_secs(1);
/// Record of stops, and the guard that watches it.
pub(super) struct GuardedStops {
    heartbeat: Arc<Heartbeat>,
    guard: Option<GuardProcess>,
}

impl GuardedStops {
    pub(super) fn start(pid: i32, guard: Option<Command>) -> Result<Self, AttachError> {
        let heartbeat = new_heartbeat()?;
        let guard = guard.map(|program| GuardProcess::start(program, &heartbeat, GuardedMeans::Threads(pid)));
        Ok(Self { guard: guard.transpose().map_err(host_error("start the guard"))?, heartbeat })
    }

    pub(super) fn slot(&self) -> StopSlot {
        StopSlot::new(&self.heartbeat, SEARCH_SLOT)
    }

    /// Returns the record of stops, and the guard.
    pub(super) fn into_parts(self) -> (Arc<Heartbeat>, Option<GuardProcess>) {
        (self.heartbeat, self.guard)
    }

    /// Ends the guard: no thread will be stopped.
    pub(super) fn end(self) {
        if let Some(guard) = self.guard {
            guard.dismiss();
        }
    }
}

impl OpenedProcess {
    /// Makes the target of the only machine of the process by stops.
    pub(super) fn by_stops(
        self,
        vm: Option<usize>,
        most: usize,
        stops: GuardedStops,
        reason: EngineReason,
    ) -> Result<Target, AttachError> {
        let Self { process, mut descriptors, several, lock } = self;
        let pid = process.pid();
        let name = || process.name().to_owned();
        if let Some(found) = process.confidential().map_err(|e| step_error(pid, "list its descriptors", e))? {
            return Err(AttachError::Confidential { pid, name: name(), found });
        }
        if several {
            return Err(AttachError::SeveralByStops { pid, name: name() });
        }
        descriptors.dedup_by_key(|(number, _)| *number);
        if let Some(number) = vm.filter(|number| *number != 1) {
            let machines = VmList(vec![VmSummary { vcpus: descriptors.len(), memory_bytes: None }]);
            return Err(AttachError::NoSuchVm { pid, name: name(), number, machines });
        }
        if descriptors.len() > most {
            return Err(AttachError::TooMany { pid, vcpus: descriptors.len(), most });
        }
        let slot = stops.slot();
        let mut threads = find_threads(&process, &descriptors, &slot)?;
        if threads.is_empty() {
            return Err(AttachError::Paused { pid, name: name(), waited: PATIENCE.as_secs() });
        }
        let mut vcpus = Vec::with_capacity(threads.len());
        for (number, fd) in &descriptors {
            let Some((id, files)) = threads.remove(fd) else { continue };
            vcpus.push(TargetVcpu::new(&process, (*number, *fd), id, files)?);
        }
        try_registers(&process, &mut vcpus, &slot)?;
        let (heartbeat, guard) = stops.into_parts();
        let known: Vec<_> = descriptors.iter().map(|(number, _)| *number).collect();
        let unseen = known.len().saturating_sub(vcpus.len());
        let memory = ForeignMemory::new(pid).map_err(|e| step_error(pid, "list its mappings", e))?;
        Ok(Target {
            process,
            vcpus,
            known,
            lock,
            memory,
            heartbeat,
            guard,
            sampled: None,
            host_names: None,
            reason,
            unseen,
            others: false,
            uncounted: None,
        })
    }
}

/// Makes the first request for registers, on one vCPU: whether KVM allows it depends on the machine
/// (`kvm_sync_valid_fields`, arch/x86/kvm/x86.c, Linux 6.15).
fn try_registers(process: &Process, vcpus: &mut [TargetVcpu], slot: &StopSlot) -> Result<(), AttachError> {
    let pid = process.pid();
    let begin = Instant::now();
    for index in (0..vcpus.len()).cycle() {
        let Some(vcpu) = vcpus.get_mut(index) else { break };
        match trial::try_request(vcpu.id.thread, vcpu.fd, &mut vcpu.page, REQUESTED, slot) {
            TrialOutcome::Accepted => return Ok(()),
            TrialOutcome::Refused => {
                let found = "KVM does not show its registers".to_owned();
                return Err(AttachError::Confidential { pid, name: process.name().to_owned(), found });
            }
            TrialOutcome::NotInRun if begin.elapsed() < PATIENCE => {}
            TrialOutcome::NotInRun => break,
        }
        if process.ended_within(PROVE_PAUSE_MS) {
            return Err(AttachError::NoProcess { pid });
        }
    }
    Err(AttachError::Paused { pid, name: process.name().to_owned(), waited: PATIENCE.as_secs() })
}

/// Finds the thread of each vCPU's descriptor, as far as the threads are in the guest within the time limit.
fn find_threads(
    process: &Process,
    descriptors: &[(u32, i32)],
    slot: &StopSlot,
) -> Result<HashMap<i32, (ThreadId, ThreadFiles)>, AttachError> {
    let pid = process.pid();
    let begin = Instant::now();
    let mut found = HashMap::new();
    let wanted = |fd: i32| descriptors.iter().any(|(_, wanted)| *wanted == fd);
    loop {
        let threads = process.threads().map_err(|error| step_error(pid, "list its threads", error))?;
        for thread in threads {
            let id = ThreadId { process: pid, thread };
            if found.values().any(|(known, _)| *known == id) {
                continue;
            }
            // A thread may end meanwhile.
            let Ok(files) = ThreadFiles::open(id) else { continue };
            let fd = match files.activity() {
                Ok(ThreadActivity::BlockedInRun(fd) | ThreadActivity::BlockedOnPage(fd)) => Some(fd),
                // Other threads are not stopped. A system call with a time limit would have to be restarted,
                // by a call of its own (restart_syscall(2)), which a VMM's filter may not allow.
                Ok(ThreadActivity::Running) if process.is_vcpu_thread(thread) => run_of(id, slot)?,
                Ok(ThreadActivity::Running | ThreadActivity::Blocked) => None,
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
                Err(error) => return Err(step_error(pid, "read the state of its threads", error)),
            };
            if let Some(fd) = fd.filter(|fd| wanted(*fd)) {
                found.insert(fd, (id, files));
            }
        }
        let (all, spent) = (found.len() == descriptors.len(), begin.elapsed());
        if all || spent >= PATIENCE || !found.is_empty() && spent >= PARTIAL_PATIENCE {
            return Ok(found);
        }
        sleep(PAUSE);
    }
}

/// Returns the vCPU's descriptor whose KVM_RUN the running thread is in.
fn run_of(id: ThreadId, slot: &StopSlot) -> Result<Option<i32>, AttachError> {
    match ThreadStop::new(id.thread, slot, || true) {
        Ok(stop) => Ok(stop.interrupted_run()),
        Err(StopError::Gone | StopError::Interrupted | StopError::Suspended) => Ok(None),
        Err(StopError::NotAllowed) => Err(match tracer_of(id.process, id.thread) {
            Some((tracer_pid, tracer)) => AttachError::Traced { pid: id.process, tracer_pid, tracer },
            None => AttachError::Permission { pid: id.process },
        }),
    }
}
