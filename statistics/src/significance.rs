//! Intervals of changes, their chances, and the correction for many tests at once.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::estimate::Z_95;

/// A value of one run with its 95 % interval.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    /// The value.
    pub at: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Value {
    /// Returns the standard error from the width of the interval.
    fn error(self) -> f64 {
        (self.high - self.low) / (2.0 * Z_95)
    }
}

/// A change's 95 % interval, and the chance of such a change if nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TestedChange {
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The chance.
    pub p: f64,
}

/// Tests one run before and one after. The squared distances to the ends of their intervals add, each on the
/// side of the change's end (R. G. Newcombe, Interval estimation for the difference between independent
/// proportions, Statistics in Medicine 17, 1998, method 10). The chance is that of a normal deviate as far
/// out as zero is by the same distance.
pub fn one_run(before: Value, after: Value) -> TestedChange {
    let change = after.at - before.at;
    let down = (after.at - after.low).hypot(before.high - before.at);
    let up = (after.high - after.at).hypot(before.at - before.low);
    let towards_zero = if change >= 0.0 { down } else { up };
    let z = if change == 0.0 { 0.0 } else { change.abs() / towards_zero * Z_95 };
    TestedChange { low: change - down, high: change + up, p: two_sided(z) }
}

/// Tests several runs on both sides: Welch's t (B. L. Welch, The generalization of "Student's" problem when
/// several different population variances are involved, Biometrika 34, 1947), from the variance between the
/// runs of a side. That is at least the variance of sampling alone, since few runs may be close together by
/// chance.
pub fn welch(before: &[Value], after: &[Value]) -> TestedChange {
    let (before, after) = (Spread::new(before), Spread::new(after));
    let change = after.mean - before.mean;
    let variance = before.of_mean + after.of_mean;
    if variance <= 0.0 {
        return TestedChange { low: change, high: change, p: if change == 0.0 { 1.0 } else { 0.0 } };
    }
    let freedom = variance * variance
        / (before.of_mean * before.of_mean / before.freedom + after.of_mean * after.of_mean / after.freedom);
    let error = variance.sqrt();
    // At least one degree of freedom: each side has two runs.
    match StudentsT::new(0.0, 1.0, freedom.max(1.0)) {
        Ok(t) => {
            let half = t.inverse_cdf(0.975) * error;
            let p = 2.0 * t.sf(change.abs() / error);
            TestedChange { low: change - half, high: change + half, p: p.min(1.0) }
        }
        // Not a number: nothing is known.
        Err(_) => TestedChange { low: f64::NEG_INFINITY, high: f64::INFINITY, p: 1.0 },
    }
}

/// Mean of the runs of one side, and its spread.
struct Spread {
    mean: f64,
    /// Variance of the mean.
    of_mean: f64,
    freedom: f64,
}

impl Spread {
    fn new(values: &[Value]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().map(|value| value.at).sum::<f64>() / n;
        let freedom = (n - 1.0).max(1.0);
        let between = values.iter().map(|value| (value.at - mean).powi(2)).sum::<f64>() / freedom;
        let sampled = values.iter().map(|value| value.error().powi(2)).sum::<f64>() / n;
        Self { mean, of_mean: between.max(sampled) / n, freedom }
    }
}

/// Returns the chance of a normal deviate at least this far from zero.
pub fn two_sided(z: f64) -> f64 {
    match Normal::new(0.0, 1.0) {
        Ok(normal) if z.is_finite() => (2.0 * normal.sf(z)).min(1.0),
        _ => 0.0,
    }
}

/// Adjusts chances for testing all of them together (S. Holm, A simple sequentially rejective multiple test
/// procedure, Scandinavian Journal of Statistics 6, 1979): the chance of any at most `x` by mistake is at
/// most `x`, however they depend on one another.
pub fn holm(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let mut adjusted = vec![1.0; chances.len()];
    let mut largest: f64 = 0.0;
    for (rank, place) in order.into_iter().enumerate() {
        largest = largest.max(chances[place] * (chances.len() - rank) as f64).min(1.0);
        adjusted[place] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(at: f64, half: f64) -> Value {
        Value { at, low: at - half, high: at + half }
    }

    #[test]
    fn the_interval_of_two_runs_and_its_chance_agree() {
        let TestedChange { low, high, p } = one_run(value(0.30, 0.03), value(0.35, 0.04));
        assert!((low - 0.0).abs() < 1e-12 && (high - 0.10).abs() < 1e-12, "{low} {high}");
        assert!((p - 0.05).abs() < 1e-9, "{p}: the interval ends at zero");
        assert!((one_run(value(0.3, 0.1), value(0.3, 0.1)).p - 1.0).abs() < 1e-12);
        let mirrored = one_run(value(0.35, 0.04), value(0.30, 0.03));
        assert!((mirrored.p - p).abs() < 1e-12 && (mirrored.high + low).abs() < 1e-12);
    }

    #[test]
    fn welch_is_as_by_hand() {
        // Variances 5/3 and 10: t = 2.251436 with 5.520788 degrees of freedom. Chance and quantile (2.499331)
        // by Simpson's rule over the density of t.
        let side = |values: &[f64]| values.iter().map(|at| value(*at, 0.0)).collect::<Vec<_>>();
        let TestedChange { low, high, p } =
            welch(&side(&[1.0, 2.0, 3.0, 4.0]), &side(&[2.0, 4.0, 6.0, 8.0, 10.0]));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
        close(p, 0.069_133_59);
        close(low, -0.385_368_08);
        close(high, 7.385_368_08);
    }

    #[test]
    fn runs_that_agree_by_chance_are_not_certain() {
        let same = |at| [value(at, 0.01), value(at, 0.01), value(at, 0.01)];
        let tested = welch(&same(0.100), &same(0.101));
        assert!(tested.p > 0.5 && tested.low < 0.0, "{tested:?}");
    }

    #[test]
    fn holm_is_as_by_hand() {
        // In order: 4 * 0.005, 3 * 0.01, 2 * 0.03, and 0.04, which must not come before the one before it.
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close(&holm(&[0.01, 0.04, 0.03, 0.005]), &[0.03, 0.06, 0.06, 0.02]));
        assert!(holm(&[]).is_empty());
    }
}
