//! `vprof attach`: profiles a virtual machine that runs under another VMM. The attach half
//! ([`host::attached`]) does so; this process has the terminal, the profile and the control socket.

mod list;
mod watch;

use std::fs::File;
use std::io;
use std::path::Path;

use attach::{ExitDetail, TargetChoice, VcpuRoom, capabilities, keep_guard};
use control::message::Then;
use disk_images::ImageError;
use display::clean::escaped;
use display::units::counted;
use host::attached::{
    self, AttachHalf, AttachPurpose, AttachSpec, AttachedVm, HalfStart, ProfileSpec, StartedHalf,
};
use host::link::Link;
use host::reader;
use host::spec::{DiskSpec, Outcome};
use profile::live;
use sampler::RecordingConfig;
use vmm::DiskMode;

use crate::args::{AttachArgs, RecordingArgs};
use crate::errors::{Error, ExitCode, UsageError};
use crate::run::recording::{Recorded, Recording, random_seed};
use watch::{WatchOutput, WatchSink};

/// Runs the command.
pub fn command(args: &AttachArgs) -> Result<ExitCode, Error> {
    if args.watch.is_some() && args.recording.json && args.recording.top {
        return Err(UsageError::TopAndWatch.into());
    }
    let recording = Recording::prepare(&args.recording)?;
    let disks = args.disk.iter().map(|path| open_disk(path)).collect::<Result<Vec<_>, _>>()?;
    // A disk that no parser takes is refused before the VM is touched.
    reader::check(&disks, args.seccomp)?;
    let profile_spec = ProfileSpec {
        recording: RecordingConfig {
            watch: args.watch_config(),
            ..args.recording.config(args.recording.seed.unwrap_or_else(random_seed))
        },
        duration: args.recording.duration,
        waits: args.recording.triggers(Then::End),
        quiet: args.recording.quiet,
    };
    let purpose = AttachPurpose::Profile(Box::new(profile_spec));
    let room = if args.present_vcpus { VcpuRoom::Present } else { VcpuRoom::Most };
    let exits = if args.no_exits { ExitDetail::Number } else { ExitDetail::Reasons };
    let (host_stacks, takes_over) = (args.host_stacks, args.takes_over);
    let choice = TargetChoice { host_stacks, exits, room, takes_over, ..TargetChoice::default() };
    let spec = AttachSpec { target: args.vm.target(choice), purpose, policy: args.seccomp };
    let Some((half, vm)) = start(spec, disks, (args.tables.as_deref(), args.half), "attach")? else {
        return Ok(ExitCode::Usage);
    };
    if !args.recording.quiet {
        for sentence in &vm.sentences {
            display::stderr_line!("vprof: {}", escaped(sentence));
        }
    }
    let label = escaped(&vm.label).into_owned();
    let vm_label = label.clone();
    let recorded =
        recording.record(label, None, |link, tables| profile(args, vm_label, half, link, tables))?;
    conclude(args, recorded)
}

/// Starts the attach half of a command. Prints the machines that it may choose from, and returns `None`, if
/// none was chosen and there are several.
pub fn start(
    spec: AttachSpec,
    disks: Vec<(DiskSpec, File)>,
    (tables, way): (Option<&Path>, HalfStart),
    command: &str,
) -> Result<Option<(AttachHalf, AttachedVm)>, Error> {
    let started = AttachHalf::start(spec, disks, tables, way)?;
    // A copy of this process has them from here; other halves by the program's file.
    capabilities::drop_all().map_err(|source| Error::System { action: "drop capabilities", source })?;
    match started {
        StartedHalf::Found(half, vm) => Ok(Some((half, vm))),
        StartedHalf::Unchosen(machines) if machines.is_empty() => {
            Err(match nix::unistd::geteuid().is_root() {
                true => UsageError::NoVm,
                false => UsageError::NoVisibleVm,
            }
            .into())
        }
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
    vm: String,
    half: AttachHalf,
    link: Link,
    tables: live::SharedTables,
) -> Result<Outcome, Error> {
    let writer = args.recording.create(args.recording.force)?;
    let live = Box::new(live::LiveSink::new(Box::new(writer), tables.clone()));
    let RecordingArgs { json, quiet, .. } = args.recording;
    let sink = Box::new(WatchSink::new(live, vm, tables, link.notes.clone(), WatchOutput { json, quiet }));
    Ok(half.run(link, sink).await?)
}

/// Prints the end and the summary.
fn conclude(args: &AttachArgs, recorded: Recorded) -> Result<ExitCode, Error> {
    // Failures at the end were reported.
    if !args.recording.quiet && recorded.outcome.trouble.is_empty() {
        display::stderr_line!("vprof: {}", recorded.outcome.end.sentence());
    }
    let alerts = recorded.outcome.totals.alerts;
    let mut recording = args.recording.clone();
    if args.watch.is_some() && recording.json {
        // Standard output has the lines of the watch, each an object.
        (recording.json, recording.quiet) = (false, true);
    }
    if args.watch.is_some() && !recording.quiet {
        let seen = if alerts == 0 { "no stall was seen".to_owned() } else { counted(alerts.into(), "stall") };
        display::stderr_line!("vprof: --watch: {seen}");
    }
    recorded.conclude(&recording, |recorded| match &recorded.outcome.totals.sink_error {
        Some(error) => Err(Error::Sink(error.clone())),
        None if alerts > 0 => Ok(ExitCode::Expectation),
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
