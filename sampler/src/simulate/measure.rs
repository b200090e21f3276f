//! One profiling of a simulated machine, and what many of them give.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::program::MEAN_NS;
use super::timeline::{OUTSIDE, Timeline};
use crate::clock::{ClockKind, Intervals};
use crate::estimate::{Estimate, Tallies, Ticks};

/// Length of the stretches for which the exact clock is read: 200 intervals, as the collector does at 1,000 Hz.
const STRETCH_NS: u64 = 200 * MEAN_NS;

/// A course of a machine, with the truth.
#[derive(Debug)]
pub(super) struct Machine {
    pub vcpus: Vec<Timeline>,
    /// Part of the ticks of the first half of the run that are lost.
    pub lost: f64,
}

impl Machine {
    /// Exact times of the vCPUs in the guest.
    fn times(&self) -> Vec<(u8, u64)> {
        let time = |line: &Timeline| line.time(|state| state != OUTSIDE);
        (0_u8..).zip(&self.vcpus).map(|(vcpu, line)| (vcpu, time(line))).collect()
    }

    /// The true share of a state of the time in the guest.
    pub fn truth(&self, state: u8) -> f64 {
        let sum = |wanted: &dyn Fn(u8) -> bool| self.vcpus.iter().map(|line| line.time(wanted)).sum::<u64>();
        sum(&|s| s == state) as f64 / sum(&|s| s != OUTSIDE) as f64
    }

    /// Profiles the machine once: an estimate for each of the states 1 to `states`. `start_ns` is when the clock starts.
    pub fn profile(&self, clock: ClockKind, seed: u64, start_ns: u64, states: u8) -> Vec<Estimate> {
        let mut ticks = Ticks::new(clock, MEAN_NS as f64);
        let mut tallies = vec![Tallies::default(); usize::from(states)];
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        for (vcpu, line) in (0_u8..).zip(&self.vcpus) {
            // The product's clock takes a rate.
            let Some(mut intervals) = Intervals::new(clock, 1e9 / MEAN_NS as f64, seed, vcpu) else {
                continue;
            };
            ticks.divide(vcpu, line.stretches(STRETCH_NS, |state| state != OUTSIDE));
            let mut cursor = line.cursor();
            let mut now = start_ns + intervals.next_ns();
            while now < line.length() {
                if now < line.length() / 2 && self.lost > 0.0 && random.random::<f64>() < self.lost {
                    now += intervals.next_ns();
                    continue;
                }
                let state = cursor.at(now);
                let tick = ticks.tick(vcpu, now, state != OUTSIDE);
                if let Some(tally) =
                    usize::from(state).checked_sub(1).and_then(|place| tallies.get_mut(place))
                {
                    tally.add(&ticks, tick);
                }
                now += intervals.next_ns();
            }
        }
        let times = self.times();
        tallies.iter().map(|tallies| ticks.estimate(&times, tallies)).collect()
    }
}

/// Mean, spread and coverage of many estimates.
#[derive(Debug, Clone, Default)]
pub(super) struct Spread {
    runs: u32,
    mean: f64,
    squares: f64,
    lowest: Option<f64>,
    highest: f64,
    covered: u32,
    truth: f64,
    half_width: f64,
    samples: f64,
    error: f64,
}

impl Spread {
    /// Adds an estimate whose value and interval were moved by `shift` against what was counted.
    pub fn add(&mut self, estimate: &Estimate, truth: f64, shift: f64) {
        self.runs += 1;
        let runs = f64::from(self.runs);
        let share = estimate.share;
        let value = share.share + shift;
        // Welford's update: of the error, since the truth may differ from run to run.
        let old = self.error;
        self.error += (value - truth - old) / runs;
        self.squares += (value - truth - old) * (value - truth - self.error);
        self.mean += (value - self.mean) / runs;
        self.truth += (truth - self.truth) / runs;
        self.half_width += ((share.high - share.low) / 2.0 - self.half_width) / runs;
        self.samples += (estimate.samples as f64 - self.samples) / runs;
        self.lowest = Some(self.lowest.map_or(value, |lowest| lowest.min(value)));
        self.highest = self.highest.max(value);
        self.covered += u32::from((share.low + shift..=share.high + shift).contains(&truth));
    }

    /// Intervals that did not hold the truth.
    pub fn missed(&self) -> u32 {
        self.runs - self.covered
    }

    pub fn summary(&self) -> Summary {
        let runs = f64::from(self.runs.max(1));
        Summary {
            samples: self.samples,
            truth: self.truth,
            mean: self.mean,
            variance: self.squares / f64::from(self.runs.saturating_sub(1).max(1)),
            lowest: self.lowest.unwrap_or(0.0),
            highest: self.highest,
            half_width: self.half_width,
            coverage: f64::from(self.covered) / runs,
        }
    }
}

/// What many profilings of one thing gave.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// Mean number of samples of the state.
    pub samples: f64,
    /// Its true share; the mean of them where several courses were profiled.
    pub truth: f64,
    /// Mean of the estimates.
    pub mean: f64,
    /// Variance of their error.
    pub variance: f64,
    /// The smallest.
    pub lowest: f64,
    /// The largest.
    pub highest: f64,
    /// Mean half width of the 95 % intervals.
    pub half_width: f64,
    /// Part of the profilings whose interval held the truth.
    pub coverage: f64,
}
