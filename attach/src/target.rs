//! Search for the vCPUs of a process and their threads.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_regs, kvm_sregs};
use serde::{Deserialize, Serialize};
use vmm::ThreadId;
use wall::Reach;

use crate::attachment::RateLimit;
use crate::bpf::{
    BpfRefusal, FoundVm, KernelThread, KernelVcpu, SampledVm, VcpuCourse, VmList, VmSearch, VmSummary,
    registers,
};
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

/// Number of stops at which the registers in the kernel have to be those that KVM reports.
const COMPARISONS: usize = 3;
/// Time limit of these comparisons.
const COMPARE_LIMIT: Duration = Duration::from_secs(1);

/// Means by which vCPUs are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum EngineChoice {
    /// The host's kernel where it can; else stops by ptrace.
    #[default]
    Auto,
    /// The host's kernel only.
    Bpf,
    /// Stops by ptrace only.
    Ptrace,
}

/// Machine of a process, and the means to sample it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TargetChoice {
    /// The means.
    pub engine: EngineChoice,
    /// Number of the machine, from 1 on, in a process that has several.
    pub vm: Option<usize>,
}

impl From<EngineChoice> for TargetChoice {
    fn from(engine: EngineChoice) -> Self {
        Self { engine, vm: None }
    }
}

/// Means by which the vCPUs are sampled, and the reason.
#[derive(Debug)]
enum EngineReason {
    /// The kernel; it shows the registers that KVM reports at so many stops.
    Agrees(usize),
    /// The kernel, as was requested.
    KernelRequested,
    /// Stops, as was requested.
    StopsRequested,
    /// Stops, because the kernel cannot.
    Refused(BpfRefusal),
}

/// Process with a virtual machine, reserved for this vprof and ready to be profiled.
#[derive(Debug)]
pub struct Target {
    pub(crate) process: Process,
    pub(crate) vcpus: Vec<TargetVcpu>,
    /// KVM's numbers of all vCPUs of the process, including those whose threads were not found.
    pub(crate) known: Vec<u32>,
    pub(crate) lock: ProcessLock,
    pub(crate) memory: ForeignMemory,
    /// Stops in progress. The first slot is the search's; the others are the vCPUs'.
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) guard: Option<GuardProcess>,
    /// The host's kernel samples the vCPUs, in their order.
    pub(crate) sampled: Option<Arc<SampledVm>>,
    reason: EngineReason,
    /// Number of vCPUs whose threads were not found.
    unseen: usize,
    /// The process has other machines.
    others: bool,
    /// Reason why the host's kernel does not count what it could.
    uncounted: Option<String>,
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
    /// The same for the watcher, which takes it.
    pub(crate) watched: Option<(ThreadFiles, RunPage)>,
}

impl Target {
    /// Finds the virtual machine of the process `pid`, with at most `most` vCPUs, to be sampled by stops.
    /// vCPU threads whose state in /proc does not show which vCPU they run are stopped for a short time.
    /// `guard` is a program that calls [`crate::keep_guard`] with the number that is added to its arguments:
    /// it ends this process if this process is stopped while it holds a vCPU.
    ///
    /// # Errors
    /// The process does not exist, may not be traced, has no vCPUs or too many, is stopped or paused, or is
    /// profiled already. It is left as it was then.
    pub fn find(pid: i32, most: usize, guard: Option<Command>) -> Result<Self, AttachError> {
        Self::find_by(EngineChoice::Ptrace, pid, most, guard)
    }

    /// Finds the virtual machine as [`Target::find`] does, to be sampled by the chosen means. With
    /// [`EngineChoice::Bpf`] no thread is stopped.
    ///
    /// # Errors
    /// As for [`Target::find`]; with [`EngineChoice::Bpf`] also [`AttachError::Bpf`].
    pub fn find_by(
        choice: impl Into<TargetChoice>,
        pid: i32,
        most: usize,
        guard: Option<Command>,
    ) -> Result<Self, AttachError> {
        let TargetChoice { engine, vm } = choice.into();
        let _search = SearchRight::raise();
        let opened = OpenedProcess::open(pid)?;
        if engine == EngineChoice::Ptrace {
            return opened.by_stops(vm, most, GuardedStops::start(pid, guard)?, EngineReason::StopsRequested);
        }
        let search = VmSearch { pid, descriptors: &opened.descriptors, number: vm, most };
        let found = SampledVm::find(search).map_err(|refusal| opened.fatal(refusal, most));
        let found = match found {
            Ok(found) => Ok((opened.vcpus(&found)?, found)),
            Err(RefusedVm::Error(error)) => return Err(error),
            Err(RefusedVm::Engine(refusal)) => Err(refusal),
        };
        if engine == EngineChoice::Bpf {
            let (vcpus, found) = found.map_err(|refusal| AttachError::Bpf { pid, refusal })?;
            return opened.in_kernel(found, vcpus, EngineReason::KernelRequested);
        }
        let stops = GuardedStops::start(pid, guard)?;
        let compared = found.and_then(|(vcpus, found)| {
            let equal = compare(&found.vm, &vcpus, &stops.slot())?;
            Ok((vcpus, found, EngineReason::Agrees(equal)))
        });
        match compared {
            Ok((vcpus, found, reason)) => opened.in_kernel(found, vcpus, reason),
            Err(refusal) => opened.by_stops(vm, most, stops, EngineReason::Refused(refusal)),
        }
    }

    /// Returns a sentence on the means by which the vCPUs are sampled, and why.
    pub fn engine_sentence(&self) -> String {
        let kernel = "the host's kernel takes the samples (BPF), without stops";
        let stops = "vCPUs are stopped for samples (ptrace)";
        match &self.reason {
            EngineReason::Agrees(count) => {
                let plural = if *count == 1 { "" } else { "s" };
                format!("{kernel}: it showed the registers that KVM reports, at {count} stop{plural}")
            }
            EngineReason::KernelRequested => format!("{kernel}: --engine bpf"),
            EngineReason::StopsRequested => format!("{stops}: --engine ptrace"),
            EngineReason::Refused(refusal) => format!("{stops}: {refusal}"),
        }
    }

    /// Returns the name of the means by which the vCPUs are sampled.
    pub fn engine(&self) -> &'static str {
        if self.is_sampled() { "bpf" } else { "ptrace" }
    }

    /// Returns true if the host's kernel takes the samples.
    pub fn is_sampled(&self) -> bool {
        self.sampled.is_some()
    }

    /// Returns the handle by which Ctrl-Z waits for the end of stops.
    pub fn job_control(&self) -> JobControl {
        JobControl(Arc::clone(&self.heartbeat))
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns what this process reaches of the VMM from here on.
    pub fn reach(&self) -> Reach {
        let process = self.process.pid();
        if self.is_sampled() {
            return Reach::Kernel { process };
        }
        Reach::Stops { process, threads: self.vcpus.iter().map(|vcpu| vcpu.id.thread).collect() }
    }

    /// Returns the number of vCPUs that will be profiled: those whose threads were found.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }

    /// Returns the limit of the sampling rate, if there is one.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.sampled.is_none().then(|| RateLimit::of_vcpus(self.vcpus.len()))
    }

    /// Returns the number of vCPUs without a thread that was in the guest during the search.
    pub fn unseen(&self) -> usize {
        self.unseen
    }

    /// Searches for the layout of the guest's memory for at most `limit`, so that the first sample already
    /// has a name. Each attempt stops one vCPU, unless the host's kernel takes the samples. If it is not
    /// found, the search continues while the machine is profiled.
    pub fn prove(&self, limit: Duration) {
        let begin = Instant::now();
        let slot = StopSlot::new(&self.heartbeat, SEARCH_SLOT);
        let (prover, tables) = (LayoutProver::new(self.memory.clone()), LastTables::default());
        for (index, vcpu) in self.vcpus.iter().enumerate().cycle() {
            if begin.elapsed() >= limit || self.process.ended_within(PROVE_PAUSE_MS) {
                return;
            }
            if let Some(vm) = &self.sampled {
                if let Some(sampled) = vm.sample(index) {
                    tables.record(&registers(&sampled.state).1);
                }
                let found = tables.last().is_some_and(|last| prover.attempt(last).unwrap_or(false));
                if let Some(kernel) = self.memory.kernel().filter(|_| found) {
                    return vm.plan(kernel, &self.memory);
                }
                continue;
            }
            if !matches!(vcpu.files.activity(), Ok(ThreadActivity::Running | ThreadActivity::BlockedInRun(_)))
            {
                // It would not stop before it has its page.
                continue;
            }
            if let Some((_, Some((_, sregs)))) = stop_in_run(vcpu, &slot) {
                tables.record(&sregs);
            }
            let Some(last) = tables.last() else { continue };
            if prover.attempt(last).unwrap_or(false) {
                return;
            }
        }
    }

    /// Starts to count what is countable of the vCPUs, and returns it in their order. Call once, before the
    /// attachment starts.
    pub fn counts(&mut self) -> Vec<VcpuCounts> {
        let _search = SearchRight::raise();
        // The samples do not depend on these programs.
        let counting = self.sampled.as_mut().and_then(Arc::get_mut).map(SampledVm::count);
        self.uncounted = counting.and_then(Result::err).map(|refusal| refusal.to_string());
        // Descriptors of counters have the number of the vCPU, and not of its machine.
        let open = if self.others { Vec::new() } else { self.process.counters().unwrap_or_default() };
        let counters = |vcpu: &TargetVcpu| {
            let (_, fd) = open.iter().find(|(number, _)| *number == vcpu.number)?;
            let copy = self.process.counter_descriptor(vcpu.number, *fd).ok()?;
            vmm::Counters::from_descriptor(copy).ok()
        };
        let course = |index| self.sampled.as_ref().map(|vm| VcpuCourse::new(Arc::clone(vm), index));
        let vcpus = self.vcpus.iter().enumerate();
        vcpus.map(|(index, vcpu)| VcpuCounts { opened: counters(vcpu), course: course(index) }).collect()
    }

    /// Returns what [`Self::counts`] does not have of this machine, as the beginning of a sentence.
    pub fn uncounted(&self) -> String {
        let exits = "exits by reason";
        match (&self.sampled, &self.uncounted) {
            (Some(vm), None) if vm.counts_exits() => String::new(),
            (Some(_), None) => format!("{exits} (kvm_pvm has no trace points), "),
            (Some(_), Some(reason)) => format!("{exits} and waits by process ({reason}), "),
            (None, _) => format!("{exits} and waits by process (only `--engine bpf` counts them), "),
        }
    }
}

/// Counts of a vCPU of another VMM.
#[derive(Debug)]
pub struct VcpuCounts {
    /// KVM's counters, if the VMM has opened them for itself.
    pub opened: Option<vmm::Counters>,
    /// Counts of the host's kernel.
    pub course: Option<VcpuCourse>,
}

/// Record of stops, and the guard that watches it.
struct GuardedStops {
    heartbeat: Arc<Heartbeat>,
    guard: Option<GuardProcess>,
}

impl GuardedStops {
    fn start(pid: i32, guard: Option<Command>) -> Result<Self, AttachError> {
        let heartbeat = new_heartbeat(pid)?;
        let guard = guard.map(|program| GuardProcess::start(program, &heartbeat, None));
        Ok(Self { guard: guard.transpose().map_err(host_error("start the guard"))?, heartbeat })
    }

    fn slot(&self) -> StopSlot {
        StopSlot::new(&self.heartbeat, SEARCH_SLOT)
    }
}

/// Reason why the host's kernel does not sample a machine.
enum RefusedVm {
    /// No other means would do.
    Error(AttachError),
    /// Other means may do.
    Engine(BpfRefusal),
}

/// A process with vCPUs, reserved for this vprof.
struct OpenedProcess {
    process: Process,
    /// KVM's numbers of the vCPUs of all machines, and the VMM's descriptors.
    descriptors: Vec<(u32, i32)>,
    /// Two descriptors have the same number and not the same vCPU.
    several: bool,
    lock: ProcessLock,
}

impl OpenedProcess {
    fn open(pid: i32) -> Result<Self, AttachError> {
        let process = Process::open(pid)?;
        let name = || process.name().to_owned();
        let descriptors = process.all_vcpus().map_err(|e| step_error(pid, "list its descriptors", e))?;
        if descriptors.is_empty() {
            let name = name();
            return Err(if process.is_qemu() {
                AttachError::NoKvm { pid, name }
            } else {
                AttachError::NoVm { pid, name }
            });
        }
        if process.is_stopped() {
            return Err(AttachError::Stopped { pid, name: name() });
        }
        let several = process.has_several_vms(&descriptors);
        let lock = ProcessLock::take(&process)?;
        Ok(Self { process, descriptors, several, lock })
    }

    /// Returns the error that a refusal is for every means.
    fn fatal(&self, refusal: BpfRefusal, most: usize) -> RefusedVm {
        let (pid, name) = (self.process.pid(), self.process.name().to_owned());
        RefusedVm::Error(match refusal {
            BpfRefusal::Protected(found) => AttachError::Confidential { pid, name, found: found.to_owned() },
            BpfRefusal::TooMany(vcpus) => AttachError::TooMany { pid, vcpus, most },
            BpfRefusal::SeveralVms(machines) => AttachError::SeveralVms { pid, name, machines },
            BpfRefusal::NoSuchVm(number, machines) => AttachError::NoSuchVm { pid, name, number, machines },
            other => return RefusedVm::Engine(other),
        })
    }

    /// Opens the vCPUs of a machine that was found in the kernel's data.
    fn vcpus(&self, found: &FoundVm) -> Result<Vec<TargetVcpu>, AttachError> {
        let pid = self.process.pid();
        let open = |(vcpu, thread): &(KernelVcpu, KernelThread)| {
            let id = ThreadId { process: pid, thread: i32::try_from(thread.tid).unwrap_or(-1) };
            let files =
                ThreadFiles::open(id).map_err(|e| step_error(pid, "read the state of a thread", e))?;
            TargetVcpu::new(&self.process, (vcpu.number, vcpu.fd), id, files)
        };
        found.vcpus.iter().map(open).collect()
    }

    /// Makes the target of a machine that was found in the kernel's data.
    fn in_kernel(
        self,
        found: FoundVm,
        vcpus: Vec<TargetVcpu>,
        reason: EngineReason,
    ) -> Result<Target, AttachError> {
        let Self { process, descriptors, several, lock } = self;
        let pid = process.pid();
        let FoundVm { vm, layout, known, .. } = found;
        let unseen = known.len().saturating_sub(vcpus.len());
        let mut known: Vec<_> = descriptors.iter().map(|(number, _)| *number).collect();
        known.dedup();
        Ok(Target {
            process,
            vcpus,
            known,
            lock,
            memory: ForeignMemory::with_layout(pid, layout),
            heartbeat: new_heartbeat(pid)?,
            guard: None,
            sampled: Some(Arc::new(vm)),
            reason,
            unseen,
            others: several,
            uncounted: None,
        })
    }

    /// Makes the target of the only machine of the process by stops.
    fn by_stops(
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
        let GuardedStops { heartbeat, guard } = stops;
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
            reason,
            unseen,
            others: false,
            uncounted: None,
        })
    }
}

/// Compares the registers in the kernel with those that KVM reports, while threads are stopped. Returns the
/// number of stops. KVM does not refuse the registers of these machines: the kernel's own flag has shown that
/// they are not protected.
fn compare(vm: &SampledVm, vcpus: &[TargetVcpu], slot: &StopSlot) -> Result<usize, BpfRefusal> {
    let (begin, mut equal) = (Instant::now(), 0);
    for (index, vcpu) in vcpus.iter().enumerate().cycle() {
        if equal >= COMPARISONS || begin.elapsed() >= COMPARE_LIMIT {
            break;
        }
        let may_stop = match vcpu.files.activity() {
            Ok(ThreadActivity::Running) => true,
            Ok(ThreadActivity::BlockedInRun(fd)) => fd == vcpu.fd,
            _ => false,
        };
        if may_stop && let Some((_stop, Some(registers))) = stop_in_run(vcpu, slot) {
            if let Some(difference) = vm.compare(index, &registers)? {
                return Err(BpfRefusal::Differs(difference));
            }
            equal += 1;
        }
        sleep(PAUSE);
    }
    if equal == 0 { Err(BpfRefusal::NotCompared) } else { Ok(equal) }
}

impl TargetVcpu {
    fn new(
        process: &Process,
        (number, fd): (u32, i32),
        id: ThreadId,
        files: ThreadFiles,
    ) -> Result<Self, AttachError> {
        let map = || {
            RunPage::map(process, number, fd)
                .map_err(|error| step_error(process.pid(), "map the run page of a vCPU", error))
        };
        let page = map()?;
        let again = ThreadFiles::open(id).map_err(|e| step_error(process.pid(), "watch its vCPUs", e))?;
        Ok(Self { number, fd, id, files, page, watched: Some((again, map()?)) })
    }
}

fn host_error(action: &'static str) -> impl Fn(io::Error) -> AttachError {
    move |source| AttachError::Host { action, source }
}

fn new_heartbeat(pid: i32) -> Result<Arc<Heartbeat>, AttachError> {
    Heartbeat::new(pid).map_err(host_error("share memory with the guard"))
}

/// Stops a vCPU in KVM_RUN for as long as the first part of the result lives; the second has its registers,
/// if KVM has put them into its page. `None` if the stop was elsewhere.
fn stop_in_run(vcpu: &TargetVcpu, slot: &StopSlot) -> Option<(ThreadStop, Option<(kvm_regs, kvm_sregs)>)> {
    let stop = {
        let _wanted = vcpu.page.request_registers();
        ThreadStop::new(vcpu.id.thread, slot, || true)
    };
    let stop = stop.ok()?;
    if stop.interrupted_run() != Some(vcpu.fd) {
        return None;
    }
    let registers = vcpu.page.registers();
    vcpu.page.mark_old();
    Some((stop, registers))
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
