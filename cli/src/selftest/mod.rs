//! `vprof selftest`: the accuracy of vprof on this machine, checked by guests that measure themselves.
//!
//! The guests boot a kernel of this machine with this program as their only file ([`guest`]), and are
//! profiled as by `vprof run`. The figures of the profiles are compared with those of the guests
//! ([`measure`]).

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

pub use check::{CheckVerdict, SelftestCheck, ValueUnit};
pub use machine::MachineFacts;

use crate::args::{Cli, CliCommand, RunArgs, SelftestArgs};
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{ignore_closed_pipe, write_json, write_text};
use crate::run;
use crate::run::recording::Recorded;
use ::render::PageLayout;
use guest::GuestLoad;
use measure::GuestResults;

/// Memory of a guest, bytes: the program is in it twice while the initial file system is unpacked.
const MEMORY: u64 = 1 << 30;
/// Longest time of a guest; an emulated one on a busy machine takes a minute.
const LIMIT: Duration = Duration::from_secs(300);
/// Restarts of a guest in the portable host after faults of its emulation.
const REPEATS: u32 = 1;

/// Result of the self-test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelftestOutcome {
    /// vprof's version, with its commit.
    pub version: String,
    /// No check failed.
    pub passed: bool,
    /// The machine.
    pub machine: MachineFacts,
    /// `kvm` or `portable`.
    pub host: String,
    /// Reason for the host.
    pub host_reason: String,
    /// Release of the guests' kernel, from their memory.
    pub guest_kernel: Option<String>,
    /// File of the guests' kernel.
    pub kernel_file: PathBuf,
    /// All comparisons.
    pub checks: Vec<SelftestCheck>,
}

/// A guest, and the options of its profile.
struct GuestPlan {
    name: &'static str,
    load: GuestLoad,
    rate_hz: f64,
    exact: bool,
}

/// Runs the command.
pub fn command(args: &SelftestArgs) -> Result<ExitCode, Error> {
    if args.host == HostChoice::Tcg {
        return Err(Error::Usage(UsageError::SelftestWithoutKvm));
    }
    let portable = args.portable_host.as_deref();
    let chosen = choice::choose(args.host, portable, args.host_timeout)?;
    let kernel = payload::find_kernel(args.kernel.as_deref(), portable)?;
    display::stderr_line!("vprof: {}", chosen.sentence());
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
        display::stderr_line!("vprof: guest {} of 3: {}", finished.len() + 1, planned.name);
        finished.push(run_guest(args, &planned, &kernel, &directory)?);
    }
    let [shares, switches, unsampled] = finished.as_slice() else {
        return Err(Error::Guest("a guest of the self-test is missing".to_owned()));
    };
    let mut checks = shares.shares(exe::has_symbols().map_err(PortableError::Program)?)?;
    checks.push(shares.slowdown(unsampled));
    checks.extend(switches.switches()?);
    let outcome = SelftestOutcome {
        version: env!("VPROF_VERSION").to_owned(),
        passed: checks.iter().all(|check| check.judgement != CheckVerdict::Failed),
        machine: MachineFacts::read(),
        host: chosen.name().to_owned(),
        host_reason: chosen.why.clone(),
        guest_kernel: shares.report.kernel.clone(),
        kernel_file: kernel,
        checks,
    };
    ignore_closed_pipe(match args.json {
        true => write_json(&outcome),
        false => write_text(&render::render(&outcome, PageLayout::stdout())),
    })?;
    Ok(if outcome.passed { ExitCode::Done } else { ExitCode::Failed })
}

/// Returns the guests. An emulated one takes seconds until vprof finds its kernel, so it sleeps for longer.
fn plan(emulated: bool) -> [GuestPlan; 3] {
    let load =
        GuestLoad { sleep_ms: if emulated { 8_000 } else { 3_000 }, shares_ms: 0, switches: 0, rounds_ms: 0 };
    let rounds_ms = 3_000;
    [
        GuestPlan {
            name: "shares",
            load: GuestLoad { shares_ms: 9_000, rounds_ms, ..load },
            rate_hz: 1_000.0,
            exact: false,
        },
        GuestPlan {
            name: "switches",
            load: GuestLoad { switches: if emulated { 500 } else { 20_000 }, ..load },
            rate_hz: 100.0,
            exact: true,
        },
        GuestPlan {
            name: "rarely sampled",
            load: GuestLoad { rounds_ms, ..load },
            rate_hz: 1.0,
            exact: false,
        },
    ]
}

/// Boots and profiles one guest.
fn run_guest(
    args: &SelftestArgs,
    planned: &GuestPlan,
    kernel: &Path,
    directory: &Path,
) -> Result<GuestResults, Error> {
    let initrd = directory.join("selftest.initrd");
    let bytes = payload::make_initrd(&planned.load)?;
    std::fs::write(&initrd, bytes).map_err(|e| Error::file("write", &initrd, e))?;
    let run = run_args(args, planned, kernel, &initrd, directory)?;
    let finished = run::once(&run, Vec::new()).and_then(|recorded| judge(&recorded, &run));
    std::fs::remove_file(&initrd).map_err(|e| Error::file("remove", &initrd, e))?;
    finished
}

/// Reads the profile of a run, if the run did not fail.
fn judge(recorded: &Recorded, run: &RunArgs) -> Result<GuestResults, Error> {
    if recorded.interrupted {
        let source = std::io::ErrorKind::Interrupted.into();
        return Err(Error::System { action: "finish the self-test", source });
    }
    match (&recorded.outcome.totals.sink_error, &recorded.outcome.end) {
        (Some(error), _) => Err(Error::Sink(error.clone())),
        (None, GuestEnd::Ran(MachineEnd::Failed(reason))) => Err(Error::Guest(reason.clone())),
        _ => GuestResults::read(&run.recording.output),
    }
}

/// Makes the arguments of `vprof run` for a guest.
fn run_args(
    args: &SelftestArgs,
    planned: &GuestPlan,
    kernel: &Path,
    initrd: &Path,
    directory: &Path,
) -> Result<RunArgs, Error> {
    let words = ["vprof".as_ref(), "run".as_ref(), kernel.as_os_str()];
    let Ok(Cli { command: CliCommand::Run(run), .. }) = Cli::try_parse_from(words) else {
        return Err(UsageError::KernelName(kernel.to_owned()).into());
    };
    let mut run = *run;
    run.initrd = Some(initrd.to_owned());
    run.memory = MEMORY;
    // The kernel may be that of a disk image.
    run.snapshot = true;
    run.host = args.host;
    run.portable_host = args.portable_host.clone();
    run.host_timeout = args.host_timeout;
    run.seccomp = args.seccomp;
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
    use sandbox::SyscallPolicy;

    use super::*;

    #[test]
    fn a_guests_command_line_is_quiet_and_keeps_its_profile_apart() {
        let args = SelftestArgs {
            kernel: None,
            host: HostChoice::Portable,
            portable_host: Some("/p".into()),
            host_timeout: Duration::from_secs(7),
            seccomp: SyscallPolicy::Off,
            keep: None,
            json: false,
        };
        let [shares, switches, unsampled] = plan(false);
        let arguments =
            |planned| run_args(&args, planned, Path::new("/k"), Path::new("/i"), Path::new("/d")).unwrap();
        let run = arguments(&shares);
        assert_eq!((run.image.as_path(), run.initrd.as_deref()), (Path::new("/k"), Some(Path::new("/i"))));
        assert_eq!((run.host, run.host_timeout), (HostChoice::Portable, Duration::from_secs(7)));
        assert_eq!(run.seccomp, SyscallPolicy::Off);
        assert!(run.recording.quiet && !run.exact && arguments(&switches).exact);
        let outputs = [&shares, &switches, &unsampled].map(|planned| arguments(planned).recording.output);
        assert_eq!(outputs[2], Path::new("/d/rarely-sampled.vprof"));
        assert!(outputs[0] != outputs[1]);
    }
}
