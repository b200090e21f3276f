//! The command line.

mod ctl;
mod diff;
mod export;
mod parse;
mod simulate;
mod top;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sampler::report::{By, ModeGroup, Source};
use sampler::{ClockKind, Sort};

pub use ctl::{CtlArgs, CtlCommand};
pub use diff::DiffArgs;
pub use export::ExportArgs;
pub use parse::{Span, rate_in_range};
use parse::{
    by_parser, parse_census, parse_memory, parse_positive_time, parse_precision, parse_rate, parse_span,
    sort_parser,
};
pub use simulate::SimulateArgs;
pub use top::TopArgs;

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
  vprof report vprof.vprof --by function   by function, line, thread, cgroup, system call ...
  vprof stat vprof.vprof                   where the time of each vCPU went, exactly
  vprof top                                a run that goes on, live on the terminal
";

const RUN_EXAMPLES: &str = "\
Examples:
  vprof run guest.img                      a disk image with a kernel in /boot
  vprof run guest.img --snapshot -d 20s    20 seconds, write nothing to the image
  vprof run guest.img --cpus 4 --memory 2G -F 5000 -o busy.vprof
  vprof run guest.img -- sha256sum /big    a command, in images of `xtask image`
  vprof run guest.img --top                live on this terminal, `?` for help
  vprof run vmlinuz --initrd initrd.img --disk root.img --append root=/dev/vda
";

const RUN_NOTES: &str = "\
On a terminal the guest's serial console is interactive: all keys go to the guest, \
and Ctrl-] ends the run. There is no progress line then; `--console none` brings it back.

The run ends when the guest powers off or resets, when its command ends, after \
--duration, with --until-precision, or with SIGINT or SIGTERM. The profile is complete each time; after kill -9 \
it has all but the last second.

Exit codes: with `-- CMD` the code of the guest's command; else 0 done, 1 failed, \
2 the command line is wrong, 3 --until-precision was not reached (a command that failed keeps \
its code), 4 no usable hypervisor.";

const REPORT_EXAMPLES: &str = "\
Examples:
  vprof report vprof.vprof
  vprof report vprof.vprof --process python3 --time 2s..5s
  vprof report vprof.vprof --by function --mode user -n 30
  vprof report vprof.vprof --by thread --cgroup nginx.service
  vprof report vprof.vprof --callers clear_page_erms --depth 4
  vprof report vprof.vprof --callees do_syscall_64 --process gzip
  vprof report vprof.vprof --states --process postgres
  vprof report vprof.vprof --json | jq .processes[0]
";

const REPORT_NOTES: &str = "\
Shares are of all time in the guest that was not idle, on the chosen vCPU and in the chosen time; all other \
parts only choose what is shown. They combine: --process gzip --mode kernel --symbol ksys_read. \
A sample counts for `self` where it hit, and once for the `total` of each function on its stack. \
Interrupts are charged to no process.";

const ANNOTATE_EXAMPLES: &str = "\
Examples:
  vprof annotate clear_page_erms vprof.vprof
  vprof annotate deflate vprof.vprof --module gzip --intel
  vprof annotate 0xffffffff81a04d20 vprof.vprof --process gzip
";

const ANNOTATE_NOTES: &str = "\
`self` is the part of the function's own samples that hit an instruction, `calls` the part of all \
samples with the function on their stack that were in what the instruction called. The sampled \
address is that of the instruction that was about to run.";

const RUSAGE_EXAMPLES: &str = "\
Examples:
  vprof rusage vprof.vprof
  vprof rusage vprof.vprof -p hog
  vprof rusage vprof.vprof --json | jq '.processes[] | select(.outside)'
";

const RUSAGE_NOTES: &str = "\
What the guest tells is read from its memory: what getrusage, /proc/PID/stat and /proc/stat would \
show. It is read every second, and every fifth of a second for processes that samples hit, so the \
last figures of a process are from shortly before its end; the truth counts up to the same moment. \
docs/statistics.md tells how the truth and its interval are made.";

const STAT_EXAMPLES: &str = "\
Examples:
  vprof stat vprof.vprof                   the whole run
  vprof stat vprof.vprof --live            a run that goes on, every second
  vprof stat vprof.vprof -1 --json         one second of it
  vprof stat vprof.vprof -C 0 -n 0         one vCPU, all rows
";

const STAT_NOTES: &str = "\
The states of a vCPU add up to its wall time: `guest` executes the guest, `halted` waits for an \
interrupt, `waiting` lacks a CPU of the host, `kvm` gets a halted guest out of KVM_RUN and in again, \
`vmm` serves exits, `sampler` reads samples, `paused` is held by vprof. Exits that KVM handles by \
itself are part of `guest`; KVM's counters count them.";

const QUERY_EXAMPLES: &str = "\
Examples:
  vprof query vprof.vprof \"SELECT comm, pid, share FROM v_processes LIMIT 5\"
  vprof query vprof.vprof \"SELECT * FROM v_functions\" --csv
";

const SYMBOLIZE_EXAMPLES: &str = "\
Examples:
  vprof symbolize vprof.vprof --debug-dir /usr/lib/debug
  vprof symbolize vprof.vprof --symfs ~/build/rootfs
  DEBUGINFOD_URLS=http://localhost:8002 vprof symbolize vprof.vprof
";

const SYMBOLIZE_NOTES: &str = "\
Functions, source lines and inlined functions of programs and libraries of the guest are written \
into the profile. A debug file is used only if it has the build-id of the program; a name is \
only replaced by a better one. Directories are asked in the order given, --debug-dir first, then \
the servers of DEBUGINFOD_URLS, whose answers are kept as by debuginfod-find. \
docs/symbols.md tells where names come from otherwise.

Exit codes: 0 done, also if no debug file was found; 1 failed; 2 the command line is wrong.";

/// See inside any Linux virtual machine from the host.
#[derive(Debug, Parser)]
#[command(
    name = "vprof",
    version = env!("VPROF_VERSION"),
    before_help = EXAMPLES,
    after_help = EXIT_CODES,
    help_template = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}",
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a guest and profile it
    Run(Box<RunArgs>),
    /// Show the summary of a profile
    Report(ReportArgs),
    /// Compare the CPU time that the guest tells with the truth
    Rusage(RusageArgs),
    /// Show where the time of each vCPU went, its exits, and KVM's counters
    Stat(StatArgs),
    /// Show where in a function's machine code samples hit
    Annotate(AnnotateArgs),
    /// Compare runs: what takes more CPU time, what less, and what of that is more than chance
    Diff(DiffArgs),
    /// Write a profile in a format that other programs read
    Export(ExportArgs),
    /// Ask a profile with SQL
    Query(QueryArgs),
    /// Name the user code of a profile by debug files
    Symbolize(SymbolizeArgs),
    /// Watch a run that goes on, live on the terminal
    Top(TopArgs),
    /// Look at a run that goes on, and steer it
    Ctl(CtlArgs),
    /// Profile made-up machines whose truth is known: how right estimates are
    Simulate(SimulateArgs),
    /// Tell what this machine can do, and what `run` will use
    Doctor(DoctorArgs),
    /// Write manual pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory; made if it is not there
        directory: PathBuf,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `vprof run`.
#[derive(Debug, Args)]
#[command(before_help = RUN_EXAMPLES, after_help = RUN_NOTES, help_template = TEMPLATE)]
pub struct RunArgs {
    /// Disk image (raw or qcow2) with a kernel in /boot, or a kernel (bzImage or vmlinux)
    pub image: PathBuf,

    /// Command to run in the guest (images built by `cargo xtask image` only); ends the run
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// Kernel to boot instead of the image's own
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub kernel: Option<PathBuf>,

    /// Initrd to boot with, instead of the image's own
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub initrd: Option<PathBuf>,

    /// More words for the kernel command line; they follow `console=ttyS0 quiet panic=-1`, and `root=/dev/vda rw`
    /// where IMAGE is a disk, so that they win
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true, help_heading = "Guest")]
    pub append: Option<String>,

    /// Number of virtual CPUs, 1 to 64
    #[arg(long, short = 'c', default_value_t = 1, value_name = "N", help_heading = "Guest",
        value_parser = clap::value_parser!(u8).range(1..=i64::from(vmm::config::MAX_VCPUS)))]
    pub cpus: u8,

    /// Guest memory, like 512M or 2G, up to 256G
    #[arg(long, short = 'm', default_value = "1G", value_name = "SIZE", value_parser = parse_memory, help_heading = "Guest")]
    pub memory: u64,

    /// Another disk image, raw or qcow2, seen by the guest after IMAGE; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub disk: Vec<PathBuf>,

    /// Discard the guest's writes to all disks when the run ends
    #[arg(long, help_heading = "Guest")]
    pub snapshot: bool,

    /// Where the guest's serial console goes: `-` (standard output, with keys from the terminal), `none`, or a FILE.
    /// Default: `-` on a terminal or with a command, else `none`; the profile has it in any case
    #[arg(long, value_name = "WHERE", help_heading = "Guest")]
    pub console: Option<PathBuf>,

    /// Where the guest runs: `kvm` is this machine's own, `portable` a software-emulated host with KVM in it
    /// (slow, works everywhere), `auto` the first that can
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = "Host")]
    pub host: HostChoice,

    /// Directory of the portable host [default: $VPROF_PORTABLE_HOST, then beside the program, then target/guest]
    #[arg(long, value_name = "DIR", help_heading = "Host")]
    pub portable_host: Option<PathBuf>,

    /// Give the portable host up when it has been silent for this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_positive_time, help_heading = "Host")]
    pub host_timeout: Duration,

    /// Mean samples per second and vCPU, 0.1 to 50000
    #[arg(long, short = 'F', default_value = "1000", value_name = "HZ", value_parser = parse_rate, help_heading = "Sampling")]
    pub rate: f64,

    /// How the time between two samples is drawn: `fixed` shows what goes wrong without chance
    #[arg(long, value_enum, default_value_t, value_name = "KIND", help_heading = "Sampling")]
    pub clock: Clock,

    /// Seed of the sampling clock: the same seed gives the same intervals [default: random]
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    pub seed: Option<u64>,

    /// Frames of a call stack, at most; 0 takes no stacks, which costs less
    #[arg(long, value_name = "FRAMES", default_value_t = 127, value_parser = clap::value_parser!(u16).range(0..=1024),
        help_heading = "Sampling")]
    pub depth: u16,

    /// Also follow every switch, wake and interrupt exactly: what each task did and waited for, and who woke it. Costs an
    /// exit per event
    #[arg(long, help_heading = "Sampling")]
    pub exact: bool,

    /// How often per second, on average, all tasks are looked at from a thread of its own, to estimate what each did and
    /// waited for: 0.1 to 1000, at random moments; 0 for never. Fewer where that would take more than 2 % of a CPU
    #[arg(long, default_value = "10", value_name = "HZ", value_parser = parse_census, help_heading = "Sampling")]
    pub census: f64,

    /// Threads that use the host's CPUs beside the guest, in the portable host as well: for tests of vprof on a busy host
    #[arg(long, default_value_t = 0, value_name = "THREADS", hide = true)]
    pub host_load: u8,

    /// End the run after this time, like 20s, 500ms or 2m
    #[arg(long, short = 'd', value_name = "TIME", value_parser = parse_positive_time, help_heading = "Sampling")]
    pub duration: Option<Duration>,

    /// End the run when the largest share of its processes is known to within this, like 1% or 0.5% (0.01% to 50%): that
    /// far from it its 95 % interval ends. Exit code 3 if the run ends otherwise before
    #[arg(long, value_name = "PERCENT", value_parser = parse_precision, help_heading = "Sampling")]
    pub until_precision: Option<f64>,

    /// Names that the guest's own files lack.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// The profile to write
    #[arg(long, short = 'o', default_value = "vprof.vprof", value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// Replace the profile if it exists
    #[arg(long, help_heading = "Output")]
    pub force: bool,

    /// Where `vprof ctl` and `vprof top` find the run: a socket to be made, or `none`
    /// [default: PID.sock in $XDG_RUNTIME_DIR/vprof or /tmp/vprof-UID]
    #[arg(long, value_name = "SOCKET", help_heading = "Output")]
    pub control: Option<PathBuf>,

    /// Show the run live on this terminal, as `vprof top` does; the summary follows at its end
    #[arg(long, conflicts_with_all = ["quiet", "verbose"], help_heading = "Output")]
    pub top: bool,

    /// Print the report as JSON (docs/json.md) at the end
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// No progress and no summary, only errors
    #[arg(long, short = 'q', conflicts_with = "verbose", help_heading = "Output")]
    pub quiet: bool,

    /// Say more about what happens; progress as lines where standard error is no terminal
    #[arg(long, short = 'v', help_heading = "Output")]
    pub verbose: bool,
}

/// `vprof report`.
#[derive(Debug, Args)]
#[command(before_help = REPORT_EXAMPLES, after_help = REPORT_NOTES, help_template = TEMPLATE)]
pub struct ReportArgs {
    /// The profile
    pub profile: PathBuf,

    /// One table of samples by this, instead of the summary
    #[arg(long, value_name = "WHAT", value_parser = by_parser(), conflicts_with_all = ["callers", "callees"])]
    pub by: Option<By>,

    /// Who calls this function
    #[arg(long, value_name = "FUNCTION", conflicts_with = "callees")]
    pub callers: Option<String>,

    /// What this function calls
    #[arg(long, value_name = "FUNCTION")]
    pub callees: Option<String>,

    /// What exact mode has found: states of each task, where it slept, who woke it (profiles of `run --exact`)
    #[arg(long, conflicts_with_all = ["by", "callers", "callees", "sort", "instance", "cgroup", "thread", "symbol", "mode", "cpu", "time"])]
    pub exact: bool,

    /// What each task did: time on a CPU, waiting for one, asleep and what for. Exact where `run --exact` has measured it,
    /// else estimated by the census, with intervals; --states=exact and --states=census choose one
    #[arg(long, value_enum, value_name = "SOURCE", num_args = 0..=1, require_equals = true, default_missing_value = "best",
        conflicts_with_all = ["exact", "by", "callers", "callees", "sort", "symbol", "mode", "cpu"])]
    pub states: Option<StatesFrom>,

    /// How many calls deep --callers and --callees look
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub depth: u32,

    /// Order of rows: samples of their own (`samples` is the same), in total, ...
    #[arg(long, default_value = "self", value_name = "KEY", value_parser = sort_parser())]
    pub sort: Sort,

    /// Rows per table; 0 for all [default: 10; 50 with --callers and --callees]
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub rows: Option<usize>,

    /// Print JSON (docs/json.md); always all rows
    #[arg(long)]
    pub json: bool,

    /// Names to add to the profile before.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// Which part of the profile.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// `--states`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatesFrom {
    /// Exact times where there are some, else the census
    Best,
    /// Exact times
    Exact,
    /// The census
    Census,
}

impl From<StatesFrom> for Source {
    fn from(from: StatesFrom) -> Self {
        match from {
            StatesFrom::Best => Self::Best,
            StatesFrom::Exact => Self::Exact,
            StatesFrom::Census => Self::Census,
        }
    }
}

/// Which part of a profile a command looks at.
#[derive(Debug, Args)]
#[command(next_help_heading = "Only a part")]
pub struct FilterArgs {
    /// Only processes with this name, process id or name#instance
    #[arg(long, short = 'p', value_name = "NAME|PID")]
    pub process: Option<String>,

    /// Only this life of a process
    #[arg(long, value_name = "NAME#N")]
    pub instance: Option<String>,

    /// Only processes whose control group has this in its path, like a unit or a container
    #[arg(long, value_name = "PART")]
    pub cgroup: Option<String>,

    /// Only threads with this name or thread id
    #[arg(long, value_name = "NAME|TID")]
    pub thread: Option<String>,

    /// Only samples with this function on their stack
    #[arg(long, value_name = "FUNCTION")]
    pub symbol: Option<String>,

    /// Only samples in this mode; repeatable, or with commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE")]
    pub mode: Vec<ModeChoice>,

    /// Only this vCPU
    #[arg(long, visible_alias = "vcpu", value_name = "N")]
    pub cpu: Option<u8>,

    /// Only samples in this span since the run's start, like 2s..5s, 500ms.. or ..10s
    #[arg(long, value_name = "FROM..TO", value_parser = parse_span)]
    pub time: Option<Span>,
}

/// `--mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeChoice {
    /// User code
    User,
    /// The kernel outside of interrupts
    Kernel,
    /// Hard interrupts, soft interrupts and NMIs
    Irq,
}

impl From<ModeChoice> for ModeGroup {
    fn from(mode: ModeChoice) -> Self {
        match mode {
            ModeChoice::User => Self::User,
            ModeChoice::Kernel => Self::Kernel,
            ModeChoice::Irq => Self::Irq,
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
    #[arg(value_name = "PROFILE")]
    pub profile: PathBuf,

    /// Kernel module or file whose function it is, `kernel` for the kernel itself
    #[arg(long, value_name = "NAME")]
    pub module: Option<String>,

    /// Intel syntax instead of AT&T's
    #[arg(long)]
    pub intel: bool,

    /// Instructions to show; 0 for all
    #[arg(short = 'n', long, default_value_t = 0, value_name = "ROWS")]
    pub rows: usize,

    /// Print JSON (docs/json.md)
    #[arg(long)]
    pub json: bool,

    /// Which part of the profile.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// `vprof rusage`.
#[derive(Debug, Args)]
#[command(before_help = RUSAGE_EXAMPLES, after_help = RUSAGE_NOTES, help_template = TEMPLATE)]
pub struct RusageArgs {
    /// The profile
    pub profile: PathBuf,

    /// Only processes with this name, process id or name#instance
    #[arg(short = 'p', long, value_name = "NAME|PID")]
    pub process: Option<String>,

    /// How it is shown.
    #[command(flatten)]
    pub shown: TableArgs,
}

/// `vprof stat`.
#[derive(Debug, Args)]
#[command(before_help = STAT_EXAMPLES, after_help = STAT_NOTES, help_template = TEMPLATE)]
pub struct StatArgs {
    /// The profile, of a run that has ended or goes on
    pub profile: PathBuf,

    /// Show again and again what came since the last time, until the run ends
    #[arg(long)]
    pub live: bool,

    /// Show one interval of a run that goes on, and end
    #[arg(short = '1', long, conflicts_with = "live")]
    pub once: bool,

    /// Time between two looks at a run that goes on
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1s", value_parser = parse_positive_time)]
    pub display: Duration,

    /// Only this vCPU
    #[arg(short = 'C', long, visible_alias = "vcpu", value_name = "N")]
    pub cpu: Option<u8>,

    /// How it is shown.
    #[command(flatten)]
    pub shown: TableArgs,
}

/// How tables are shown.
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
}

/// `vprof query`.
#[derive(Debug, Args)]
#[command(before_help = QUERY_EXAMPLES, help_template = TEMPLATE)]
pub struct QueryArgs {
    /// The profile
    pub profile: PathBuf,

    /// One SQLite statement that only reads; tables and views stand in docs/profile.md
    pub sql: String,

    /// Print CSV (RFC 4180) with a heading
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,

    /// Print a JSON array with one object per row
    #[arg(long)]
    pub json: bool,
}

/// Where debug files are looked for on the host.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Names of user code")]
pub struct DebugArgs {
    /// Directory of debug files: laid out as /usr/lib/debug, with .build-id, or with the files themselves; repeatable
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
    pub profile: PathBuf,

    /// Where names are looked for.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `vprof doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directory of the portable host [default: $VPROF_PORTABLE_HOST, then beside the program, then target/guest]
    #[arg(long, value_name = "DIR")]
    pub portable_host: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `--host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum HostChoice {
    /// This machine's KVM if it can run a kernel, else the portable host
    #[default]
    Auto,
    /// This machine's KVM
    Kvm,
    /// The portable host
    Portable,
}

/// `--clock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Clock {
    /// Evenly between half and one and a half times the mean
    #[default]
    Uniform,
    /// Exponential, without memory
    Exponential,
    /// Always the mean
    Fixed,
}

impl From<Clock> for ClockKind {
    fn from(clock: Clock) -> Self {
        match clock {
            Clock::Uniform => Self::Uniform,
            Clock::Exponential => Self::Exponential,
            Clock::Fixed => Self::Fixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
