//! The randomized sampling clock.
//!
//! Every vCPU has its own stream of intervals. It is a function of the seed and of the vCPU's number alone,
//! so a run can be repeated. The generator is ChaCha8: its stream is the same in every version, one key has
//! 2^64 independent streams, and a guest that times its own interruptions cannot work out when the next one
//! comes.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, StandardUniform};

/// Distribution of the time between two ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockKind {
    /// Uniform in [0.5, 1.5] of the mean (McCanne & Torek 1993).
    #[default]
    Uniform,
    /// Exponential: memoryless.
    Exponential,
    /// Always the mean; shows what goes wrong.
    Fixed,
}

impl ClockKind {
    /// Returns the name in the profile and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Exponential => "exponential",
            Self::Fixed => "fixed",
        }
    }

    /// Returns the kind of this name in a profile. A missing or unknown name counts as fixed, for which no
    /// interval is valid.
    pub fn from_meta(name: Option<&str>) -> Self {
        let random = [Self::Uniform, Self::Exponential];
        random.into_iter().find(|kind| name == Some(kind.name())).unwrap_or(Self::Fixed)
    }
}

/// Returns the mean time between two ticks of a vCPU, ns, from the rate in a profile; 1 ms if it has none.
pub fn mean_ns(rate_hz: f64) -> f64 {
    if rate_hz > 0.0 { 1e9 / rate_hz } else { 1e6 }
}

/// The shortest interval, ns: a timer armed with zero would never expire.
const SHORTEST_NS: f64 = 1_000.0;
/// The longest interval, ns (one hour): keeps sums of intervals far from overflow.
const LONGEST_NS: f64 = 3_600e9;

/// Limit of intervals that are drawn one by one after a late tick. Beyond it whole means are skipped: after
/// so many draws a random clock has forgotten its phase (the uniform one to a part of e^-52), and a fixed
/// clock keeps it.
const MOST_DRAWN: u64 = 32;

/// The time from when a tick was due to when the guest runs again. CLOCK_MONOTONIC, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickHold {
    /// End of the time in which ticks pass.
    pub passed_ns: u64,
    /// Time after that in which the tick keeps the guest from running and the clock is stopped.
    pub stood_ns: u64,
}

impl TickHold {
    /// Creates a hold in which ticks pass up to `ns` and the clock is stopped afterwards.
    pub fn since(ns: u64) -> Self {
        Self { passed_ns: ns, stood_ns: ns }
    }
}

/// True if a wait of at most `waited_ns` accounts for the gap between `due_ns` and `arrived_ns`.
pub fn fell_into_wait(arrived_ns: u64, due_ns: u64, waited_ns: u64) -> bool {
    let gap_ns = arrived_ns.saturating_sub(due_ns);
    gap_ns > 0 && waited_ns > gap_ns / 2
}

/// Endless stream of intervals of one vCPU. Neither allocates nor makes system calls.
#[derive(Debug)]
pub struct Intervals {
    kind: ClockKind,
    mean_ns: f64,
    random: ChaCha8Rng,
}

impl Intervals {
    /// Creates the stream of `vcpu` under `seed`, with a mean of `1 / rate_hz` seconds. Returns `None` for a
    /// rate that is not a positive number: such a clock never ticks.
    pub fn new(kind: ClockKind, rate_hz: f64, seed: u64, vcpu: u8) -> Option<Self> {
        if !rate_hz.is_finite() || rate_hz <= 0.0 {
            return None;
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(u64::from(vcpu));
        Some(Self { kind, mean_ns: 1e9 / rate_hz, random })
    }

    /// Sets the mean to `1 / rate_hz` seconds from the next interval on. Ignores a rate that is not a
    /// positive number.
    pub fn set_rate(&mut self, rate_hz: f64) {
        if rate_hz.is_finite() && rate_hz > 0.0 {
            self.mean_ns = 1e9 / rate_hz;
        }
    }

    /// Returns ticks per second.
    pub fn rate_hz(&self) -> f64 {
        1e9 / self.mean_ns
    }

    /// Returns the mean time between two ticks, ns.
    pub fn mean_ns(&self) -> u64 {
        self.times_mean(1.0)
    }

    /// Draws the next interval, ns: between 1 us and one hour.
    pub fn next_ns(&mut self) -> u64 {
        let factor: f64 = match self.kind {
            ClockKind::Uniform => 0.5 + self.unit(),
            ClockKind::Exponential => Exp1.sample(&mut self.random),
            ClockKind::Fixed => 1.0,
        };
        self.times_mean(factor)
    }

    /// Draws the time from a start to the first tick, ns: the rest of an interval from a time that is
    /// independent of the clock (the stationary residual life of a renewal process, density (1 - F(x)) /
    /// mean). So every point of time from the start on is equally likely to be sampled; a whole interval
    /// would leave out the first half of one. A fixed clock starts with its mean.
    pub fn first_ns(&mut self) -> u64 {
        let factor: f64 = match self.kind {
            // The interval that contains a given time has a density proportional to its length.
            ClockKind::Uniform => (0.25 + 2.0 * self.unit()).sqrt() * self.unit(),
            ClockKind::Exponential => Exp1.sample(&mut self.random),
            ClockKind::Fixed => 1.0,
        };
        self.times_mean(factor)
    }

    /// Draws the time from when the guest runs again, after a tick that was due at `due_ns`, to the next
    /// tick, ns; at least 1 us.
    pub fn next_after(&mut self, due_ns: u64, held: TickHold) -> u64 {
        self.next_due(due_ns, held.passed_ns).saturating_sub(held.stood_ns).max(1_000)
    }

    /// Returns when the tick after the one due at `due_ns` is due: the first sum of intervals after `now_ns`.
    /// Delays of the host must not move the clock, so ticks that are overdue are skipped.
    pub fn next_due(&mut self, due_ns: u64, now_ns: u64) -> u64 {
        let mean = self.mean_ns();
        let passed = now_ns.saturating_sub(due_ns) / mean;
        let mut due_ns = due_ns.saturating_add(passed.saturating_sub(MOST_DRAWN).saturating_mul(mean));
        // No interval is shorter than 1 us, and less than MOST_DRAWN + 1 means are left.
        loop {
            due_ns = due_ns.saturating_add(self.next_ns());
            if due_ns > now_ns || due_ns == u64::MAX {
                return due_ns;
            }
        }
    }

    /// Draws a number, uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        StandardUniform.sample(&mut self.random)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a small positive range"
    )]
    fn times_mean(&self, factor: f64) -> u64 {
        (self.mean_ns * factor).clamp(SHORTEST_NS, LONGEST_NS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(kind: ClockKind, seed: u64, vcpu: u8, count: usize) -> Vec<u64> {
        let mut intervals = Intervals::new(kind, 1_000.0, seed, vcpu).expect("a positive rate");
        (0..count).map(|_| intervals.next_ns()).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "means of small numbers")]
    fn moments(values: &[u64]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| v as f64).sum::<f64>() / n;
        let variance = values.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / n;
        (mean, variance.sqrt())
    }

    #[test]
    fn same_seed_gives_same_intervals() {
        for kind in [ClockKind::Uniform, ClockKind::Exponential, ClockKind::Fixed] {
            assert_eq!(draw(kind, 7, 3, 1_000), draw(kind, 7, 3, 1_000));
        }
    }

    #[test]
    fn other_seed_or_vcpu_gives_other_intervals() {
        for kind in [ClockKind::Uniform, ClockKind::Exponential] {
            assert_ne!(draw(kind, 7, 0, 8), draw(kind, 8, 0, 8));
            assert_ne!(draw(kind, 7, 0, 8), draw(kind, 7, 1, 8));
        }
    }

    /// A profile names its seed so that any later version can repeat the run: the streams must not change.
    #[test]
    fn streams_are_pinned() {
        assert_eq!(draw(ClockKind::Uniform, 1, 0, 4), PINNED_UNIFORM_0);
        assert_eq!(draw(ClockKind::Uniform, 1, 1, 4), PINNED_UNIFORM_1);
        assert_eq!(draw(ClockKind::Exponential, 1, 0, 4), PINNED_EXPONENTIAL);
        assert_eq!(draw(ClockKind::Fixed, 1, 0, 2), [1_000_000; 2]);
    }
    const PINNED_UNIFORM_0: [u64; 4] = [902_485, 580_383, 1_096_560, 719_324];
    const PINNED_UNIFORM_1: [u64; 4] = [1_351_912, 550_913, 1_058_752, 600_535];
    const PINNED_EXPONENTIAL: [u64; 4] = [446_903, 156_701, 1_214_798, 580_435];

    #[test]
    fn uniform_has_its_range_moments_and_shape() {
        let values = draw(ClockKind::Uniform, 42, 0, 100_000);
        assert!(values.iter().all(|v| (500_000..=1_500_000).contains(v)));
        let (mean, deviation) = moments(&values);
        // Standard deviation 1e6 / sqrt(12); the mean's standard error is that over sqrt(1e5), 913.
        assert!((mean - 1e6).abs() < 4.0 * 913.0, "mean {mean}");
        assert!((deviation - 288_675.0).abs() < 2_000.0, "deviation {deviation}");
        let mut bins = [0_u32; 10];
        for v in &values {
            bins[usize::try_from((v - 500_000) / 100_001).expect("a small number")] += 1;
        }
        // Chi-square with 9 degrees of freedom exceeds 27.9 with probability 0.001.
        let chi2: f64 = bins.iter().map(|&b| (f64::from(b) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi2 < 27.9, "chi-square {chi2}, bins {bins:?}");
    }

    #[test]
    fn exponential_has_its_moments_and_tail() {
        let values = draw(ClockKind::Exponential, 42, 0, 100_000);
        let (mean, deviation) = moments(&values);
        assert!((mean - 1e6).abs() < 4.0 * 3_163.0, "mean {mean}");
        assert!((deviation - 1e6).abs() < 20_000.0, "deviation {deviation}");
        // P(X > 3 means) = e^-3 = 0.0498, standard error 0.0007.
        let tail =
            f64::from(u32::try_from(values.iter().filter(|&&v| v > 3_000_000).count()).expect("small")) / 1e5;
        assert!((tail - 0.0498).abs() < 0.0028, "tail {tail}");
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "products of small numbers")]
    fn vcpus_are_not_correlated() {
        let a = draw(ClockKind::Uniform, 42, 0, 100_000);
        let b = draw(ClockKind::Uniform, 42, 1, 100_000);
        let covariance =
            a.iter().zip(&b).map(|(&a, &b)| (a as f64 - 1e6) * (b as f64 - 1e6)).sum::<f64>() / 1e5;
        let correlation = covariance / (288_675.0 * 288_675.0);
        assert!(correlation.abs() < 4.0 / 316.2, "correlation {correlation}");
    }

    /// Counts by tenths of an interval, chi-square with 9 degrees of freedom against equal ones: above 27.9
    /// in one of 1,000.
    fn chi_square(bins: [u32; 10]) -> f64 {
        let mean = f64::from(bins.iter().sum::<u32>()) / 10.0;
        bins.iter().map(|&bin| (f64::from(bin) - mean).powi(2) / mean).sum()
    }

    /// A tick is due while the host has taken the CPU, for 0.1 to 200 intervals. All guest time afterwards is
    /// equally likely to be sampled.
    #[test]
    fn after_a_wait_every_moment_is_as_likely_to_be_hit() {
        for kind in [ClockKind::Uniform, ClockKind::Exponential] {
            for wait in [100_000, 1_700_000, 4_000_000, 200_000_000] {
                let mut intervals = Intervals::new(kind, 1_000.0, wait, 0).expect("a positive rate");
                let (mut due, mut from, mut bins) = (intervals.first_ns(), 0, [0_u32; 10]);
                // A million intervals of guest, in pieces of 7.3, each followed by a wait.
                for _ in 0..20_000 {
                    let (stop, go) = (from + 7_300_000, from + 7_300_000 + wait);
                    while due < stop {
                        if let Some(bin) =
                            bins.get_mut(usize::try_from((due - from) / 100_000).expect("small"))
                        {
                            *bin += 1;
                        }
                        due = intervals.next_due(due, due);
                    }
                    // A tick that is due during the wait is served at its end.
                    if due < go {
                        due = intervals.next_due(due, go);
                    }
                    from = go;
                }
                let all = f64::from(bins.iter().sum::<u32>());
                assert!((all - 20_000.0).abs() < 600.0, "{kind:?} {wait}: {bins:?}");
                assert!(chi_square(bins) < 27.9, "{kind:?} {wait}: {bins:?}");
            }
        }
    }

    #[test]
    fn the_first_tick_leaves_nothing_out() {
        let mut bins = [0_u32; 10];
        for seed in 0..20_000 {
            let mut intervals =
                Intervals::new(ClockKind::Uniform, 1_000.0, seed, 0).expect("a positive rate");
            let mut due = intervals.first_ns();
            while due < 1_000_000 {
                bins[usize::try_from(due / 100_000).expect("small")] += 1;
                due = intervals.next_due(due, due);
            }
        }
        assert!((f64::from(bins.iter().sum::<u32>()) - 20_000.0).abs() < 600.0, "{bins:?}");
        assert!(chi_square(bins) < 27.9, "{bins:?}");
    }

    #[test]
    fn a_stop_of_years_takes_no_longer_and_keeps_a_fixed_phase() {
        let mut fixed = Intervals::new(ClockKind::Fixed, 1_000.0, 0, 0).expect("a positive rate");
        let years = 300_000_000_000_000_000;
        assert_eq!(fixed.next_due(7, years), years + 7);
        assert_eq!(fixed.next_due(u64::MAX - 1, u64::MAX), u64::MAX);
        let mut fast = Intervals::new(ClockKind::Exponential, 1e12, 0, 0).expect("a positive rate");
        assert!(fast.next_due(0, years) > years);
    }

    #[test]
    fn impossible_rates_never_tick_and_extreme_ones_stay_in_range() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Intervals::new(ClockKind::Uniform, rate, 0, 0).is_none());
        }
        let mut fast = Intervals::new(ClockKind::Exponential, 1e12, 0, 0).expect("a positive rate");
        let mut slow = Intervals::new(ClockKind::Exponential, 1e-12, 0, 0).expect("a positive rate");
        assert_eq!((fast.next_ns(), slow.next_ns()), (1_000, 3_600_000_000_000));
    }
}
