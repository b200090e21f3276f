//! Durations in buckets of equal ratio: eight for each power of two, so a bucket is at most an eighth of its
//! lower end wide.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets for each power of two.
const PARTS: u64 = 8;
/// Durations below this many ns share the first bucket: 64.
const LEAST_BITS: u32 = 6;
/// Durations of 2^36 ns (69 s) and more share the last bucket.
const MOST_BITS: u32 = 36;
/// Number of buckets.
pub const BUCKETS: usize = (MOST_BITS - LEAST_BITS) as usize * 8 + 2;

/// Returns the bucket of a duration in ns.
fn bucket(ns: u64) -> usize {
    if ns < 1 << LEAST_BITS {
        return 0;
    }
    let power = ns.ilog2();
    if power >= MOST_BITS {
        return BUCKETS - 1;
    }
    // The three bits below the highest one.
    let part = (ns >> (power - 3)) % PARTS;
    let index = u64::from(power - LEAST_BITS) * PARTS + part + 1;
    usize::try_from(index).unwrap_or(BUCKETS - 1)
}

/// Returns the shortest duration of a bucket, ns; for [`BUCKETS`] the end of the last one.
pub fn low_ns(bucket: usize) -> u64 {
    let Some(index) = bucket.checked_sub(1).and_then(|index| u64::try_from(index).ok()) else { return 0 };
    let power = LEAST_BITS + u32::try_from(index / PARTS).unwrap_or(MOST_BITS);
    (PARTS + index % PARTS) << (power.min(MOST_BITS) - 3)
}

/// Returns the shortest duration of the bucket of a duration, ns.
pub fn bucket_low_ns(ns: u64) -> u64 {
    low_ns(bucket(ns))
}

/// Counters of durations. One thread counts, any may read. A reader may miss a duration that is being
/// counted.
#[derive(Debug)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Histogram {
    /// Counts a duration. Only one thread may call this.
    pub fn count(&self, ns: u64) {
        if let Some(count) = self.0.get(bucket(ns)) {
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Returns the shortest duration and the count of each bucket that is not empty.
    pub fn read(&self) -> Vec<(u64, u64)> {
        let counts = self.0.iter().enumerate().map(|(bucket, count)| (bucket, count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (low_ns(bucket), count)).collect()
    }
}

/// Returns the duration below which the part `q` of all are, ns: the middle of its bucket, at most `max_ns`.
/// `buckets` has shortest durations and counts in rising order.
pub fn quantile(buckets: &[(u64, u64)], q: f64, max_ns: u64) -> u64 {
    let all = buckets.iter().fold(0, |all: u64, (_, count)| all.saturating_add(*count));
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among fewer than 2^52; the cast saturates"
    )]
    let rank = ((all as f64 * q).ceil() as u64).max(1);
    let mut seen: u64 = 0;
    for (low, count) in buckets {
        seen = seen.saturating_add(*count);
        if seen >= rank {
            return middle(*low).min(max_ns);
        }
    }
    0
}

/// Returns the end of the bucket of a duration, ns; the duration itself in the last bucket, which has no end.
pub fn end_ns(ns: u64) -> u64 {
    low_ns((bucket(ns) + 1).min(BUCKETS - 1)).max(ns)
}

/// Returns the middle of the bucket that begins at `low`.
fn middle(low: u64) -> u64 {
    low + (end_ns(low) - low) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_duration_lies_in_its_bucket(ns in 0..u64::MAX) {
            let at = bucket(ns);
            prop_assert!(at < BUCKETS && low_ns(at) <= ns);
            if at + 1 < BUCKETS {
                prop_assert!(ns < low_ns(at + 1));
                prop_assert!(at == 0 || low_ns(at + 1) - low_ns(at) <= low_ns(at) / 8);
            }
        }
    }

    #[test]
    fn buckets_rise_without_a_gap() {
        assert_eq!((low_ns(0), low_ns(1), low_ns(2), low_ns(9)), (0, 64, 72, 128));
        assert!((1..BUCKETS).all(|at| low_ns(at) > low_ns(at - 1) && bucket(low_ns(at)) == at));
        assert_eq!(low_ns(BUCKETS - 1), 1 << MOST_BITS);
        assert_eq!((end_ns(0), end_ns(64), end_ns(71), end_ns(u64::MAX)), (64, 72, 72, u64::MAX));
    }

    #[test]
    fn quantiles_are_those_of_the_list() {
        let histogram = Histogram::default();
        for ns in 1..=1_000 {
            histogram.count(ns * 1_000);
        }
        let buckets = histogram.read();
        for (q, truth) in [(0.5, 500_000.0), (0.99, 990_000.0), (0.01, 10_000.0)] {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let found = quantile(&buckets, q, 1_000_000) as f64;
            assert!((found / truth - 1.0).abs() < 0.07, "{q}: {found}");
        }
        assert_eq!(quantile(&buckets, 1.0, 1_000_000), 1_000_000.min(quantile(&buckets, 1.0, u64::MAX)));
        assert_eq!(quantile(&[], 0.5, 7), 0);
    }
}
