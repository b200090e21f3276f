//! Comparison of runs: the things that got more of the CPU or less, and the changes among these that are more
//! than chance.
//!
//! Each side has one run, or several. With one, the interval of a change comes from the intervals of the two
//! estimates: it applies to the time of these two runs. With several it comes from the differences between
//! the runs of a side, and applies to runs like these. docs/statistics.md has the details.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::report::command::has_command;
use crate::report::{COMMAND, Estimate, Filter, ReportError, ShareKey, Shares, SharesBy};
use crate::store::Profile;
use statistics::significance::{TestedChange, Value, holm, one_run, welch};

/// Chance of any mark in a table of things that have not changed. With several runs of each side, things are
/// programs; with one of each, they are the times of these very runs, and a re-run of one program has
/// changed.
pub const LEVEL: f64 = 0.05;
/// Least number of samples of a thing, in all runs together, for a test: with fewer it could never be marked,
/// and each test makes the others stricter.
pub const FEWEST: u64 = 10;

/// Reason why runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// A profile could not be read.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// One run on one side, several on the other.
    #[error("{before} before and {after} after: give one run for each side, or at least two for both")]
    Uneven {
        /// Number of runs before.
        before: usize,
        /// Number of runs after.
        after: usize,
    },
    /// A run has no samples.
    #[error("run {0} has no samples in the guest to compare")]
    NoSamples(usize),
}

/// A value before and after, with the precision of its change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Before; the mean of several runs.
    pub before: f64,
    /// After; the mean of several runs.
    pub after: f64,
    /// `after - before`.
    pub change: f64,
    /// Lower end of the change's 95 % interval.
    pub low: f64,
    /// Upper end of the change's 95 % interval.
    pub high: f64,
    /// Chance of a change as large as this if nothing has changed; `None` if there are too few samples for a
    /// test.
    pub p: Option<f64>,
    /// Chance of the largest of all changes in the table (Holm): marked if it is at most [`LEVEL`].
    pub p_adjusted: Option<f64>,
    /// True if the change is more than chance: with one run of each side, more than that of the sampled
    /// points of time.
    pub marked: bool,
}

/// CPU time per run of everything that is tested together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WholeTime {
    /// True for the time of the command's process tree (`vprof run IMAGE -- CMD`); false for the time that
    /// the filter chooses, which may be all time in the guest that is not idle.
    pub command: bool,
    /// Time per run, s. It is tested by itself: `p_adjusted` is `p`.
    pub time_s: Change,
}

impl WholeTime {
    /// Returns growth as a part of the time before, beyond chance; negative if it has shrunk, 0 if it may be
    /// chance.
    pub fn growth(&self) -> f64 {
        let Change { before, change, marked, .. } = self.time_s;
        if marked { change / before } else { 0.0 }
    }
}

/// One function, process or stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiffRow {
    /// Name of the row.
    #[serde(flatten)]
    pub key: ShareKey,
    /// Samples before, all runs.
    pub samples_before: u64,
    /// Samples after, all runs.
    pub samples_after: u64,
    /// Share of all time in the guest that is not idle.
    pub share: Change,
    /// Time per run, s.
    pub time_s: Change,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Number of runs.
    pub runs: usize,
    /// Samples in the guest that are not idle, all runs.
    pub busy_samples: u64,
    /// Time in the guest that is not idle, s; the mean of several runs.
    pub busy_s: f64,
    /// Length of a run, s; the mean of several.
    pub duration_s: f64,
    /// Hosts of the runs: `kvm`, `portable` or `unknown`, each once.
    pub hosts: Vec<String>,
    /// True if all runs are complete.
    pub complete: bool,
}

/// Method for the interval of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalMethod {
    /// From the intervals of two runs. It is about these two runs only: a re-run of one program may be
    /// marked.
    TwoRuns,
    /// From the differences between runs of a side: Welch's t.
    Welch,
}

/// Runs before compared with runs after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// Kind of the rows.
    pub by: SharesBy,
    /// Part of each profile.
    pub filter: Filter,
    /// Method for intervals.
    pub method: IntervalMethod,
    /// True if intervals are valid: not under a fixed clock.
    pub intervals_valid: bool,
    /// Chance of any mark if nothing has changed, see [`LEVEL`].
    pub level: f64,
    /// Number of rows that are tested.
    pub tested: usize,
    /// Runs before.
    pub before: Side,
    /// Runs after.
    pub after: Side,
    /// Time that a limit applies to.
    pub whole: WholeTime,
    /// The largest change of share first, marked ones before others.
    pub rows: Vec<DiffRow>,
}

impl Diff {
    /// Compares the parts of profiles that `filter` chooses. A process, thread, function or control group
    /// that it names may be missing in some of them.
    ///
    /// # Errors
    /// See [`DiffError`].
    pub fn read(
        before: &[Profile],
        after: &[Profile],
        filter: &Filter,
        by: SharesBy,
    ) -> Result<Self, DiffError> {
        let (mut found, mut missing) = (0, None);
        let mut read = |profiles: &[Profile]| {
            let read = |profile| match Shares::read(profile, filter, by) {
                Err(error @ ReportError::NoSuch { .. }) => {
                    missing = Some(error);
                    Shares::read_none(profile, filter, by)
                }
                shares => shares.inspect(|_| found += 1),
            };
            profiles.iter().map(read).collect::<Result<Vec<_>, _>>()
        };
        let (first, second) = (read(before)?, read(after)?);
        if let Some(error) = missing.filter(|_| found == 0) {
            return Err(error.into());
        }
        let mut diff = Self::new(&first, &second, filter, by)?;
        let with_command = |profiles: &[Profile]| -> Result<bool, ReportError> {
            let mut all = profiles.iter().map(has_command);
            all.try_fold(true, |so_far, has| Ok(so_far && has?))
        };
        if filter.is_of_all() && with_command(before)? && with_command(after)? {
            let tree = Filter { tree: Some(COMMAND.to_owned()), ..filter.clone() };
            let read = |profiles: &[Profile]| {
                let runs = profiles.iter().map(|profile| Shares::read(profile, &tree, SharesBy::Process));
                runs.collect::<Result<Vec<_>, _>>()
            };
            diff.whole = whole(&read(before)?, &read(after)?, diff.method, true);
        }
        Ok(diff)
    }

    /// Compares runs by their shares.
    ///
    /// # Errors
    /// See [`DiffError`].
    pub fn new(
        before: &[Shares],
        after: &[Shares],
        filter: &Filter,
        by: SharesBy,
    ) -> Result<Self, DiffError> {
        let uneven = || DiffError::Uneven { before: before.len(), after: after.len() };
        let method = match (before.len(), after.len()) {
            (1, 1) => IntervalMethod::TwoRuns,
            (2.., 2..) => IntervalMethod::Welch,
            _ => return Err(uneven()),
        };
        if let Some(run) = before.iter().chain(after).position(|run| run.busy_samples == 0) {
            return Err(DiffError::NoSamples(run + 1));
        }
        let mut rows = rows(before, after, method);
        let tested = mark(&mut rows);
        let order = |row: &DiffRow| (row.share.marked || row.time_s.marked, row.share.change.abs());
        rows.sort_by(|a, b| {
            let (a_order, b_order) = (order(a), order(b));
            let change = b_order.0.cmp(&a_order.0).then(b_order.1.total_cmp(&a_order.1));
            change.then(b.share.after.total_cmp(&a.share.after)).then_with(|| a.key.cmp(&b.key))
        });
        Ok(Self {
            by,
            filter: filter.clone(),
            method,
            intervals_valid: before.iter().chain(after).all(|run| run.intervals_valid),
            level: LEVEL,
            tested,
            before: side(before),
            after: side(after),
            whole: whole(before, after, method, false),
            rows,
        })
    }

    /// Returns marked rows whose share has grown by more than this; 0.05 is five points.
    pub fn grown(&self, share: f64) -> impl Iterator<Item = &DiffRow> {
        self.rows.iter().filter(move |row| row.share.marked && row.share.change > share)
    }
}

/// Limit of growth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GrowthLimit {
    /// Growth of [`Diff::whole`], as a part of the time before: 0.05 is a twentieth more.
    Growth(f64),
    /// Growth of [`Diff::whole`], s per run.
    Seconds(f64),
    /// Growth of the share of any row: 0.05 is five points.
    Points(f64),
}

/// Returns the change of everything that was chosen together.
fn whole(before: &[Shares], after: &[Shares], method: IntervalMethod, command: bool) -> WholeTime {
    let value =
        |run: &Shares| Value { at: run.whole.time_s, low: run.whole.time_low_s, high: run.whole.time_high_s };
    let values = |runs: &[Shares]| runs.iter().map(value).collect::<Vec<_>>();
    let samples: u64 = before.iter().chain(after).map(|run| run.whole.samples).sum();
    let mut time_s = change(&values(before), &values(after), method, samples >= FEWEST);
    time_s.p_adjusted = time_s.p;
    time_s.marked = time_s.p.is_some_and(|p| p <= LEVEL);
    WholeTime { command, time_s }
}

/// A thing's estimates in all runs of both sides.
type InRuns<'a> = (Vec<&'a Estimate>, Vec<&'a Estimate>);

fn rows(before: &[Shares], after: &[Shares], method: IntervalMethod) -> Vec<DiffRow> {
    let absent =
        || (before.iter().map(|run| &run.absent).collect(), after.iter().map(|run| &run.absent).collect());
    let mut found: BTreeMap<&ShareKey, InRuns<'_>> = BTreeMap::new();
    for (n, run) in before.iter().enumerate() {
        for (key, estimate) in &run.rows {
            found.entry(key).or_insert_with(absent).0[n] = estimate;
        }
    }
    for (n, run) in after.iter().enumerate() {
        for (key, estimate) in &run.rows {
            found.entry(key).or_insert_with(absent).1[n] = estimate;
        }
    }
    let samples = |runs: &[&Estimate]| runs.iter().map(|estimate| estimate.samples).sum();
    let row = |(key, (before, after)): (&ShareKey, InRuns<'_>)| {
        let (samples_before, samples_after): (u64, u64) = (samples(&before), samples(&after));
        let tested = samples_before + samples_after >= FEWEST;
        let change = |of: fn(&Estimate) -> Value| {
            let values = |runs: &[&Estimate]| runs.iter().map(|estimate| of(estimate)).collect::<Vec<_>>();
            change(&values(&before), &values(&after), method, tested)
        };
        DiffRow {
            key: key.clone(),
            samples_before,
            samples_after,
            share: change(|e| Value { at: e.share, low: e.share_low, high: e.share_high }),
            time_s: change(|e| Value { at: e.time_s, low: e.time_low_s, high: e.time_high_s }),
        }
    };
    found.into_iter().map(row).collect()
}

/// Compares measurements of runs like these, each group of which has at least two on either side: Welch's t,
/// and Holm's correction over the groups. Marks changes that would come by chance in at most one of a hundred
/// such comparisons.
pub fn compare(groups: &[(&[f64], &[f64])]) -> Vec<Change> {
    /// Chance of any mark in a comparison of things that have not changed.
    const MEASURED: f64 = 0.01;
    let values = |side: &[f64]| side.iter().map(|&at| Value { at, low: at, high: at }).collect::<Vec<_>>();
    let mut changes: Vec<Change> = groups
        .iter()
        .map(|(before, after)| change(&values(before), &values(after), IntervalMethod::Welch, true))
        .collect();
    let adjusted = holm(&changes.iter().map(|change| change.p.unwrap_or(1.0)).collect::<Vec<_>>());
    for (change, adjusted) in changes.iter_mut().zip(adjusted) {
        change.p_adjusted = Some(adjusted);
        change.marked = adjusted <= MEASURED;
    }
    changes
}

fn change(before: &[Value], after: &[Value], method: IntervalMethod, tested: bool) -> Change {
    let mean = |values: &[Value]| values.iter().map(|value| value.at).sum::<f64>() / values.len() as f64;
    let TestedChange { low, high, p } = match (method, before, after) {
        (IntervalMethod::TwoRuns, [before], [after]) => one_run(*before, *after),
        _ => welch(before, after),
    };
    let (before, after) = (mean(before), mean(after));
    let p = tested.then_some(p);
    Change { before, after, change: after - before, low, high, p, p_adjusted: None, marked: false }
}

/// Marks changes that are more than chance, among shares and among times; returns the number of rows that are
/// tested.
fn mark(rows: &mut [DiffRow]) -> usize {
    let families: [fn(&mut DiffRow) -> &mut Change; 2] = [|row| &mut row.share, |row| &mut row.time_s];
    let mut tested = 0;
    for change_of in families {
        let mut changes: Vec<&mut Change> =
            rows.iter_mut().map(change_of).filter(|change| change.p.is_some()).collect();
        tested = changes.len();
        let adjusted = holm(&changes.iter().map(|change| change.p.unwrap_or(1.0)).collect::<Vec<_>>());
        for (change, adjusted) in changes.iter_mut().zip(adjusted) {
            change.p_adjusted = Some(adjusted);
            change.marked = adjusted <= LEVEL;
        }
    }
    tested
}

fn side(runs: &[Shares]) -> Side {
    let mean = |of: fn(&Shares) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let mut hosts: Vec<String> = runs.iter().map(|run| run.host.clone()).collect();
    hosts.sort();
    hosts.dedup();
    Side {
        runs: runs.len(),
        busy_samples: runs.iter().map(|run| run.busy_samples).sum(),
        busy_s: mean(|run| run.busy_s),
        duration_s: mean(|run| run.duration_s),
        hosts,
        complete: runs.iter().all(|run| run.complete),
    }
}
