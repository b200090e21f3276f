//! What tasks did at the moments of the census.

use std::collections::{HashMap, VecDeque};

use super::tables::TaskKey;
use crate::rows::State;
use crate::rows::{CensusMomentRow, CensusStateRow};

/// Changes that are kept, at most.
const CHANGES: usize = 1 << 16;
/// Moments that are kept, at most: a minute at 50 per second.
const MOMENTS: usize = 3_000;

/// How often a task was seen in each state, in the order of [`State::ALL`].
pub(super) type Seen = [u64; State::ALL.len()];

#[derive(Debug)]
struct Change {
    moment: u64,
    task: TaskKey,
    from: Option<State>,
    to: Option<State>,
}

/// The last moments.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// Number and time, ns.
    moments: VecDeque<(u64, u64)>,
    changes: VecDeque<Change>,
    now: HashMap<TaskKey, State>,
}

impl Census {
    pub fn moment(&mut self, row: &CensusMomentRow) {
        if self.moments.len() >= MOMENTS {
            self.moments.pop_front();
        }
        self.moments.push_back((row.id, row.time_ns));
    }

    pub fn change(&mut self, row: &CensusStateRow) {
        let task = (row.instance, row.tid);
        let from = match row.state {
            Some(state) => self.now.insert(task, state),
            None => self.now.remove(&task),
        };
        if self.changes.len() >= CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(Change { moment: row.moment, task, from, to: row.state });
    }

    /// How often each task was seen in each state since a moment, and the mean time between two looks, ns.
    pub fn since(&self, from_ns: u64) -> (HashMap<TaskKey, Seen>, u64) {
        let mut seen: HashMap<TaskKey, Seen> = HashMap::new();
        let (Some(&(last, to_ns)), Some(&(first, begin_ns))) =
            (self.moments.back(), self.moments.iter().find(|(_, time)| *time > from_ns))
        else {
            return (seen, 0);
        };
        // Backwards from now: up to which moment a task's state is told already, and what it was before.
        let mut told: HashMap<TaskKey, (u64, Option<State>)> =
            self.now.iter().map(|(task, state)| (*task, (last + 1, Some(*state)))).collect();
        let mut count = |task: TaskKey, state: Option<State>, moments: u64| {
            let place = state.and_then(|state| State::ALL.iter().position(|known| *known == state));
            if let Some(place) = place.filter(|_| moments > 0) {
                seen.entry(task).or_default()[place] += moments;
            }
        };
        for change in self.changes.iter().rev().take_while(|change| change.moment >= first) {
            let (end, _) = told.get(&change.task).copied().unwrap_or((last + 1, None));
            count(change.task, change.to, end.saturating_sub(change.moment));
            told.insert(change.task, (change.moment.min(end), change.from));
        }
        for (task, (end, state)) in told {
            count(task, state, end.saturating_sub(first));
        }
        let moments = (last - first.min(last)).max(1);
        (seen, to_ns.saturating_sub(begin_ns) / moments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted_by_moments() {
        let mut census = Census::default();
        let task = |tid, moment, state| CensusStateRow {
            instance: 1,
            tid,
            moment,
            state,
            ..CensusStateRow::default()
        };
        for id in 1..=10 {
            census.moment(&CensusMomentRow { id, time_ns: id * 100, ..CensusMomentRow::default() });
        }
        for row in [
            task(1, 1, Some(State::Running)),
            task(2, 1, Some(State::Sleep)),
            task(1, 4, Some(State::Queue)),
            task(2, 9, None),
            task(1, 10, Some(State::Running)),
        ] {
            census.change(&row);
        }
        let (all, step_ns) = census.since(0);
        // Moments 1 to 3 and 10 running, 4 to 9 in the queue; the other is there up to moment 8.
        let at = |wanted| State::ALL.iter().position(|state| *state == wanted).unwrap();
        let [running, queue, sleep] = [State::Running, State::Queue, State::Sleep].map(at);
        assert_eq!(
            (all[&(1, 1)][running], all[&(1, 1)][queue], all[&(1, 2)][sleep], step_ns),
            (4, 6, 8, 100)
        );
        let (late, _) = census.since(800);
        assert_eq!((late[&(1, 1)][running], late[&(1, 1)][queue], late.get(&(1, 2))), (1, 1, None));
        assert_eq!(census.since(5_000).0.len(), 0);
    }
}
