//! One profiling of a simulated machine, and the statistics of many.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::host::Host;
use super::program::MEAN_NS;
use super::timeline::{POLLING, Timeline, in_guest};
use crate::clock::{ClockKind, Intervals};
use crate::estimate::{Estimate, PartTallies, PartTicks, Share, Ticks};

/// Length of the segments for which the exact clock is read: 200 intervals, as the collector does at 1,000
/// Hz.
pub(super) const SEGMENT_NS: u64 = 200 * MEAN_NS;

/// A course of a machine, with its true times.
#[derive(Debug)]
pub(super) struct Machine {
    pub vcpus: Vec<Timeline>,
    /// True if one clock ticks all vCPUs.
    pub at_once: bool,
    /// Part of the ticks of the first half of the run that are lost.
    pub lost: f64,
    /// Effects of the host on the others.
    pub host: Host,
}

impl Machine {
    /// Returns the exact times of the vCPUs in the guest.
    pub fn times(&self) -> Vec<(u16, u64)> {
        let time = |line: &Timeline| line.time(in_guest);
        (0_u16..).zip(&self.vcpus).map(|(vcpu, line)| (vcpu, time(line))).collect()
    }

    fn sum(&self, wanted: &dyn Fn(u8) -> bool) -> f64 {
        self.vcpus.iter().map(|line| line.time(wanted)).sum::<u64>() as f64
    }

    /// Returns the true share of a state of the time that is divided.
    pub fn truth(&self, state: u8) -> f64 {
        self.sum(&|s| s == state) / self.sum(&|s| in_guest(s) && s != POLLING)
    }

    /// Returns the true part of the state in the whole time in the guest.
    pub fn true_time(&self, state: u8) -> f64 {
        self.sum(&|s| s == state) / self.sum(&in_guest)
    }

    /// Converts a time's interval to parts of the whole time in the guest.
    pub fn as_share(&self, estimate: &Estimate) -> Share {
        let part = |ns: f64| ns / self.sum(&in_guest);
        let time = estimate.time;
        Share { share: part(time.ns), low: part(time.low_ns), high: part(time.high_ns) }
    }

    /// Returns the ticks of one profiling, vCPU by vCPU. `start_ns` is the start of the clock.
    pub fn ticks(&self, clock: ClockKind, seed: u64, start_ns: u64) -> Vec<Tick> {
        let mut ticks = Vec::new();
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        for (vcpu, line) in (0_u8..).zip(&self.vcpus) {
            let stream = if self.at_once { 0 } else { vcpu };
            // The product's clock takes a rate.
            let Some(intervals) = Intervals::new(clock, 1e9 / MEAN_NS as f64, seed, stream) else {
                continue;
            };
            let mut lateness = ChaCha8Rng::seed_from_u64(seed);
            // The clock's streams have the same seed: those of vCPUs have lower numbers.
            lateness.set_stream(256 + u64::from(vcpu));
            for (time_ns, state) in self.host.serve(line, intervals, start_ns, lateness) {
                let may_be_lost = time_ns < line.length() / 2 && self.lost > 0.0;
                if !(may_be_lost && random.random::<f64>() < self.lost) {
                    ticks.push(Tick { vcpu: vcpu.into(), time_ns, state });
                }
            }
        }
        ticks
    }

    /// Profiles the machine once: an estimate for each of the states 1 to `states`.
    pub fn profile(&self, clock: ClockKind, seed: u64, start_ns: u64, states: u8) -> Vec<Estimate> {
        let rows: Vec<[u8; 1]> = (1..=states).map(|state| [state]).collect();
        let rows: Vec<&[u8]> = rows.iter().map(|row| row.as_slice()).collect();
        self.profile_rows(clock, seed, start_ns, &rows)
    }

    /// Profiles the machine once for rows of several states each.
    pub fn profile_rows(&self, clock: ClockKind, seed: u64, start_ns: u64, rows: &[&[u8]]) -> Vec<Estimate> {
        let mut ticks = PartTicks::new(|| {
            let mut ticks = Ticks::new(clock, MEAN_NS as f64);
            if self.at_once {
                ticks.tick_at_once();
            }
            ticks
        });
        for (vcpu, line) in (0_u16..).zip(&self.vcpus) {
            ticks.divide(vcpu, line.segments(SEGMENT_NS, in_guest));
        }
        let mut tallies = vec![PartTallies::default(); rows.len()];
        for Tick { vcpu, time_ns, state } in self.ticks(clock, seed, start_ns) {
            let tick = ticks.tick(vcpu, time_ns, in_guest(state), state != POLLING);
            for (_, tallies) in rows.iter().zip(&mut tallies).filter(|(row, _)| row.contains(&state)) {
                tallies.add(&ticks, tick);
            }
        }
        let times = self.times();
        tallies.iter().map(|tallies| ticks.estimate(&times, tallies)).collect()
    }
}

/// A tick with the state at its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tick {
    pub vcpu: u16,
    pub time_ns: u64,
    pub state: u8,
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
    error: f64,
}

impl Spread {
    /// Adds an estimate whose value and interval were moved by `shift` from the counted value.
    pub fn add(&mut self, share: Share, truth: f64, shift: f64) {
        self.runs += 1;
        let runs = f64::from(self.runs);
        let value = share.share + shift;
        // Welford's update: of the error, since the true share may differ from run to run.
        let old = self.error;
        self.error += (value - truth - old) / runs;
        self.squares += (value - truth - old) * (value - truth - self.error);
        self.mean += (value - self.mean) / runs;
        self.truth += (truth - self.truth) / runs;
        self.half_width += ((share.high - share.low) / 2.0 - self.half_width) / runs;
        self.lowest = Some(self.lowest.map_or(value, |lowest| lowest.min(value)));
        self.highest = self.highest.max(value);
        self.covered += u32::from((share.low + shift..=share.high + shift).contains(&truth));
    }

    /// Returns the number of intervals that did not contain the true share.
    pub fn missed(&self) -> u32 {
        self.runs - self.covered
    }

    pub fn summary(&self) -> Summary {
        let runs = f64::from(self.runs.max(1));
        Summary {
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

/// Statistics of many profilings of one thing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The true share; the mean of the true shares if several courses were profiled.
    pub truth: f64,
    /// Mean of the estimates.
    pub mean: f64,
    /// Variance of their error.
    pub variance: f64,
    /// Smallest estimate.
    pub lowest: f64,
    /// Largest estimate.
    pub highest: f64,
    /// Mean half width of the 95 % intervals.
    pub half_width: f64,
    /// Part of the profilings whose interval contained the true share.
    pub coverage: f64,
}
