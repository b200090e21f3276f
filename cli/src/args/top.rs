//! `vprof top`.

use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use control::message::SHORTEST_MS;
use display::parse::positive_time;

use super::TEMPLATE;
use super::parse::ValueError;
use crate::completion;

const EXAMPLES: &str = "\
Examples:
  vprof top                                the only run in progress
  vprof top 4711                           the run with this process id
  vprof top --display 1s                   a refresh every second
  vprof run guest.img --top                both in one terminal
";

const NOTES: &str = "\
`?` shows the keys, `q` leaves; the run continues. Without colours where NO_COLOR is set, in ASCII where the locale \
is not UTF-8. Where a terminal has no cursor control, `vprof ctl tables` prints the same tables once. docs/top.md \
describes the screen.

Exit codes: 0 done, also if the run ended; 1 there is no such run; 2 the command line is wrong, or there is no \
terminal.";

/// `vprof top`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct TopArgs {
    /// The run, by process id or socket [default: the only one]
    #[arg(value_name = "PID|SOCKET", add = ArgValueCompleter::new(completion::runs))]
    pub run: Option<String>,

    /// Time between two refreshes, at least 100ms
    #[arg(long, short = 'd', value_name = "TIME", default_value = "500ms", value_parser = parse_refresh_time)]
    pub display: Duration,
}

/// Parses a time between two refreshes.
fn parse_refresh_time(text: &str) -> Result<Duration, ValueError> {
    let time = positive_time(text)?;
    let shortest = Duration::from_millis(SHORTEST_MS);
    if time < shortest { Err(ValueError::RefreshTooShort(shortest.as_millis())) } else { Ok(time) }
}
