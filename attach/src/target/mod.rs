//! Search for the vCPUs of a process and their threads.
//!
//! ```text
//! opened      the process, and the descriptors of its vCPUs
//! in_kernel   its machine by the host's kernel
//! by_stops    its machine by stops of its threads
//! ```

mod by_stops;
mod in_kernel;
mod opened;

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_regs, kvm_sregs};
use sandbox::Reach;
use serde::{Deserialize, Serialize};
use vmm::ThreadId;

use crate::attachment::RateLimit;
use crate::bpf::{BpfRefusal, KernelRegisters, STACKS_HZ, SampledVm, VcpuCourse, VmSearch, registers};
use crate::capabilities::SearchRight;
use crate::error::{AttachError, HostStacksRefusal};
use crate::guard::{GuardProcess, Heartbeat, StopSlot};
use crate::host_names::HostNames;
use crate::job_control::JobControl;
use crate::lock::ProcessLock;
use crate::memory::{FirstSearch, ForeignMemory, LastTables};
use crate::process::{Process, step_error};
use crate::run_page::RunPage;
use crate::stop::ThreadStop;
use crate::thread::{ThreadActivity, ThreadFiles};
use by_stops::GuardedStops;
use in_kernel::{RefusedVm, check_placed, compare};
use opened::OpenedProcess;

/// Interval between two searches for the memory's layout, ms.
const PROVE_PAUSE_MS: i32 = 20;
/// Interval between two scans of the threads.
const PAUSE: Duration = Duration::from_millis(2);

/// Slot of the stops before the first tick.
const SEARCH_SLOT: usize = 0;

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
    /// Stacks of vCPUs' threads in the host. Only the host's kernel takes them.
    pub host_stacks: bool,
    /// Detail in which the host's kernel counts exits.
    pub exits: ExitDetail,
    /// Room for vCPUs that are plugged in later, where the host's kernel samples them.
    pub room: VcpuRoom,
    /// Another vprof may profile the machine until this one is ready ([`Target::reserve`]). Only where the
    /// host's kernel takes all samples.
    pub takes_over: bool,
    /// Registers that the host's kernel uses. Only tests change this.
    #[serde(skip)]
    pub registers: KernelRegisters,
}

/// Room for vCPUs that are plugged in later: memory of the host's kernel, about half a MiB for each
/// ([`ExitDetail`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum VcpuRoom {
    /// For as many as a machine may have: they are profiled from then on.
    #[default]
    Most,
    /// None: the attachment ends ([`AttachmentEnd::Outgrown`](crate::AttachmentEnd::Outgrown)).
    Present,
}

/// Detail in which the host's kernel counts exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ExitDetail {
    /// Number and times for each reason, and a random part of the places in the guest that they come from.
    #[default]
    Reasons,
    /// Their number: a third of a MiB less of the kernel's memory for each vCPU, and less time at each exit.
    Number,
}

impl From<EngineChoice> for TargetChoice {
    fn from(engine: EngineChoice) -> Self {
        Self { engine, ..Self::default() }
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
    /// Names of the host's functions, if their stacks are taken.
    host_names: Option<HostNames>,
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
    /// As for [`Target::find`]; with [`EngineChoice::Bpf`] also [`AttachError::Bpf`], with
    /// [`TargetChoice::host_stacks`] also [`AttachError::HostStacks`].
    pub fn find_by(
        choice: impl Into<TargetChoice>,
        pid: i32,
        most: usize,
        guard: Option<Command>,
    ) -> Result<Self, AttachError> {
        let TargetChoice { engine, vm, host_stacks, exits, room, takes_over, registers } = choice.into();
        let _search = SearchRight::raise();
        let refused = |refusal| AttachError::HostStacks { pid, refusal };
        if host_stacks && engine == EngineChoice::Ptrace {
            return Err(refused(HostStacksRefusal::Stops));
        }
        let opened = OpenedProcess::open(pid, takes_over && engine != EngineChoice::Ptrace)?;
        let names = host_stacks.then(|| HostNames::open(pid)).transpose();
        let names = names.map_err(|reason| refused(HostStacksRefusal::Names(reason)))?;
        if engine == EngineChoice::Ptrace {
            return opened.by_stops(vm, most, GuardedStops::start(pid, guard)?, EngineReason::StopsRequested);
        }
        let descriptors = &opened.descriptors;
        let search = VmSearch { pid, descriptors, number: vm, most, room, host_stacks, exits, registers };
        let found = SampledVm::find(search).map_err(|refusal| opened.fatal(refusal, most));
        let found = match found {
            Ok(found) => Ok((opened.vcpus(&found)?, found)),
            Err(RefusedVm::Error(error)) => return Err(error),
            Err(RefusedVm::Engine(refusal)) => Err(refusal),
        };
        let bpf = engine == EngineChoice::Bpf;
        let found = match found {
            Err(refusal) if bpf => return Err(AttachError::Bpf { pid, refusal }),
            Ok((vcpus, found)) if bpf && !found.vm.is_partial() => {
                return opened.in_kernel(found, vcpus, EngineReason::KernelRequested, (names, None));
            }
            found => found,
        };
        let stops = GuardedStops::start(pid, guard)?;
        let compared = found.and_then(|(vcpus, found)| {
            if found.vm.is_partial() {
                check_placed(&found.vm, vcpus.len())?;
            }
            let equal = compare(&found.vm, &vcpus, &stops.slot())?;
            Ok((vcpus, found, EngineReason::Agrees(equal)))
        });
        // Two vprofs must not stop the same threads.
        let takes_all = compared.as_ref().is_ok_and(|(_, found, _)| !found.vm.is_partial());
        if !takes_all && !opened.lock.is_held() {
            return Err(opened.lock.in_use());
        }
        match compared {
            Ok((vcpus, found, reason)) => opened.in_kernel(found, vcpus, reason, (names, Some(stops))),
            Err(refusal) if host_stacks => Err(refused(HostStacksRefusal::Engine(refusal))),
            Err(refusal) if bpf => Err(AttachError::Bpf { pid, refusal }),
            Err(refusal) => opened.by_stops(vm, most, stops, EngineReason::Refused(refusal)),
        }
    }

    /// Returns a sentence on the means by which the vCPUs are sampled, and why.
    pub fn engine_sentence(&self) -> String {
        let kernel = match self.has_mixed_stacks() {
            true => format!(
                "the host's kernel takes the samples (BPF) without stacks, and each vCPU is stopped \
                 {STACKS_HZ} times a second for samples with stacks (ptrace)"
            ),
            false => "the host's kernel takes the samples (BPF), without stops".to_owned(),
        };
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

    /// Returns true if only some samples have stacks: those by stops, where the host's kernel takes the
    /// others.
    pub fn has_mixed_stacks(&self) -> bool {
        self.sampled.as_ref().is_some_and(|vm| vm.is_partial())
    }

    /// Returns the handle by which Ctrl-Z waits for the end of stops.
    pub fn job_control(&self) -> JobControl {
        JobControl(Arc::clone(&self.heartbeat))
    }

    /// Takes the names of the host's functions, if their stacks are taken.
    pub fn take_host_names(&mut self) -> Option<HostNames> {
        self.host_names.take()
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the guest's memory, which can be read once its layout is proven.
    pub fn memory(&self) -> &ForeignMemory {
        &self.memory
    }

    /// Returns true once this vprof alone profiles the machine. It does unless it
    /// [takes over](TargetChoice::takes_over) from another one, which has not ended yet.
    ///
    /// # Errors
    /// The machine's process has ended.
    pub fn reserve(&mut self) -> Result<bool, AttachError> {
        self.lock.try_hold()
    }

    /// Returns what this process reaches of the VMM from here on.
    pub fn reach(&self) -> Reach {
        let process = self.process.pid();
        let threads = || self.vcpus.iter().map(|vcpu| vcpu.id.thread).collect();
        match self.is_sampled() {
            true if self.has_mixed_stacks() => Reach::Kernel { process, threads: threads() },
            true => Reach::Kernel { process, threads: Vec::new() },
            false => Reach::Stops { process, threads: threads() },
        }
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
    /// found, or page tables show no Linux, the search continues while the machine is profiled.
    pub fn prove(&self, limit: Duration) {
        let begin = Instant::now();
        let slot = StopSlot::new(&self.heartbeat, SEARCH_SLOT);
        let (mut search, tables) = (FirstSearch::new(self.memory.clone()), LastTables::default());
        for (index, vcpu) in self.vcpus.iter().enumerate().cycle() {
            if begin.elapsed() >= limit || self.process.ended_within(PROVE_PAUSE_MS) {
                return;
            }
            if let Some(vm) = self.sampled.as_ref().filter(|vm| !vm.is_partial()) {
                if let Some(sampled) = vm.sample(index) {
                    tables.record(&registers(&sampled.state).1);
                }
                let is_over = tables.last().is_some_and(|last| search.attempt(last));
                if let Some(kernel) = self.memory.kernel() {
                    vm.plan(kernel, &self.memory);
                }
                if is_over {
                    return;
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
            let is_over = search.attempt(last);
            if let (Some(vm), Some(kernel)) = (&self.sampled, self.memory.kernel()) {
                vm.plan(kernel, &self.memory);
            }
            if is_over {
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

    /// Returns true if the times of vCPUs in the VMM are counted ([`VcpuCourse::vmm_times`]). Call after
    /// [`Self::counts`].
    pub fn counts_vmm_times(&self) -> bool {
        self.sampled.as_ref().is_some_and(|vm| vm.counts_entries())
    }

    /// Returns what [`Self::counts`] does not have of this machine, as the beginning of a sentence.
    pub fn uncounted(&self) -> String {
        let exits = "exits by reason, function and process";
        match (&self.sampled, &self.uncounted) {
            (Some(vm), None) if !vm.counts_exits() => format!("{exits}, "),
            (Some(vm), None) => vm.uncounted().to_owned(),
            (Some(_), Some(reason)) => format!("{exits}, and waits by process ({reason}), "),
            (None, _) => format!("{exits}, and waits by process (only `--engine bpf` counts them), "),
        }
    }
}

/// Counters that the host's kernel keeps for a vCPU of another VMM.
#[derive(Debug)]
pub struct VcpuCounts {
    /// KVM's counters, if the VMM has opened them for itself.
    pub opened: Option<vmm::Counters>,
    /// Counts of the host's kernel.
    pub course: Option<VcpuCourse>,
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

fn new_heartbeat() -> Result<Arc<Heartbeat>, AttachError> {
    Heartbeat::new().map_err(host_error("share memory with the guard"))
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
