//! `vprof attach`: profiles a virtual machine that runs under another VMM. The attach half
//! ([`host::attached`]) does so; this process has the terminal, the profile and the control socket.

mod list;

use std::fs::File;
use std::io;
use std::path::Path;

use attach::keep_guard;
use host::attached::{self, AttachHalf, AttachPurpose, AttachSpec, AttachedVm, ProfileSpec, StartedHalf};
use host::link::Link;
use host::protocol::Then;
use host::reader;
use host::spec::{DiskSpec, Outcome};
use images::ImageError;
use profile::live;
use text::clean::escaped;
use vmm::DiskMode;

use crate::args::AttachArgs;
use crate::errors::{Error, ExitCode, UsageError};
use crate::run::recording::{Recorded, Recording, Streams, random_seed};

/// Runs the command.
pub fn command(args: &AttachArgs) -> Result<ExitCode, Error> {
    let recording = Recording::prepare(&args.recording)?;
    let disks = args.disk.iter().map(|path| open_disk(path)).collect::<Result<Vec<_>, _>>()?;
    // A disk that no parser takes is refused before the VM is touched.
    reader::check(&disks, args.seccomp)?;
    let profile_spec = ProfileSpec {
        recording: args.recording.config(args.recording.seed.unwrap_or_else(random_seed)),
        duration: args.recording.duration,
        waits: args.recording.triggers(Then::End),
        quiet: args.recording.quiet,
    };
    let purpose = AttachPurpose::Profile(Box::new(profile_spec));
    let spec = AttachSpec { target: args.vm.target(args.host_stacks), purpose, policy: args.seccomp };
    let Some((half, vm)) = start(spec, disks, "attach")? else { return Ok(ExitCode::Usage) };
    if !args.recording.quiet {
        for sentence in &vm.sentences {
            eprintln!("vprof: {}", escaped(sentence));
        }
    }
    let label = escaped(&vm.label).into_owned();
    let recorded =
        recording.record(label, Streams::none(), |link, tables| profile(args, half, link, tables))?;
    conclude(args, recorded)
}

/// Starts the attach half of a command. Prints the machines that it may choose from, and returns `None`, if
/// none was chosen and there are several.
pub fn start(
    spec: AttachSpec,
    disks: Vec<(DiskSpec, File)>,
    command: &str,
) -> Result<Option<(AttachHalf, AttachedVm)>, Error> {
    match AttachHalf::start(spec, disks)? {
        StartedHalf::Found(half, vm) => Ok(Some((half, vm))),
        StartedHalf::Unchosen(machines) if machines.is_empty() => Err(UsageError::NoVm.into()),
        StartedHalf::Unchosen(machines) => list::print(&machines, command).map(|()| None),
    }
}

/// Opens a disk of the guest, which its VMM has open as well: it is only read.
fn open_disk(path: &Path) -> Result<(DiskSpec, File), ImageError> {
    let disk = DiskSpec::new(path.to_owned(), None, DiskMode::ReadOnly)?;
    let file = disk.open()?;
    Ok((disk, file))
}

/// Writes the profile until the machine ends, or until vprof is to let it go.
async fn profile(
    args: &AttachArgs,
    half: AttachHalf,
    link: Link,
    tables: live::SharedTables,
) -> Result<Outcome, Error> {
    let writer = args.recording.create(args.recording.force)?;
    let sink = Box::new(live::LiveSink::new(Box::new(writer), tables));
    Ok(half.run(link, sink).await?)
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

/// Runs the command `attach-half`: profiles the machine for another vprof.
pub fn half(job: i32) -> Result<ExitCode, Error> {
    attached::main(job).map_err(|source| Error::System { action: "send the outcome of the run", source })?;
    Ok(ExitCode::Done)
}

/// Runs the guard's process.
pub fn guard(stops: i32) -> Result<ExitCode, Error> {
    let failed = |source| Error::System { action: "guard an attached virtual machine", source };
    keep_guard(stops, &mut io::stdin().lock(), &mut io::stdout().lock()).map_err(failed)?;
    Ok(ExitCode::Done)
}
