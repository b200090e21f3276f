//! Errors as the user reads them, and the exit code of each.
//!
//! Each crate has its own error enums, whose messages are whole sentences: what failed, where, and what to
//! do. [`Error`] joins them, and those of the commands, and maps them to exit codes. This module imports no
//! other module of the crate, so that every command can use it.

#[cfg(feature = "fleet")]
mod fleet;

use std::io;
use std::path::{Path, PathBuf};

use control::ControlError;
use disk_images::ImageError;
use display::message::{Reason, Shown};
use host::{
    AttachedError, GuestError, HalfError, HostError, NetworkError, PortableError, ReaderError, Stage,
};
use profile::merge::MergeError;
use profile::report::ReportError;
use profile::store::{CreateError, EditError, ProfileError, QueryError};
use tui::ViewError;
use vmm::StartError;

#[cfg(feature = "fleet")]
pub use fleet::FleetError;

/// Exit code of `vprof`, as documented in its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// Done.
    Done,
    /// Failed.
    Failed,
    /// The command line was wrong.
    Usage,
    /// An expectation that was given on the command line was not met.
    Expectation,
    /// No hypervisor is usable here.
    NoHypervisor,
    /// The guest's command ended with this code.
    Guest(u8),
}

impl ExitCode {
    /// Returns the number for `exit(2)`.
    pub fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Expectation => 3,
            Self::NoHypervisor => 4,
            Self::Guest(code) => code,
        }
    }
}

/// Any failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line was wrong in a way that the parser does not find.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// An image, kernel or initrd can't be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The reader of images has no result.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// The guest's machine cannot be set up.
    #[error(transparent)]
    Start(#[from] StartError),
    /// No host can run the guest.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The guest's network is not available.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The portable host failed.
    #[error(transparent)]
    Portable(#[from] PortableError),
    /// The profile can't be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The profile has no such part. The message has names from the guest.
    #[error("{}", display::clean::escaped(&.0.to_string()))]
    Report(#[from] ReportError),
    /// The profile can't be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Profiles can't be merged.
    #[error("{}", display::clean::escaped(&.0.to_string()))]
    Merge(#[from] MergeError),
    /// A command for many hosts failed.
    #[cfg(feature = "fleet")]
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The profile can't be changed.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The profile has no CPU accounting of the guest.
    #[error(
        "{} has no CPU accounting of the guest: its kernel, or its layout, was not found \
         (`vprof report` shows what is missing)", .0.display()
    )]
    NoAccounting(PathBuf),
    /// No server of debug files has answered; the number of files.
    #[error(
        "no debug file was found, and the servers of DEBUGINFOD_URLS could not answer for {}: the reasons are in the list",
        display::units::counted(u64::try_from(*.0).unwrap_or(u64::MAX), "file")
    )]
    NoAnswer(usize),
    /// A query failed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A run in progress can't be reached, or refused the request.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The run was aborted at the user's second request.
    #[error("aborted; the profile has the data recorded so far")]
    Interrupted,
    /// The output exists.
    #[error(
        "{} exists: give another name with -o, or --force to replace it",
        Shown(.0)
    )]
    OutputExists(PathBuf),
    /// The output is a directory.
    #[error("{} is a directory: name a file in it with -o", Shown(.0))]
    OutputDirectory(PathBuf),
    /// An existing output is not a profile and is left alone.
    #[error("{} exists and is not a profile: --force replaces profiles only", Shown(.0))]
    OutputForeign(PathBuf),
    /// The name of the profile before is another file's.
    #[error("{} is not a profile, and the profile of the run before would replace it: give a name with -o", Shown(.0))]
    OlderForeign(PathBuf),
    /// A profile has no data.
    #[error("{}", ViewError::NoData(.0.clone()))]
    NoData(PathBuf),
    /// A file to inspect is not a disk image.
    #[error(
        "{} has no partition table and no file system that vprof knows: it is blank, or not a disk image", Shown(.0)
    )]
    NotADisk(PathBuf),
    /// Runs can't be compared. The message has names from the guest.
    #[error("{}", display::clean::escaped(&.0.to_string()))]
    Diff(#[from] profile::diff::DiffError),
    /// A baseline of boots can't be used.
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    /// An export would replace a file.
    #[error("{} exists: give another name with -o, or --force to replace it", Shown(.0))]
    ExportExists(PathBuf),
    /// An export would replace a profile.
    #[error("{} is a profile or another database, which vprof does not replace: give another name with -o", Shown(.0))]
    ExportOverProfile(PathBuf),
    /// The console would replace a profile.
    #[error("{} is a profile or another database, which vprof does not replace: give --console another file", Shown(.0))]
    ConsoleOverProfile(PathBuf),
    /// An export failed. The message has names from the guest.
    #[error("{}", display::clean::escaped(&.0.to_string()))]
    Export(#[from] ::export::ExportError),
    /// A guest could not be run to its end.
    #[error(transparent)]
    Run(#[from] GuestError),
    /// The guest's process could not run it to its end.
    #[error(transparent)]
    Half(#[from] HalfError),
    /// A virtual machine of another VMM can't be profiled to its end.
    #[error(transparent)]
    Attached(#[from] AttachedError),
    /// The guest or its processor failed.
    #[error("the guest failed: {0}")]
    Guest(String),
    /// Functions could not be watched. The message has names from the guest, in printable form.
    #[error("--trip: {0}")]
    Trip(String),
    /// The profile could not be written to its end.
    #[error("{0}; the data written before is readable")]
    Sink(String),
    /// An operation on a file failed.
    #[error("can't {action} {}: {}", Shown(.path), Reason(.source))]
    File {
        /// Like "read" or "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory of temporary files takes none.
    #[error(
        "can't write a file in {}: {}; name another directory with TMPDIR, or a file with -o", Shown(.path), Reason(.source)
    )]
    Temporary {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An operation on the system failed.
    #[error("can't {action}: {}", Reason(.source))]
    System {
        /// Like "wait for signals".
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Wrong use of the command line that the parser does not find.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// A part of vprof that was left out of this build.
    #[error(
        "this vprof was built without {0}, to build sooner: `cargo xtask install` installs one that has everything"
    )]
    NotBuilt(String),
    /// `.schema` of a table that a profile does not have.
    #[error("a profile has no table or view {name}: {advice}")]
    NoTable {
        /// Requested name, escaped.
        name: String,
        /// Nearest names, or the command that lists all.
        advice: String,
    },
    /// A live view without a terminal.
    #[error(
        "a live view needs a terminal as standard input and output: `vprof ctl tables` prints the same tables once"
    )]
    NoTerminal,
    /// A live view on a terminal without cursor control; the value of TERM.
    #[error(
        "a live view needs a terminal with cursor control, and TERM is \"{}\": `vprof ctl tables` prints the same \
         tables once",
        display::clean::escaped(.0)
    )]
    PlainTerminal(String),
    /// An interactive report without a terminal, or on one without cursor control.
    #[error(
        "--interactive needs a terminal with cursor control as standard input and output: without it the report is text"
    )]
    NoScreen,
    /// `attach` without a machine, where root sees none.
    #[error("no virtual machine runs on KVM here; --gdb is for QEMU without KVM")]
    NoVm,
    /// The same for another user.
    #[error(
        "no virtual machine runs on KVM that this user may see: as root, vprof sees those of all users; --gdb is for \
         QEMU without KVM"
    )]
    NoVisibleVm,
    /// `--top` and the console on the same terminal.
    #[error("--top and --console - both need the terminal: the live view has a pane for the console")]
    TopAndConsole,
    /// `--top` and the lines of a watch on the same terminal.
    #[error(
        "--top and --watch --json both need standard output: without --json, stalls are shown after the view"
    )]
    TopAndWatch,
    /// `--json` and the console on the same stream.
    #[error("--json and --console - both need standard output: give --console a file")]
    JsonAndConsole,
    /// A list of formats of another length than the disks.
    #[error("--format has {formats} formats for {disks} disks: give one, or one for each")]
    Formats {
        /// Number of formats.
        formats: usize,
        /// Number of disks.
        disks: usize,
    },
    /// A precision target without a random clock.
    #[error("--until-precision needs a random clock: with --clock fixed no interval is valid")]
    FixedClock,
    /// An option of `run` that does not apply to `boot`.
    #[error("{option} is an option of `vprof run`: {reason}")]
    RunOption {
        /// The option.
        option: &'static str,
        /// A clause about boots.
        reason: &'static str,
    },
    /// A feature that only a guest on KVM has.
    #[error("{option} is not for --host tcg: {reason}")]
    NeedsKvm {
        /// The option.
        option: &'static str,
        /// A clause about the guest.
        reason: &'static str,
    },
    /// More functions than there are probes; their number and the limit.
    #[error("--trip names {0} functions: give at most {1}")]
    TooManyTrips(usize, usize),
    /// The self-test without KVM.
    #[error("the self-test needs exact mode, which --host tcg does not have")]
    SelftestWithoutKvm,
    /// A time until a hang that is longer than the boot may take.
    #[error("--hang-after {hang_after} has no effect: the boot ends after {timeout} (--timeout)")]
    LateHang {
        /// The time until a hang.
        hang_after: String,
        /// The longest time of a boot.
        timeout: String,
    },
    /// A choice of rows that sums of exact mode do not have; the option.
    #[error("the sums of --exact are those of the whole run and of processes: use {0} with --timehist")]
    PartOfSums(&'static str),
    /// A limit on increases with one run of each side.
    #[error(
        "--fail-above needs two or more runs of each side, since runs of the same program differ: make them with \
         `vprof run --repeat 3` and give them with --before and --after, or judge these two with --single"
    )]
    SingleRuns,
    /// A second profile for a format that shows one.
    #[error("{0} shows one profile: use --base with --format html")]
    BaseWithoutHtml(::export::Format),
    /// Stacks of the host in a format that has none.
    #[error("{0} has no stacks of the host: use --host with --format flamegraph, folded or another one")]
    NoHostStacks(::export::Format),
    /// Calls of a watched function in a format that shows samples.
    #[error("{0} cannot show the calls of one function: use --trip with --format folded")]
    NoCalls(::export::Format),
    /// A page of HTML from this choice of samples.
    #[error(transparent)]
    Page(::export::PageError),
    /// No format is given, and the output's name has none; the names of all formats.
    #[error("cannot infer the format from the file name: choose one with --format ({0})")]
    UnknownFormat(String),
    /// A format on a terminal that is not for people.
    #[error("{0} is not a format to read on a terminal: give a file with -o")]
    BinaryToTerminal(::export::Format),
    /// A page to open that has no file.
    #[error(
        "a browser cannot open standard output: give a file with -o, or write the page with `vprof export -f html`"
    )]
    OpenStdout,
    /// Symbolization without a place of debug files.
    #[error(
        "no place of debug files is given: name a directory with --debug-dir or --symfs, or servers in DEBUGINFOD_URLS"
    )]
    NoDebugPlaces,
    /// A variable of debuginfod that has no meaning.
    #[error("{}", display::clean::escaped(&.0.to_string()))]
    Debuginfod(#[source] debuginfod::ConfigError),
    /// No kernel for the guests of the self-test.
    #[error(
        "can't read {}, the kernel of this machine, and there is no portable host with a kernel: give one with \
         --kernel FILE, or run this as root",
        Shown(.0)
    )]
    NoKernel(PathBuf),
    /// A name of a kernel that looks like an option.
    #[error("{} can't be a kernel's file name", Shown(.0))]
    KernelName(PathBuf),
}

/// Reason why a baseline of boots can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// The file is too large.
    #[error("{} is not a baseline of `vprof boot`: it is too large", Shown(.0))]
    TooLarge(PathBuf),
    /// The file is not JSON of this form.
    #[error("{} is not a baseline of `vprof boot`: {}", Shown(.path), display::clean::escaped(&.source.to_string()))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file has another version.
    #[error("{} is not a baseline of `vprof boot`: its version is {found}, and not {expected}", Shown(.path))]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version of this vprof.
        expected: u32,
    },
    /// The file has no boots.
    #[error("{} is not a baseline of `vprof boot`: it has no boots", Shown(.0))]
    NoBoots(PathBuf),
    /// The file has a time that is negative or not finite.
    #[error("{} is not a baseline of `vprof boot`: it has times that are not valid", Shown(.0))]
    InvalidTimes(PathBuf),
    /// The boots ran on another host.
    #[error(
        "the baseline is of the host \"{}\" and these boots of \"{}\": their times can't be compared",
        display::clean::escaped(.baseline),
        display::clean::escaped(.boots)
    )]
    OtherHost {
        /// Host of the baseline.
        baseline: String,
        /// Host of these boots.
        boots: String,
    },
}

impl From<ViewError> for Error {
    fn from(error: ViewError) -> Self {
        match error {
            ViewError::System { action, source } => Self::System { action, source },
            ViewError::Profile(error) => error.into(),
            ViewError::Report(error) => error.into(),
            ViewError::NoData(path) => Self::NoData(path),
        }
    }
}

impl Error {
    /// Makes the error of a failed operation on a file.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    /// Returns the exit code for the error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Diff(profile::diff::DiffError::Uneven { .. }) => ExitCode::Usage,
            #[cfg(feature = "fleet")]
            Self::Fleet(error) => error.exit_code(),
            error if error.stage() == Stage::Hypervisor => ExitCode::NoHypervisor,
            _ => ExitCode::Failed,
        }
    }

    /// Returns the stage of a run in which it failed, for the exit code. What becomes of the profile is the
    /// decision of its writer.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Host(error) => error.stage(),
            Self::Portable(error) => error.stage(),
            Self::Run(error) => error.stage(),
            Self::Half(error) => error.stage(),
            Self::Attached(_) | Self::Image(_) | Self::Reader(_) | Self::Start(_) | Self::File { .. } => {
                Stage::BeforeGuest
            }
            _ => Stage::Guest,
        }
    }

    /// Returns true if the reader of standard output, like `head`, has closed it: this needs no message.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
