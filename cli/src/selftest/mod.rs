//! `vprof selftest`: whether vprof measures right on this machine, by guests that measure themselves.
//!
//! The guests boot a kernel of this machine with this very program as their only file ([`guest`]), are profiled as
//! `vprof run` profiles any guest, and what the profiles say is compared with what the guests said ([`measure`]).

mod check;
pub mod guest;
mod machine;
mod measure;
mod payload;
mod render;
mod work;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use host::choice::{self, Host, HostChoice};
use host::portable::{PortableError, exe};
use host::spec::GuestEnd;
use serde::{Deserialize, Serialize};
use vmm::MachineEnd;

pub use check::{Check, Judgement, Unit};
pub use machine::Machine;

use crate::args::{Cli, Command, RunArgs, SelftestArgs};
use crate::errors::{Error, ExitCode};
use crate::output::{write_json, write_text};
use crate::render::Page;
use crate::run;
use crate::run::recording::Recorded;
use guest::Load;
use measure::Finished;

/// Memory of a guest, bytes: the program is in it twice while the initial file system is unpacked.
const MEMORY: u64 = 1 << 30;
/// A guest that takes longer has failed; an emulated one on a busy machine takes a minute.
const LIMIT: Duration = Duration::from_secs(300);
/// Restarts of a guest in the portable host after faults of its emulation.
const REPEATS: u32 = 1;

/// What the self-test came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// vprof's version, with its commit.
    pub version: String,
    /// No check failed.
    pub passed: bool,
    /// The machine.
    pub machine: Machine,
    /// `kvm` or `portable`.
    pub host: String,
    /// Why the guests ran there.
    pub host_reason: String,
    /// Release of the guests' kernel, as it was found in their memory.
    pub guest_kernel: Option<String>,
    /// Its file.
    pub kernel_file: PathBuf,
    /// All comparisons.
    pub checks: Vec<Check>,
}

/// One guest, and how it is profiled.
struct Planned {
    name: &'static str,
    load: Load,
    rate_hz: f64,
    exact: bool,
}

/// Runs the command.
pub fn command(args: &SelftestArgs) -> Result<ExitCode, Error> {
    if args.host == HostChoice::Tcg {
        return Err(Error::Usage(
            "the self-test needs exact mode, which --host tcg does not have".to_owned(),
        ));
    }
    let portable = args.portable_host.as_deref();
    let chosen = choice::choose(args.host, portable, args.host_timeout)?;
    let kernel = payload::find_kernel(args.kernel.as_deref(), portable)?;
    eprintln!("vprof: {}", chosen.sentence());
    let emulated = matches!(chosen.host, Host::Portable(_));
    let temporary =
        tempfile::tempdir().map_err(|e| Error::file("create a directory in", &std::env::temp_dir(), e))?;
    let directory = match &args.keep {
        Some(directory) => {
            std::fs::create_dir_all(directory).map_err(|e| Error::file("create", directory, e))?;
            directory.clone()
        }
        None => temporary.path().to_owned(),
    };
    let mut finished = Vec::new();
    for planned in plan(emulated) {
        eprintln!("vprof: guest {} of 3: {}", finished.len() + 1, planned.name);
        finished.push(run_guest(args, &planned, (&kernel, &directory))?);
    }
    let [shares, switches, unsampled] = finished.as_slice() else {
        return Err(Error::Guest("a guest of the self-test is missing".to_owned()));
    };
    let mut checks = shares.shares(exe::has_symbols().map_err(PortableError::Program)?)?;
    checks.push(shares.slowdown(unsampled));
    checks.extend(switches.switches()?);
    let outcome = Outcome {
        version: env!("VPROF_VERSION").to_owned(),
        passed: checks.iter().all(|check| check.judgement != Judgement::Failed),
        machine: Machine::read(),
        host: chosen.name().to_owned(),
        host_reason: chosen.why.clone(),
        guest_kernel: shares.report.kernel.clone(),
        kernel_file: kernel,
        checks,
    };
    if args.json {
        write_json(&outcome)?;
    } else {
        write_text(&render::render(&outcome, Page::stdout()))?;
    }
    Ok(if outcome.passed { ExitCode::Done } else { ExitCode::Failed })
}

/// The guests. An emulated one takes seconds until its kernel is found, and runs its work no faster.
fn plan(emulated: bool) -> [Planned; 3] {
    let load =
        Load { sleep_ms: if emulated { 8_000 } else { 3_000 }, shares_ms: 0, switches: 0, rounds_ms: 0 };
    let rounds_ms = 3_000;
    [
        Planned {
            name: "shares",
            load: Load { shares_ms: 9_000, rounds_ms, ..load },
            rate_hz: 1_000.0,
            exact: false,
        },
        Planned {
            name: "switches",
            load: Load { switches: if emulated { 500 } else { 20_000 }, ..load },
            rate_hz: 100.0,
            exact: true,
        },
        Planned { name: "hardly sampled", load: Load { rounds_ms, ..load }, rate_hz: 1.0, exact: false },
    ]
}

/// Boots and profiles one guest.
fn run_guest(
    args: &SelftestArgs,
    planned: &Planned,
    (kernel, directory): (&Path, &Path),
) -> Result<Finished, Error> {
    let initrd = directory.join("selftest.initrd");
    let bytes = payload::make_initrd(&planned.load)?;
    std::fs::write(&initrd, bytes).map_err(|e| Error::file("write", &initrd, e))?;
    let run = run_args(args, planned, (kernel, &initrd), directory)?;
    let finished = run::once(&run, Vec::new()).and_then(|recorded| judge(&recorded, &run));
    std::fs::remove_file(&initrd).map_err(|e| Error::file("remove", &initrd, e))?;
    finished
}

/// The profile of a run, if nothing went wrong in it.
fn judge(recorded: &Recorded, run: &RunArgs) -> Result<Finished, Error> {
    if recorded.interrupted {
        let source = std::io::ErrorKind::Interrupted.into();
        return Err(Error::System { action: "finish the self-test", source });
    }
    match (&recorded.outcome.totals.sink_error, &recorded.outcome.end) {
        (Some(error), _) => Err(Error::Sink(error.clone())),
        (None, GuestEnd::Ran(MachineEnd::Failed(reason))) => Err(Error::Guest(reason.clone())),
        _ => Finished::read(&run.recording.output),
    }
}

/// The command line of `vprof run` for a guest.
fn run_args(
    args: &SelftestArgs,
    planned: &Planned,
    (kernel, initrd): (&Path, &Path),
    directory: &Path,
) -> Result<RunArgs, Error> {
    let words = ["vprof".as_ref(), "run".as_ref(), kernel.as_os_str()];
    let Ok(Cli { command: Command::Run(run) }) = Cli::try_parse_from(words) else {
        return Err(Error::Usage(format!("{} can't be a kernel's file name", kernel.display())));
    };
    let mut run = *run;
    run.initrd = Some(initrd.to_owned());
    run.memory = MEMORY;
    // A disk image with a kernel is one, too.
    run.snapshot = true;
    run.host = args.host;
    run.portable_host = args.portable_host.clone();
    run.host_timeout = args.host_timeout;
    run.retry = Some(REPEATS);
    run.console = Some(PathBuf::from("none"));
    run.exact = planned.exact;
    run.recording.rate = planned.rate_hz;
    run.recording.duration = Some(LIMIT);
    run.recording.output = directory.join(format!("{}.vprof", planned.name.replace(' ', "-")));
    run.recording.force = true;
    run.recording.quiet = true;
    run.recording.control = Some(PathBuf::from("none"));
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_command_line_is_quiet_and_keeps_its_profile_apart() {
        let args = SelftestArgs {
            kernel: None,
            host: HostChoice::Portable,
            portable_host: Some("/p".into()),
            host_timeout: Duration::from_secs(7),
            keep: None,
            json: false,
        };
        let [shares, switches, unsampled] = plan(false);
        let of =
            |planned| run_args(&args, planned, (Path::new("/k"), Path::new("/i")), Path::new("/d")).unwrap();
        let run = of(&shares);
        assert_eq!((run.image.as_path(), run.initrd.as_deref()), (Path::new("/k"), Some(Path::new("/i"))));
        assert_eq!((run.host, run.host_timeout), (HostChoice::Portable, Duration::from_secs(7)));
        assert!(run.recording.quiet && !run.exact && of(&switches).exact);
        let outputs = [&shares, &switches, &unsampled].map(|planned| of(planned).recording.output);
        assert_eq!(outputs[2], Path::new("/d/hardly-sampled.vprof"));
        assert!(outputs[0] != outputs[1]);
    }
}
