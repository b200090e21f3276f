//! The process of an attach half.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use attach::gdb::{ConnectedStub, GdbTarget};
use attach::{
    AttachError, AttachedMemory, Attachment, AttachmentEnd, EndedAttachment, EngineChoice, HostNames,
    JobControl, Process, RateLimit, RunningMachine, Target, VcpuCounts, capabilities,
};
use disk_images::ImageError;
use display::clean::escaped;
use display::units;
use profile::watch::WatchCondition;
use sampler::{AttachedSampler, RecordingConfig, Session, SessionConfig, WatchConfig};
use sandbox::{AttachedSandbox, Reach};
use statistics::estimate::ONE_CLOCK;
use symbols::names::{OpenFiles, no_files};
use tokio::runtime::Runtime;

use super::memory::{self, MemoryUseError};
use super::tables::{self, MappedTables};
use super::{
    AWAITS, AttachJob, AttachPurpose, AttachTarget, AttachedMemoryUse, AttachedVm, ChosenVm, FoundVm,
    LoweredRate, MemoryAnswer, ProfileSpec,
};
use crate::connection::{
    ChildError, Connection, ConnectionSink, Steering, forward, ignore_signals, inherited,
    leave_signals_to_parent, obeyed_while,
};
use crate::guest::{GuestError, Inputs, watch};
use crate::link::{Link, Watcher, link};
use crate::protocol::FromHost;
use crate::resident;
use crate::spec::{DiskSpec, GuestEnd, Outcome};

/// Data that a profile of an attached machine lacks, after what else its engine does not count.
const UNAVAILABLE: &str = "the names of devices, interrupts that they raise, and the console are not known of a VM under another VMM";
/// The same of a machine whose times in the VMM are not counted.
const ESTIMATED: &str = "; its time in the VMM is estimated by samples";
/// Data that a profile through a stub lacks.
const UNAVAILABLE_BY_STUB: &str = "a GDB stub stops all vCPUs together and reports nothing between two stops: how a vCPU's time divides \
                               into guest, halted and vmm is estimated by samples, with what it waits for the host in `guest`; \
                               exits, interrupts that devices raise, and the console are not known";

/// Time limit of the search for the guest's memory before the first sample.
const PROOF_LIMIT: Duration = Duration::from_secs(3);
/// Interval of attempts to take a machine over.
const TAKE_OVER: Duration = Duration::from_millis(2);
/// Signals by which a terminal stops this process, which must hold no vCPU then.
const STOPS: [libc::c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Runs the job in the descriptor of this number, and sends its outcome through standard input. Called once,
/// by a process with one thread.
///
/// # Errors
/// The connection is closed.
pub fn main(job: RawFd) -> io::Result<()> {
    let mut text = Vec::new();
    // SAFETY: the descriptor is this process's own, and nothing else here uses it.
    let job = unsafe { inherited(job) }.read_to_end(&mut text).map_err(ChildError::from);
    run_job(job.and_then(|_| Ok(serde_json::from_slice(&text)?)), &STOPS)
}

/// Runs a job whose descriptors are this process's own, in a process with one thread, and sends its outcome
/// as [`main`] does.
///
/// # Errors
/// The connection is closed.
pub(super) fn run(job: AttachJob) -> io::Result<()> {
    // No terminal has it: there is nothing to do, and no thread to do it.
    ignore_signals(&STOPS);
    run_job(Ok(job), &[])
}

/// Runs a job. A terminal stops this process by the signals `stops`.
fn run_job(job: Result<AttachJob, ChildError>, stops: &[libc::c_int]) -> io::Result<()> {
    leave_signals_to_parent();
    resident::give_back_at_once();
    let connection = Connection::of_stdin();
    let prepared = match job.and_then(prepare) {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(machines)) => return connection.send(&FoundVm::Unchosen(machines)),
        Err(error) => return connection.send(&FoundVm::Refused(error.to_string())),
    };
    connection.send(&FoundVm::Found(prepared.found.vm.clone()))?;
    let spec = match prepared.purpose {
        OpenPurpose::Profile(spec) => spec,
        OpenPurpose::Memory { rows, smaps } => {
            return connection.send(&answer(prepared.found.machine, rows, smaps.as_ref()));
        }
    };
    if let Err(error) = prepared.found.machine.job_control().install(stops) {
        return connection.send(&ChildError::from(error).message());
    }
    let ProfileMeans { files, sandbox, tables, runtime } = prepared.means;
    let (own_side, watcher) = link();
    let Watcher { stop, input, control, console: _, output: _, read, phase, notes: _ } = watcher;
    let steering = Steering { stop, input, control, read };
    // Its state is large, and would be on the stack once for each future around it.
    let profiling = Box::pin(profile(*spec, prepared.found, (files, sandbox, tables), &connection, own_side));
    let profiling = forward(profiling, phase, &connection);
    let message = match runtime.block_on(obeyed_while(profiling, steering, &connection)) {
        Ok(Ok(outcome)) => FromHost::End(outcome),
        Ok(Err(error)) => error.message(),
        Err(error) => ChildError::from(error).message(),
    };
    connection.send(&message)
}

/// Returns the guest's memory by holder.
fn answer(mut machine: Machine, rows: usize, smaps: Option<&File>) -> MemoryAnswer {
    let read = machine.job_control().install(&STOPS).map_err(MemoryUseError::Start).and_then(|()| {
        machine.prove();
        machine.memory_use(rows, smaps)
    });
    match read {
        Ok(memory) => MemoryAnswer::Memory(Box::new(memory)),
        Err(error) => MemoryAnswer::Refused(error.to_string()),
    }
}

/// A half inside its sandbox, before it reads a byte of the guest.
struct Prepared {
    purpose: OpenPurpose,
    found: FoundMachine,
    means: ProfileMeans,
}

/// Means of a profile besides its machine.
struct ProfileMeans {
    files: OpenFiles,
    /// Parts of the sandbox, for the profile.
    sandbox: String,
    tables: MappedTables,
    /// Made before the sandbox: it takes descriptors that are not available inside of it.
    runtime: Runtime,
}

/// Purpose with what was opened for it before the sandbox.
enum OpenPurpose {
    Profile(Box<ProfileSpec>),
    Memory {
        rows: usize,
        /// `/proc/PID/smaps` of the VMM, if it may be read.
        smaps: Option<File>,
    },
}

impl OpenPurpose {
    fn open(purpose: AttachPurpose, process: Option<i32>) -> Self {
        match purpose {
            AttachPurpose::Profile(spec) => Self::Profile(spec),
            AttachPurpose::Memory { rows } => {
                let _search = capabilities::SearchRight::raise();
                let open = |pid| File::open(Path::new("/proc").join(i32::to_string(&pid)).join("smaps")).ok();
                Self::Memory { rows, smaps: process.and_then(open) }
            }
        }
    }
}

/// Finds the machine, and enters the sandbox. Returns the machines of this host instead if none was chosen
/// and there is not exactly one.
fn prepare(job: AttachJob) -> Result<Result<Prepared, Vec<RunningMachine>>, ChildError> {
    let AttachJob { spec, disks, report, tables } = job;
    let tables = match tables {
        // SAFETY: the descriptors of the job are this process's own, and each occurs once in it; a file of
        // the parent's directory never changes once it has its name.
        Some(tables) => unsafe { tables::install(tables) }?,
        None => MappedTables::default(),
    };
    // SAFETY: as above.
    let report = OwnedFd::from(unsafe { inherited(report) });
    capabilities::raise_tracing()?;
    let opened = match OpenedMachine::find(&spec.target)? {
        Ok(opened) => opened,
        Err(machines) => return Ok(Err(machines)),
    };
    let runtime = control::runtime()?;
    let reach = opened.reach();
    let purpose = OpenPurpose::open(spec.purpose, reach.process());
    let capabilities = capabilities::kept(matches!(reach, Reach::Kernel { .. }));
    let sandbox = AttachedSandbox { policy: spec.policy, reach, capabilities, report };
    let sandbox = sandbox::enter_attached(sandbox)?.words();
    capabilities::limit_threads();
    // Before the disks: a stub has stopped its machine for the new client.
    let found = opened.describe()?;
    // SAFETY: as above.
    let disks = disks.into_iter().map(|(disk, number)| (disk, unsafe { inherited(number) }));
    let files = open_disks(disks)?;
    Ok(Ok(Prepared { purpose, found, means: ProfileMeans { files, sandbox, tables, runtime } }))
}

/// The guest's files on its disks, which its VMM has open as well.
fn open_disks(disks: impl Iterator<Item = (DiskSpec, std::fs::File)>) -> Result<OpenFiles, ImageError> {
    let disks: Vec<_> = disks.map(|(disk, file)| disk.contents(file, false)).collect::<Result<_, _>>()?;
    Ok(if disks.is_empty() { no_files() } else { disk_images::files::open(disks) })
}

/// A machine, and what is said of it.
struct FoundMachine {
    machine: Machine,
    vm: AttachedVm,
    /// By what it is profiled.
    by: String,
    /// Name of the means by which it is sampled, and the reason as a sentence.
    engine: (&'static str, String),
    /// Data that the profile lacks, as a sentence.
    unavailable: String,
    /// Events of the profile: kind and sentence.
    notes: Vec<(&'static str, String)>,
    /// Counts of the vCPUs.
    counts: Vec<VcpuCounts>,
    /// Names of the host's functions, if their stacks are taken.
    host_names: Option<HostNames>,
}

/// A machine, by what it was found.
enum Machine {
    Process(Box<Target>),
    Stub(Box<GdbTarget>),
}

/// A machine whose guest and whose stub have sent nothing yet.
enum OpenedMachine {
    Process(Reach, Box<FoundMachine>),
    Stub(Box<ConnectedStub>),
}

impl OpenedMachine {
    fn find(target: &AttachTarget) -> Result<Result<Self, Vec<RunningMachine>>, AttachError> {
        let (vm, choice) = match target {
            AttachTarget::Process(vm, choice) => (vm, choice),
            AttachTarget::Stub(address) => {
                let stub = ConnectedStub::connect(address, Some(guard_program()))?;
                return Ok(Ok(Self::Stub(Box::new(stub))));
            }
        };
        let pid = {
            let _search = capabilities::SearchRight::raise();
            match vm {
                ChosenVm::Pid(pid) => attach::find_holder(*pid)?,
                ChosenVm::Name(name) => attach::find_by_name(name)?,
                ChosenVm::Only => match attach::running_machines() {
                    machines if machines.len() != 1 => return Ok(Err(machines)),
                    machines => machines.first().map_or(0, |machine| machine.pid),
                },
            }
        };
        let target = Target::find_by(*choice, pid, most_vcpus(), Some(guard_program()))?;
        Ok(Ok(Self::Process(target.reach(), Box::new(FoundMachine::in_process(target, choice.engine)))))
    }

    fn reach(&self) -> Reach {
        match self {
            Self::Process(reach, _) => reach.clone(),
            Self::Stub(stub) => stub.reach(),
        }
    }

    fn describe(self) -> Result<FoundMachine, AttachError> {
        match self {
            Self::Process(_, found) => Ok(*found),
            Self::Stub(stub) => Ok(FoundMachine::through_stub(stub.describe(most_vcpus())?)),
        }
    }
}

impl FoundMachine {
    fn in_process(mut target: Target, engine_choice: EngineChoice) -> Self {
        let (label, by) = (label(target.process()), program(target.process().pid()));
        let engine = (target.engine(), target.engine_sentence());
        let mut notes = vec![("engine", target.engine_sentence())];
        let mut vcpus = counted(target.vcpus());
        if target.unseen() > 0 {
            let left_out = left_out(target.unseen(), target.is_sampled());
            vcpus = format!("{vcpus} ({left_out})");
            notes.push(("missing", left_out));
        }
        let mut sentences = vec![format!("attached to {label}, {vcpus}")];
        if engine_choice != EngineChoice::Ptrace {
            sentences.push(target.engine_sentence());
        }
        let vm = AttachedVm { label, sentences };
        let (counts, host_names) = (target.counts(), target.take_host_names());
        let uncounted = target.uncounted();
        let estimated = if target.counts_vmm_times() { "" } else { ESTIMATED };
        let unavailable = format!("{uncounted}{UNAVAILABLE}{estimated}");
        let machine = Machine::Process(Box::new(target));
        Self { machine, vm, by, engine, unavailable, notes, counts, host_names }
    }

    fn through_stub(target: GdbTarget) -> Self {
        let stub = format!("the GDB stub at {}", escaped(target.address()));
        let label = target.process().map_or_else(|| stub.clone(), label);
        let memory = match target.memory() {
            AttachedMemory::Process(_) => "memory from its process",
            AttachedMemory::Stub(_) => "memory through the stub",
        };
        let through = if target.process().is_some() { format!(" through {stub}") } else { String::new() };
        let sentences = vec![format!("attached to {label}{through}, {}, {memory}", counted(target.vcpus()))];
        let under = target.process().map(|process| format!(", {}", program(process.pid())));
        let by = format!("through {stub}{}, {memory}", under.unwrap_or_default());
        let vm = AttachedVm { label, sentences };
        let engine = ("gdb", format!("{stub} stops all vCPUs for samples: --gdb"));
        let (machine, unavailable) = (Machine::Stub(Box::new(target)), UNAVAILABLE_BY_STUB.to_owned());
        let (notes, counts, host_names) = (Vec::new(), Vec::new(), None);
        Self { machine, vm, by, engine, unavailable, notes, counts, host_names }
    }
}

impl Machine {
    fn job_control(&self) -> JobControl {
        match self {
            Self::Process(target) => target.job_control(),
            Self::Stub(target) => target.job_control(),
        }
    }

    /// Searches for the layout of the guest's memory, so that the first sample already has a name.
    fn prove(&mut self) {
        match self {
            Self::Process(target) => target.prove(PROOF_LIMIT),
            Self::Stub(target) => target.prove(PROOF_LIMIT),
        }
    }

    /// Waits until no other vprof profiles the machine. Returns at once when this one is to `stop`, and its
    /// start is refused then.
    async fn take_over(
        &mut self,
        connection: &Connection,
        stop: &tokio::sync::watch::Receiver<bool>,
    ) -> Result<(), ChildError> {
        let Self::Process(target) = self else { return Ok(()) };
        if target.reserve()? {
            return Ok(());
        }
        connection.send(&FromHost::Preparing(AWAITS.to_owned()))?;
        while !*stop.borrow() && !target.reserve()? {
            tokio::time::sleep(TAKE_OVER).await;
        }
        Ok(())
    }

    /// Reads the guest's memory by holder, with at most `rows` of each kind.
    fn memory_use(&self, rows: usize, smaps: Option<&File>) -> Result<AttachedMemoryUse, MemoryUseError> {
        match self {
            Self::Process(target) => memory::of_process(target.memory(), rows, smaps),
            Self::Stub(target) => match (target.memory(), target.tables()) {
                (AttachedMemory::Process(memory), _) => memory::of_process(memory, rows, smaps),
                (AttachedMemory::Stub(memory), Some(tables)) => memory::of_stub(memory, tables, rows),
                (AttachedMemory::Stub(_), None) => Err(MemoryUseError::NoKernel),
            },
        }
    }

    fn rate_limit(&self) -> Option<RateLimit> {
        match self {
            Self::Process(target) => target.rate_limit(),
            Self::Stub(target) => target.rate_limit(),
        }
    }

    fn vcpus(&self) -> usize {
        match self {
            Self::Process(target) => target.vcpus(),
            Self::Stub(target) => target.vcpus(),
        }
    }

    fn process(&self) -> Option<&Process> {
        match self {
            Self::Process(target) => Some(target.process()),
            Self::Stub(target) => target.process(),
        }
    }

    /// Starts the ticks, with one sampler per vCPU, in the order of the vCPUs.
    fn start(self, samplers: Vec<AttachedSampler>) -> Result<Attachment<AttachedSampler>, AttachError> {
        let mut samplers = samplers.into_iter();
        let next = move |_| samplers.next().expect("the session has one observer per vCPU");
        match self {
            Self::Process(target) => Attachment::start(*target, next),
            Self::Stub(target) => Attachment::start_by_gdb(*target, next),
        }
    }
}

/// Samples the machine until it ends, or until the parent ends the run.
async fn profile(
    spec: ProfileSpec,
    found: FoundMachine,
    (files, sandbox, tables): (OpenFiles, String, MappedTables),
    connection: &Connection,
    link: Link,
) -> Result<Outcome, ChildError> {
    let FoundMachine { mut machine, vm, by, engine, unavailable, mut notes, counts, host_names } = found;
    let Link { mut stop, mut input, mut control, phase, .. } = link;
    machine.prove();
    machine.take_over(connection, &stop).await?;
    let wanted = spec.recording.rate_hz;
    let lowered = LoweredRate::new(wanted, machine.rate_limit());
    if let Some(lowered) = lowered {
        notes.insert(0, ("rate", lowered.sentence()));
        if !spec.quiet {
            // A connection that fails ends the run through the sink.
            let _failed = connection.send(&FromHost::Note(lowered.sentence()));
        }
    }
    let one_clock = matches!(machine, Machine::Stub(_));
    let meta = [
        ("image", Some(vm.label)),
        ("host", Some("attached".to_owned())),
        ("host_reason", Some(by)),
        ("engine", Some(engine.0.to_owned())),
        ("engine_reason", Some(engine.1)),
        ("pid", machine.process().map(|process| process.pid().to_string())),
        ("unavailable", Some(unavailable)),
        // Behind a stub all vCPUs stop at once.
        (ONE_CLOCK, one_clock.then(|| "1".to_owned())),
        ("sandbox", Some(sandbox)),
    ];
    let config = SessionConfig {
        vcpus: u8::try_from(machine.vcpus()).unwrap_or(u8::MAX),
        recording: RecordingConfig {
            rate_hz: lowered.map_or(wanted, |lowered| lowered.hz),
            watch: spec.recording.watch.clone().map(|watch| judged(watch, &spec.recording, &machine)),
            ..spec.recording.clone()
        },
        meta: meta.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect(),
    };
    // The types of the host's kernel, and the first search for the guest's, took some ten MB.
    resident::give_back_free();
    let sink = Box::new(ConnectionSink(connection.clone()));
    let (mut session, samplers) = Session::new(config, sink, files);
    session.set_counts(counts);
    if let Some(names) = host_names {
        session.set_host_names(names);
    }
    spec.waits.iter().for_each(|wait| session.wait_for(wait.clone()));
    for (kind, note) in &notes {
        session.event(kind, note);
    }
    let attached = machine.start(samplers.into_iter().map(AttachedSampler::from).collect())?;
    if let Some(copies) = attached.copies() {
        session.set_copies(copies);
    }
    session.start(attached.memory().clone()).map_err(GuestError::Sink)?;
    let inputs = Inputs::new(&mut stop, &mut input, &mut control);
    let run = watch(&attached, &session, spec.duration, inputs, None, &phase);
    resident::trimmed_while(run, || tables.give_back()).await?;
    Ok(finish(session, attached.wait()))
}

/// Adds the conditions that a watch of this machine cannot judge.
fn judged(mut watch: WatchConfig, recording: &RecordingConfig, machine: &Machine) -> WatchConfig {
    if matches!(machine, Machine::Stub(_)) {
        let reason = "a GDB stub does not show the threads of the host";
        watch.unjudged.push((WatchCondition::Starved, reason.to_owned()));
    }
    if recording.task_scan_hz <= 0.0 {
        watch
            .unjudged
            .push((WatchCondition::BlockedTask, "--task-rate 0 reads no states of tasks".to_owned()));
    }
    watch
}

/// Ends the profile, however the attachment ended.
fn finish(session: Session, ended: Result<EndedAttachment<AttachedSampler>, AttachError>) -> Outcome {
    let (end, swapped_out, trouble) = match ended {
        // The observers hold the writing ends of the rings that the collector empties.
        Ok(EndedAttachment { end, observers, swapped_out }) => {
            drop(observers);
            (end, swapped_out, None)
        }
        Err(error) => (AttachmentEnd::Detached, 0, Some(error.to_string())),
    };
    if swapped_out > 0 {
        session.event("missing", &lacking(swapped_out));
    }
    let end = GuestEnd::Left(end);
    session.event("end", trouble.as_ref().unwrap_or(&end.sentence()));
    let totals = session.finish(vec![("samples_swapped_out".to_owned(), swapped_out.to_string())]);
    Outcome { end, totals, host_restarts: 0, trouble: trouble.into_iter().collect() }
}

/// Returns the sentence on samples that lack a part of the guest's memory.
fn lacking(samples: u64) -> String {
    let (lack, their) = if samples == 1 { ("lacks", "its") } else { ("lack", "their") };
    format!(
        "{} {lack} parts of {their} stacks, processes or threads: the host had that memory of the guest swapped out",
        units::counted(samples, "sample")
    )
}

/// This program as the guard of an attached machine.
fn guard_program() -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg("attach-guard");
    program
}

fn most_vcpus() -> usize {
    usize::from(vmm::config::MAX_VCPUS)
}

fn label(process: &Process) -> String {
    format!("process {} ({})", process.pid(), escaped(process.name()))
}

fn counted(vcpus: usize) -> String {
    units::counted(u64::try_from(vcpus).unwrap_or(u64::MAX), "vCPU")
}

/// Returns the sentence on vCPUs whose threads were not found. The host's kernel shows them later.
fn left_out(unseen: usize, sampled: bool) -> String {
    let (were, are) = if unseen == 1 { ("was", "is") } else { ("were", "are") };
    let until = if sampled { " until then" } else { "" };
    format!("{} more {were} not seen in the guest and {are} left out{until}", counted(unseen))
}

/// The program of the process.
fn program(pid: i32) -> String {
    let path = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).unwrap_or_default();
    format!("runs under {}", escaped(&path.to_string_lossy()))
}
