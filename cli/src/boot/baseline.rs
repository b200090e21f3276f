//! Times of earlier boots in a file, and the comparison with them.

use std::collections::BTreeMap;
use std::path::Path;

use profile::boot::PHASES;
use profile::diff;
use serde::{Deserialize, Serialize};

use super::{BootAttempt, BootOutcome, replace, walls};
use crate::errors::{BaselineError, Error};
use render::boot_test::BootCheck;

/// Version of the file's format.
const VERSION: u32 = 1;
/// Largest file that is read, bytes.
const LARGEST: u64 = 16 << 20;
/// A single boot is slower than another if a phase takes longer by this part ...
const PART: f64 = 0.2;
/// ... and by this time, s.
const LEAST_S: f64 = 0.05;

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootBaseline {
    vprof_boot_baseline: u32,
    image: String,
    /// Host of the boots: times of different hosts can't be compared.
    host: String,
    kernel: Option<String>,
    /// Wall time of each boot by phase, s.
    boots: Vec<BTreeMap<String, f64>>,
}

impl BootBaseline {
    /// Takes the times of boots that all came up.
    pub fn from_outcome(outcome: &BootOutcome) -> Self {
        let times = |attempt: &BootAttempt| {
            attempt.boot.phases.iter().map(|phase| (phase.name.clone(), phase.wall_s)).collect()
        };
        let first = outcome.boots.first();
        Self {
            vprof_boot_baseline: VERSION,
            image: outcome.image.clone(),
            host: first.map_or_else(String::new, |attempt| attempt.boot.host.clone()),
            kernel: first.and_then(|attempt| attempt.boot.kernel.clone()),
            boots: outcome.boots.iter().map(times).collect(),
        }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let metadata = std::fs::metadata(path).map_err(|error| Error::file("read", path, error))?;
        if metadata.len() > LARGEST {
            return Err(BaselineError::TooLarge(path.to_owned()).into());
        }
        let text = std::fs::read(path).map_err(|error| Error::file("read", path, error))?;
        let baseline: Self = serde_json::from_slice(&text)
            .map_err(|source| BaselineError::Syntax { path: path.to_owned(), source })?;
        let found = baseline.vprof_boot_baseline;
        if found != VERSION {
            return Err(BaselineError::Version { path: path.to_owned(), found, expected: VERSION }.into());
        }
        if baseline.boots.is_empty() {
            return Err(BaselineError::NoBoots(path.to_owned()).into());
        }
        if baseline.boots.iter().flat_map(BTreeMap::values).any(|s| !s.is_finite() || *s < 0.0) {
            return Err(BaselineError::InvalidTimes(path.to_owned()).into());
        }
        Ok(baseline)
    }

    /// Writes the file, and replaces an existing one.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text =
            serde_json::to_string_pretty(self).map_err(|error| Error::file("write", path, error.into()))?;
        replace(path, &format!("{text}\n"))
    }

    /// Compares the boots with the baseline, phase by phase.
    pub fn checks(&self, boots: &[BootAttempt]) -> Result<Vec<BootCheck>, Error> {
        if let Some(other) = boots.iter().find(|attempt| attempt.boot.host != self.host) {
            let (baseline, boots) = (self.host.clone(), other.boot.host.clone());
            return Err(BaselineError::OtherHost { baseline, boots }.into());
        }
        let before =
            |phase: &str| self.boots.iter().filter_map(|boot| boot.get(phase).copied()).collect::<Vec<_>>();
        let sides: Vec<PhaseSides> = PHASES
            .iter()
            .map(|phase| PhaseSides { phase, before: before(phase), after: walls(boots, phase) })
            .filter(|sides| !sides.before.is_empty() && !sides.after.is_empty())
            .collect();
        Ok(compare(&sides))
    }
}

/// Times of a phase on both sides, s.
struct PhaseSides {
    phase: &'static str,
    before: Vec<f64>,
    after: Vec<f64>,
}

impl PhaseSides {
    /// Returns true if both sides have the two or more boots that a test needs.
    fn is_testable(&self) -> bool {
        self.before.len() > 1 && self.after.len() > 1
    }
}

/// Compares the times of each phase.
fn compare(sides: &[PhaseSides]) -> Vec<BootCheck> {
    let testable = sides.iter().filter(|sides| sides.is_testable());
    let groups: Vec<(&[f64], &[f64])> =
        testable.map(|sides| (sides.before.as_slice(), sides.after.as_slice())).collect();
    let mut changes = diff::compare(&groups).into_iter();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let check = |sides: &PhaseSides| {
        let (phase, before, after) = (sides.phase, mean(&sides.before), mean(&sides.after));
        // There are changes only of phases that were tested, in the same order.
        let change = sides.is_testable().then(|| changes.next()).flatten();
        let (slower, how) = match change {
            Some(change) => (
                change.marked && change.change > 0.0,
                format!(
                    "95 % interval {:+.3} to {:+.3} s, p = {:.2e}",
                    change.low,
                    change.high,
                    change.p_adjusted.unwrap_or(1.0)
                ),
            ),
            None => (
                after > before * (1.0 + PART) + LEAST_S,
                "single boots: 20 % and 50 ms are allowed".to_owned(),
            ),
        };
        let direction = if after >= before { "longer" } else { "less" };
        let message = format!(
            "{phase} took {after:.3} s, {:.3} s {direction} than in the baseline ({how})",
            (after - before).abs()
        );
        BootCheck {
            name: format!("baseline {phase}"),
            passed: !slower,
            skipped: false,
            message,
            time_s: after,
        }
    };
    sides.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_boots_are_tested_and_single_ones_have_a_margin() {
        let sides = |phase, before: &[f64], after: &[f64]| PhaseSides {
            phase,
            before: before.to_vec(),
            after: after.to_vec(),
        };
        let total = || sides("total", &[2.0, 2.01, 1.99], &[2.3, 2.31, 2.29]);
        let kernel = || sides("kernel", &[1.0, 1.3, 0.8], &[1.1, 1.2, 0.9]);
        let several = [total(), kernel()];
        let passed: Vec<bool> = compare(&several).iter().map(|check| check.passed).collect();
        assert_eq!(passed, [false, true]);
        // A phase without enough boots does not take the result of the next one.
        let mixed = [sides("initrd", &[1.0], &[1.0]), total(), kernel()];
        let passed: Vec<bool> = compare(&mixed).iter().map(|check| check.passed).collect();
        assert_eq!(passed, [true, false, true]);
        let single = |after| compare(&[sides("total", &[1.0], &[after])])[0].passed;
        assert!(single(1.24) && !single(1.26) && single(0.1));
        assert!(compare(&[sides("total", &[2.3, 2.31, 2.29], &[2.0, 2.01, 1.99])])[0].passed);
    }

    #[test]
    fn a_file_that_is_not_a_baseline_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            BootBaseline::read(file.path()).unwrap_err().to_string()
        };
        let head = r#"{"vprof_boot_baseline":1,"image":"a","host":"kvm","kernel":null,"boots":"#;
        assert!(error("{").contains("is not a baseline"));
        assert!(error(&format!("{head}[]}}")).contains("no boots"));
        assert!(error(&format!("{head}[{{\"total\":-1}}]}}")).contains("times that are not valid"));
        assert!(error(&head.replace(":1", ":2").replace("\"boots\":", "\"boots\":[]}")).contains("version"));
    }
}
