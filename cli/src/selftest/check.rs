//! Comparisons of the self-test, and their verdicts.

use profile::report::Estimate;
use serde::{Deserialize, Serialize};

/// Half the width of a 95 % interval, in standard errors.
const Z_95: f64 = 1.96;
/// Largest allowed error of a share, in standard errors: one in a thousand good measurements has a larger
/// one.
const Z_ALLOWED: f64 = 3.29;

/// ValueUnit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueUnit {
    /// A part of a whole, 0 to 1.
    Part,
    /// Seconds.
    Seconds,
    /// A number of things.
    Count,
}

/// Verdict on a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    /// Within the bounds.
    Passed,
    /// Outside of the bounds.
    Failed,
    /// Not judged; `note` has the reason.
    NotJudged,
}

/// Comparison of a value of vprof with a reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelftestCheck {
    /// Name of the value.
    pub name: String,
    /// ValueUnit of the values.
    pub unit: ValueUnit,
    /// Value of vprof; `None` where it has none.
    pub measured: Option<f64>,
    /// Smallest value that passes.
    pub low: f64,
    /// Largest value that passes; `None` without a bound.
    pub high: Option<f64>,
    /// Source of the bounds.
    pub reference: String,
    /// The verdict.
    pub judgement: CheckVerdict,
    /// Reason why the check is not judged.
    pub note: Option<String>,
}

impl SelftestCheck {
    /// Checks a value against two bounds.
    pub fn between(
        name: impl Into<String>,
        unit: ValueUnit,
        measured: Option<f64>,
        (low, high): (f64, Option<f64>),
        reference: impl Into<String>,
    ) -> Self {
        let fits = measured.is_some_and(|value| low <= value && high.is_none_or(|high| value <= high));
        Self {
            name: name.into(),
            unit,
            measured: measured.filter(|value| value.is_finite()),
            low,
            high,
            reference: reference.into(),
            judgement: if fits { CheckVerdict::Passed } else { CheckVerdict::Failed },
            note: None,
        }
    }

    /// Checks that a value is at most `tolerance` from the one that the guest measured.
    pub fn near(
        name: impl Into<String>,
        unit: ValueUnit,
        measured: Option<f64>,
        (own, tolerance): (f64, f64),
        reference: impl Into<String>,
    ) -> Self {
        Self::between(name, unit, measured, ((own - tolerance).max(0.0), Some(own + tolerance)), reference)
    }

    /// Shows the values without a verdict where `reason` is given.
    pub fn unless(mut self, reason: Option<&str>) -> Self {
        if let Some(reason) = reason {
            self.judgement = CheckVerdict::NotJudged;
            self.note = Some(reason.to_owned());
        }
        self
    }
}

/// Returns the largest error of a good estimate of a share, by chance, from its own interval.
pub fn chance_of_share(estimate: &Estimate) -> f64 {
    (estimate.share_high - estimate.share_low) / 2.0 / Z_95 * Z_ALLOWED
}

/// Returns the largest error of a good estimate of a time, s, by chance, from its own interval.
pub fn chance_of_time(estimate: &Estimate) -> f64 {
    (estimate.time_high_s - estimate.time_low_s) / 2.0 / Z_95 * Z_ALLOWED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_of_its_bounds_fails() {
        let judged = |measured| {
            SelftestCheck::near("a", ValueUnit::Seconds, measured, (2.0, 0.5), "its clock").judgement
        };
        assert_eq!(judged(Some(2.4)), CheckVerdict::Passed);
        assert_eq!(judged(Some(2.6)), CheckVerdict::Failed);
        assert_eq!(judged(Some(1.4)), CheckVerdict::Failed);
        assert_eq!(judged(Some(f64::NAN)), CheckVerdict::Failed);
        assert_eq!(judged(None), CheckVerdict::Failed);
    }

    #[test]
    fn what_is_not_judged_never_fails() {
        let check = SelftestCheck::between("a", ValueUnit::Part, None, (0.9, None), "x")
            .unless(Some("emulated host"));
        assert_eq!(check.judgement, CheckVerdict::NotJudged);
    }

    #[test]
    fn chance_is_a_little_more_than_the_interval() {
        let estimate = Estimate { share_low: 0.48, share_high: 0.52, ..Estimate::default() };
        let chance = chance_of_share(&estimate);
        assert!(0.033 < chance && chance < 0.034, "{chance}");
    }
}
