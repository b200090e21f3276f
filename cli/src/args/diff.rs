//! `vprof diff`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use display::parse::positive_time;
use profile::diff::GrowthLimit;
use profile::report::SharesBy;

use super::parse::ValueError;
use super::{FilterArgs, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof diff                               the last run and the one before
  vprof diff before.vprof after.vprof
  vprof diff before.vprof after.vprof --by stack --flamegraph diff.svg
  vprof diff --before a1.vprof a2.vprof --after b1.vprof b2.vprof
  vprof diff --before old-*.vprof --after new-*.vprof --fail-above 5% --markdown
";

const NOTES: &str = "\
A change is marked (*) where it is more than chance: where nothing has changed, a table has any mark in at most 5 % of \
cases. Chances are adjusted for the number of rows (Holm).

With one run before and one after, chance is only in the choice of sampled instants, and a mark is about these two runs: \
a re-run of the same program may be marked as well. To compare programs, make several runs of each \
(vprof run --repeat 3, --before, --after): intervals then come from the differences between runs of a side (Welch's t). Three to five \
runs of each are a good start. docs/statistics.md has the details.

--fail-above 5% judges CPU time: that of the command and all that it started, in runs with a command (vprof run IMAGE -- \
CMD); that of the processes that --process and the like choose; else that of all processes. vprof exits with 3 if this \
time has grown by more than 5 %, and by more than chance. It never fails because something else takes less.

Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 an increase beyond chance exceeds --fail-above.";

/// `vprof diff`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct DiffArgs {
    /// The profile before [default: vprof.vprof.old]
    #[arg(value_name = "BEFORE", requires = "second", conflicts_with_all = ["before", "after"])]
    pub first: Option<PathBuf>,

    /// The profile after [default: vprof.vprof]
    #[arg(value_name = "AFTER", conflicts_with_all = ["before", "after"])]
    pub second: Option<PathBuf>,

    /// Several profiles from before the change
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "after")]
    pub before: Vec<PathBuf>,

    /// Several profiles from after the change
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "before")]
    pub after: Vec<PathBuf>,

    /// Kind of rows: functions by their own time, functions with the time of their callees (total), programs,
    /// or whole stacks
    #[arg(long, default_value = "function", value_name = "WHAT", value_parser = by_parser())]
    pub by: SharesBy,

    /// Exit with code 3 if CPU time per run has grown by more than this, and the growth exceeds chance. The
    /// limit is a part of the earlier time, like 5%, or a time, like 50ms. A limit in points, like 5pt,
    /// applies to the share of any row instead
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    pub fail_above: Option<GrowthLimit>,

    /// Let --fail-above judge a single run of each side, although runs differ by chance
    #[arg(long, requires = "fail_above")]
    pub single: bool,

    /// Rows to show; 0 for all
    #[arg(short = 'n', long, default_value_t = 20, value_name = "ROWS")]
    pub rows: usize,

    /// Print JSON (docs/json.md); always all rows
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,

    /// Print a table for a pull request
    #[arg(long)]
    pub markdown: bool,

    /// Also write a flame graph: widths are those after, growth is red, decline is blue
    #[arg(long, value_name = "FILE")]
    pub flamegraph: Option<PathBuf>,

    /// Replace the flame graph if it exists
    #[arg(long, requires = "flamegraph")]
    pub force: bool,

    /// Part of each profile to use.
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

/// Parses a growth with `%`, points of a share with `pt`, else a time.
fn parse_limit(text: &str) -> Result<GrowthLimit, ValueError> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    if let Some(percent) = text.strip_suffix('%') {
        let growth = number(percent).ok_or_else(|| ValueError::Growth(text.to_owned()))?;
        return Ok(GrowthLimit::Growth(growth / 100.0));
    }
    if let Some(points) = text.strip_suffix("pt") {
        let points = number(points).filter(|points| *points <= 100.0);
        return Ok(GrowthLimit::Points(points.ok_or_else(|| ValueError::Points(text.to_owned()))? / 100.0));
    }
    if text.ends_with(|c: char| c.is_ascii_digit()) {
        return Err(ValueError::LimitUnit);
    }
    let time = positive_time(text).map_err(ValueError::LimitTime)?;
    Ok(GrowthLimit::Seconds(time.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_growth_points_or_times() {
        assert_eq!(parse_limit("5%"), Ok(GrowthLimit::Growth(0.05)));
        assert_eq!(parse_limit("0%"), Ok(GrowthLimit::Growth(0.0)));
        assert_eq!(parse_limit("150%"), Ok(GrowthLimit::Growth(1.5)));
        assert_eq!(parse_limit("5pt"), Ok(GrowthLimit::Points(0.05)));
        assert_eq!(parse_limit("50ms"), Ok(GrowthLimit::Seconds(0.05)));
        for wrong in ["", "5", "-1%", "inf%", "101pt", "x%", "%", "pt"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
