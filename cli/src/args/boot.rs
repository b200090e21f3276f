//! `vprof boot`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use display::parse::positive_time;
use profile::conditions::Condition;

use super::parse::{parse_budget, parse_pattern};
use super::{RunArgs, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof boot guest.img                     boots it, and shows where time goes
  vprof boot guest.img --until 'login:'    the same, up to a line of the console
  vprof boot guest.img --until-unit ssh.service --timeout 60s --budget total=10s
  vprof boot guest.img --until ready --repeat 5 --save-baseline boot.json
  vprof boot guest.img --until ready --repeat 5 --baseline boot.json --md
";

const NOTES: &str = "\
Phases: `decompression` from the guest's first instruction to its kernel's, `early` up to the first initcall, \
`initcalls` up to the first process in user mode, `kernel` for both; `initrd` while the first process runs \
programs of the initrd, `userspace` from then to the condition of --until..., and `total`. Budgets hold for the \
median of --repeat.

Without one of --until... a guest is up when its systemd says \"Startup finished\", or when it has ended by itself, \
whichever comes first; with a command (-- CMD) when that has ended with status 0. vprof reads systemd's messages from \
the journal in the guest's memory.

Signs of a guest's progress are console output, a new process, an answer of its disk, output of its command, and an \
exit of a new kind. With --hang-after the boot fails after this time without a sign; without it, vprof checks for a \
hang when the --timeout is over. A guest may show no sign for 2 minutes while it waits for a network or a device.

A guest that resets itself is started again, as a machine would, up to --reboots times. The boot fails with the first of: a \
kernel panic, an oops, a triple fault, a reboot loop, a power-off, a hang, the time-out, a budget, the baseline. With \
several boots on both sides a phase counts as slower than the baseline by Welch's test at 1 %, over all phases \
(Holm); else if it takes 20 % and 50 ms longer.

Exit codes: 0 all as expected; 1 vprof failed; 2 the command line is wrong; 3 the guest failed, or an expectation was \
not met (vprof prints the first one); 4 no usable hypervisor. docs/boot.md has an example for CI.";

/// `vprof boot`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
#[command(mut_arg("duration", |arg| arg.hide(true)))]
#[command(mut_arg("start_when", |arg| arg.hide(true)), mut_arg("stop_when", |arg| arg.hide(true)))]
#[command(mut_arg("then", |arg| arg.hide(true)), mut_arg("until_precision", |arg| arg.hide(true)))]
#[command(mut_arg("top", |arg| arg.hide(true)))]
#[command(mut_arg("repeat", |arg| arg.help("Boot this many times, each a separate run; profiles are NAME.1.vprof, ...")))]
#[command(mut_arg("json", |arg| arg.help("Print the result as JSON (docs/json.md)")))]
pub struct BootArgs {
    /// The guest is up when a line of its console matches this
    #[arg(long, value_name = "REGEX", value_parser = parse_pattern, help_heading = "Expectations",
        conflicts_with_all = ["until_process", "until_unit", "until_started", "until_end"])]
    pub until: Option<Condition>,

    /// The guest is up when it has a process with this name
    #[arg(long, value_name = "NAME", help_heading = "Expectations",
        conflicts_with_all = ["until_unit", "until_started", "until_end"])]
    pub until_process: Option<String>,

    /// The guest is up when this systemd unit has a process
    #[arg(long, value_name = "UNIT", help_heading = "Expectations",
        conflicts_with_all = ["until_started", "until_end"])]
    pub until_unit: Option<String>,

    /// The guest is up when its systemd says "Startup finished"
    #[arg(long, help_heading = "Expectations", conflicts_with = "until_end")]
    pub until_started: bool,

    /// The guest is up when it has ended by itself
    #[arg(long, help_heading = "Expectations")]
    pub until_end: bool,

    /// The boot fails when the guest is not up after this time
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = positive_time, help_heading = "Expectations")]
    pub timeout: Duration,

    /// The boot fails with a hang when the guest has made no progress for this time; off unless given
    #[arg(long, value_name = "TIME", value_parser = positive_time, help_heading = "Expectations")]
    pub hang_after: Option<Duration>,

    /// Longest time that a phase may take, like total=3s; repeatable
    #[arg(long, value_name = "PHASE=TIME", value_parser = parse_budget, help_heading = "Expectations")]
    pub budget: Vec<(String, Duration)>,

    /// Fail where a phase takes longer than in these earlier boots
    #[arg(long, value_name = "FILE", help_heading = "Expectations")]
    pub baseline: Option<PathBuf>,

    /// Save the times of these boots, if they were successful, for --baseline; replaces the file
    #[arg(long, value_name = "FILE", help_heading = "Expectations")]
    pub save_baseline: Option<PathBuf>,

    /// Restarts of a guest that resets itself before it is up
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=100),
        help_heading = "Expectations")]
    pub reboots: u32,

    /// Also write the result as JUnit XML; replaces the file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<PathBuf>,

    /// Print the result as Markdown, for a comment
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub md: bool,

    /// Options of the run.
    #[command(flatten)]
    pub run: RunArgs,
}

impl BootArgs {
    /// Returns the condition that ends the boot: that of [`Self::until`], or by default the end of the
    /// guest's startup.
    pub fn end_condition(&self) -> Option<Condition> {
        let by_default = self.run.command.is_empty() && !self.until_end;
        self.until().or_else(|| by_default.then_some(Condition::Started))
    }

    /// Returns the condition that means that the guest is up. `None`: its end by itself, or its command's end
    /// with status 0.
    pub fn until(&self) -> Option<Condition> {
        let started = || self.until_started.then_some(Condition::Started);
        let process = || self.until_process.clone().map(Condition::Process);
        let unit = || self.until_unit.clone().map(Condition::Unit);
        self.until.clone().or_else(process).or_else(unit).or_else(started)
    }
}
