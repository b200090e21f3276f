//! What is compared, and how it is judged.

use profile::report::Estimate;
use serde::{Deserialize, Serialize};

/// Half a 95 % interval, in standard errors.
const Z_95: f64 = 1.96;
/// Standard errors that a share may be off: one in a thousand good measurements is further off.
const Z_ALLOWED: f64 = 3.29;

/// What a value is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A part of a whole, 0 to 1.
    Part,
    /// Seconds.
    Seconds,
    /// A number of things.
    Count,
}

/// A verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Within what is allowed.
    Passed,
    /// Not within.
    Failed,
    /// Shown only: `note` says why.
    NotJudged,
}

/// A comparison of what vprof says with a reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What is compared.
    pub name: String,
    /// What the values are counted in.
    pub unit: Unit,
    /// What vprof says; `None` where it says nothing.
    pub measured: Option<f64>,
    /// Least value that passes.
    pub low: f64,
    /// Largest value that passes; `None` without a bound.
    pub high: Option<f64>,
    /// Where the bounds come from.
    pub reference: String,
    /// The verdict.
    pub judgement: Judgement,
    /// Why it is not judged.
    pub note: Option<String>,
}

impl Check {
    /// A value between two bounds.
    pub fn between(
        name: impl Into<String>,
        unit: Unit,
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
            judgement: if fits { Judgement::Passed } else { Judgement::Failed },
            note: None,
        }
    }

    /// A value no further than `tolerance` from the one that the guest measured.
    pub fn near(
        name: impl Into<String>,
        unit: Unit,
        measured: Option<f64>,
        (own, tolerance): (f64, f64),
        reference: impl Into<String>,
    ) -> Self {
        Self::between(name, unit, measured, ((own - tolerance).max(0.0), Some(own + tolerance)), reference)
    }

    /// Shows the values without a verdict where `reason` is given.
    pub fn unless(mut self, reason: Option<&str>) -> Self {
        if let Some(reason) = reason {
            self.judgement = Judgement::NotJudged;
            self.note = Some(reason.to_owned());
        }
        self
    }
}

/// How far a good estimate of a share may be off: by chance, as its own interval says.
pub fn chance_of_share(estimate: &Estimate) -> f64 {
    (estimate.share_high - estimate.share_low) / 2.0 / Z_95 * Z_ALLOWED
}

/// How far a good estimate of a time may be off, s: by chance, as its own interval says.
pub fn chance_of_time(estimate: &Estimate) -> f64 {
    (estimate.time_high_s - estimate.time_low_s) / 2.0 / Z_95 * Z_ALLOWED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_of_its_bounds_fails() {
        let judged = |measured| Check::near("a", Unit::Seconds, measured, (2.0, 0.5), "its clock").judgement;
        assert_eq!(judged(Some(2.4)), Judgement::Passed);
        assert_eq!(judged(Some(2.6)), Judgement::Failed);
        assert_eq!(judged(Some(1.4)), Judgement::Failed);
        assert_eq!(judged(Some(f64::NAN)), Judgement::Failed);
        assert_eq!(judged(None), Judgement::Failed);
    }

    #[test]
    fn what_is_not_judged_never_fails() {
        let check = Check::between("a", Unit::Part, None, (0.9, None), "x").unless(Some("emulated host"));
        assert_eq!(check.judgement, Judgement::NotJudged);
    }

    #[test]
    fn chance_is_a_little_more_than_the_interval() {
        let estimate = Estimate { share_low: 0.48, share_high: 0.52, ..Estimate::default() };
        let chance = chance_of_share(&estimate);
        assert!(0.033 < chance && chance < 0.034, "{chance}");
    }
}
