//! States of tasks by scans.

use std::collections::{HashMap, VecDeque};

use super::tables::TaskKey;
use crate::rows::TaskState;
use crate::rows::{TaskScanRow, TaskScanStateRow};

/// Limit of changes.
const CHANGES: usize = 1 << 16;
/// Limit of scans: a minute at 50 per second.
const MOMENTS: usize = 3_000;

/// Number of scans in which a task was in each state, in the order of [`TaskState::ALL`].
pub(super) type StateCounts = [u64; TaskState::ALL.len()];

#[derive(Debug)]
struct Change {
    scan: u64,
    task: TaskKey,
    from: Option<TaskState>,
    to: Option<TaskState>,
}

/// The last scans.
#[derive(Debug, Default)]
pub(super) struct SampledStates {
    /// Number and time, ns.
    scans: VecDeque<(u64, u64)>,
    changes: VecDeque<Change>,
    now: HashMap<TaskKey, TaskState>,
}

impl SampledStates {
    pub fn scan(&mut self, row: &TaskScanRow) {
        if self.scans.len() >= MOMENTS {
            self.scans.pop_front();
        }
        self.scans.push_back((row.id, row.time_ns));
    }

    pub fn change(&mut self, row: &TaskScanStateRow) {
        let task = (row.instance, row.tid);
        let from = match row.state {
            Some(state) => self.now.insert(task, state),
            None => self.now.remove(&task),
        };
        if self.changes.len() >= CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(Change { scan: row.scan, task, from, to: row.state });
    }

    /// Returns the instances of the tasks that the last scan saw.
    pub fn instances(&self) -> impl Iterator<Item = u32> {
        self.now.keys().map(|(instance, _)| *instance)
    }

    /// Returns the number of scans of each task in each state since a time, and the mean time between two
    /// scans, ns.
    pub fn since(&self, from_ns: u64) -> (HashMap<TaskKey, StateCounts>, u64) {
        let mut seen: HashMap<TaskKey, StateCounts> = HashMap::new();
        let (Some(&(last, to_ns)), Some(&(first, begin_ns))) =
            (self.scans.back(), self.scans.iter().find(|(_, time)| *time > from_ns))
        else {
            return (seen, 0);
        };
        // Backwards from now: the scan down to which a task's state is counted already, and its state before
        // that.
        let mut known: HashMap<TaskKey, (u64, Option<TaskState>)> =
            self.now.iter().map(|(task, state)| (*task, (last + 1, Some(*state)))).collect();
        let mut count = |task: TaskKey, state: Option<TaskState>, scans: u64| {
            let place = state.and_then(|state| TaskState::ALL.iter().position(|known| *known == state));
            if let Some(place) = place.filter(|_| scans > 0) {
                seen.entry(task).or_default()[place] += scans;
            }
        };
        for change in self.changes.iter().rev().take_while(|change| change.scan >= first) {
            let (end, _) = known.get(&change.task).copied().unwrap_or((last + 1, None));
            count(change.task, change.to, end.saturating_sub(change.scan));
            known.insert(change.task, (change.scan.min(end), change.from));
        }
        for (task, (end, state)) in known {
            count(task, state, end.saturating_sub(first));
        }
        let scans = (last - first.min(last)).max(1);
        (seen, to_ns.saturating_sub(begin_ns) / scans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted_by_moments() {
        let mut task_scans = SampledStates::default();
        let task = |tid, scan, state| TaskScanStateRow {
            instance: 1,
            tid,
            scan,
            state,
            ..TaskScanStateRow::default()
        };
        for id in 1..=10 {
            task_scans.scan(&TaskScanRow { id, time_ns: id * 100, ..TaskScanRow::default() });
        }
        for row in [
            task(1, 1, Some(TaskState::Running)),
            task(2, 1, Some(TaskState::Sleep)),
            task(1, 4, Some(TaskState::Runnable)),
            task(2, 9, None),
            task(1, 10, Some(TaskState::Running)),
        ] {
            task_scans.change(&row);
        }
        let (all, step_ns) = task_scans.since(0);
        // Scans 1 to 3 and 10 running, 4 to 9 runnable; the other is there up to scan 8.
        let at = |wanted| TaskState::ALL.iter().position(|state| *state == wanted).unwrap();
        let [running, queue, sleep] = [TaskState::Running, TaskState::Runnable, TaskState::Sleep].map(at);
        assert_eq!(
            (all[&(1, 1)][running], all[&(1, 1)][queue], all[&(1, 2)][sleep], step_ns),
            (4, 6, 8, 100)
        );
        let (late, _) = task_scans.since(800);
        assert_eq!((late[&(1, 1)][running], late[&(1, 1)][queue], late.get(&(1, 2))), (1, 1, None));
        assert_eq!(task_scans.since(5_000).0.len(), 0);
    }
}
