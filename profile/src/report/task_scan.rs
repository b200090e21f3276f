//! From the rows of scans to times in states, each with its interval.
//!
//! The scans are the ticks of a clock, and a task's state at each of them is a sample; the same estimator serves
//! (docs/statistics.md). The time of the scans is shared out, so that a task which lives for a part of it has
//! that part of its time. A state's share of the task's life rests on the scans between its first and its last sight.
//!
//! Where scans were made less often for a while, that time counts by its length and not by its scans.

use crate::clock::{ClockKind, mean_ns};
use crate::estimate::{Estimate, Tallies, Tick, Ticks};

/// A scan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskScan {
    pub id: u64,
    /// Since the run's start.
    pub time_ns: u64,
    pub backoff: u8,
    /// How late it came.
    pub late_ns: u64,
}

/// A task in one state: from a scan to the next change, by place among the scans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stay {
    pub from: usize,
    pub to: usize,
    pub state: String,
    pub wait_reason: String,
}

/// What is known of one state of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spent {
    /// As a part of the time of all scans.
    pub time: Estimate,
    /// As a part of the task's life.
    pub life: Estimate,
}

/// All scans of the chosen time, and the clock that they make.
#[derive(Debug)]
pub(crate) struct TaskScans {
    list: Vec<TaskScan>,
    /// When the first interval began.
    from_ns: u64,
    mean_ns: f64,
    clock: Clock,
    /// What a task is said to do that did one thing at all scans.
    always: Spent,
}

/// TaskScans as ticks.
#[derive(Debug)]
struct Clock {
    ticks: Ticks,
    list: Vec<Tick>,
    /// From the beginning of the first interval to the last scan.
    time_ns: u64,
}

impl Clock {
    /// Of these scans, the first of which ends an interval that began at `from_ns`; `inside` by place among them.
    fn new(scans: &[TaskScan], from_ns: u64, mean_ns: f64, inside: impl Fn(usize) -> bool) -> Self {
        let mut ticks = Ticks::new(ClockKind::Uniform, mean_ns);
        if scans.iter().any(|scan| scan.backoff > 0) {
            let (mut changes, mut stretches) = (Vec::new(), Vec::<(u64, u64)>::new());
            let (mut before_ns, mut before) = (from_ns, None);
            for scan in scans {
                let passed = scan.time_ns.saturating_sub(before_ns);
                match stretches.last_mut().filter(|_| before == Some(scan.backoff)) {
                    Some((end_ns, ns)) => (*end_ns, *ns) = (scan.time_ns, *ns + passed),
                    None => {
                        let mean_ns = mean_ns * 2_f64.powi(i32::from(scan.backoff));
                        changes.push((scan.time_ns, mean_ns));
                        stretches.push((scan.time_ns, passed));
                    }
                }
                (before_ns, before) = (scan.time_ns, Some(scan.backoff));
            }
            ticks.change_mean(0, changes);
            ticks.divide(0, stretches);
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
    /// Of scans that began at `from_ns`, with a mean of `hz` scans per second.
    pub(crate) fn new(list: Vec<TaskScan>, from_ns: u64, hz: f64) -> Self {
        let mean_ns = mean_ns(hz);
        let clock = Clock::new(&list, from_ns, mean_ns, |_| true);
        let mut all = Tallies::default();
        clock.list.iter().for_each(|&tick| all.add(&clock.ticks, tick));
        let always = clock.estimate(&all);
        Self { list, from_ns, mean_ns, clock, always: Spent { time: always, life: always } }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// How late they came in the mean, s.
    pub(crate) fn late_s(&self) -> f64 {
        let sum: f64 = self.list.iter().map(|scan| scan.late_ns as f64 / 1e9).sum();
        sum / (self.len() as f64).max(1.0)
    }

    /// From the beginning of the first interval to the last scan.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.from_ns, self.list.last().map_or(self.from_ns, |last| last.time_ns))
    }

    /// The place of the first scan with this id or a later one.
    pub(crate) fn place(&self, id: u64) -> usize {
        self.list.partition_point(|scan| scan.id < id)
    }

    /// What a task has spent that stayed in these states, in the order of time and without overlap: its life, and for
    /// each of `keys` the stays that it chooses.
    pub(crate) fn spent(&self, stays: &[Stay], keys: &[&dyn Fn(&Stay) -> bool]) -> (Spent, Vec<Spent>) {
        if let [one] = stays
            && (one.from, one.to) == (0, self.len())
        {
            let of = |key: &&dyn Fn(&Stay) -> bool| if key(one) { self.always } else { self.never() };
            return (self.always, keys.iter().map(of).collect());
        }
        let (from, to) = (stays.first().map_or(0, |stay| stay.from), stays.last().map_or(0, |stay| stay.to));
        let mut alive = vec![false; to.saturating_sub(from)];
        for stay in stays {
            if let Some(part) = alive.get_mut(stay.from.saturating_sub(from)..stay.to.saturating_sub(from)) {
                part.fill(true);
            }
        }
        let begin_ns =
            from.checked_sub(1).and_then(|at| self.list.get(at)).map_or(self.from_ns, |m| m.time_ns);
        let own = Clock::new(self.list.get(from..to).unwrap_or_default(), begin_ns, self.mean_ns, |place| {
            alive.get(place).copied().unwrap_or(false)
        });
        let spent = |key: &dyn Fn(&Stay) -> bool| {
            let (mut of_all, mut of_life) = (Tallies::default(), Tallies::default());
            for place in stays.iter().filter(|stay| key(stay)).flat_map(|stay| stay.from..stay.to) {
                if let (Some(&tick), Some(&mine)) =
                    (self.clock.list.get(place), own.list.get(place.saturating_sub(from)))
                {
                    of_all.add(&self.clock.ticks, tick);
                    of_life.add(&own.ticks, mine);
                }
            }
            Spent { time: self.clock.estimate(&of_all), life: own.estimate(&of_life) }
        };
        (spent(&|_| true), keys.iter().map(|key| spent(key)).collect())
    }

    fn never(&self) -> Spent {
        let none = self.clock.estimate(&Tallies::default());
        Spent { time: none, life: none }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::clock::Intervals;

    const MS: u64 = 1_000_000;

    fn stay(from: usize, to: usize, state: &str) -> Stay {
        Stay { from, to, state: state.to_owned(), wait_reason: String::new() }
    }

    /// TaskScans of a clock of 10 Hz, every fourth hundred of them at half the rate.
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

    /// What a task is seen doing that is in `a` whenever `is` says so.
    fn seen(scans: &TaskScans, is: impl Fn(u64) -> bool) -> Vec<Stay> {
        let mut stays: Vec<Stay> = Vec::new();
        for (place, scan) in scans.list.iter().enumerate() {
            let state = if is(scan.time_ns) { "a" } else { "b" };
            match stays.last_mut().filter(|last| last.state == state) {
                Some(last) => last.to = place + 1,
                None => stays.push(stay(place, place + 1, state)),
            }
        }
        stays
    }

    #[test]
    fn one_state_at_all_moments_is_all_of_it() {
        let scans = scans(1, 40, false);
        let (life, parts) =
            scans.spent(&[stay(0, 40, "sleep")], &[&|stay| stay.state == "sleep", &|_| false]);
        assert_eq!(life.time.samples, 40);
        assert!((life.time.share.share, life.time.share.high) == (1.0, 1.0) && life.time.share.low > 0.9);
        assert_eq!(parts[0], life);
        assert!(parts[1].time.samples == 0 && parts[1].time.share.high < 0.1);
        let (_, by_way) =
            scans.spent(&[stay(0, 20, "sleep"), stay(20, 40, "sleep")], &[&|stay| stay.state == "sleep"]);
        assert_eq!(by_way[0].time, parts[0].time, "the short way and the long one agree");
    }

    #[test]
    fn a_short_life_is_a_part_of_the_time() {
        let scans = scans(2, 100, false);
        let stays = [stay(50, 60, "running"), stay(60, 75, "sleep")];
        let (life, parts) = scans.spent(&stays, &[&|stay| stay.state == "running"]);
        let (_, span) = scans.span();
        assert!((life.time.share.share - 0.25).abs() < 1e-12);
        assert!((life.time.time.ns - 0.25 * span as f64).abs() < 1.0);
        assert!((parts[0].life.share.share - 0.4).abs() < 1e-12, "of its life");
        assert!((parts[0].time.share.share - 0.1).abs() < 1e-12, "of the scans");
    }

    /// Long and short sleeps, and scans that are made less often for a while: the interval holds in 95 % of the runs, and is
    /// not much wider than it has to be for long ones.
    #[test]
    fn intervals_hold_the_truth() {
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
                let (_, parts) = scans.spent(&seen(&scans, state), &[&|stay| stay.state == "a"]);
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
