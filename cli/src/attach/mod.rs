//! `vprof attach`: profiles a virtual machine that runs under another VMM.

mod gdb;
mod list;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use attach::{
    AttachError, Attachment, AttachmentEnd, EndedAttachment, JobControl, Process, RateLimit, Target,
    TargetChoice, VcpuCounts, capabilities, keep_guard,
};
use host::GuestError;
use host::attached::LoweredRate;
use host::guest::{Inputs, watch};
use host::heap;
use host::link::Link;
use host::protocol::Then;
use host::spec::{DiskSpec, GuestEnd, Outcome};
use profile::estimate::ONE_CLOCK;
use profile::{Sink, live};
use sampler::{AttachedSampler, RecordingConfig, Session, SessionConfig};
use symbols::names::{OpenFiles, no_files};
use text::clean::escaped;
use text::units;
use vmm::DiskMode;

use crate::args::{AttachArgs, Engine, VmChoice};
use crate::errors::{Error, ExitCode, UsageError};
use crate::run::recording::{Recorded, Recording, Streams, random_seed};
use crate::top::terminal::GuardedScreen;

/// Data that a profile of an attached machine lacks, after what else its engine does not count.
const NOT_HAD: &str = "the names of devices, interrupts that they raise, and the console are not known of a VM under another VMM";
/// The same of a machine whose exits are not counted.
const ESTIMATED: &str = "; its time in the VMM is estimated by samples";

/// Time limit of the search for the guest's memory before the first sample.
const PROOF_LIMIT: Duration = Duration::from_secs(3);

/// A machine to be profiled, as the profile knows it.
struct Plan {
    /// Its name.
    label: String,
    /// By what it is profiled.
    by: String,
    /// Name of the means by which it is sampled, and the reason as a sentence.
    engine: (&'static str, String),
    /// Data that the profile lacks, as a sentence.
    not_had: String,
    pid: Option<i32>,
    /// All vCPUs are ticked at once.
    one_clock: bool,
    vcpus: usize,
    rate_hz: f64,
    /// Counts of the vCPUs.
    counters: Vec<VcpuCounts>,
    /// Events of the profile: kind and sentence.
    notes: Vec<(&'static str, String)>,
}

/// Runs the command.
pub fn command(args: &AttachArgs) -> Result<ExitCode, Error> {
    let recording = Recording::prepare(&args.recording)?;
    let files = open_disks(&args.disk)?;
    let no_right = |source| Error::System { action: "use the capability to trace", source };
    capabilities::raise_tracing().map_err(no_right)?;
    if let Some(address) = &args.gdb {
        return gdb::command(args, address, recording, files);
    }
    let name = args.name.as_ref().or(match &args.vm {
        Some(VmChoice::Name(name)) => Some(name),
        _ => None,
    });
    let pid = match (&args.vm, name) {
        (Some(VmChoice::Pid(pid)), _) => {
            let _search = capabilities::SearchRight::raise();
            attach::find_holder(*pid)?
        }
        (_, Some(name)) => {
            let _search = capabilities::SearchRight::raise();
            attach::find_by_name(name)?
        }
        _ => {
            let running = {
                let _search = capabilities::SearchRight::raise();
                attach::running_machines()
            };
            match running.as_slice() {
                [] => return Err(UsageError::NoVm.into()),
                [only] => only.pid,
                several => return list::print(several).map(|()| ExitCode::Usage),
            }
        }
    };
    let most = usize::from(vmm::config::MAX_VCPUS);
    let choice = TargetChoice { engine: args.engine.into(), vm: args.vm_number };
    let mut target = Target::find_by(choice, pid, most, Some(guard_program(args)))?;
    install(&target.job_control(), args)?;
    let label = label(target.process());
    if !args.recording.quiet {
        eprintln!("vprof: attached to {label}, {}", vcpus(&target));
        if args.engine != Engine::Ptrace {
            eprintln!("vprof: {}", target.engine_sentence());
        }
    }
    let lowered = lower_rate(args, target.rate_limit());
    let mut notes: Vec<_> = lowered.iter().map(|lowered| ("rate", lowered.sentence())).collect();
    notes.push(("engine", target.engine_sentence()));
    if target.unseen() > 0 {
        notes.push(("missing", left_out(target.unseen())));
    }
    target.prove(PROOF_LIMIT);
    let counters = target.counts();
    let uncounted = target.uncounted();
    let estimated = if uncounted.is_empty() { "" } else { ESTIMATED };
    let plan = Plan {
        label: label.clone(),
        by: program(pid),
        engine: (target.engine(), target.engine_sentence()),
        not_had: format!("{uncounted}{NOT_HAD}{estimated}"),
        pid: Some(pid),
        one_clock: false,
        vcpus: target.vcpus(),
        rate_hz: lowered.map_or(args.recording.rate, |lowered| lowered.hz),
        counters,
        notes,
    };
    let start = |samplers| Attachment::start(target, samplers);
    let recorded = recording
        .record(label, Streams::none(), |link, tables| profile(args, plan, files, (link, tables), start))?;
    conclude(args, recorded)
}

/// Applies the limit to the rate that was requested; prints a sentence if that lowers it.
fn lower_rate(args: &AttachArgs, limit: Option<RateLimit>) -> Option<LoweredRate> {
    let lowered = LoweredRate::new(args.recording.rate, limit)?;
    if !args.recording.quiet {
        eprintln!("vprof: {}", lowered.sentence());
    }
    Some(lowered)
}

/// This program as the guard of an attached machine.
fn guard_program(args: &AttachArgs) -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg("attach-guard");
    if args.recording.top {
        program.arg("--screen");
    }
    program
}

/// Runs the guard's process.
pub fn guard(screen: bool, stops: i32) -> Result<ExitCode, Error> {
    // Before vprof enters the screen, which it does once it has attached.
    let screen = if screen { GuardedScreen::open() } else { None };
    let failed = |source| Error::System { action: "guard an attached virtual machine", source };
    keep_guard(stops, &mut io::stdin().lock(), &mut io::stdout().lock(), |vprof| {
        if let Some(screen) = &screen {
            screen.restore(vprof);
        }
    })
    .map_err(failed)?;
    Ok(ExitCode::Done)
}

/// Makes Ctrl-Z wait for the end of stops. The live view handles Ctrl-Z: it has to leave the screen first.
fn install(control: &JobControl, args: &AttachArgs) -> Result<(), Error> {
    let signals: &[i32] =
        if args.recording.top { &[] } else { &[libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] };
    control.install(signals).map_err(|source| Error::System { action: "handle Ctrl-Z", source })
}

/// Prints the end and the summary.
fn conclude(args: &AttachArgs, recorded: Recorded) -> Result<ExitCode, Error> {
    // Failures at the end were reported.
    if !args.recording.quiet && recorded.outcome.trouble.is_empty() {
        eprintln!("vprof: {}", recorded.outcome.end.sentence());
    }
    recorded.conclude(&args.recording, |recorded| match &recorded.outcome.totals.sink_error {
        Some(error) => Err(Error::Sink(error.clone())),
        None => Ok(ExitCode::Done),
    })
}

fn label(process: &Process) -> String {
    format!("process {} ({})", process.pid(), escaped(process.name()))
}

fn vcpus(target: &Target) -> String {
    let shown = counted(target.vcpus());
    match target.unseen() {
        0 => shown,
        unseen => format!("{shown} ({})", left_out(unseen)),
    }
}

fn counted(vcpus: usize) -> String {
    units::counted(u64::try_from(vcpus).unwrap_or(u64::MAX), "vCPU")
}

/// Returns the sentence on vCPUs whose threads were not found.
fn left_out(unseen: usize) -> String {
    let (were, are) = if unseen == 1 { ("was", "is") } else { ("were", "are") };
    format!("{} more {were} not seen in the guest and {are} left out", counted(unseen))
}

/// The guest's files on its disks, which its VMM has open as well: they are only read.
fn open_disks(paths: &[PathBuf]) -> Result<OpenFiles, Error> {
    if paths.is_empty() {
        return Ok(no_files());
    }
    let open = |path: &PathBuf| {
        let disk = DiskSpec::new(path.clone(), None, DiskMode::ReadOnly)?;
        disk.contents(disk.open()?, false)
    };
    Ok(images::files::open(paths.iter().map(open).collect::<Result<_, _>>()?))
}

/// One sampler per vCPU, in the order of the vCPUs.
type Samplers = Box<dyn FnMut(usize) -> AttachedSampler>;

/// Samples the machine until it ends, or until vprof is to let it go.
async fn profile(
    args: &AttachArgs,
    plan: Plan,
    files: OpenFiles,
    (link, tables): (Link, live::SharedTables),
    start: impl FnOnce(Samplers) -> Result<Attachment<AttachedSampler>, AttachError>,
) -> Result<Outcome, Error> {
    let Link { mut stop, mut input, mut control, console, output, phase, notes: _ } = link;
    // An attached machine's console is its VMM's.
    drop((console, output));
    let recording = &args.recording;
    let writer = recording.create(recording.force)?;
    let sink: Box<dyn Sink> = Box::new(live::LiveSink::new(Box::new(writer), tables));
    let meta = [
        ("image", Some(plan.label)),
        ("host", Some("attached".to_owned())),
        ("host_reason", Some(plan.by)),
        ("engine", Some(plan.engine.0.to_owned())),
        ("engine_reason", Some(plan.engine.1)),
        ("pid", plan.pid.map(|pid| pid.to_string())),
        ("not_had", Some(plan.not_had)),
        // Behind a stub all vCPUs stop at once.
        (ONE_CLOCK, plan.one_clock.then(|| "1".to_owned())),
    ];
    let config = SessionConfig {
        vcpus: u8::try_from(plan.vcpus).unwrap_or(u8::MAX),
        recording: RecordingConfig {
            rate_hz: plan.rate_hz,
            ..recording.config(recording.seed.unwrap_or_else(random_seed))
        },
        meta: meta.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect(),
    };
    heap::give_back_at_once();
    let (mut session, samplers) = Session::new(config, sink, files);
    session.set_counts(plan.counters);
    recording.triggers(Then::End).into_iter().for_each(|wait| session.wait_for(wait));
    for (kind, note) in &plan.notes {
        session.event(kind, note);
    }
    let mut samplers = samplers.into_iter();
    let attached =
        start(Box::new(move |_| samplers.next().expect("the session has one observer per vCPU").into()))?;
    session.start(attached.memory().clone()).map_err(GuestError::Sink)?;
    let inputs = Inputs::new(&mut stop, &mut input, &mut control);
    watch(&attached, &session, recording.duration, inputs, None, &phase).await?;
    Ok(finish(session, attached.wait()))
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

/// The program of the process.
fn program(pid: i32) -> String {
    let path = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).unwrap_or_default();
    format!("runs under {}", escaped(&path.to_string_lossy()))
}
