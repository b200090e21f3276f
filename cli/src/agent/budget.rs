//! Budgets: the rate falls where sampling costs more than it may.

/// The rate falls to this part of the requested one at most: what remains below does not depend on it.
const LEAST: f64 = 0.1;
/// Part of a budget below which the rate rises again.
const ROOM: f64 = 0.5;
/// Factor by which it rises at once.
const RISE: f64 = 1.5;

/// Part of all CPUs of a host that is the budget by default.
const DEFAULT: f64 = 0.001;
/// The least of it, CPUs: what does not depend on the rate takes most of less.
const LEAST_CPUS: f64 = 0.01;

/// Returns the budget of a host with that many CPUs by default, a part of all of them.
pub fn default_budget(cpus: usize) -> f64 {
    DEFAULT.max(LEAST_CPUS / cpus.max(1) as f64)
}

/// Part of the requested rate that a budget allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateFactor {
    limit: f64,
    factor: f64,
}

impl RateFactor {
    /// Allows the whole rate. `limit` is the budget, a part of 1.
    pub fn new(limit: f64) -> Self {
        Self { limit, factor: 1.0 }
    }

    /// Returns the part of the rate that is allowed, from a tenth to 1.
    pub fn get(&self) -> f64 {
        self.factor
    }

    /// Adapts the part to a measured cost; returns true if it has changed.
    pub fn adapt(&mut self, cost: f64) -> bool {
        let wanted = if cost > self.limit {
            self.factor * self.limit / cost
        } else if cost < self.limit * ROOM {
            self.factor * RISE
        } else {
            self.factor
        };
        let before = std::mem::replace(&mut self.factor, wanted.clamp(LEAST, 1.0));
        (before - self.factor).abs() > f64::EPSILON
    }

    /// True if the rate cannot fall further.
    pub fn is_least(&self) -> bool {
        self.factor <= LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_host_has_a_larger_part_by_default() {
        let percent = |cpus| (default_budget(cpus) * 1e5).round() / 1e3;
        assert_eq!([0, 1, 2, 10, 256].map(percent), [1.0, 1.0, 0.5, 0.1, 0.1]);
    }

    #[test]
    fn a_rate_falls_to_its_budget_and_rises_again() {
        let mut factor = RateFactor::new(0.001);
        assert!(!factor.adapt(0.0007) && (factor.get() - 1.0).abs() < 1e-9);
        assert!(factor.adapt(0.004) && (factor.get() - 0.25).abs() < 1e-9);
        assert!(!factor.adapt(0.0009), "within the budget it stays");
        assert!(factor.adapt(0.0001) && (factor.get() - 0.375).abs() < 1e-9);
        for _ in 0..10 {
            factor.adapt(0.0);
        }
        assert!((factor.get() - 1.0).abs() < 1e-9);
        factor.adapt(f64::INFINITY);
        assert!(factor.is_least() && (factor.get() - LEAST).abs() < 1e-9);
    }
}
