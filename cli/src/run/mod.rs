//! `vprof run`: boots a guest, profiles it, and shows the summary.

pub mod output;
pub mod recording;
pub mod repeat;
pub mod screen;
pub mod serial;
mod trips;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use disk_images::contents::ImageFormat;
use disk_images::{self, ImageError, NamedFile};
use host::choice::{self, Chosen, Host};
use host::half;
use host::link::Link;
use host::network::NetworkSpec;
use host::portable::{memory, outer};
use host::reader::{self, BootFiles, BootMemory, LoadedBoot};
use host::spec::{self, DiskSpec, GuestEnd, MachineSpec, Outcome, RunSpec};
use host::systemd::{self, GuestCommand};
use profile::conditions::{Condition, RunTrigger};
use profile::store::CreateError;
use profile::{Sink, live};
use sampler::RecordingConfig;
use vmm::{CpuFeatures, DiskMode, MachineEnd};

use crate::args::{ConsoleDevice, RunArgs};
use crate::cmdline::cmdline;
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{PRIVATE, is_database};
use recording::{KeySource, Recorded, Recording, Streams, random_seed};
use screen::ConsoleTarget;
use tui::terminal;

/// Runs the command.
pub fn command(args: &RunArgs) -> Result<ExitCode, Error> {
    match args.repeat {
        Some(times) => repeat::command(args, times),
        None => one(args).map(|run| run.code),
    }
}

/// Exit code of a run, and whether the user ended it.
struct RunConclusion {
    code: ExitCode,
    interrupted: bool,
}

fn one(args: &RunArgs) -> Result<RunConclusion, Error> {
    let recorded = once(args, args.triggers())?;
    let interrupted = recorded.interrupted;
    let code = recorded.conclude(&args.recording, |recorded| judge(args, recorded))?;
    Ok(RunConclusion { code, interrupted })
}

/// Note on a terminal without the guest's console.
const CONSOLE_HINT: &str =
    "Ctrl-C ends the run; the guest's console: with --console -, or in `vprof top` on another terminal";

/// Runs a guest once, with these triggers, and records it.
pub fn once(args: &RunArgs, triggers: Vec<RunTrigger>) -> Result<Recorded, Error> {
    trips::check(args)?;
    // A missing image is reported before a profile that exists.
    let files = FoundFiles::open(args)?;
    let recording = Recording::prepare(&args.recording)?;
    let mut plan = RunPlan::make(args, triggers, files)?;
    let chosen = choice::choose(args.host, args.portable_host.as_deref(), args.host_timeout)?;
    // QEMU's machine has no ports.
    plan.spec.machine.output_ports &= !matches!(chosen.host, Host::Tcg(_));
    let streams = streams(args, plan.spec.command.is_some() || plan.spec.machine.output_ports)?;
    let cost = trips::cost(args, &chosen.host);
    plan.spec.meta.extend(cost.iter().flat_map(trips::Cost::meta));
    if !args.recording.quiet {
        for sentence in plan
            .doubts(args)
            .iter()
            .chain(&plan.choice)
            .chain([&chosen.sentence()])
            .chain(cost.as_ref().map(trips::Cost::sentence))
        {
            display::stderr_line!("vprof: {sentence}");
        }
        let is_watched = matches!(streams.console, ConsoleTarget::None) && !args.recording.top;
        if is_watched && terminal::is_interactive() && io::stderr().is_terminal() {
            display::stderr_line!("vprof: {CONSOLE_HINT}");
        }
    }
    if matches!(chosen.host, Host::Tcg(_)) {
        refuse_without_kvm(args)?;
    }
    if !matches!(chosen.host, Host::Kvm) {
        memory::check(args.memory)?;
        let slow = if matches!(chosen.host, Host::Tcg(_)) { spec::emulated } else { spec::patient };
        plan.spec.machine.cmdline = slow(&plan.spec.machine.cmdline);
    }
    vmm::check_command_line(&plan.spec.machine.cmdline, plan.longest_command_line)?;
    plan.spec.meta.push(("cmdline".to_owned(), plan.spec.machine.cmdline.clone()));
    let image = shown(&args.image);
    recording.record(image, Some(streams), |link, tables| start(args, plan, &chosen, link, tables))
}

/// Refuses what only a guest on KVM can have.
fn refuse_without_kvm(args: &RunArgs) -> Result<(), Error> {
    let given = [
        ("--exact", args.exact, "its probes need KVM"),
        ("--trip", !args.trip.is_empty(), "its probes need KVM"),
        ("--huge-pages", args.huge_pages, "the guest's memory is QEMU's"),
        (
            "--console-device virtio",
            args.console_device == ConsoleDevice::Virtio,
            "the console is the serial port",
        ),
    ];
    match given.into_iter().find(|(_, given, _)| *given) {
        Some((option, _, reason)) => Err(Error::Usage(UsageError::NeedsKvm { option, reason })),
        None => Ok(()),
    }
}

/// Plan of a run before its host is chosen.
struct RunPlan {
    spec: RunSpec,
    payload: BootMemory,
    /// Files of the disks, open and locked for the whole run.
    disks: Vec<File>,
    /// Sentence about the kernel that is booted from a disk, and why.
    choice: Option<String>,
    /// Length of the longest command line that the kernel takes, bytes.
    longest_command_line: usize,
}

impl RunPlan {
    fn make(args: &RunArgs, mut triggers: Vec<RunTrigger>, files: FoundFiles) -> Result<Self, Error> {
        let mut loaded = reader::load(&files.guest, args.seccomp)?;
        let seed = args.recording.seed.unwrap_or_else(random_seed);
        let command = take_command(args, &mut loaded, seed)?;
        let until = triggers.iter().find_map(|trigger| match trigger {
            RunTrigger::Until(condition) => Some(("until".to_owned(), condition.to_string())),
            _ => None,
        });
        if command.is_some() {
            triggers.push(RunTrigger::Until(Condition::Console(systemd::NO_COMMAND.to_owned())));
        }
        let LoadedBoot { facts, payload } = loaded;
        let (disks, files) = files.disks(args, facts.is_disk)?;
        let unit = command.as_ref().map(GuestCommand::cmdline);
        let appended: Vec<&str> = unit.as_deref().into_iter().chain(args.append.as_deref()).collect();
        let cmdline = cmdline(facts.words.as_deref(), args.console_device, Some(&appended.join(" ")));
        let network = args.net.clone().map(|choice| NetworkSpec::new(choice.kind, choice.mac, seed));
        let spec = RunSpec {
            machine: MachineSpec {
                vcpus: args.cpus,
                memory_bytes: args.memory,
                huge_pages: args.huge_pages,
                cpu: CpuFeatures { nested: args.nested, pmu: args.pmu },
                cmdline,
                disks,
                network,
                virtio_console: args.console_device == ConsoleDevice::Virtio,
                output_ports: command.is_some() || (facts.takes_command && !takes_console(args)),
            },
            command,
            recording: RecordingConfig {
                exact: args.exact,
                trips: trips::names(args),
                ..args.recording.config(seed)
            },
            duration: args.recording.duration,
            retries: args.retry.unwrap_or(0),
            policy: args.seccomp,
            waits: triggers,
            meta: meta(args, &facts.origin).into_iter().chain(until).collect(),
        };
        let (choice, longest_command_line) = (facts.sentence, facts.longest_command_line);
        Ok(Self { spec, payload, disks: files, choice, longest_command_line })
    }

    /// Warnings about disks whose names say raw and whose first bytes say qcow2.
    fn doubts(&self, args: &RunArgs) -> Vec<String> {
        let disks = self.spec.machine.disks.iter().filter(|_| args.format.is_empty());
        let doubtful = disks.filter(|disk| disk.format.contradicts_name(&disk.path));
        let warning = |disk: &DiskSpec| {
            format!(
                "warning: {} is qcow2 by its first bytes, which the guest of a raw disk can write: give --format qcow2 or \
                 --format raw",
                display::clean::escaped(&disk.path.to_string_lossy())
            )
        };
        doubtful.map(warning).collect()
    }
}

/// Files of a run, open and as far as possible locked, before it is known what is in them.
struct FoundFiles {
    /// The files as the reader of images gets them: for reading alone.
    guest: BootFiles,
    /// IMAGE as a disk. An error counts only if IMAGE is a disk.
    image: Result<(DiskSpec, File), ImageError>,
    /// Other disks.
    others: Vec<(DiskSpec, File)>,
}

impl FoundFiles {
    fn open(args: &RunArgs) -> Result<Self, Error> {
        let (image_format, other_formats) = given_formats(&args.format, args.disk.len());
        let disk = |path: &PathBuf, format| {
            // The portable host's QEMU runs with the same working directory, but names like `nbd:x` mean
            // something to it that absolute ones do not.
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let disk = DiskSpec::new(absolute, format, disk_mode(args))?;
            let file = disk.open_locked()?;
            Ok::<_, ImageError>((disk, file))
        };
        let opened = NamedFile::image(&args.image)?;
        let format = ImageFormat::choose(image_format, &opened.file, &args.image)?;
        let image = disk(&args.image, image_format);
        // The format that counts is that of the locked file.
        let (format, image_file) = match &image {
            Ok((disk, file)) => (disk.format, disk.read_only(file)?),
            Err(_) => (format, opened.file),
        };
        let initrd = args.initrd.as_deref().map(NamedFile::initrd).transpose()?;
        let kernel = args.kernel.as_deref().map(NamedFile::kernel).transpose()?;
        let others = args.disk.iter().zip(other_formats).map(|(path, format)| disk(path, format));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let passed = |(disk, file): &(DiskSpec, File)| {
            Ok((NamedFile { path: disk.path.clone(), file: disk.read_only(file)? }, disk.format))
        };
        let guest = BootFiles {
            image: NamedFile { path: args.image.clone(), file: image_file },
            format,
            kernel,
            initrd,
            disks: others.iter().map(passed).collect::<Result<_, ImageError>>()?,
            command: !args.command.is_empty(),
        };
        Ok(Self { guest, image, others })
    }

    /// Returns the guest's disks, with their files open and locked, after a reader has accepted them.
    fn disks(self, args: &RunArgs, has_image: bool) -> Result<(Vec<DiskSpec>, Vec<File>), Error> {
        let image = if has_image { Some(self.image?) } else { None };
        let disks: Vec<_> = image.into_iter().chain(self.others).collect();
        check_formats(&args.format, disks.len())?;
        disks.iter().try_for_each(|(disk, file)| disk.refuse_named_file(file))?;
        Ok(disks.into_iter().unzip())
    }
}

/// Returns the formats that were given: of IMAGE, and of each other disk. A list has one for IMAGE if it is
/// longer than the other disks.
fn given_formats(formats: &[ImageFormat], others: usize) -> (Option<ImageFormat>, Vec<Option<ImageFormat>>) {
    match formats {
        [] => (None, vec![None; others]),
        [all] => (Some(*all), vec![Some(*all); others]),
        list => {
            let (image, rest) = list.split_at(list.len().saturating_sub(others).min(1));
            let rest = rest.iter().copied().map(Some).chain(std::iter::repeat(None));
            (image.first().copied(), rest.take(others).collect())
        }
    }
}

/// Checks that a list of formats has one for each disk.
fn check_formats(formats: &[ImageFormat], disks: usize) -> Result<(), UsageError> {
    if formats.len() > 1 && formats.len() != disks {
        return Err(UsageError::Formats { formats: formats.len(), disks });
    }
    Ok(())
}

/// Hands the command after `--`, if there is one, to the guest: in its initrd if that is made for it, else by
/// the returned [`GuestCommand`].
fn take_command(args: &RunArgs, loaded: &mut LoadedBoot, seed: u64) -> Result<Option<GuestCommand>, Error> {
    let words = &args.command;
    if words.is_empty() {
        return Ok(None);
    }
    let LoadedBoot { facts, payload } = loaded;
    if facts.takes_command {
        let archive = disk_images::command::archive(words)?;
        let failed = |source| Error::System { action: "add the command to the initrd", source };
        return payload.append(&archive).map(|()| None).map_err(failed);
    }
    if !facts.is_disk || facts.has_systemd == Some(false) {
        return Err(disk_images::command::refuse(facts.has_initrd).into());
    }
    disk_images::command::check_length(words)?;
    Ok(Some(GuestCommand::new(words, seed, disk_mode(args) == DiskMode::ReadWrite)))
}

/// Fate of the guest's writes to its disks.
fn disk_mode(args: &RunArgs) -> DiskMode {
    if args.snapshot {
        DiskMode::Snapshot
    } else if args.read_only {
        DiskMode::ReadOnly
    } else {
        DiskMode::ReadWrite
    }
}

fn meta(args: &RunArgs, kernel_file: &str) -> Vec<(String, String)> {
    let words = |words: &[OsString]| words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let mut rows = vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("image", shown(&args.image)),
        ("kernel_file", kernel_file.to_owned()),
        ("memory_bytes", args.memory.to_string()),
        ("snapshot", args.snapshot.to_string()),
    ];
    if !args.command.is_empty() {
        rows.push(("command", words(&args.command)));
    }
    if !args.trip.is_empty() {
        rows.push(("trips", trips::names(args).join(", ")));
    }
    rows.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns true if a command in the initrd has the console as its terminal: a person sits there, or it was
/// asked for.
fn takes_console(args: &RunArgs) -> bool {
    args.command.is_empty() || args.console.is_some() || terminal::is_interactive()
}

/// Returns the targets of the streams. A command with separate output has standard output, wherever the
/// console goes.
fn streams(args: &RunArgs, own_output: bool) -> Result<Streams, Error> {
    let (console, keys) = console_target(args, own_output)?;
    let shown = own_output && !args.recording.json && !args.recording.top;
    let output = if shown { ConsoleTarget::Stdout } else { ConsoleTarget::None };
    Ok(Streams { console, keys, output })
}

/// Returns the target of the console and the source of its input. By default the console is shown for a
/// command without separate output only: else the terminal has the progress, and Ctrl-C ends the run.
fn console_target(args: &RunArgs, own_output: bool) -> Result<(ConsoleTarget, KeySource), Error> {
    let interactive = terminal::is_interactive();
    let wanted = match args.console.as_deref() {
        None if args.recording.json || args.recording.top || own_output => None,
        None if !args.command.is_empty() => Some(Path::new("-")),
        None => None,
        Some(place) => Some(place),
    };
    match wanted {
        Some(place) if place == "-" || place == "stdout" => {
            if args.recording.top {
                return Err(UsageError::TopAndConsole.into());
            }
            if args.recording.json {
                return Err(UsageError::JsonAndConsole.into());
            }
            let keys = if interactive {
                KeySource::Terminal
            } else if args.console.is_some() && !io::stdin().is_terminal() {
                // A pipe's bytes are read only if the user names the console: a script's own input, such as a
                // list that a loop reads, is not the guest's.
                KeySource::Stream
            } else {
                KeySource::None
            };
            Ok((ConsoleTarget::Stdout, keys))
        }
        Some(place) if place != "none" => Ok((ConsoleTarget::File(console_file(place)?), KeySource::None)),
        _ => Ok((ConsoleTarget::None, KeySource::None)),
    }
}

/// Creates the console's file for its user alone, or empties a file that exists. A profile is not replaced.
fn console_file(place: &Path) -> Result<File, Error> {
    if place.is_file() && is_database(place) {
        return Err(Error::ConsoleOverProfile(place.to_owned()));
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(PRIVATE);
    options.open(place).map_err(|error| Error::file("create", place, error))
}

/// Formats a path for a row of `meta`.
fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Runs the command `guest-half`: the guest of another vprof, in this process.
pub fn guest_half(job: i32) -> Result<ExitCode, Error> {
    half::main(job).map_err(|source| Error::System { action: "send the guest's outcome", source })?;
    Ok(ExitCode::Done)
}

/// Runs the command `image-reader`: reads images of another vprof.
pub fn image_reader(job: i32) -> Result<ExitCode, Error> {
    reader::main(job).map_err(|source| Error::System { action: "send the reader's answer", source })?;
    Ok(ExitCode::Done)
}

/// Runs the guest on the chosen host.
async fn start(
    args: &RunArgs,
    plan: RunPlan,
    chosen: &Chosen,
    link: Link,
    tables: live::SharedTables,
) -> Result<Outcome, Error> {
    let RunPlan { mut spec, payload, disks, choice: _, longest_command_line: _ } = plan;
    spec.meta.push(("host".to_owned(), chosen.name().to_owned()));
    spec.meta.push(("host_reason".to_owned(), chosen.why.clone()));
    let create = |force| -> Result<Box<dyn Sink>, CreateError> {
        // Tables of a host that was restarted are discarded.
        *tables.lock() = live::Tables::default();
        let writer = args.recording.create(force)?;
        Ok(Box::new(live::LiveSink::new(Box::new(writer), tables.clone())))
    };
    let wishes = half::Wishes { disks, payload };
    match &chosen.host {
        Host::Portable(setup) => {
            let open_sink = |restarts| create(args.recording.force || restarts > 0);
            Ok(outer::run(setup, &spec, wishes, link, open_sink).await?)
        }
        Host::Kvm | Host::Tcg(_) => {
            let qemu = if let Host::Tcg(qemu) = &chosen.host { Some(qemu) } else { None };
            half::run(qemu, &spec, wishes, link, || Ok::<_, Error>(create(args.recording.force)?)).await
        }
    }
}

/// Returns the exit code for the end of a run.
fn judge(args: &RunArgs, recorded: &Recorded) -> Result<ExitCode, Error> {
    let Recorded { outcome, last_lines, console_on_stdout, .. } = recorded;
    let last = || {
        if *console_on_stdout || last_lines.is_empty() {
            String::new()
        } else {
            format!("\nits console's last lines:\n  {}", last_lines.join("\n  "))
        }
    };
    if let Some(error) = &outcome.totals.sink_error {
        return Err(Error::Sink(error.clone()));
    }
    if let Some(reason) = &outcome.totals.trip_refused {
        return Err(Error::Trip(reason.clone()));
    }
    let panicked = last_lines.iter().find(|line| line.contains("Kernel panic - not syncing"));
    let GuestEnd::Ran(end) = &outcome.end else { return Ok(ExitCode::Done) };
    match end {
        MachineEnd::Failed(reason) => Err(Error::Guest(format!("{reason}{}", last()))),
        MachineEnd::Reset if panicked.is_some() => {
            let line = panicked.map_or("", String::as_str);
            Err(Error::Guest(format!("{line}{}", last())))
        }
        MachineEnd::Exited(code) => match u8::try_from(*code) {
            Ok(0) => Ok(ExitCode::Done),
            Ok(code) => Ok(ExitCode::Guest(code)),
            Err(_) => Err(Error::Guest(format!("it reported {code} as exit status, which ends at 255"))),
        },
        MachineEnd::Stopped if outcome.totals.kernel_gone => Err(Error::Guest(format!(
            "it started another kernel (kexec), and its command ended with the first{}",
            last()
        ))),
        // A run with a command has no other condition.
        MachineEnd::Stopped if outcome.totals.seen.until_ns.is_some() => Err(Error::Guest(format!(
            "it came up in emergency or rescue mode, where no command runs{}",
            last()
        ))),
        MachineEnd::PowerOff | MachineEnd::Reset if !args.command.is_empty() => {
            Err(Error::Guest(format!("it ended before its command did{}", last())))
        }
        MachineEnd::PowerOff | MachineEnd::Reset | MachineEnd::Stopped => Ok(ExitCode::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_for_all_disks_or_one_for_each() {
        use ImageFormat::{Qcow2, Raw};
        use clap::Parser;
        let formats = |words: &[&str]| {
            let words = [&["vprof", "run", "x.img"][..], words].concat();
            let cli = crate::args::Cli::try_parse_from(words).unwrap();
            let crate::args::CliCommand::Run(args) = cli.command else { panic!("a run") };
            args.format
        };
        assert_eq!(given_formats(&formats(&[]), 1), (None, vec![None]));
        assert_eq!(given_formats(&formats(&["--format", "raw"]), 1), (Some(Raw), vec![Some(Raw)]));
        let both = formats(&["--format", "qcow2,raw", "--disk", "y.img"]);
        assert_eq!(given_formats(&both, 1), (Some(Qcow2), vec![Some(Raw)]));
        // IMAGE is a kernel, or the list is too short.
        assert_eq!(given_formats(&both, 2), (None, vec![Some(Qcow2), Some(Raw)]));
        assert_eq!(given_formats(&both, 3), (None, vec![Some(Qcow2), Some(Raw), None]));
        assert!(check_formats(&both, 2).is_ok() && check_formats(&both[..1], 3).is_ok());
        let refused = check_formats(&both, 3).unwrap_err().to_string();
        assert!(refused.contains("2 formats for 3 disks"), "{refused}");
        assert!(crate::args::Cli::try_parse_from(["vprof", "run", "x", "--format", "vmdk"]).is_err());
    }

    #[test]
    fn a_console_file_is_private_and_never_a_profile() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console");
        drop(console_file(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, b"an older console").unwrap();
        drop(console_file(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        std::fs::write(&path, b"SQLite format 3\0 and samples").unwrap();
        assert!(matches!(console_file(&path), Err(Error::ConsoleOverProfile(_))));
        assert!(std::fs::read(&path).unwrap().ends_with(b"samples"));
        drop(console_file(Path::new("/dev/null")).unwrap());
    }

    #[test]
    fn a_commands_output_is_shown_wherever_the_console_goes() {
        use clap::Parser;
        let shown = |words: &[&str]| {
            let words = [&["vprof", "run", "x.img"][..], words, &["--", "true"][..]].concat();
            let cli = crate::args::Cli::try_parse_from(words).unwrap();
            let crate::args::CliCommand::Run(args) = cli.command else { panic!("a run") };
            matches!(streams(&args, true).unwrap().output, ConsoleTarget::Stdout)
        };
        assert!(shown(&[]) && shown(&["--console", "none"]) && shown(&["--console", "/dev/null"]));
        assert!(!shown(&["--json"]), "standard output is for the report");
    }
}
