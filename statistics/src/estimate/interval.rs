//! Interval of a share from an effective number of samples.

use serde::{Deserialize, Serialize};

/// The 97.5 % quantile of the standard normal distribution: 95 % are between minus and plus this.
pub const Z_95: f64 = 1.959_963_984_540_054;

/// The smallest Poisson mean with a probability of at most 5 % for 1, 2, 3 and more: half the 5 % quantile of
/// chi-square with 2, 4, 6 degrees of freedom.
const FEW: [f64; 3] = [0.051_293_294, 0.355_361_51, 0.817_691_45];

/// A share with its 95 % interval, all between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The estimate; 0 without samples.
    pub share: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Share {
    /// The share of a state without information.
    pub(super) const UNKNOWN: Self = Self { share: 0.0, low: 0.0, high: 1.0 };

    /// Returns the larger distance from the share to an end of its interval.
    pub fn distance(&self) -> f64 {
        (self.high - self.share).max(self.share - self.low)
    }
}

/// Returns the share of `k` out of `n` independent samples. Without samples the interval is all of [0, 1].
pub fn share(k: u64, n: u64) -> Share {
    if n == 0 {
        return Share::UNKNOWN;
    }
    let k = k.min(n);
    around(k as f64 / n as f64, n as f64, k, n)
}

/// Returns the interval around the share `p` that as many independent samples as `effective` would have; `k`
/// out of `n` were counted.
///
/// It is Wilson's score interval (E. B. Wilson, Probable inference, the law of succession, and statistical
/// inference, JASA 22, 1927), which stays inside [0, 1] and is not empty for k = 0 or n. For k from 1 to 3
/// its lower end is too high, so that coverage falls to 84 %; there the lower end is that of the Poisson
/// distribution (L. D. Brown, T. T. Cai, A. DasGupta, Interval estimation for a binomial proportion,
/// Statistical Science 16, 2001, section 4.1.1). The same applies to the upper end for n - k.
pub(super) fn around(p: f64, effective: f64, k: u64, n: u64) -> Share {
    let (centre, half) = wilson(p, effective);
    let few = |count: u64| {
        let mean = usize::try_from(count).ok().and_then(|count| FEW.get(count.wrapping_sub(1)));
        mean.map(|mean| mean / count as f64)
    };
    let low = few(k).map_or(centre - half, |part| (centre - half).min(p * part));
    let high = few(n - k).map_or(centre + half, |part| (centre + half).max(1.0 - (1.0 - p) * part));
    // The ends are exact if rounding would put the share itself outside of its interval.
    Share { share: p, low: low.clamp(0.0, p), high: high.clamp(p, 1.0) }
}

/// Returns the 95 % interval of a time of which `samples` were counted, few among all: the score interval of
/// a Poisson count, n + z²/2 ± z √(n + z²/4). Without samples it is 0.
pub fn sampled(time_s: f64, samples: u64) -> (f64, f64) {
    if samples == 0 {
        return (0.0, 0.0);
    }
    let (n, square) = (samples as f64, Z_95 * Z_95);
    let (middle, half) = (n + square / 2.0, Z_95 * (n + square / 4.0).sqrt());
    let each = time_s / n;
    (each * (middle - half), each * (middle + half))
}

/// Returns centre and half width of Wilson's interval.
pub(super) fn wilson(p: f64, n: f64) -> (f64, f64) {
    let z2 = Z_95 * Z_95;
    let scale = 1.0 / (1.0 + z2 / n);
    let centre = (p + z2 / (2.0 * n)) * scale;
    let half = Z_95 * scale * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    (centre, half)
}
