//! Times in states from the rows of scans, each with its interval.
//!
//! The scans are the ticks of a clock, and a task's state at each of them is a sample; the same estimator
//! applies (docs/statistics.md). The time of the scans is divided, so that a task which lives for a part of
//! it has that part of its time. A state's share of the task's life rests on the scans between its first and
//! its last observation.
//!
//! Segments in which scans were made less often count by their length and not by their scans.

use crate::clock::{ClockKind, mean_ns};
use crate::estimate::{Estimate, Tallies, Tick, Ticks};

/// A scan.
#[derive(Debug, Clone, Copy)]
pub struct TaskScan {
    /// Its number, higher than those before.
    pub id: u64,
    /// Since the run's start.
    pub time_ns: u64,
    /// Number of times that the mean interval before it was doubled.
    pub backoff: u8,
    /// Lateness.
    pub late_ns: u64,
}

/// A task in one state: from a scan to the next change, by index of the scans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSpan<S> {
    /// Index of the first scan.
    pub from: usize,
    /// Index of the scan that found the next change.
    pub to: usize,
    /// The state.
    pub state: S,
}

/// Estimated time of a task in one state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EstimatedTime {
    /// As a part of the time of all scans.
    pub time: Estimate,
    /// As a part of the task's life.
    pub life: Estimate,
}

/// All scans of the chosen time, and the clock that they form.
#[derive(Debug)]
pub struct TaskScans {
    list: Vec<TaskScan>,
    /// Start of the first interval.
    from_ns: u64,
    mean_ns: f64,
    clock: ScanClock,
    /// Estimate for a task in the same state at all scans.
    always: EstimatedTime,
}

/// Scans as ticks.
#[derive(Debug)]
struct ScanClock {
    ticks: Ticks,
    list: Vec<Tick>,
    /// From the beginning of the first interval to the last scan.
    time_ns: u64,
}

impl ScanClock {
    /// Creates the clock of these scans, the first of which ends an interval that began at `from_ns`;
    /// `inside` takes their indexes.
    fn new(scans: &[TaskScan], from_ns: u64, mean_ns: f64, inside: impl Fn(usize) -> bool) -> Self {
        let mut ticks = Ticks::new(ClockKind::Uniform, mean_ns);
        if scans.iter().any(|scan| scan.backoff > 0) {
            let (mut changes, mut segments) = (Vec::new(), Vec::<(u64, u64)>::new());
            let (mut before_ns, mut before) = (from_ns, None);
            for scan in scans {
                let passed = scan.time_ns.saturating_sub(before_ns);
                match segments.last_mut().filter(|_| before == Some(scan.backoff)) {
                    Some((end_ns, ns)) => (*end_ns, *ns) = (scan.time_ns, *ns + passed),
                    None => {
                        let mean_ns = mean_ns * 2_f64.powi(i32::from(scan.backoff));
                        changes.push((scan.time_ns, mean_ns));
                        segments.push((scan.time_ns, passed));
                    }
                }
                (before_ns, before) = (scan.time_ns, Some(scan.backoff));
            }
            ticks.change_mean(0, changes);
            ticks.divide(0, segments);
        }
        let tick = |(place, scan): (usize, &TaskScan)| ticks.tick(0, scan.time_ns, inside(place));
        let list = scans.iter().enumerate().map(tick).collect();
        let end_ns = scans.last().map_or(from_ns, |last| last.time_ns);
        Self { ticks, list, time_ns: end_ns.saturating_sub(from_ns) }
    }

    fn estimate(&self, tallies: &Tallies) -> Estimate {
        self.ticks.estimate(&[(0, self.time_ns)], tallies)
    }
}

impl TaskScans {
    /// Creates the scans of a clock that began at `from_ns`, with a mean of `hz` scans per second.
    pub fn new(list: Vec<TaskScan>, from_ns: u64, hz: f64) -> Self {
        let mean_ns = mean_ns(hz);
        let clock = ScanClock::new(&list, from_ns, mean_ns, |_| true);
        let mut all = Tallies::default();
        clock.list.iter().for_each(|&tick| all.add(&clock.ticks, tick));
        let always = clock.estimate(&all);
        Self { list, from_ns, mean_ns, clock, always: EstimatedTime { time: always, life: always } }
    }

    /// Returns the number of scans.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the mean lateness, s.
    pub fn late_s(&self) -> f64 {
        let sum: f64 = self.list.iter().map(|scan| scan.late_ns as f64 / 1e9).sum();
        sum / (self.count() as f64).max(1.0)
    }

    /// Returns the time from the start of the first interval to the last scan.
    pub fn span(&self) -> (u64, u64) {
        (self.from_ns, self.list.last().map_or(self.from_ns, |last| last.time_ns))
    }

    /// Returns the index of the first scan with this id or a later one.
    pub fn place(&self, id: u64) -> usize {
        self.list.partition_point(|scan| scan.id < id)
    }

    /// Estimates the times of a task with these states, in the order of time and without overlap: of its
    /// life, and for each of `keys` in the states that it accepts.
    pub fn times<S>(
        &self,
        spans: &[StateSpan<S>],
        keys: &[&dyn Fn(&S) -> bool],
    ) -> (EstimatedTime, Vec<EstimatedTime>) {
        // Most tasks sleep all the time: for those the estimates are known in advance.
        if let [one] = spans
            && (one.from, one.to) == (0, self.count())
        {
            let of = |key: &&dyn Fn(&S) -> bool| if key(&one.state) { self.always } else { self.never() };
            return (self.always, keys.iter().map(of).collect());
        }
        let (from, to) = (spans.first().map_or(0, |span| span.from), spans.last().map_or(0, |span| span.to));
        let mut alive = vec![false; to.saturating_sub(from)];
        for span in spans {
            if let Some(part) = alive.get_mut(span.from.saturating_sub(from)..span.to.saturating_sub(from)) {
                part.fill(true);
            }
        }
        // The share of its life is estimated from the scans during it alone, so a second clock is needed that
        // begins with the interval before its first scan.
        let begin_ns =
            from.checked_sub(1).and_then(|at| self.list.get(at)).map_or(self.from_ns, |m| m.time_ns);
        let own =
            ScanClock::new(self.list.get(from..to).unwrap_or_default(), begin_ns, self.mean_ns, |place| {
                alive.get(place).copied().unwrap_or(false)
            });
        let spent = |key: &dyn Fn(&S) -> bool| {
            let (mut of_all, mut of_life) = (Tallies::default(), Tallies::default());
            for place in spans.iter().filter(|span| key(&span.state)).flat_map(|span| span.from..span.to) {
                if let (Some(&tick), Some(&mine)) =
                    (self.clock.list.get(place), own.list.get(place.saturating_sub(from)))
                {
                    of_all.add(&self.clock.ticks, tick);
                    of_life.add(&own.ticks, mine);
                }
            }
            EstimatedTime { time: self.clock.estimate(&of_all), life: own.estimate(&of_life) }
        };
        (spent(&|_| true), keys.iter().map(|key| spent(key)).collect())
    }

    fn never(&self) -> EstimatedTime {
        let none = self.clock.estimate(&Tallies::default());
        EstimatedTime { time: none, life: none }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::clock::Intervals;

    const MS: u64 = 1_000_000;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum TaskState {
        Running,
        Sleep,
    }

    fn span(from: usize, to: usize, state: TaskState) -> StateSpan<TaskState> {
        StateSpan { from, to, state }
    }

    /// Scans of a clock of 10 Hz, every fourth hundred of them at half the rate.
    fn scans(seed: u64, count: usize, backed_off: bool) -> TaskScans {
        let mut intervals = Intervals::new(ClockKind::Uniform, 10.0, seed, 255).expect("a rate");
        let mut time_ns = 0;
        let list = (0..count)
            .map(|place| {
                let backoff = u8::from(backed_off && place / 100 % 4 == 3);
                time_ns += intervals.next_ns() << backoff;
                TaskScan { id: place as u64 + 1, time_ns, backoff, late_ns: 5 }
            })
            .collect();
        TaskScans::new(list, 0, 10.0)
    }

    /// Spans of a task that runs whenever `is` is true, and sleeps otherwise.
    fn observed(scans: &TaskScans, is: impl Fn(u64) -> bool) -> Vec<StateSpan<TaskState>> {
        let mut spans: Vec<StateSpan<TaskState>> = Vec::new();
        for (place, scan) in scans.list.iter().enumerate() {
            let state = if is(scan.time_ns) { TaskState::Running } else { TaskState::Sleep };
            match spans.last_mut().filter(|last| last.state == state) {
                Some(last) => last.to = place + 1,
                None => spans.push(span(place, place + 1, state)),
            }
        }
        spans
    }

    #[test]
    fn one_state_at_all_scans_is_all_of_it() {
        let scans = scans(1, 40, false);
        let (life, parts) =
            scans.times(&[span(0, 40, TaskState::Sleep)], &[&|&state| state == TaskState::Sleep, &|_| false]);
        assert_eq!(life.time.samples, 40);
        assert!((life.time.share.share, life.time.share.high) == (1.0, 1.0) && life.time.share.low > 0.9);
        assert_eq!(parts[0], life);
        assert!(parts[1].time.samples == 0 && parts[1].time.share.high < 0.1);
        let (_, by_way) = scans.times(
            &[span(0, 20, TaskState::Sleep), span(20, 40, TaskState::Sleep)],
            &[&|&state| state == TaskState::Sleep],
        );
        assert_eq!(by_way[0].time, parts[0].time, "the short way and the long one agree");
    }

    #[test]
    fn a_short_life_is_a_part_of_the_time() {
        let scans = scans(2, 100, false);
        let spans = [span(50, 60, TaskState::Running), span(60, 75, TaskState::Sleep)];
        let (life, parts) = scans.times(&spans, &[&|&state| state == TaskState::Running]);
        let (_, span) = scans.span();
        assert!((life.time.share.share - 0.25).abs() < 1e-12);
        assert!((life.time.time.ns - 0.25 * span as f64).abs() < 1.0);
        assert!((parts[0].life.share.share - 0.4).abs() < 1e-12, "of its life");
        assert!((parts[0].time.share.share - 0.1).abs() < 1e-12, "of the scans");
    }

    /// Long and short sleeps, and scans that are made less often for a while: the interval holds in 95 % of
    /// the runs, and is not much wider than necessary for long ones.
    #[test]
    fn intervals_hold_the_true_value() {
        for (length, backed_off) in [(20, false), (130, false), (2_000, false), (700, true)] {
            let (mut held, mut width, runs) = (0_u32, 0.0, 400_u32);
            for seed in 0..runs {
                let scans = scans(u64::from(seed), 600, backed_off);
                let (_, span) = scans.span();
                let mut random = ChaCha8Rng::seed_from_u64(u64::from(seed) + 1_000);
                let (mut at, mut changes) = (0, Vec::new());
                while at < span {
                    at += random.random_range(1..2 * length * MS);
                    changes.push(at.min(span));
                }
                let state = |time: u64| changes.partition_point(|&change| change <= time) % 3 == 0;
                let mut truth = 0;
                let mut before = 0;
                for &change in &changes {
                    truth += if state(before) { change - before } else { 0 };
                    before = change;
                }
                let (_, parts) =
                    scans.times(&observed(&scans, state), &[&|&state| state == TaskState::Running]);
                let time = parts[0].time.time;
                held += u32::from((time.low_ns..=time.high_ns).contains(&(truth as f64)));
                width += (time.high_ns - time.low_ns) / span as f64 / f64::from(runs);
            }
            let held = f64::from(held) / f64::from(runs);
            assert!(held > 0.915, "runs of {length} ms: {held}");
            assert!(length < 2_000 || width < 0.04, "runs of {length} ms: {width}");
        }
    }
}
