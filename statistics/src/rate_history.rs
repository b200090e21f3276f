//! Sampling rate of each vCPU over the run.

use std::collections::HashMap;

use display::units::rounded;

/// Changes of the sampling rate.
#[derive(Debug, Default)]
pub struct RateHistory {
    /// By vCPU: start of the rate, ns since the run's start, and ticks per second; in the order of time.
    changes: HashMap<u16, Vec<(u64, f64)>>,
}

impl RateHistory {
    /// Adds a change, the latest of its vCPU: ticks per second from a time on, ns since the run's start.
    pub fn push(&mut self, vcpu: u16, time_ns: u64, rate_hz: f64) {
        self.changes.entry(vcpu).or_default().push((time_ns, rate_hz));
    }

    /// Returns the changes of one vCPU.
    pub fn changes(&self, vcpu: u16) -> &[(u64, f64)] {
        self.changes.get(&vcpu).map_or(&[], Vec::as_slice)
    }

    /// Returns the parts of a segment in which the vCPU was sampled: start and end of each, cut where the
    /// rate changes.
    fn sampled(&self, vcpu: u16, (from, to): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
        let changes = self.changes(vcpu);
        let starts = std::iter::once((0, 1.0)).chain(changes.iter().copied());
        let ends = changes.iter().map(|change| change.0).chain([u64::MAX]);
        let spans = starts.zip(ends).filter(|((_, rate), _)| *rate > 0.0);
        spans.map(move |((start, _), end)| (start.max(from), end.min(to))).filter(|(start, end)| start < end)
    }

    /// Returns the start of the first time in which a vCPU was sampled, ns since the run's start; `None` if
    /// it never was.
    pub fn sampled_from(&self, vcpu: u16) -> Option<u64> {
        self.sampled(vcpu, (0, u64::MAX)).next().map(|(start, _)| start)
    }

    /// Divides the time of a segment evenly among its sampled parts. Returns the end of each, and its time.
    pub fn divide(&self, vcpu: u16, (from, to): (u64, u64), ns: u64) -> impl Iterator<Item = (u64, u64)> {
        let length = to.saturating_sub(from);
        self.sampled(vcpu, (from, to)).map(move |(start, end)| (end, scaled(ns, part(end - start, length))))
    }

    /// Returns the time of a run in which a vCPU was not sampled, ns. `run` is its start and its end.
    pub fn unsampled_ns(&self, vcpu: u16, run: (u64, u64)) -> u64 {
        let sampled = self.sampled(vcpu, run).map(|(start, end)| end - start);
        run.1.saturating_sub(run.0).saturating_sub(sampled.sum())
    }
}

/// Returns k / n; 0 if n is 0.
#[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
pub fn part(k: u64, n: u64) -> f64 {
    if n == 0 { 0.0 } else { k as f64 / n as f64 }
}

/// Returns a part of a time, ns.
pub fn scaled(ns: u64, part: f64) -> u64 {
    if part >= 1.0 { ns } else { rounded(ns as f64 * part) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_sampling_is_left_out() {
        let changes = HashMap::from([(1, vec![(100, 0.0), (150, 500.0), (300, 250.0)])]);
        let rates = RateHistory { changes };
        let all: Vec<_> = rates.divide(1, (50, 350), 600).collect();
        assert_eq!(all, [(100, 100), (300, 300), (350, 100)]);
        assert_eq!(rates.divide(1, (110, 140), 30).count(), 0);
        assert_eq!(rates.divide(0, (110, 140), 30).collect::<Vec<_>>(), [(140, 30)]);
        assert_eq!((rates.unsampled_ns(1, (0, 400)), rates.unsampled_ns(0, (0, 400))), (50, 0));
        assert_eq!(rates.unsampled_ns(1, (120, 400)), 30);
    }
}
