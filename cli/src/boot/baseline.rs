//! Times of earlier boots in a file, and whether these are slower.

use std::collections::BTreeMap;
use std::path::Path;

use profile::boot::PHASES;
use profile::diff;
use serde::{Deserialize, Serialize};

use super::check::Check;
use super::{Attempt, Outcome, replace, walls};
use crate::errors::Error;
use text::message::Shown;

/// The version of the file's format.
const VERSION: u32 = 1;
/// The largest file that is read, bytes.
const LARGEST: u64 = 16 << 20;
/// Single boots: slower is what takes longer by this part ...
const PART: f64 = 0.2;
/// ... and by this, s.
const LEAST_S: f64 = 0.05;

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    vprof_boot_baseline: u32,
    image: String,
    /// Where they were booted: times of different hosts can't be compared.
    host: String,
    kernel: Option<String>,
    /// Wall time by phase of each boot, s.
    boots: Vec<BTreeMap<String, f64>>,
}

impl Baseline {
    /// Of boots that all came up.
    pub fn of(outcome: &Outcome) -> Self {
        let times = |attempt: &Attempt| {
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
        let wrong =
            |what: String| Error::Baseline(format!("{} is no baseline of `vprof boot`: {what}", Shown(path)));
        let metadata = std::fs::metadata(path).map_err(|error| Error::file("read", path, error))?;
        if metadata.len() > LARGEST {
            return Err(wrong("it is too large".to_owned()));
        }
        let text = std::fs::read(path).map_err(|error| Error::file("read", path, error))?;
        let baseline: Self = serde_json::from_slice(&text)
            .map_err(|error| wrong(text::clean::escaped(&error.to_string()).into_owned()))?;
        match () {
            () if baseline.vprof_boot_baseline != VERSION => {
                Err(wrong(format!("its version is {}, and not {VERSION}", baseline.vprof_boot_baseline)))
            }
            () if baseline.boots.is_empty() => Err(wrong("it has no boots".to_owned())),
            () if baseline.boots.iter().flat_map(BTreeMap::values).any(|s| !s.is_finite() || *s < 0.0) => {
                Err(wrong("it has times that are none".to_owned()))
            }
            () => Ok(baseline),
        }
    }

    /// Writes it, in place of a file that is there.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text =
            serde_json::to_string_pretty(self).map_err(|error| Error::file("write", path, error.into()))?;
        replace(path, &format!("{text}\n"))
    }

    /// Compares phase by phase.
    pub fn checks(&self, boots: &[Attempt]) -> Result<Vec<Check>, Error> {
        if let Some(other) = boots.iter().find(|attempt| attempt.boot.host != self.host) {
            return Err(Error::Baseline(format!(
                "the baseline is of the host {:?} and these boots of {:?}: their times can't be compared",
                text::clean::escaped(&self.host),
                other.boot.host
            )));
        }
        let before =
            |phase: &str| self.boots.iter().filter_map(|boot| boot.get(phase).copied()).collect::<Vec<_>>();
        let sides: Vec<(&str, Vec<f64>, Vec<f64>)> = PHASES
            .iter()
            .map(|phase| (*phase, before(phase), walls(boots, phase)))
            .filter(|(_, before, after)| !before.is_empty() && !after.is_empty())
            .collect();
        Ok(compare(&sides))
    }
}

/// Phases with their times before and now, s.
fn compare(sides: &[(&str, Vec<f64>, Vec<f64>)]) -> Vec<Check> {
    let tested = |side: &&(&str, Vec<f64>, Vec<f64>)| side.1.len() > 1 && side.2.len() > 1;
    let groups: Vec<(&[f64], &[f64])> =
        sides.iter().filter(tested).map(|(_, before, after)| (before.as_slice(), after.as_slice())).collect();
    let mut changes = diff::compare(&groups).into_iter();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let check = |side: &(&str, Vec<f64>, Vec<f64>)| {
        let (phase, before, after) = (side.0, mean(&side.1), mean(&side.2));
        // Changes are told of those alone that were tested.
        let change = tested(&side).then(|| changes.next()).flatten();
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
        Check { name: format!("baseline {phase}"), passed: !slower, skipped: false, message, time_s: after }
    };
    sides.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_boots_are_tested_and_single_ones_have_a_margin() {
        let several = [
            ("total", vec![2.0, 2.01, 1.99], vec![2.3, 2.31, 2.29]),
            ("kernel", vec![1.0, 1.3, 0.8], vec![1.1, 1.2, 0.9]),
        ];
        let passed: Vec<bool> = compare(&several).iter().map(|check| check.passed).collect();
        assert_eq!(passed, [false, true]);
        // A phase without enough boots does not take the result of the next one.
        let mixed = [("initrd", vec![1.0], vec![1.0]), several[0].clone(), several[1].clone()];
        let passed: Vec<bool> = compare(&mixed).iter().map(|check| check.passed).collect();
        assert_eq!(passed, [true, false, true]);
        let single = |after| compare(&[("total", vec![1.0], vec![after])])[0].passed;
        assert!(single(1.24) && !single(1.26) && single(0.1));
        assert!(compare(&[("total", vec![2.3, 2.31, 2.29], vec![2.0, 2.01, 1.99])])[0].passed);
    }

    #[test]
    fn a_file_that_is_no_baseline_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            Baseline::read(file.path()).unwrap_err().to_string()
        };
        let head = r#"{"vprof_boot_baseline":1,"image":"a","host":"kvm","kernel":null,"boots":"#;
        assert!(error("{").contains("is no baseline"));
        assert!(error(&format!("{head}[]}}")).contains("no boots"));
        assert!(error(&format!("{head}[{{\"total\":-1}}]}}")).contains("times that are none"));
        assert!(error(&head.replace(":1", ":2").replace("\"boots\":", "\"boots\":[]}")).contains("version"));
    }
}
