//! `vprof report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use profile::report::{By, SourceChoice};
use profile::{Filter, Sort};

use super::parse::{by_parser, sort_parser};
use super::{DEFAULT_PROFILE, DebugArgs, FilterArgs, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof report vprof.vprof
  vprof report vprof.vprof --process python3 --time 2s..5s
  vprof report vprof.vprof --by function --mode user -n 30
  vprof report vprof.vprof --by thread --cgroup nginx.service
  vprof report --interactive                         Enter goes in, Esc out
  vprof report vprof.vprof --by process,function     rows by both
  vprof report vprof.vprof --by function --module libc.so.6 --relative
  vprof report vprof.vprof --callers clear_page_erms --depth 4
  vprof report vprof.vprof --callees do_syscall_64 --process gzip
  vprof report vprof.vprof --tree-of command         of `run -- CMD`, only
  vprof report vprof.vprof --boot
  vprof report vprof.vprof --states --process postgres
  vprof report vprof.vprof --host                   the VMM and KVM
  vprof report vprof.vprof --exact --timehist --time 2s..2.1s
  vprof report vprof.vprof --trips --process postgres
  vprof report vprof.vprof --json | jq .processes[0]
";

const NOTES: &str = "\
Shares are of all time in the guest that was not idle, on the chosen vCPU and in the chosen time. All other \
options choose rows, and leave their shares as they are, unless --relative makes shares those of the chosen \
part. Options combine: \
--process gzip --mode kernel --symbol ksys_read. \
A sample counts for `self` where it hit, and once for the `total` of each function on its stack. \
Interrupts are charged to no process.";

/// `vprof report`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct ReportArgs {
    /// The profile
    #[arg(default_value = DEFAULT_PROFILE)]
    pub profile: PathBuf,

    /// Look through the tables on the terminal: Enter goes into a row, Esc goes out, ? shows all keys
    #[arg(short = 'i', long, conflicts_with_all = ["by", "callers", "callees", "boot", "exact", "trips", "states", "host", "memory_use", "json", "csv", "sort", "rows"])]
    pub interactive: bool,

    /// One table of samples by this key, instead of the summary; or by several, like process,function
    #[arg(long, value_name = "WHAT", value_parser = by_parser(), value_delimiter = ',', conflicts_with_all = ["callers", "callees"])]
    pub by: Vec<By>,

    /// Callers of this function
    #[arg(long, value_name = "FUNCTION", conflicts_with = "callees")]
    pub callers: Option<String>,

    /// Functions that this function calls
    #[arg(long, value_name = "FUNCTION")]
    pub callees: Option<String>,

    /// Boot of the guest from its first instruction on: phases, initcalls, units, programs
    #[arg(long, conflicts_with_all = ["exact", "states", "by", "callers", "callees", "sort", "process", "tree_of", "instance",
        "cgroup", "thread", "symbol", "module", "mode", "cpu", "time", "relative"])]
    pub boot: bool,

    /// Results of exact mode: states of each task, its longest wait for a CPU, where it slept, and what woke
    /// it (profiles of `run --exact`)
    #[arg(long, conflicts_with_all = ["by", "callers", "callees", "sort", "symbol", "module", "mode", "relative"])]
    pub exact: bool,

    /// One line per run of a task on a vCPU, with the waits before it, in the order of time; with --exact
    #[arg(long, requires = "exact")]
    pub timehist: bool,

    /// Calls of watched functions: count, intervals, processes, callers, values of the arguments (profiles of
    /// `run --trip`)
    #[arg(long, conflicts_with_all = ["boot", "exact", "states", "host", "memory_use", "by", "callers", "callees", "sort",
        "symbol", "module", "mode", "relative"])]
    pub trips: bool,

    /// Time of each task in each state: on a CPU, waiting for one, asleep and what for. Exact where `run
    /// --exact` has measured it, else estimated by task-state sampling, with intervals; --states=exact and
    /// --states=sampled choose one
    #[arg(long, value_enum, value_name = "SOURCE", num_args = 0..=1, require_equals = true, default_missing_value = "best",
        conflicts_with_all = ["exact", "by", "callers", "callees", "sort", "symbol", "module", "mode", "cpu", "relative"])]
    pub states: Option<StatesFrom>,

    /// Time of the vCPUs' threads in the guest, in KVM, in the VMM and waiting for a CPU, and the functions
    /// of the host, with intervals (profiles of `attach --host-stacks`)
    #[arg(long, conflicts_with_all = ["boot", "exact", "states", "by", "callers", "callees", "sort", "process", "tree_of",
        "instance", "cgroup", "thread", "symbol", "module", "mode", "relative"])]
    pub host: bool,

    /// The guest's memory by holder over time: processes, control groups, page cache, slab caches (profiles
    /// of `run --memory-use` and `attach --memory-use`)
    #[arg(long, conflicts_with_all = ["boot", "exact", "states", "host", "by", "callers", "callees", "sort", "process",
        "tree_of", "instance", "cgroup", "thread", "symbol", "module", "mode", "cpu", "relative"])]
    pub memory_use: bool,

    /// Depth of --callers and --callees, in calls
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub depth: u32,

    /// Column by which rows are sorted; `samples` is the same as `self`
    #[arg(long, default_value = "self", value_name = "KEY", value_parser = sort_parser())]
    pub sort: Sort,

    /// Rows per table; 0 for all [default: 10; 50 with --callers and --callees; all with --timehist]
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub rows: Option<usize>,

    /// Print JSON (docs/json.md); always all rows
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Print the table of --by as CSV (RFC 4180) with a heading; always all rows
    #[arg(long, requires = "by")]
    pub csv: bool,

    /// Keep CSV text that a spreadsheet takes for a formula; otherwise vprof puts a `'` before it
    #[arg(long, requires = "csv")]
    pub raw: bool,

    /// Places of names to add to the profile first.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// Only samples that hit code of this module: `kernel`, a kernel module, or a file of user code; `*`
    /// stands for any characters. With --symbol, --callers and --callees: the function of this module
    #[arg(long, value_name = "NAME", help_heading = "Only a part")]
    pub module: Option<String>,

    /// Shares of the chosen part instead of all time that was not idle
    #[arg(long, help_heading = "Only a part")]
    pub relative: bool,

    /// Part of the profile to report.
    #[command(flatten)]
    pub filter: FilterArgs,
}

impl ReportArgs {
    /// Returns the filter that the options choose. The module of a tree's function is not part of it.
    pub fn to_filter(&self) -> Filter {
        let is_tree = self.callers.is_some() || self.callees.is_some();
        let module = self.module.clone().filter(|_| !is_tree || self.filter.symbol.is_some());
        Filter { module, relative: self.relative, ..self.filter.to_filter() }
    }
}

/// `--states`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatesFrom {
    /// Exact times where there are some, else task-state sampling
    Best,
    /// Exact times
    Exact,
    /// Task-state sampling
    Sampled,
}

impl From<StatesFrom> for SourceChoice {
    fn from(from: StatesFrom) -> Self {
        match from {
            StatesFrom::Best => Self::Best,
            StatesFrom::Exact => Self::Exact,
            StatesFrom::Sampled => Self::Sampled,
        }
    }
}
