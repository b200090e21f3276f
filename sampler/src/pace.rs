//! How fast a vCPU is sampled: changed from outside while it runs, and taken up by its own thread at its next tick.

use std::sync::atomic::{AtomicU64, Ordering};

/// The sampling rate of one vCPU, ticks per second; 0 while it is not sampled. Whoever wants another one stores it; the
/// vCPU's thread takes it up and says when, so that nothing waits for anything.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    wanted: AtomicU64,
    in_force: AtomicU64,
    since_ns: AtomicU64,
}

impl Pace {
    /// This rate is in force.
    pub(crate) fn start(&self, rate_hz: f64) {
        self.wanted.store(rate_hz.to_bits(), Ordering::Relaxed);
        self.in_force.store(rate_hz.to_bits(), Ordering::Relaxed);
    }

    /// Wants another rate.
    pub(crate) fn want(&self, rate_hz: f64) {
        self.wanted.store(rate_hz.to_bits(), Ordering::Relaxed);
    }

    /// On the vCPU's thread: a rate that is wanted and not in force yet. It is now, since `now_ns`, CLOCK_MONOTONIC.
    pub(crate) fn take(&self, now_ns: u64) -> Option<f64> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == self.in_force.load(Ordering::Relaxed) {
            return None;
        }
        self.since_ns.store(now_ns, Ordering::Relaxed);
        // Whoever sees the rate sees its time.
        self.in_force.store(wanted, Ordering::Release);
        Some(f64::from_bits(wanted))
    }

    /// The rate in force, and since when, CLOCK_MONOTONIC ns; 0 for the first.
    pub(crate) fn in_force(&self) -> (f64, u64) {
        let rate = self.in_force.load(Ordering::Acquire);
        (f64::from_bits(rate), self.since_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_in_force_once_it_was_taken() {
        let pace = Pace::default();
        pace.start(1_000.0);
        assert_eq!((pace.take(5), pace.in_force()), (None, (1_000.0, 0)));
        pace.want(0.0);
        assert_eq!(pace.in_force(), (1_000.0, 0));
        assert_eq!((pace.take(7), pace.take(8)), (Some(0.0), None));
        assert_eq!(pace.in_force(), (0.0, 7));
    }
}
