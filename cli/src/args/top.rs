//! `vprof top`.

use std::time::Duration;

use clap::Args;
use host::protocol::control::SHORTEST_MS;
use text::parse::positive_time;

use super::TEMPLATE;

const EXAMPLES: &str = "\
Examples:
  vprof top                                the only run that goes on
  vprof top 4711                           the run with this process id
  vprof top --display 1s                   a look every second
  vprof run guest.img --top                both in one terminal
";

const NOTES: &str = "\
`?` shows the keys, `q` leaves; the run goes on. Without colours where NO_COLOR is set, in ASCII where the locale \
is not UTF-8. Where a terminal cannot be steered, `vprof ctl tables` prints the same tables once. docs/top.md \
describes the screen.

Exit codes: 0 done, also if the run ended; 1 there is no such run; 2 the command line is wrong, or there is no \
terminal.";

/// `vprof top`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct TopArgs {
    /// Which run: its process id, or its socket [default: the only one]
    #[arg(value_name = "PID|SOCKET")]
    pub run: Option<String>,

    /// Time between two looks, at least 100ms
    #[arg(long, short = 'd', value_name = "TIME", default_value = "500ms", value_parser = parse_look_time)]
    pub display: Duration,
}

fn parse_look_time(text: &str) -> Result<Duration, String> {
    let time = positive_time(text).map_err(|error| error.to_string())?;
    let shortest = Duration::from_millis(SHORTEST_MS);
    if time < shortest { Err(format!("at least {}ms", shortest.as_millis())) } else { Ok(time) }
}
