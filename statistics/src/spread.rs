//! Statistics of several measurements of one thing.

use serde::{Deserialize, Serialize};

/// Statistics of several measurements of one thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueSpread {
    /// Name of the measured thing.
    pub name: String,
    /// Number of measurements.
    pub count: usize,
    /// All values, in the order of measurement.
    pub values: Vec<f64>,
    /// Mean of the values.
    pub mean: f64,
    /// Median: the middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Coefficient of variation: standard deviation over mean; `None` for fewer than two values.
    pub cv: Option<f64>,
}

impl ValueSpread {
    /// Computes the statistics of `values`; `None` if there are none.
    pub fn from_values(name: &str, values: &[f64]) -> Option<Self> {
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
        let spread = ValueSpread::from_values("a", &[3.0, 1.0, 2.0, 6.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.count), (2.5, 1.0, 6.0, 4));
        assert_eq!((spread.mean, spread.values.as_slice()), (3.0, [3.0, 1.0, 2.0, 6.0].as_slice()));
        // Mean 3, squared distances 0 + 4 + 1 + 9 over 3.
        assert!((spread.cv.unwrap() - (14.0_f64 / 3.0).sqrt() / 3.0).abs() < 1e-12);
        assert_eq!(ValueSpread::from_values("a", &[2.0]).unwrap().cv, None);
        assert!(ValueSpread::from_values("a", &[]).is_none());
    }
}
