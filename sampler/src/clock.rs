//! The randomized sampling clock.
//!
//! Every vCPU has its own stream of intervals. It is a function of the seed and of the vCPU's number alone, so a run
//! can be repeated. The generator is ChaCha8: its stream is the same in every version, one key has 2^64 independent
//! streams, and a guest that times its own interruptions cannot work out when the next one comes.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, StandardUniform};

/// How the time between two ticks is drawn.
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
    /// The name that stands in the profile and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Exponential => "exponential",
            Self::Fixed => "fixed",
        }
    }

    /// The kind of that name in a profile. One that is not told counts as fixed: nothing is known of its chance.
    pub(crate) fn told(name: Option<&str>) -> Self {
        let random = [Self::Uniform, Self::Exponential];
        random.into_iter().find(|kind| name == Some(kind.name())).unwrap_or(Self::Fixed)
    }
}

/// Mean time between two ticks of a vCPU, ns, by the rate in a profile; 1 ms where none is told.
pub(crate) fn mean_ns(rate_hz: f64) -> f64 {
    if rate_hz > 0.0 { 1e9 / rate_hz } else { 1e6 }
}

/// The shortest interval, ns: a timer armed with zero would never expire.
const SHORTEST_NS: f64 = 1_000.0;
/// The longest interval, ns (one hour): keeps sums of intervals far from overflow.
const LONGEST_NS: f64 = 3_600e9;

/// How many ticks may be passed over one by one. More have passed only while the host had stopped the thread for long.
const MOST_PASSED: u32 = 64;

/// The endless stream of intervals of one vCPU. Neither allocates nor makes system calls.
#[derive(Debug)]
pub struct Intervals {
    kind: ClockKind,
    mean_ns: f64,
    random: ChaCha8Rng,
}

impl Intervals {
    /// The intervals of `vcpu` under `seed`, with a mean of `1 / rate_hz` seconds.
    /// `None` when the rate is not a positive number: such a clock never ticks.
    pub fn new(kind: ClockKind, rate_hz: f64, seed: u64, vcpu: u8) -> Option<Self> {
        if !rate_hz.is_finite() || rate_hz <= 0.0 {
            return None;
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(u64::from(vcpu));
        Some(Self { kind, mean_ns: 1e9 / rate_hz, random })
    }

    /// From the next interval on, the mean is `1 / rate_hz` seconds. A rate that is not a positive number changes nothing.
    pub fn set_rate(&mut self, rate_hz: f64) {
        if rate_hz.is_finite() && rate_hz > 0.0 {
            self.mean_ns = 1e9 / rate_hz;
        }
    }

    /// Ticks per second.
    pub fn rate_hz(&self) -> f64 {
        1e9 / self.mean_ns
    }

    /// The next interval, ns: between 1 us and one hour.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a small positive range"
    )]
    pub fn next_ns(&mut self) -> u64 {
        let factor: f64 = match self.kind {
            ClockKind::Uniform => {
                let unit: f64 = StandardUniform.sample(&mut self.random);
                0.5 + unit
            }
            ClockKind::Exponential => Exp1.sample(&mut self.random),
            ClockKind::Fixed => 1.0,
        };
        (self.mean_ns * factor).clamp(SHORTEST_NS, LONGEST_NS) as u64
    }

    /// When the first tick after `now_ns` is due, where the last was due at `due_ns`: ticks are due at the sums of the
    /// intervals, whenever they are served, and those that have passed meanwhile are passed over. A clock that started again
    /// at `now_ns` would not tick within the first half interval, and never hit what follows a wait.
    pub fn next_tick_ns(&mut self, due_ns: u64, now_ns: u64) -> u64 {
        let mut next_ns = due_ns;
        for _ in 0..MOST_PASSED {
            next_ns = next_ns.saturating_add(self.next_ns());
            if next_ns > now_ns {
                return next_ns;
            }
        }
        now_ns.saturating_add(self.first_ns())
    }

    /// The time from any moment to the next tick of a clock that has ticked for ever, ns; a fixed clock's is its interval.
    /// A clock begins so, since what it samples may begin at the same moment: its density of ticks is even from there on.
    /// The density of that time is the chance of a longer interval over the mean (renewal theory: Cox, 1962, 5.2).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a small positive range"
    )]
    pub fn first_ns(&mut self) -> u64 {
        if self.kind != ClockKind::Uniform {
            return self.next_ns();
        }
        // Even up to half the mean, then falling linearly to 0 at one and a half; half of the chance in each part.
        let unit: f64 = StandardUniform.sample(&mut self.random);
        let factor = if unit < 0.5 { unit } else { 1.5 - (2.0 * (1.0 - unit)).sqrt() };
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

    /// A profile names its seed so that the run can be repeated by any later version: the streams must not change.
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

    /// Counts ticks by the tenth of an interval after the end of a wait in which they are due.
    fn ticks_after_waits(kind: ClockKind, waited: impl Fn(u64) -> u64) -> [u32; 10] {
        let mut intervals = Intervals::new(kind, 1_000.0, 5, 0).expect("a positive rate");
        let mut after = [0; 10];
        for wait in 0..50_000_u64 {
            let due = intervals.first_ns();
            let end = due + waited(wait);
            let tenth = (intervals.next_tick_ns(due, end) - end) / 100_000;
            if let Some(count) = usize::try_from(tenth).ok().and_then(|tenth| after.get_mut(tenth)) {
                *count += 1;
            }
        }
        after
    }

    #[test]
    fn what_follows_a_wait_is_hit_as_often_as_anything_else() {
        // Waits of 2 to 5 intervals, and a stop of minutes.
        for kind in [ClockKind::Uniform, ClockKind::Exponential] {
            let waits = ticks_after_waits(kind, |n| 2_000_000 + n * 60);
            let stops = ticks_after_waits(kind, |_| 300_000_000_000);
            for after in [waits, stops] {
                // A tenth of an interval holds 5,000 of 50,000 first ticks; by the exponential clock 4,758 in the first.
                let first_half: u32 = after[..5].iter().sum();
                let expected = if kind == ClockKind::Uniform { 25_000 } else { 19_673 };
                assert!(first_half.abs_diff(expected) < 600, "{kind:?} {after:?}");
                assert!(after[0] > 4_500, "{kind:?} {after:?}");
            }
        }
    }

    #[test]
    fn ticks_are_due_at_the_sums_of_the_intervals() {
        let sums: Vec<u64> = draw(ClockKind::Uniform, 7, 3, 6)
            .iter()
            .scan(100, |sum, interval| {
                *sum += interval;
                Some(*sum)
            })
            .collect();
        let mut intervals = Intervals::new(ClockKind::Uniform, 1_000.0, 7, 3).expect("a positive rate");
        assert_eq!(intervals.next_tick_ns(100, 150), sums[0]);
        assert_eq!(intervals.next_tick_ns(sums[0], sums[2]), sums[3], "two have passed");
        assert_eq!(intervals.next_tick_ns(sums[3], sums[3]), sums[4]);
    }

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
