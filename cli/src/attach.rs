//! `vprof attach`: profiles a virtual machine that runs under another VMM.

use std::path::{Path, PathBuf};
use std::time::Duration;

use attach::{Attached, End, News, Observer, Process, Target};
use sampler::{OpenFiles, ProfileWriter, Session, SessionConfig, Sink, live, no_files};

use crate::args::{AttachArgs, Then};
use crate::errors::{Error, ExitCode};
use crate::image;
use crate::run::guest::{Heard, Subject, watch};
use crate::run::link::Link;
use crate::run::recording::{Recording, Streams, random_seed};
use crate::run::spec::{DiskSpec, GuestEnd, Outcome, Writes};

/// What an attached machine does not tell, as the profile has it.
const NOT_HAD: &str = "exits of the VMM by reason and device, interrupts that its devices raise, and the console are not known \
                       of a VM under another VMM; its time in the VMM is estimated by samples";

/// How long the guest's memory is looked for before the first sample.
const PROOF_LIMIT: Duration = Duration::from_secs(3);

/// Runs the command.
pub fn command(args: &AttachArgs) -> Result<ExitCode, Error> {
    let recording = Recording::prepare(&args.recording)?;
    let files = open_disks(&args.disk)?;
    let pid = match (args.pid, &args.name) {
        (Some(pid), _) => pid,
        (None, Some(name)) => attach::named(name)?,
        (None, None) => {
            return Err(Error::Usage("give the process of the virtual machine, or its --name".to_owned()));
        }
    };
    let target = Target::look(pid, usize::from(vmm::config::MAX_VCPUS))?;
    let label = label(target.process());
    if !args.recording.quiet {
        eprintln!("vprof: attached to {label}, {}", vcpus(&target));
    }
    target.prove(PROOF_LIMIT);
    let recorded = recording.record(label.clone(), Streams::none(), |link, tables| {
        profile(args, target, files, label, link, tables)
    })?;
    if let (GuestEnd::Left(sentence), false) = (&recorded.outcome.end, args.recording.quiet) {
        eprintln!("vprof: {sentence}");
    }
    recorded.conclude(&args.recording, |recorded| match &recorded.outcome.totals.sink_error {
        Some(error) => Err(Error::Sink(error.clone())),
        None => Ok(ExitCode::Done),
    })
}

fn label(process: &Process) -> String {
    format!("process {} ({})", process.pid(), crate::render::escape(process.name()))
}

fn vcpus(target: &Target) -> String {
    let shown = crate::render::units::counted(u64::try_from(target.vcpus()).unwrap_or(u64::MAX), "vCPU");
    match target.unseen() {
        0 => shown,
        unseen => format!("{shown} ({unseen} more were not seen in the guest and are left out)"),
    }
}

/// The guest's files on its disks, which its VMM has open as well: they are only read.
fn open_disks(paths: &[PathBuf]) -> Result<OpenFiles, Error> {
    if paths.is_empty() {
        return Ok(no_files());
    }
    let open = |path: &PathBuf| {
        let disk = DiskSpec::at(path.clone(), Writes::Refused)?;
        disk.contents(disk.open()?, false)
    };
    Ok(image::files::open(paths.iter().map(open).collect::<Result<_, _>>()?))
}

/// Samples the machine until it ends, or until vprof is to let it go.
async fn profile(
    args: &AttachArgs,
    target: Target,
    files: OpenFiles,
    label: String,
    link: Link,
    tables: live::Shared,
) -> Result<Outcome, Error> {
    let Link { mut stop, mut input, mut control, console, output, phase } = link;
    // An attached machine's console is its VMM's.
    drop((console, output));
    let recording = &args.recording;
    let writer = ProfileWriter::create(&recording.output, recording.force)?;
    let sink: Box<dyn Sink> = Box::new(live::LiveSink::new(Box::new(writer), tables));
    let meta = [
        ("image", label),
        ("host", "attached".to_owned()),
        ("host_reason", program(target.process().pid())),
        ("pid", target.process().pid().to_string()),
        ("not_had", NOT_HAD.to_owned()),
    ];
    let config = SessionConfig {
        vcpus: u8::try_from(target.vcpus()).unwrap_or(u8::MAX),
        rate_hz: recording.rate,
        clock: recording.clock.into(),
        seed: recording.seed.unwrap_or_else(random_seed),
        stack_depth: usize::from(recording.depth),
        exact: false,
        census_hz: recording.census,
        precision: recording.until_precision,
        meta: meta.map(|(key, value)| (key.to_owned(), value)).to_vec(),
    };
    let (mut session, samplers) = Session::new(config, sink, files);
    session.count_by(target.counters());
    recording.waits(Then::End).into_iter().for_each(|wait| session.wait_for(wait));
    let mut samplers = samplers.into_iter();
    let attached =
        Attached::start(target, |_| samplers.next().expect("the session has one observer per vCPU"))?;
    session.start(attached.memory()).map_err(|error| Error::Sink(error.to_string()))?;
    let heard = Heard::new(&mut stop, &mut input, &mut control);
    watch(&attached, &session, recording.duration, heard, None, &phase).await?;
    let ended = attached.wait()?;
    // The observers hold the writing ends of the rings that the collector empties.
    drop(ended.observers);
    let sentence = match ended.end {
        End::Detached => "vprof has let the virtual machine go; it runs on",
        End::ProcessEnded => "the virtual machine's process has ended",
        End::VcpusEnded => {
            "the process has no vCPU threads any more: it executes another program, or has closed its machine"
        }
        End::Reset => "the guest was reset, so that what was known of its kernel is so no more: attach again",
    };
    session.event("end", sentence);
    let totals = session.finish(Vec::new());
    Ok(Outcome { end: GuestEnd::Left(sentence.to_owned()), totals, host_restarts: 0 })
}

/// The program of the process.
fn program(pid: i32) -> String {
    let path = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).unwrap_or_default();
    format!("runs under {}", crate::render::escape(&path.to_string_lossy()))
}

impl<O: Observer> Subject for Attached<O> {
    fn ended_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        Attached::ended_fd(self)
    }

    fn has_ended(&self) -> bool {
        Attached::has_ended(self)
    }

    fn stop(&self) {
        Attached::stop(self);
    }

    /// Its console is its VMM's: nobody waits for these bytes.
    fn input(&self, bytes: &[u8]) -> usize {
        bytes.len()
    }

    fn look(&self, session: &Session) {
        for news in self.news() {
            match news {
                News::Memory(text) => session.event("memory", &text),
                News::NoMemory(text) => session.event("missing", &text),
            }
        }
    }
}
