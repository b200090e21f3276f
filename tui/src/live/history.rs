//! States of each vCPU over time: a column for each snapshot.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use profile::live::{Snapshot, VcpuShare};

use crate::widgets::theme::{STATES, StateParts};

/// Largest number of columns.
const KEPT: usize = 600;

/// Sorts named parts into the order of [`STATES`].
pub fn parts(named: &[(String, f64)]) -> StateParts {
    STATES.map(|name| {
        let found = named.iter().find(|(state, _)| state == name).map_or(0.0, |(_, part)| *part);
        #[expect(clippy::cast_possible_truncation, reason = "shown to three digits")]
        let found = found as f32;
        if found.is_finite() { found.clamp(0.0, 1.0) } else { 0.0 }
    })
}

/// Returns the columns of the vCPUs' history that are known, the latest last.
fn history(vcpus: &[VcpuShare]) -> Vec<BTreeMap<u8, StateParts>> {
    let length = vcpus.iter().map(|vcpu| vcpu.history.len()).max().unwrap_or(0).min(KEPT);
    let mut columns = vec![BTreeMap::new(); length];
    for vcpu in vcpus {
        for (column, numbers) in columns.iter_mut().rev().zip(vcpu.history.iter().rev()) {
            let names = vcpu.states.iter().map(|(name, _)| name.clone());
            let named: Vec<_> = names.zip(numbers.iter().copied()).collect();
            column.insert(vcpu.id, parts(&named));
        }
    }
    columns
}

/// Returns the mean of the known parts.
pub fn mean<'a>(all: impl IntoIterator<Item = &'a StateParts>) -> StateParts {
    let (mut sums, mut count) = (StateParts::default(), 0.0_f32);
    for parts in all.into_iter().filter(|parts| parts.iter().any(|part| *part > 0.0)) {
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        count += 1.0;
    }
    sums.map(|sum| if count > 0.0 { sum / count } else { 0.0 })
}

/// Columns of all vCPUs, the latest last.
#[derive(Debug, Default)]
pub struct StateHistory {
    columns: VecDeque<BTreeMap<u8, StateParts>>,
    /// Run time of the latest column, s.
    latest_s: f64,
    /// Number of the latest columns that are not shown.
    hidden: usize,
}

impl StateHistory {
    /// Adds a snapshot. Snapshots are due `every`; missing ones become empty columns.
    pub fn add(&mut self, snapshot: &Snapshot, every: Duration, hidden: bool) {
        // The same snapshot again is ignored; an earlier time means that the run began again.
        if snapshot.time_s < self.latest_s {
            self.columns.clear();
            self.hidden = 0;
        } else if snapshot.time_s - self.latest_s < every.as_secs_f64() * 0.1 {
            return;
        }
        if self.columns.is_empty() {
            history(&snapshot.vcpus).into_iter().for_each(|column| self.push(column, hidden));
            if !self.columns.is_empty() {
                self.latest_s = snapshot.time_s;
                return;
            }
        }
        let gap = (snapshot.time_s - self.latest_s) / every.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
        let missing =
            if self.columns.is_empty() { 0 } else { (gap - 1.0).floor().clamp(0.0, 600.0) as usize };
        for _ in 0..missing {
            self.push(BTreeMap::new(), hidden);
        }
        self.push(snapshot.vcpus.iter().map(|vcpu| (vcpu.id, parts(&vcpu.now))).collect(), hidden);
        self.latest_s = snapshot.time_s;
    }

    fn push(&mut self, column: BTreeMap<u8, StateParts>, hidden: bool) {
        if self.columns.len() >= KEPT {
            self.columns.pop_front();
        }
        self.columns.push_back(column);
        self.hidden = if hidden { (self.hidden + 1).min(KEPT) } else { 0 };
    }

    /// Shows all columns (again).
    pub fn show_all(&mut self) {
        self.hidden = 0;
    }

    /// Returns mean columns of some vCPUs, the latest first.
    pub fn latest<'a>(&'a self, vcpus: &'a [u8]) -> impl Iterator<Item = StateParts> + 'a {
        let shown = self.columns.len().saturating_sub(self.hidden);
        let column =
            |column: &BTreeMap<u8, StateParts>| mean(vcpus.iter().filter_map(|vcpu| column.get(vcpu)));
        self.columns.iter().take(shown).rev().map(column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(500);

    fn snapshot(time_s: f64, guest: f64) -> Snapshot {
        let states = vec![("guest".to_owned(), guest), ("halted".to_owned(), 1.0 - guest)];
        let vcpu = |id| VcpuShare { id, states: states.clone(), now: states.clone(), ..VcpuShare::default() };
        Snapshot { time_s, vcpus: vec![vcpu(0), vcpu(1)], ..Snapshot::default() }
    }

    fn guest(history: &StateHistory) -> Vec<f32> {
        history.latest(&[0, 1]).map(|parts| parts[0]).collect()
    }

    #[test]
    fn columns_follow_the_runs_time() {
        let mut history = StateHistory::default();
        history.add(&snapshot(1.0, 0.25), EVERY, false);
        history.add(&snapshot(1.0, 0.5), EVERY, false);
        assert_eq!(guest(&history), [0.25]);
        history.add(&snapshot(1.5, 0.5), EVERY, false);
        history.add(&snapshot(3.1, 1.0), EVERY, false);
        assert_eq!(guest(&history), [1.0, 0.0, 0.0, 0.5, 0.25]);
        history.add(&snapshot(0.5, 0.75), EVERY, false);
        assert_eq!(guest(&history), [0.75]);
    }

    #[test]
    fn a_history_comes_before_the_first_column() {
        let mut history = StateHistory::default();
        let mut first = snapshot(60.0, 0.25);
        first.vcpus[0].history = vec![vec![0.5, 0.5], vec![0.75, 0.25]];
        first.vcpus[1].history = vec![vec![1.0, 0.0], vec![0.25, f64::NAN]];
        history.add(&first, EVERY, false);
        history.add(&snapshot(60.5, 1.0), EVERY, false);
        assert_eq!(guest(&history), [1.0, 0.5, 0.75]);
    }

    #[test]
    fn columns_that_come_during_a_pause_are_kept() {
        let mut history = StateHistory::default();
        history.add(&snapshot(1.0, 0.25), EVERY, false);
        history.add(&snapshot(1.5, 0.5), EVERY, true);
        assert_eq!(guest(&history), [0.25]);
        history.show_all();
        assert_eq!(guest(&history), [0.5, 0.25]);
    }

    #[test]
    fn columns_are_bounded_and_parts_in_range() {
        let mut history = StateHistory::default();
        history.add(&snapshot(0.5, f64::NAN), EVERY, false);
        history.add(&snapshot(1e12, 7.0), EVERY, false);
        assert_eq!(history.columns.len(), KEPT);
        assert_eq!(guest(&history)[0], 1.0);
        assert_eq!(mean([&[0.0; 7], &parts(&[("kvm".to_owned(), 1.0)])])[3], 1.0);
    }
}
