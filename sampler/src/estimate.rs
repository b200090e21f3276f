//! Shares estimated from counts, with their confidence intervals.
//!
//! A sampling clock that does not follow the guest turns "part of the time" into "part of the samples". A share of k
//! out of n samples is then k / n, and its 95 % interval is Wilson's score interval (E. B. Wilson, Probable inference,
//! the law of succession, and statistical inference, JASA 22, 1927):
//!
//! ```text
//!   centre = (p + z^2 / 2n) / (1 + z^2 / n)          p = k / n
//!   half   = z / (1 + z^2 / n) * sqrt(p (1 - p) / n + z^2 / 4n^2)
//! ```
//!
//! It stays inside [0, 1], and is not empty where k is 0 or n. The formula takes samples to be independent, and speaks of
//! this very run: another run of the same programs may differ by more, above all where they work in long phases.

use serde::{Deserialize, Serialize};

/// The 97.5 % quantile of the standard normal distribution: 95 % lie between minus and plus this.
pub const Z_95: f64 = 1.959_963_984_540_054;

/// A share with its 95 % interval, all between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// k / n; 0 without samples.
    pub share: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// The share of `k` out of `n` samples. Without samples nothing is known: the interval is all of [0, 1].
#[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
pub fn share(k: u64, n: u64) -> Share {
    if n == 0 {
        return Share { share: 0.0, low: 0.0, high: 1.0 };
    }
    let (k, n) = (k.min(n) as f64, n as f64);
    let (p, z2) = (k / n, Z_95 * Z_95);
    let scale = 1.0 / (1.0 + z2 / n);
    let centre = (p + z2 / (2.0 * n)) * scale;
    let half = Z_95 * scale * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    // The ends are exact where rounding would put the share itself outside of its interval.
    Share { share: p, low: (centre - half).clamp(0.0, p), high: (centre + half).clamp(p, 1.0) }
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 5e-5
    }

    /// The examples of R. G. Newcombe, Statistics in Medicine 17, 1998, table I, method 3.
    #[test]
    fn known_intervals() {
        for (k, n, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let share = share(k, n);
            assert!(close(share.low, low) && close(share.high, high), "{k}/{n}: {share:?}");
        }
    }

    #[test]
    fn ends_stay_in_range_and_hold_the_share() {
        for n in [1, 2, 7, 1_000, 1_000_000_007] {
            for k in [0, 1, n / 3, n / 2, n - 1, n, n + 5] {
                let s = share(k, n);
                assert!(
                    0.0 <= s.low && s.low <= s.share && s.share <= s.high && s.high <= 1.0,
                    "{k}/{n}: {s:?}"
                );
            }
        }
        assert_eq!(share(0, 0), Share { share: 0.0, low: 0.0, high: 1.0 });
    }

    /// 95 % of the intervals hold the truth: here of 2,000 runs with 400 samples each, for three true shares.
    #[test]
    fn intervals_cover_the_truth_as_often_as_they_say() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        for truth in [0.05, 0.3, 0.5] {
            let held = (0..2_000)
                .filter(|_| {
                    let k = (0..400).filter(|_| random.random::<f64>() < truth).count();
                    let s = share(u64::try_from(k).expect("small"), 400);
                    (s.low..=s.high).contains(&truth)
                })
                .count();
            assert!((1_870..=1_930).contains(&held), "{held} of 2000 at {truth}");
        }
    }
}
