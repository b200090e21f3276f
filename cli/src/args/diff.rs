//! `vprof diff`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use sampler::diff::Limit;
use sampler::report::SharesBy;

use super::parse::parse_positive_time;
use super::{FilterArgs, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof diff before.vprof after.vprof
  vprof diff before.vprof after.vprof --by stack --flamegraph diff.svg
  vprof diff --before a1.vprof a2.vprof a3.vprof --after b1.vprof b2.vprof b3.vprof
  vprof diff --before base-*.vprof --after new-*.vprof --fail-above 5% --markdown
";

const NOTES: &str = "\
A change is marked (*) where it is more than chance: where nothing has changed, a table has any mark in at most 5 % of \
cases. Chances are adjusted for all rows being looked at (Holm), whatever their number.

With one run before and one after, intervals are about the time of these two runs: that two runs of the very same \
programs differ is not in them. With several runs of each they come from how runs of a side differ (Welch's t), and a \
marked change is one of the programs. Three to five runs of each are a good start. docs/statistics.md has the details.

Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 a marked increase exceeds --fail-above.";

/// `vprof diff`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct DiffArgs {
    /// The profile before
    #[arg(value_name = "BEFORE", requires = "second", required_unless_present_all = ["before", "after"],
        conflicts_with_all = ["before", "after"])]
    pub first: Option<PathBuf>,

    /// The profile after
    #[arg(value_name = "AFTER", conflicts_with_all = ["before", "after"])]
    pub second: Option<PathBuf>,

    /// Several profiles before
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "after")]
    pub before: Vec<PathBuf>,

    /// Several profiles after
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "before")]
    pub after: Vec<PathBuf>,

    /// What rows are: functions by their own time, functions with what they call (total), programs, or whole stacks
    #[arg(long, default_value = "function", value_name = "WHAT", value_parser = by_parser())]
    pub by: SharesBy,

    /// Exit with code 3 if a marked increase exceeds this: of the share of CPU time, in points, like 5%, or of the time
    /// per run, like 50ms
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    pub fail_above: Option<Limit>,

    /// Rows to show; 0 for all
    #[arg(short = 'n', long, default_value_t = 20, value_name = "ROWS")]
    pub rows: usize,

    /// Print JSON (docs/json.md); always all rows
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,

    /// Print a table for a pull request
    #[arg(long)]
    pub markdown: bool,

    /// Also write a flame graph: widths as after, red what has grown, blue what has shrunk
    #[arg(long, value_name = "FILE")]
    pub flamegraph: Option<PathBuf>,

    /// Replace the flame graph if it exists
    #[arg(long, requires = "flamegraph")]
    pub force: bool,

    /// Which part of each profile.
    #[command(flatten)]
    pub filter: FilterArgs,
}

fn by_parser() -> impl TypedValueParser<Value = SharesBy> {
    PossibleValuesParser::new(["function", "total", "process", "stack"]).map(|name| match name.as_str() {
        "total" => SharesBy::Total,
        "process" => SharesBy::Process,
        "stack" => SharesBy::Stack,
        _ => SharesBy::Function,
    })
}

/// Points of a share with `%`, else a time.
fn parse_limit(text: &str) -> Result<Limit, String> {
    if text.ends_with('%') {
        return match text.trim_end_matches('%').trim().parse::<f64>() {
            Ok(points) if (0.0..=100.0).contains(&points) => Ok(Limit::Share(points / 100.0)),
            _ => Err(format!("{text} is no number of points from 0% to 100%")),
        };
    }
    if text.ends_with(|c: char| c.is_ascii_digit()) {
        return Err("it has no unit: give points of a share, like 5%, or a time, like 50ms".to_owned());
    }
    let time =
        parse_positive_time(text).map_err(|error| format!("{error}; or give points of a share, like 5%"))?;
    Ok(Limit::Seconds(time.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_points_or_times() {
        assert_eq!(parse_limit("5%"), Ok(Limit::Share(0.05)));
        assert_eq!(parse_limit("0%"), Ok(Limit::Share(0.0)));
        assert_eq!(parse_limit("50ms"), Ok(Limit::Seconds(0.05)));
        for wrong in ["", "5", "-1%", "101%", "x%", "%"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
