//! How several measurements of one thing lie.

use serde::{Deserialize, Serialize};

/// Several measurements of one thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// What was measured.
    pub name: String,
    /// How often.
    pub count: usize,
    /// Each, in the order of measurement.
    pub values: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Standard deviation over mean; `None` of fewer than two.
    pub cv: Option<f64>,
}

impl Spread {
    /// The spread of `values`, of which there is at least one.
    pub fn of(name: &str, values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let n = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / n;
        let variance = sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let middle = |at: usize| sorted.get(at).copied().unwrap_or(max);
        let median = (middle((sorted.len() - 1) / 2) + middle(sorted.len() / 2)) / 2.0;
        let cv = (sorted.len() > 1 && mean > 0.0).then(|| variance.sqrt() / mean);
        let (name, values) = (name.to_owned(), values.to_vec());
        Some(Self { name, count: sorted.len(), values, mean, median, min, max, cv })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_as_by_hand() {
        let spread = Spread::of("a", &[3.0, 1.0, 2.0, 6.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.count), (2.5, 1.0, 6.0, 4));
        assert_eq!((spread.mean, spread.values.as_slice()), (3.0, [3.0, 1.0, 2.0, 6.0].as_slice()));
        // Mean 3, squared distances 0 + 4 + 1 + 9 over 3.
        assert!((spread.cv.unwrap() - (14.0_f64 / 3.0).sqrt() / 3.0).abs() < 1e-12);
        assert_eq!(Spread::of("a", &[2.0]).unwrap().cv, None);
        assert!(Spread::of("a", &[]).is_none());
    }
}
