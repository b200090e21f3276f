//! The command line.

#[cfg(feature = "fleet")]
mod agent;
mod attach;
mod boot;
mod ctl;
mod diff;
mod docs;
#[cfg(test)]
mod documented;
mod export;
mod filter;
#[cfg(feature = "fleet")]
mod fleet;
mod image;
#[cfg(test)]
#[cfg(feature = "fleet")]
mod keys;
mod mem;
mod merge;
mod open;
mod parse;
mod recording;
mod report;
mod run;
mod selftest;
mod short;
mod top;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Parser, Subcommand};
use display::csv::Formulas;
use display::parse::positive_time;

use crate::errors::UsageError;
use crate::output::is_database;
use render::ColorChoice;

#[cfg(feature = "fleet")]
pub use agent::{AgentArgs, AgentWindowArgs};
pub use attach::AttachArgs;
#[cfg(feature = "fleet")]
pub use attach::{Engine, VmChoice};
pub use boot::BootArgs;
pub use ctl::{CtlArgs, CtlCommand};
pub use diff::DiffArgs;
pub use docs::DocsArgs;
pub use export::ExportArgs;
pub use filter::FilterArgs;
#[cfg(feature = "fleet")]
pub use fleet::{FleetArgs, FleetCommand};
pub use image::{ImageCommand, InspectArgs};
pub use mem::MemArgs;
pub use merge::MergeArgs;
pub use open::OpenArgs;
#[cfg(feature = "fleet")]
pub use recording::hostname;
pub use recording::{RecordingArgs, file_identity};
pub use report::ReportArgs;
pub use run::{ConsoleDevice, RunArgs};
pub use selftest::SelftestArgs;
pub use short::with_short_help;
pub use top::TopArgs;

/// Name of a profile where none is given.
pub const DEFAULT_PROFILE: &str = "vprof.vprof";
/// Name of the profile before that.
pub const OLDER_PROFILE: &str = "vprof.vprof.old";

const TEMPLATE: &str = "\
{about-with-newline}
{before-help}{usage-heading} {usage}

{all-args}{after-help}";

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  the command line is wrong
  3  an expectation given on the command line was not met
  4  no usable hypervisor";

const EXAMPLES: &str = "\
Examples:
  vprof run guest.img -d 20s               boot it, profile it for 20 seconds
  vprof run guest.img -- gzip -k /big      profile one command
  vprof boot guest.img --until 'login:'    check that it comes up, and when
  vprof report vprof.vprof --by function   or by line, thread, system call ...
  vprof open                               the last profile in the browser
  vprof stat vprof.vprof                   where each vCPU's time went
  vprof top                                watch a session in progress, live
";

const ANNOTATE_EXAMPLES: &str = "\
Examples:
  vprof annotate clear_page_erms vprof.vprof
  vprof annotate deflate vprof.vprof --module gzip --intel
  vprof annotate 0xffffffff81a04d20 vprof.vprof --process gzip
";

const ANNOTATE_NOTES: &str = "\
`self` is the part of the function's own samples that hit an instruction, `below` the part of all \
samples with the function on their stack that were in what the instruction called, or in a fault or an interrupt that \
hit it. Instructions without samples are folded; -n 0 shows them. The sampled \
address is that of the instruction that was about to run.";

const RUSAGE_EXAMPLES: &str = "\
Examples:
  vprof rusage vprof.vprof
  vprof rusage vprof.vprof -p hog
  vprof rusage vprof.vprof --json | jq '.processes[] | select(.outside)'
";

const RUSAGE_NOTES: &str = "\
`reported` is what the guest's CPU accounting has, read from its memory: what getrusage, /proc/PID/stat \
and /proc/stat would show. vprof reads it every second, and every 0.2 s for processes that samples hit, so \
the last figures of a process are from shortly before its end. `measured` counts up to the same time. \
CPUs, and processes that were there before, count on both sides from the first reading of the \
accounting. docs/statistics.md describes how the measured times and their intervals are made.";

const STAT_EXAMPLES: &str = "\
Examples:
  vprof stat vprof.vprof                   the whole run
  vprof stat vprof.vprof --live            a run in progress, every second
  vprof stat vprof.vprof -1 --json         one second of it
  vprof stat vprof.vprof -C 0 -n 0         one vCPU, all rows
";

const STAT_NOTES: &str = "\
The states of a vCPU add up to its wall time: `guest` executes the guest, `halted` waits for an \
interrupt, `waiting` lacks a CPU of the host, `kvm` moves a halted guest out of KVM_RUN and in again, \
`vmm` serves exits, `sampler` reads samples, `paused` is held by vprof, or by the VMM of an attached \
virtual machine. Exits that KVM handles by itself are part of `guest`; KVM's counters include them.";

const QUERY_EXAMPLES: &str = "\
Examples:
  vprof query \"SELECT comm, pid, samples FROM v_processes LIMIT 5\"
  vprof query old.vprof \"SELECT * FROM v_functions\" --csv
  vprof query \".schema v_functions\"        its columns; .tables: names
  vprof query - < functions.sql
";

const SYMBOLIZE_EXAMPLES: &str = "\
Examples:
  vprof symbolize vprof.vprof --debug-dir /usr/lib/debug
  vprof symbolize vprof.vprof --symfs ~/build/rootfs
  DEBUGINFOD_URLS=https://debuginfod.debian.net vprof symbolize vprof.vprof
";

const SYMBOLIZE_NOTES: &str = "\
Functions, source lines and inlined functions of programs and libraries of the guest are written \
into the profile. vprof uses a debug file only if it has the build-id of the program, and replaces a name \
only by a better one. Directories are searched in the order given, --debug-dir first, then \
the servers of DEBUGINFOD_URLS, whose answers are cached as by debuginfod-find. \
docs/symbols.md lists the other sources of names.

Exit codes: 0 done, also if no debug file was found; 1 failed; 2 the command line is wrong.";

/// See inside any Linux virtual machine from the host.
#[derive(Debug, Parser)]
#[command(
    name = "vprof",
    version = env!("VPROF_VERSION"),
    before_help = EXAMPLES,
    after_help = EXIT_CODES,
    help_template = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}",
    max_term_width = 100
)]
pub struct Cli {
    /// Command to execute.
    #[command(subcommand)]
    pub command: CliCommand,

    /// Colours and bold text: `auto` on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_parser = parse::color_parser(),
        default_value = "auto",
        value_name = "WHEN",
        hide_short_help = true,
        hide_possible_values = true,
        help_heading = "Text"
    )]
    pub color: ColorChoice,

    /// Print a text that is longer than the terminal at once, not through $VPROF_PAGER, $PAGER or `less`
    #[arg(long, global = true, hide_short_help = true, help_heading = "Text")]
    pub no_pager: bool,
}

impl Cli {
    /// Notes which profiles of earlier runs are kept: where no name was given on this command line.
    pub fn keep_older(&mut self, matches: &ArgMatches) {
        let Some((_, own)) = matches.subcommand() else { return };
        let recording = match &mut self.command {
            CliCommand::Run(args) => &mut args.recording,
            CliCommand::Boot(args) => &mut args.run.recording,
            CliCommand::Attach(args) => &mut args.recording,
            _ => return,
        };
        if own.value_source("output") != Some(ValueSource::CommandLine) {
            recording.keep_older(recording.output.clone());
        }
    }
}

/// Returns the words of a command line with `report` before a profile instead of a command.
pub fn with_report(command: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let Some(place) = (1..words.len()).find(|place| !is_option(&words[*place])) else { return words };
    let path = Path::new(&words[place]);
    let is_command = command.get_subcommands().any(|known| known.get_name() == path.as_os_str());
    if !is_command && (path.extension().is_some_and(|end| end == "vprof") || is_database(path)) {
        words.insert(place, "report".into());
    }
    words
}

/// Commands that need the feature `fleet`.
const FLEET_COMMANDS: [&str; 2] = ["agent", "fleet"];

/// Returns the answer to a command that a build without the feature `fleet` does not know. The words are
/// those of the command line, because `vprof ctl fleet` is an unknown command in any build.
pub fn left_out(error: &clap::Error, words: &[OsString]) -> Option<UsageError> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let first = words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"))?;
    let is_known = FLEET_COMMANDS.contains(&name.as_str()) && (first == name.as_str() || first == "help");
    is_known.then(|| UsageError::NotBuilt(format!("`vprof {name}`")))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Boot a guest and profile it
    Run(Box<RunArgs>),
    /// Boot a guest, check that it comes up, and show where the time went
    Boot(Box<BootArgs>),
    /// Profile a virtual machine that is already running, under any VMM on KVM
    Attach(Box<AttachArgs>),
    /// Show who holds the memory of a virtual machine that is already running
    Mem(MemArgs),
    /// Show the summary of a profile
    Report(ReportArgs),
    /// Compare the CPU time that the guest reports with the time measured by vprof
    Rusage(RusageArgs),
    /// Show where the time of each vCPU went, its exits, and KVM's counters
    Stat(StatArgs),
    /// Show which instructions of a function samples hit
    Annotate(AnnotateArgs),
    /// Compare runs: which code takes more CPU time, which less, and which changes are more than chance
    Diff(DiffArgs),
    /// Merge profiles of several virtual machines in one
    Merge(MergeArgs),
    /// Commands for many hosts.
    #[cfg(feature = "fleet")]
    #[command(flatten)]
    Fleet(FleetCommand),
    /// Write a profile in a format that other programs read
    Export(ExportArgs),
    /// Show a profile in the browser
    Open(OpenArgs),
    /// Query a profile with SQL
    Query(QueryArgs),
    /// Name the user code of a profile by debug files
    Symbolize(SymbolizeArgs),
    /// Watch a run in progress, live
    Top(TopArgs),
    /// Inspect and control a run in progress
    Ctl(CtlArgs),
    /// Inspect disk images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Show what this machine supports, and what `run` will use
    Doctor(DoctorArgs),
    /// Show the documentation: docs/NAME.md of the help texts
    Docs(DocsArgs),
    /// Compare what vprof measures on this machine with what guests measure of themselves
    Selftest(SelftestArgs),
    /// Write manual pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory; created if it does not exist
        directory: PathBuf,
    },
    /// Resume an attached machine when vprof is killed, or stopped while it holds a vCPU
    #[command(hide = true)]
    AttachGuard {
        /// Descriptor of the shared memory with vprof's stops
        stops: i32,
    },
    /// Run a guest inside a sandbox: the part of `vprof run` that executes it
    #[command(hide = true)]
    GuestHalf {
        /// Number of the descriptor with the job
        job: i32,
    },
    /// Profile an attached machine inside a sandbox: the part of `vprof attach` that reads it
    #[command(hide = true)]
    AttachHalf {
        /// Number of the descriptor with the job
        job: i32,
    },
    /// Read a disk image inside a sandbox: the part of `vprof run` and `vprof image` that parses it
    #[command(hide = true)]
    ImageReader {
        /// Number of the descriptor with the job
        job: i32,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl CliCommand {
    /// Returns true if the command, or one that it starts, reads other processes with the capabilities that
    /// `vprof` was started with.
    pub fn keeps_capabilities(&self) -> bool {
        match self {
            Self::AttachHalf { .. } => true,
            #[cfg(feature = "fleet")]
            Self::Fleet(FleetCommand::Agent(_) | FleetCommand::AgentRecorders) => true,
            _ => false,
        }
    }
}

/// `vprof annotate`.
#[derive(Debug, Args)]
#[command(before_help = ANNOTATE_EXAMPLES, after_help = ANNOTATE_NOTES, help_template = TEMPLATE)]
pub struct AnnotateArgs {
    /// The function: its name, or its address as 0x...
    #[arg(value_name = "FUNCTION")]
    pub function: String,

    /// The profile
    #[arg(value_name = "PROFILE", default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// Kernel module or file whose function it is, `kernel` for the kernel itself
    #[arg(long, value_name = "NAME")]
    pub module: Option<String>,

    /// Intel syntax instead of AT&T's
    #[arg(long)]
    pub intel: bool,

    /// Only this many instructions, those with most samples, and the ones around them; 0 for all
    /// [default: all that have samples, and the ones around them]
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub rows: Option<usize>,

    /// Print JSON (docs/json.md)
    #[arg(long)]
    pub json: bool,

    /// Part of the profile to use.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// `vprof rusage`.
#[derive(Debug, Args)]
#[command(before_help = RUSAGE_EXAMPLES, after_help = RUSAGE_NOTES, help_template = TEMPLATE)]
pub struct RusageArgs {
    /// The profile
    #[arg(default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// Only processes with this name, process id or name#instance
    #[arg(short = 'p', long, value_name = "NAME|PID")]
    pub process: Option<String>,

    /// Format of the tables.
    #[command(flatten)]
    pub shown: TableArgs,
}

/// `vprof stat`.
#[derive(Debug, Args)]
#[command(before_help = STAT_EXAMPLES, after_help = STAT_NOTES, help_template = TEMPLATE)]
pub struct StatArgs {
    /// The profile, of a run that has ended or is in progress
    #[arg(default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// Show the changes since the last refresh, repeatedly, until the run ends
    #[arg(long)]
    pub live: bool,

    /// Show one interval of a run in progress, and end
    #[arg(short = '1', long, conflicts_with = "live")]
    pub once: bool,

    /// Time between two refreshes for a run in progress
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1s", value_parser = positive_time)]
    pub display: Duration,

    /// Only this vCPU
    #[arg(short = 'C', long, visible_alias = "vcpu", value_name = "N")]
    pub cpu: Option<u8>,

    /// Format of the tables.
    #[command(flatten)]
    pub shown: TableArgs,
}

/// Format of tables.
#[derive(Debug, Args)]
pub struct TableArgs {
    /// Rows per table; 0 for all
    #[arg(short = 'n', long, default_value_t = 10, value_name = "ROWS")]
    pub rows: usize,

    /// Print JSON (docs/json.md); always all rows
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Print CSV (RFC 4180) with a heading; always all rows
    #[arg(long)]
    pub csv: bool,

    /// Keep CSV text that a spreadsheet takes for a formula; otherwise vprof puts a `'` before it
    #[arg(long, requires = "csv")]
    pub raw: bool,
}

impl TableArgs {
    /// Returns the treatment of formulas in CSV.
    pub fn formulas(&self) -> Formulas {
        Formulas::raw_if(self.raw)
    }
}

/// `vprof query`.
#[derive(Debug, Args)]
#[command(before_help = QUERY_EXAMPLES, help_template = TEMPLATE, allow_missing_positional = true)]
pub struct QueryArgs {
    /// The profile
    #[arg(default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// One SQLite statement that only reads, `-` to read it from standard input, `.tables`, or `.schema`,
    /// also of one table: `.schema sample`; docs/profile.md explains tables and views
    #[arg(required = true)]
    pub sql: String,

    /// Print CSV (RFC 4180) with a heading; control characters as escapes, unlike in JSON
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,

    /// Keep CSV text that a spreadsheet takes for a formula; otherwise vprof puts a `'` before it
    #[arg(long, requires = "csv")]
    pub raw: bool,

    /// Print a JSON array with one object per row
    #[arg(long)]
    pub json: bool,
}

/// Places of debug files on the host.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Names of user code")]
pub struct DebugArgs {
    /// Directory of debug files: laid out as /usr/lib/debug, with .build-id, or with the files
    /// themselves; repeatable
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,

    /// Directory that has the guest's files under their paths in the guest, with symbols; repeatable
    #[arg(long, value_name = "DIR")]
    pub symfs: Vec<PathBuf>,
}

/// `vprof symbolize`.
#[derive(Debug, Args)]
#[command(before_help = SYMBOLIZE_EXAMPLES, after_help = SYMBOLIZE_NOTES, help_template = TEMPLATE)]
pub struct SymbolizeArgs {
    /// The profile; it is changed
    #[arg(default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// Places of debug files.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `vprof doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directory of the portable host [default: $VPROF_PORTABLE_HOST, then next to the program, then
    /// target/guest]
    #[arg(long, value_name = "DIR")]
    pub portable_host: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_that_was_left_out_of_a_build_says_how_to_get_it() {
        let answer = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let program =
                Command::new("vprof").subcommand(Command::new("ctl").subcommand(Command::new("status")));
            let error = program.try_get_matches_from(&words).expect_err("an unknown command");
            left_out(&error, &words).map(|answer| answer.to_string())
        };
        for words in [&["vprof", "agent", "--to", "x"][..], &["vprof", "fleet"], &["vprof", "help", "agent"]]
        {
            let text = answer(words).unwrap_or_default();
            assert!(text.contains("`vprof ") && text.contains("`cargo xtask install`"), "{words:?}: {text}");
        }
        for words in [&["vprof", "agents"][..], &["vprof", "ctl", "fleet"]] {
            assert_eq!(answer(words), None, "{words:?}");
        }
    }

    #[test]
    fn examples_fit_a_terminal_of_80_columns() {
        use clap::CommandFactory;
        let cli = Cli::command();
        for command in cli.get_subcommands().chain([&cli]) {
            let examples = command.get_before_help().map(ToString::to_string).unwrap_or_default();
            for line in examples.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
        }
    }
}
