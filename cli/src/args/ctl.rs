//! `vprof ctl`.

use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use control::message::Then;
use display::parse::positive_time;
use profile::conditions::Condition;

use super::TEMPLATE;
use super::parse::{parse_rate, then_parser};
use crate::completion;

const EXAMPLES: &str = "\
Examples:
  vprof ctl status                         of the only run in progress
  vprof ctl mark \"cache is warm\"           a mark in the profile, with its time
  vprof ctl stop; sleep 5; vprof ctl start sample only what matters
  vprof ctl stop --when process-end:gzip   stop it when the last gzip has ended
  vprof ctl rate 5000                      from now on
  vprof ctl tables --last 5s --json        who used the last 5 seconds
  vprof ctl --run 4711 end                 end the run with this process id
";

const NOTES: &str = "\
A run listens at a socket that only its owner may use; docs/control.md describes its protocol. \
Time while sampling is stopped is in no share and no estimated time; exact times continue.

Exit codes: 0 done; 1 there is no such run, or it refused; 2 the command line is wrong.";

/// `vprof ctl`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct CtlArgs {
    /// The run, by process id or socket [default: the only one]
    #[arg(
        long,
        value_name = "PID|SOCKET",
        global = true,
        add = ArgValueCompleter::new(completion::runs)
    )]
    pub run: Option<String>,

    /// Print answers as JSON (docs/control.md)
    #[arg(long, global = true)]
    pub json: bool,

    /// Request to the run
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Request to a run.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// List the runs of this user that are in progress
    List,
    /// Show the state of the run
    Status,
    /// Show the current tables of the run
    Tables {
        /// Of the last seconds only, at most 60
        #[arg(long, value_name = "TIME", value_parser = positive_time)]
        last: Option<Duration>,
        /// Rows per table; 0 shows all
        #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
        rows: usize,
    },
    /// Print the tables again and again as JSON, a line each, until the run ends
    Watch {
        /// Of the last seconds only, at most 60
        #[arg(long, value_name = "TIME", value_parser = positive_time)]
        last: Option<Duration>,
        /// Rows per table; 0 shows all
        #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
        rows: usize,
        /// Time between two refreshes, at least 100ms
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_time)]
        every: Duration,
    },
    /// Sample again
    Start {
        /// Only from this condition on; see `vprof run --help`
        #[arg(long, value_name = "CONDITION")]
        when: Option<Condition>,
    },
    /// Stop sampling until `start`; the run continues
    Stop {
        /// Only when this condition is met; see `vprof run --help`
        #[arg(long, value_name = "CONDITION")]
        when: Option<Condition>,
        /// End of sampling: end the run, or let it continue [default: continue]
        #[arg(long, value_parser = then_parser(), value_name = "WHAT", requires = "when")]
        then: Option<Then>,
    },
    /// Change the sampling rate
    Rate {
        /// Mean samples per second and vCPU, 0.1 to 50000
        #[arg(value_parser = parse_rate)]
        hz: f64,
    },
    /// Put a mark with this text and its time into the profile
    Mark {
        /// Text of the mark
        #[arg(required = true)]
        text: Vec<String>,
    },
    /// Write what was recorded so far to the profile, and wait for it
    Write,
    /// End the run
    End,
}
