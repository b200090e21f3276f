//! Sampling rate of a vCPU: requested from outside while the vCPU runs, and adopted by its thread at the next
//! tick.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sampling rate of one vCPU, ticks per second; 0 while sampling is off. Any thread stores a requested rate.
/// The vCPU's thread adopts the rate and stores the time, so no thread waits for another.
#[derive(Debug, Default)]
pub(crate) struct SamplingRate {
    wanted: AtomicU64,
    in_force: AtomicU64,
    since_ns: AtomicU64,
}

impl SamplingRate {
    /// Sets the first rate.
    pub(crate) fn start(&self, rate_hz: f64) {
        self.wanted.store(rate_hz.to_bits(), Ordering::Relaxed);
        self.in_force.store(rate_hz.to_bits(), Ordering::Relaxed);
    }

    /// Returns the requested rate.
    pub(crate) fn wanted(&self) -> f64 {
        f64::from_bits(self.wanted.load(Ordering::Relaxed))
    }

    /// Requests another rate.
    pub(crate) fn want(&self, rate_hz: f64) {
        self.wanted.store(rate_hz.to_bits(), Ordering::Relaxed);
    }

    /// Adopts the requested rate if it differs from the rate in force. Called on the vCPU's thread; the rate
    /// is in force since `now_ns`, CLOCK_MONOTONIC.
    pub(crate) fn take(&self, now_ns: u64) -> Option<f64> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == self.in_force.load(Ordering::Relaxed) {
            return None;
        }
        self.since_ns.store(now_ns, Ordering::Relaxed);
        // A reader that sees the rate also sees its time.
        self.in_force.store(wanted, Ordering::Release);
        Some(f64::from_bits(wanted))
    }

    /// Returns the rate in force, and since when, CLOCK_MONOTONIC ns; 0 for the first rate.
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
        let pace = SamplingRate::default();
        pace.start(1_000.0);
        assert_eq!((pace.take(5), pace.in_force()), (None, (1_000.0, 0)));
        pace.want(0.0);
        assert_eq!(pace.in_force(), (1_000.0, 0));
        assert_eq!((pace.take(7), pace.take(8)), (Some(0.0), None));
        assert_eq!(pace.in_force(), (0.0, 7));
    }
}
