//! The options that `vprof run` and `vprof attach` share: sampling and output.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use control::message::Then;
use display::parse::positive_time;
use profile::conditions::{Condition, RunTrigger};
use profile::rows::HOSTNAME;
use profile::store::CreateError;
use profile::{Batch, ProfileWriter, Sink, SinkError};
use sampler::RecordingConfig;
use statistics::clock::ClockKind;

use super::parse::{
    clock_parser, parse_memory_interval, parse_precision, parse_rate, parse_size, parse_task_rate,
    then_parser,
};
use super::{DEFAULT_PROFILE, DebugArgs};
use crate::run::output::older_name;

/// Options of sampling and output.
#[derive(Debug, Clone, Args)]
pub struct RecordingArgs {
    /// Mean samples per second and vCPU, 0.1 to 50000
    #[arg(long, short = 'F', default_value = "1000", value_name = "HZ", value_parser = parse_rate, help_heading = "Sampling")]
    pub rate: f64,

    /// Distribution of the time between two samples: `fixed` shows the errors of a regular clock
    #[arg(long, value_parser = clock_parser(), default_value = "uniform", value_name = "KIND", help_heading = "Sampling")]
    pub clock: ClockKind,

    /// Seed of the sampling clock: the same seed gives the same intervals [default: random]
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    pub seed: Option<u64>,

    /// Maximum number of frames of a call stack; 0 records no stacks, which costs less
    #[arg(long, value_name = "FRAMES", default_value_t = 127, value_parser = clap::value_parser!(u16).range(0..=1024),
        help_heading = "Sampling")]
    pub depth: u16,

    /// Mean rate of task-state sampling, in scans per second: 0.1 to 1000, at random times; 0 turns it off.
    /// Each scan reads the state of all tasks in a separate thread, to estimate the time in each state. The
    /// rate falls where scans would take more than 2 % of a CPU
    #[arg(long, default_value = "10", value_name = "HZ", value_parser = parse_task_rate, help_heading = "Sampling")]
    pub task_rate: f64,

    /// Record the guest's memory by holder at this interval, which is 10 s without a value, and 1 s at least
    /// (`vprof report --memory-use`). A reading takes some ms in a separate thread, and stops no vCPU
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "10s",
        value_parser = parse_memory_interval, help_heading = "Sampling")]
    pub memory_use: Option<Duration>,

    /// End the run after this time, like 20s, 500ms or 2m
    #[arg(long, short = 'd', value_name = "TIME", value_parser = positive_time, help_heading = "Sampling")]
    pub duration: Option<Duration>,

    /// Start sampling when this condition is met, like `process:gzip` or `console:login:`; docs/boot.md lists
    /// the conditions
    #[arg(long, value_name = "CONDITION", help_heading = "Sampling")]
    pub start_when: Option<Condition>,

    /// Stop sampling when this condition is met after the start, like `process-end:gzip`
    #[arg(long, value_name = "CONDITION", help_heading = "Sampling")]
    pub stop_when: Option<Condition>,

    /// Action when the condition of --stop-when is met [default: `end`; with `-- CMD` `continue`, for its
    /// exit code]
    #[arg(long, value_parser = then_parser(), value_name = "WHAT", requires = "stop_when", help_heading = "Sampling")]
    pub then: Option<Then>,

    /// End the run when the largest share of a process is known this precisely: its 95 % interval reaches no
    /// further than this to either side, like 1% or 0.5% (0.01% to 50%). Exit code 3 if the run ends before
    #[arg(long, value_name = "PERCENT", value_parser = parse_precision, help_heading = "Sampling")]
    pub until_precision: Option<f64>,

    /// Names that the guest's own files lack.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// The profile to write. An earlier profile of the default name is renamed to vprof.vprof.old, with which
    /// `vprof diff` compares
    #[arg(long, short = 'o', default_value = DEFAULT_PROFILE, value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// No name was given on the command line, so that an older profile is kept and not refused.
    #[arg(skip)]
    pub keeps_older: bool,

    /// The profile of that name before the run.
    #[arg(skip)]
    pub older: Option<FileIdentity>,

    /// Replace the profile if it exists
    #[arg(long, help_heading = "Output")]
    pub force: bool,

    /// Size of the profile above which new call stacks are cut to the innermost function, like 500M or 2G;
    /// sampling continues [default: half of what the file system has free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Output")]
    pub max_size: Option<u64>,

    /// Write rows about once a second instead of five times. For `vprof agent`.
    #[arg(long, hide = true)]
    pub rare_writes: bool,

    /// Socket at which `vprof ctl` and `vprof top` find the run: a path to create, or `none`
    /// [default: PID.sock in $XDG_RUNTIME_DIR/vprof or /tmp/vprof-UID]
    #[arg(long, value_name = "SOCKET", help_heading = "Output")]
    pub control: Option<PathBuf>,

    /// Show the run live on this terminal, as `vprof top` does; the summary follows at its end
    #[arg(long, conflicts_with_all = ["quiet", "verbose"], help_heading = "Output")]
    pub top: bool,

    /// Print the report as JSON (docs/json.md) at the end
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Print no progress and no summary, only errors
    #[arg(long, short = 'q', conflicts_with = "verbose", help_heading = "Output")]
    pub quiet: bool,

    /// Print more messages; progress as lines where standard error is not a terminal
    #[arg(long, short = 'v', help_heading = "Output")]
    pub verbose: bool,
}

/// Identity of a file: device and inode.
pub type FileIdentity = (u64, u64);

/// Returns the identity of the file that has this name, if there is one.
pub fn file_identity(path: &Path) -> Option<FileIdentity> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns the name of this machine (Documentation/admin-guide/sysctl/kernel.rst, hostname).
pub fn hostname() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

impl RecordingArgs {
    /// Sets the name of the profile where the user has given none: a profile that has it is kept.
    pub fn keep_older(&mut self, output: PathBuf) {
        self.keeps_older = true;
        self.older = if self.force { None } else { file_identity(&output) };
        self.output = output;
    }

    /// Creates the profile.
    pub fn create(&self, force: bool) -> Result<ProfileWriter, CreateError> {
        let mut writer = ProfileWriter::create(&self.output, force || self.older.is_some())?;
        // What a failed attempt of this run has left is not kept.
        if self.older.is_some() && self.older == file_identity(&self.output) {
            writer = writer.keeping_older(older_name(&self.output));
        }
        if let Some(bytes) = self.max_size {
            writer = writer.limited_to(bytes);
        }
        let failed = |SinkError(reason)| CreateError::Database { path: self.output.clone(), reason };
        if self.rare_writes {
            writer = writer.keeping_few_pages().map_err(failed)?;
        }
        if let Some(name) = hostname() {
            let batch = Batch { meta: vec![(HOSTNAME.to_owned(), name)], ..Batch::default() };
            writer.write(&batch).map_err(failed)?;
        }
        Ok(writer)
    }

    /// Returns the configuration of sampling, with this seed.
    pub fn config(&self, seed: u64) -> RecordingConfig {
        RecordingConfig {
            rate_hz: self.rate,
            clock: self.clock,
            seed,
            stack_depth: usize::from(self.depth),
            exact: false,
            trips: Vec::new(),
            task_scan_hz: self.task_rate,
            memory_interval: self.memory_use,
            precision: self.until_precision,
            watch: None,
            rare_writes: self.rare_writes,
        }
    }

    /// Returns what --start-when and --stop-when wait for. `default_end` is what happens at the end of
    /// sampling if --then is not given.
    pub fn triggers(&self, default_end: Then) -> Vec<RunTrigger> {
        let start = self.start_when.clone().map(RunTrigger::Start);
        let end = self.then.unwrap_or(default_end) == Then::End;
        let stop = self.stop_when.clone().map(|when| RunTrigger::Stop { when, end });
        start.into_iter().chain(stop).collect()
    }
}
