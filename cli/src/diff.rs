//! `vprof diff`: changes of CPU time between runs, and which of them are more than chance.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::export::{ExportError, write_difference};
use display::clean::escaped;
use display::units::rounded;
use profile::diff::{Diff, GrowthLimit};
use profile::report::SharesBy;
use profile::{Filter, Profile};

use crate::args::{DEFAULT_PROFILE, DiffArgs, OLDER_PROFILE};
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{OutputTarget, ignore_closed_pipe, write_json};
use crate::pager::page;
use ::render::{PageLayout, all_for_zero, diff as render, summary};

/// Runs the command.
pub fn command(args: &DiffArgs) -> Result<ExitCode, Error> {
    let [before, after] = sides(args);
    if args.fail_above.is_some() && !args.single && before.len() == 1 && after.len() == 1 {
        return Err(UsageError::SingleRuns.into());
    }
    let filter = args.filter.to_filter();
    let [first, second] = [open(&before)?, open(&after)?];
    let diff = Diff::read(&first, &second, &filter, args.by)?;
    if let Some(path) = &args.flamegraph {
        flamegraph(path, args.force, &first, &second, &filter)?;
    }
    let printed = if args.json {
        write_json(&diff)
    } else {
        let rows = all_for_zero(args.rows);
        let text = match args.markdown {
            true => render::markdown(&diff, rows),
            false => render::render(&diff, rows, PageLayout::stdout()),
        };
        page(&text)
    };
    ignore_closed_pipe(printed)?;
    Ok(args.fail_above.map_or(ExitCode::Done, |limit| judged(&diff, limit)))
}

/// Returns the profiles before and after.
fn sides(args: &DiffArgs) -> [Vec<PathBuf>; 2] {
    let side = |positional: &Option<PathBuf>, several: &[PathBuf], default: &str| match positional {
        Some(path) => vec![path.clone()],
        None if several.is_empty() => vec![default.into()],
        None => several.to_vec(),
    };
    [side(&args.first, &args.before, OLDER_PROFILE), side(&args.second, &args.after, DEFAULT_PROFILE)]
}

fn open(paths: &[PathBuf]) -> Result<Vec<Profile>, Error> {
    paths.iter().map(|path| Ok(Profile::open(path)?)).collect()
}

/// Checks increases against the limit, and prints to standard error those that exceed it.
fn judged(diff: &Diff, limit: GrowthLimit) -> ExitCode {
    let time = &diff.whole.time_s;
    let too_much = match limit {
        GrowthLimit::Growth(limit) => diff.whole.growth() > limit,
        GrowthLimit::Seconds(limit) => time.marked && time.change > limit,
        GrowthLimit::Points(limit) => return judged_rows(diff, limit),
    };
    if !too_much {
        return ExitCode::Done;
    }
    let what = if diff.whole.command { "CPU time of the command" } else { "CPU time" };
    display::stderr_line!("vprof: more than --fail-above allows: {what} grew {}", render::growth(time));
    ExitCode::Expectation
}

/// Checks the increase of each row's share against the limit.
fn judged_rows(diff: &Diff, limit: f64) -> ExitCode {
    let grown: Vec<String> = diff
        .grown(limit)
        .map(|row| format!("{} ({} points)", render::name(&row.key), render::points(row.share.change)))
        .collect();
    if grown.is_empty() {
        return ExitCode::Done;
    }
    const SHOWN: usize = 5;
    let more = grown.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = grown.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    display::stderr_line!("vprof: more than --fail-above allows: {named}{more}");
    ExitCode::Expectation
}

/// Writes a flame graph of the time of each stack, us per run. Times before are scaled to the busy time
/// after.
fn flamegraph(
    path: &Path,
    force: bool,
    before: &[Profile],
    after: &[Profile],
    filter: &Filter,
) -> Result<(), Error> {
    let diff = Diff::read(before, after, filter, SharesBy::Stack)?;
    let us = diff.after.busy_s * 1e6;
    let mut stacks: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in &diff.rows {
        let sums = stacks.entry(escaped(&row.key.name).into_owned()).or_default();
        sums.0 += rounded(row.share.before * us);
        sums.1 += rounded(row.share.after * us);
    }
    let mut output = OutputTarget::open(path, force)?;
    let stacks = stacks.into_iter().map(|(stack, (before, after))| (stack, before, after));
    let part = summary::part(filter).map_or_else(String::new, |part| format!(" {part}"));
    let title = format!("Shares of all CPU time: red have grown, blue have shrunk.{part}");
    match write_difference(stacks, rounded(us), &title, output.writer()) {
        Ok(()) => output.finish(),
        Err(ExportError::Write(source)) => Err(output.error(source)),
        Err(error) => Err(error.into()),
    }
}
