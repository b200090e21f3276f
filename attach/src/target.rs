//! Search for the vCPUs of a process and their threads.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use vmm::ThreadId;

use crate::attachment::RateLimit;
use crate::capabilities::SearchRight;
use crate::error::AttachError;
use crate::guard::{GuardProcess, Heartbeat, StopSlot};
use crate::job_control::JobControl;
use crate::lock::ProcessLock;
use crate::memory::{ForeignMemory, LastTables, LayoutProver};
use crate::process::{Process, step_error, tracer_of};
use crate::run_page::{REQUESTED, RunPage};
use crate::stop::{StopError, ThreadStop};
use crate::thread::{ThreadActivity, ThreadFiles};
use crate::trial::{self, TrialOutcome};

/// Time limit of the search for threads: a vCPU that serves exits all the time is in the guest again within
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time after which a part of the threads is enough.
const PARTIAL_PATIENCE: Duration = Duration::from_secs(1);
/// Interval between two searches for the memory's layout, ms.
const PROVE_PAUSE_MS: i32 = 20;
/// Interval between two scans of the threads.
const PAUSE: Duration = Duration::from_millis(2);

/// Slot of the stops before the first tick.
const SEARCH_SLOT: usize = 0;

/// Process with a virtual machine, reserved for this vprof and ready to be profiled.
#[derive(Debug)]
pub struct Target {
    pub(crate) process: Process,
    pub(crate) vcpus: Vec<TargetVcpu>,
    /// KVM's numbers of all vCPUs, including those whose threads were not found.
    pub(crate) known: Vec<u32>,
    pub(crate) lock: ProcessLock,
    pub(crate) memory: ForeignMemory,
    /// Stops in progress. The first slot is the search's; the others are the vCPUs'.
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) guard: Option<GuardProcess>,
}

/// A vCPU and its thread.
#[derive(Debug)]
pub(crate) struct TargetVcpu {
    /// KVM's number of the vCPU.
    pub(crate) number: u32,
    pub(crate) fd: i32,
    pub(crate) id: ThreadId,
    pub(crate) files: ThreadFiles,
    pub(crate) page: RunPage,
}

impl Target {
    /// Finds the virtual machine of the process `pid`, with at most `most` vCPUs. vCPU threads whose state in
    /// /proc does not show which vCPU they run are stopped for a short time. `guard` is a program that calls
    /// [`crate::keep_guard`] with the number that is added to its arguments: it ends this process if this
    /// process is stopped while it holds a vCPU.
    ///
    /// # Errors
    /// The process does not exist, may not be traced, has no vCPUs or too many, is stopped or paused, or is
    /// profiled already. It is left as it was then.
    pub fn find(pid: i32, most: usize, guard: Option<Command>) -> Result<Self, AttachError> {
        let _search = SearchRight::raise();
        let process = Process::open(pid)?;
        let name = || process.name().to_owned();
        let descriptors = process.vcpus().map_err(|e| step_error(pid, "list its descriptors", e))?;
        if descriptors.is_empty() {
            let name = name();
            return Err(if process.is_qemu() {
                AttachError::NoKvm { pid, name }
            } else {
                AttachError::NoVm { pid, name }
            });
        }
        if let Some(found) = process.confidential().map_err(|e| step_error(pid, "list its descriptors", e))? {
            return Err(AttachError::Confidential { pid, name: name(), found });
        }
        if process.has_several_vms().map_err(|e| step_error(pid, "compare its descriptors", e))? {
            return Err(AttachError::SeveralVms { pid, name: name() });
        }
        if descriptors.len() > most {
            return Err(AttachError::TooMany { pid, vcpus: descriptors.len(), most });
        }
        if process.is_stopped() {
            return Err(AttachError::Stopped { pid, name: name() });
        }
        let lock = ProcessLock::take(&process)?;
        let failed = |action| move |source| AttachError::Host { action, source };
        let heartbeat = Heartbeat::new(pid).map_err(failed("share memory with the guard"))?;
        let guard = guard.map(|program| GuardProcess::start(program, &heartbeat, None));
        let guard = guard.transpose().map_err(failed("start the guard"))?;
        let mut threads = find_threads(&process, &descriptors, &StopSlot::new(&heartbeat, SEARCH_SLOT))?;
        if threads.is_empty() {
            return Err(AttachError::Paused { pid, name: name(), waited: PATIENCE.as_secs() });
        }
        let mut vcpus = Vec::with_capacity(threads.len());
        for (number, fd) in &descriptors {
            let Some((id, files)) = threads.remove(fd) else { continue };
            let page = RunPage::map(&process, *number, *fd)
                .map_err(|error| step_error(pid, "map the run page of a vCPU", error))?;
            vcpus.push(TargetVcpu { number: *number, fd: *fd, id, files, page });
        }
        try_registers(&process, &mut vcpus, &StopSlot::new(&heartbeat, SEARCH_SLOT))?;
        let known = descriptors.iter().map(|(number, _)| *number).collect();
        let memory = ForeignMemory::new(pid);
        Ok(Self { process, vcpus, known, lock, memory, heartbeat, guard })
    }

    /// Returns the handle by which Ctrl-Z waits for the end of stops.
    pub fn job_control(&self) -> JobControl {
        JobControl(Arc::clone(&self.heartbeat))
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the number of vCPUs that will be profiled: those whose threads were found.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }

    /// Returns the limit of the sampling rate.
    pub fn rate_limit(&self) -> RateLimit {
        RateLimit::of_vcpus(self.vcpus.len())
    }

    /// Returns the number of vCPUs without a thread that was in the guest during the search.
    pub fn unseen(&self) -> usize {
        self.known.len() - self.vcpus.len()
    }

    /// Searches for the layout of the guest's memory for at most `limit`, so that the first sample already
    /// has a name. Each attempt stops one vCPU. If it is not found, the search continues while the machine is
    /// profiled.
    pub fn prove(&self, limit: Duration) {
        let begin = Instant::now();
        let slot = StopSlot::new(&self.heartbeat, SEARCH_SLOT);
        let (prover, tables) = (LayoutProver::new(self.memory.clone()), LastTables::default());
        for vcpu in self.vcpus.iter().cycle() {
            if begin.elapsed() >= limit || self.process.ended_within(PROVE_PAUSE_MS) {
                return;
            }
            if !matches!(vcpu.files.activity(), Ok(ThreadActivity::Running | ThreadActivity::BlockedInRun(_)))
            {
                // It would not stop before it has its page.
                continue;
            }
            let stop = {
                let _wanted = vcpu.page.request_registers();
                ThreadStop::new(vcpu.id.thread, &slot, || true)
            };
            let Ok(stop) = stop else { continue };
            if stop.interrupted_run() == Some(vcpu.fd) {
                if let Some((_, sregs)) = vcpu.page.registers() {
                    tables.record(&sregs);
                }
                vcpu.page.mark_old();
            }
            drop(stop);
            let Some(last) = tables.last() else { continue };
            if prover.attempt(last).unwrap_or(false) {
                return;
            }
        }
    }

    /// Returns KVM's own counters of the vCPUs, in their order; `None` if the VMM has not opened them for
    /// itself.
    pub fn counters(&self) -> Vec<Option<vmm::Counters>> {
        let _search = SearchRight::raise();
        let open = self.process.counters().unwrap_or_default();
        let counters = |vcpu: &TargetVcpu| {
            let (_, fd) = open.iter().find(|(number, _)| *number == vcpu.number)?;
            let copy = self.process.counter_descriptor(vcpu.number, *fd).ok()?;
            vmm::Counters::from_descriptor(copy).ok()
        };
        self.vcpus.iter().map(counters).collect()
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
