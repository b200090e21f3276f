//! `vprof simulate`.

use std::path::PathBuf;

use clap::Args;
use statistics::clock::ClockKind;

use super::TEMPLATE;
use super::parse::clock_parser;

const EXAMPLES: &str = "\
Examples:
  vprof simulate                           200 runs of each machine and clock
  vprof simulate -q                        only the summary
  vprof simulate --clock fixed             the errors of a regular clock
  vprof simulate --runs 2000 --seed 7      narrower intervals, another seed
  vprof simulate --runs 2000 --plot coverage.svg
  vprof simulate --json | jq '.rows[] | select(.fails)'
";

const NOTES: &str = "\
No guest runs. Simulated vCPUs are profiled again and again by vprof's own sampling clock and \
estimator: the programs of the unbiasedness study (Wen, Cheng, Lin, Yin 2021, tables 2 to 6), runs \
of all lengths, programs that work against the clock, few samples on few or many vCPUs, and hosts \
whose ticks come late, wait for a CPU and take long to serve. docs/statistics.md describes what to \
expect and why. The same options give the same numbers.

Exit codes: 0 done; 1 failed; 2 the command line is wrong.";

/// `vprof simulate`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct SimulateArgs {
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Profilings of each machine under each clock, 2 to 100000
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub runs: u32,

    /// Only this clock [default: all]
    #[arg(long, value_parser = clock_parser(), value_name = "KIND")]
    pub clock: Option<ClockKind>,

    /// Print JSON (docs/json.md)
    #[arg(long)]
    pub json: bool,

    /// Also write a picture (SVG) of how often intervals of each kind contain the true value
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// Replace the picture if it exists
    #[arg(long, requires = "plot")]
    pub force: bool,

    /// No progress and no tables, only the summary
    #[arg(long, short = 'q', conflicts_with = "json")]
    pub quiet: bool,
}
