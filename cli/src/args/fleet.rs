//! `vprof fleet`, and all commands for many hosts.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{AgentArgs, AgentWindowArgs, TEMPLATE};
use crate::fleet::{Engine, FleetQuestion, Selector};

const EXAMPLES: &str = "\
Examples:
  vprof fleet top --lake /srv/lake         functions of all hosts, by DuckDB
  vprof fleet top --lake s3a://profiles --engine spark://master:7077
  vprof fleet diff --before kernel=6.1.0-25 --after kernel=6.1.0-26
  vprof fleet over-time --function memcpy --process 'nginx*'
  vprof fleet flame --label team=web -o web.svg
  vprof fleet interrupts -o interrupts.html   the answer as a page
  vprof fleet noisy --engine print         the SQL alone, for another client
";

const NOTES: &str = "\
The engine is a separate program that reads the Parquet files of `vprof agent`; vprof gives it SQL and shows the \
answer. `duckdb` is DuckDB's command line, `spark` and `spark://HOST:PORT` are Spark's `spark-sql`. Intervals (95 %) are by \
the differences between hosts: with one host there is none. `--engine print` shows the SQL.

Exit codes: 0 done; 1 the engine failed, or there is no such program or lake; 2 the command line is wrong.";

/// The commands for many hosts.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Profile all virtual machines of this host all the time, as Parquet files for SQL engines
    Agent(AgentArgs),
    /// Ask a fleet: SQL over the files of `vprof agent` on many hosts, by DuckDB or Spark
    Fleet(FleetArgs),
    /// Send a window to a sink: the part of `vprof agent` that reads recordings
    #[command(hide = true)]
    AgentWindow(AgentWindowArgs),
    /// Start recorders: the part of `vprof agent` of which they are copies
    #[command(hide = true)]
    AgentRecorders,
}

/// `vprof fleet`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct FleetArgs {
    /// The question
    #[arg(value_enum)]
    pub question: FleetQuestion,

    /// The lake: the directory of `vprof agent --to`, or its address in an object store
    #[arg(long, default_value = "/var/lib/vprof/lake", value_name = "LAKE")]
    pub lake: String,

    /// The engine: duckdb, spark, spark://HOST:PORT, or print and print=spark for SQL alone
    #[arg(long, default_value = "duckdb", value_name = "ENGINE")]
    pub engine: Engine,

    /// Only windows of this day (UTC); as 2026-11-23
    #[arg(long, value_name = "DAY")]
    pub day: Option<String>,

    /// Only machines with this name; `*` stands for any characters
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,

    /// Only machines on this host; `*` as for --vm
    #[arg(long, value_name = "HOST")]
    pub vm_host: Option<String>,

    /// Only machines with this label; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<String>,

    /// Only machines with this kernel release; `*` as for --vm
    #[arg(long, value_name = "RELEASE")]
    pub kernel: Option<String>,

    /// Only samples of this program (top, over-time, flame); `*` as for --vm
    #[arg(long, value_name = "PROGRAM")]
    pub process: Option<String>,

    /// Only samples in this function itself (top, over-time, flame); `*` as for --vm
    #[arg(long, value_name = "FUNCTION")]
    pub function: Option<String>,

    /// Side before the change (diff): kernel=RELEASE, build=BUILD-ID, day=DAY, label=KEY=VALUE, vm=NAME,
    /// host=HOST; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub before: Vec<Selector>,

    /// The other side, as --before
    #[arg(long, value_name = "KEY=VALUE")]
    pub after: Vec<Selector>,

    /// Rows to show, 0 for all that the engine returns (50 at most, except over-time and flame)
    #[arg(short = 'n', long, default_value_t = 20, value_name = "ROWS")]
    pub rows: usize,

    /// Print the answer as JSON: a list of rows
    #[arg(long)]
    pub json: bool,

    /// File for the answer: a page, whose name ends in .html; of flame a picture, in .svg, otherwise folded
    /// stacks; `-` for standard output
    #[arg(long, short = 'o', default_value = "-", value_name = "FILE")]
    pub output: PathBuf,

    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
}

impl FleetArgs {
    /// Returns the options that choose data, with their values.
    pub fn conditions(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("Lake", Some(self.lake.clone())),
            ("Day", self.day.clone()),
            ("Machines", self.vm.clone()),
            ("Hosts", self.vm_host.clone()),
            ("Labels", joined(&self.label)),
            ("Kernel", self.kernel.clone()),
            ("Program", self.process.clone()),
            ("Function", self.function.clone()),
            ("Before", joined(&self.before)),
            ("After", joined(&self.after)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

fn joined(values: &[impl ToString]) -> Option<String> {
    (!values.is_empty()).then(|| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}
