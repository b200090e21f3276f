//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use sampler::report::{By, ModeGroup};
use sampler::{ClockKind, Sort};

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
  vprof run guest.img                      boot it, profile it; Ctrl-] ends it
  vprof run guest.img --snapshot -d 20s    20 seconds, the image stays as it is
  vprof run guest.img -- gzip -k /big      profile one command
  vprof report vprof.vprof                 the summary again
  vprof report vprof.vprof --by function   by function, instruction, line, thread, cgroup ...
  vprof report vprof.vprof --callers clear_page_erms
  vprof annotate clear_page_erms vprof.vprof
  vprof query vprof.vprof \"SELECT mode, count(*) FROM v_samples GROUP BY mode\"
  vprof doctor                             what this machine can do
";

const RUN_EXAMPLES: &str = "\
Examples:
  vprof run guest.img                      a disk image with a kernel in /boot
  vprof run guest.img --snapshot -d 20s    20 seconds, write nothing to the image
  vprof run guest.img --cpus 4 --memory 2G -F 5000 -o busy.vprof
  vprof run guest.img -- sha256sum /big    a command, in images of `xtask image`
  vprof run vmlinuz --initrd initrd.img --disk root.img --append root=/dev/vda
";

const RUN_NOTES: &str = "\
On a terminal the guest's serial console is interactive: all keys go to the guest, \
and Ctrl-] ends the run. There is no progress line then; `--console none` brings it back.

The run ends when the guest powers off or resets, when its command ends, after \
--duration, or with SIGINT or SIGTERM. The profile is complete each time; after kill -9 \
it has all but the last second.

Exit codes: with `-- CMD` the code of the guest's command; else 0 done, 1 failed, \
2 the command line is wrong, 4 no usable hypervisor.";

const REPORT_EXAMPLES: &str = "\
Examples:
  vprof report vprof.vprof
  vprof report vprof.vprof --process python3 --time 2s..5s
  vprof report vprof.vprof --by function --mode user -n 30
  vprof report vprof.vprof --by thread --cgroup nginx.service
  vprof report vprof.vprof --callers clear_page_erms --depth 4
  vprof report vprof.vprof --callees do_syscall_64 --process gzip
  vprof report vprof.vprof --json | jq .processes[0]
";

const REPORT_NOTES: &str = "\
Shares are of all samples that were not idle, on the chosen vCPU and in the chosen time; all other \
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

const QUERY_EXAMPLES: &str = "\
Examples:
  vprof query vprof.vprof \"SELECT comm, pid, share FROM v_processes LIMIT 5\"
  vprof query vprof.vprof \"SELECT * FROM v_functions\" --csv
";

/// See inside any Linux virtual machine from the host.
#[derive(Debug, Parser)]
#[command(
    name = "vprof",
    version,
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
    /// Show where in a function's machine code samples hit
    Annotate(AnnotateArgs),
    /// Ask a profile with SQL
    Query(QueryArgs),
    /// Tell what this machine can do, and what `run` will use
    Doctor(DoctorArgs),
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
    /// Raw disk image with a kernel in /boot, or a kernel (bzImage or vmlinux)
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

    /// Another raw disk image, seen by the guest after IMAGE; repeatable
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

    /// End the run after this time, like 20s, 500ms or 2m
    #[arg(long, short = 'd', value_name = "TIME", value_parser = parse_positive_time, help_heading = "Sampling")]
    pub duration: Option<Duration>,

    /// The profile to write
    #[arg(long, short = 'o', default_value = "vprof.vprof", value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// Replace the profile if it exists
    #[arg(long, help_heading = "Output")]
    pub force: bool,

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

    /// Which part of the profile.
    #[command(flatten)]
    pub filter: FilterArgs,
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

/// A span of time since the run's start; open ends are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Its beginning.
    pub from: Option<Duration>,
    /// Its end.
    pub to: Option<Duration>,
}

/// Bytes from `512M`, `2G`, `1.5GiB`; a multiple of 4 KiB.
fn parse_memory(text: &str) -> Result<u64, String> {
    let advice = "write it like 512M or 2G";
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "" => return Err(format!("it has no unit: {advice}")),
        _ => return Err(format!("{unit:?} is no unit of memory: {advice}")),
    };
    let scaled = parse_decimal(number).ok_or(advice)? * f64::from(1 << (shift - 10)) * 1024.0;
    let most = vmm::config::MAX_MEMORY;
    // At least what a Linux kernel needs to say that it has too little.
    let least = 32 << 20;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    if scaled > most as f64 {
        Err(format!("the most is {}", crate::render::units::bytes(most)))
    } else if (scaled as u64) < least {
        Err(format!("the least is {}", crate::render::units::bytes(least)))
    } else {
        Ok(scaled as u64 & !0xfff)
    }
}

/// A time from `20s`, `500ms`, `2m`, `1h` or plain seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let advice = "write it like 20s, 500ms, 2m or 1h";
    let (number, unit) = split_unit(text);
    let factor = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is no unit of time: {advice}")),
    };
    let seconds = parse_decimal(number).ok_or(advice)? * factor;
    // A year is beyond any run and far from overflow.
    if seconds > 366.0 * 86_400.0 {
        return Err("the most is a year".to_owned());
    }
    let time = Duration::from_secs_f64(seconds);
    if time.is_zero() && seconds > 0.0 { Err("it is too short".to_owned()) } else { Ok(time) }
}

fn parse_positive_time(text: &str) -> Result<Duration, String> {
    parse_time(text)
        .and_then(|time| if time.is_zero() { Err("it has to be more than 0".to_owned()) } else { Ok(time) })
}

fn sort_parser() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<Sort>())
}

fn by_parser() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(By::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<By>())
}

fn parse_span(text: &str) -> Result<Span, String> {
    let (from, to) = text.split_once("..").ok_or("write it like 2s..5s, 500ms.. or ..10s")?;
    let end = |text: &str| if text.is_empty() { Ok(None) } else { parse_time(text).map(Some) };
    let span = Span { from: end(from)?, to: end(to)? };
    match (span.from, span.to) {
        (Some(from), Some(to)) if from >= to => Err("its end is not after its beginning".to_owned()),
        _ => Ok(span),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = parse_decimal(text).ok_or("write it as a number of samples per second")?;
    if (0.1..=50_000.0).contains(&rate) {
        Ok(rate)
    } else {
        Err("it has to be from 0.1 to 50000 samples per second".to_owned())
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// A plain decimal number: no sign, no exponent, no "inf".
fn parse_decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    plain.then(|| text.parse().ok()).flatten()
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
    fn memory_has_a_unit_and_bounds() {
        assert_eq!(parse_memory("512M"), Ok(512 << 20));
        assert_eq!(parse_memory("2g"), Ok(2 << 30));
        assert_eq!(parse_memory("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_memory("256G"), Ok(256 << 30));
        assert_eq!(parse_memory("100001K"), Ok(100_000 << 10));
        for wrong in ["", "512", "257G", "-1G", "1e9G", "5X", "16M", "99999999999999999999T", ".G", "G"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("20"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("1.5 m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "-1s", "5 fortnights", "9999999h", "NaN", "0.1ns"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_may_be_open() {
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(parse_span("2s..5"), Ok(Span { from: seconds(2), to: seconds(5) }));
        assert_eq!(parse_span("..5"), Ok(Span { from: None, to: seconds(5) }));
        assert_eq!(parse_span(".."), Ok(Span::default()));
        assert!(parse_span("5..2").is_err());
        assert!(parse_span("5").is_err());
    }

    #[test]
    fn rates_are_bounded() {
        assert_eq!(parse_rate("997.5"), Ok(997.5));
        for wrong in ["0", "-5", "inf", "60000", "1k", ""] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
