//! Wall time of the steps of `cargo xtask test`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Variable with the path of a file to which the harness of guest tests appends a line for each guest: the test's name, a
/// tab, seconds (`tests/src/turn.rs`).
pub const GUESTS_FILE: &str = "VPROF_GUEST_TIMES";

/// Steps in the order in which they ran, and the guest tests.
#[derive(Debug, Default)]
pub struct Timings {
    steps: Vec<(String, Duration)>,
    /// Seconds by test.
    guests: BTreeMap<String, f64>,
}

impl Timings {
    /// Does a step and keeps how long it took.
    pub fn measure<T>(&mut self, step: &str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = work();
        self.steps.push((step.to_owned(), begin.elapsed()));
        result
    }

    /// Adds the times that the harness of guest tests has written.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_guests(&mut self, file: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the times of guests in {}", file.display()))?;
        for line in text.lines() {
            let (test, seconds) = line.split_once('\t').context("a time of a guest has no tab")?;
            let seconds: f64 = seconds.parse().context("a time of a guest is not a number")?;
            *self.guests.entry(test.to_owned()).or_default() += seconds;
        }
        Ok(())
    }
}

impl fmt::Display for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut guests: Vec<_> = self.guests.iter().collect();
        guests.sort_by(|a, b| b.1.total_cmp(a.1));
        writeln!(f, "\n seconds  step")?;
        for (step, took) in &self.steps {
            writeln!(f, "{:>8.1}  {step}", took.as_secs_f64())?;
        }
        let total: Duration = self.steps.iter().map(|(_, took)| *took).sum();
        writeln!(f, "{:>8.1}  in all", total.as_secs_f64())?;
        if !guests.is_empty() {
            writeln!(f, "\n seconds  guests of the test, also next to others")?;
        }
        for (test, seconds) in guests {
            writeln!(f, "{seconds:>8.1}  {test}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_of_a_test_are_added_up_and_the_longest_comes_first() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "kernels::a\t1.5\nkernels::b\t4.0\nkernels::a\t1.0\n").unwrap();
        let mut timings = Timings::default();
        assert_eq!(timings.measure("a step", || 7), 7);
        timings.read_guests(file.path()).unwrap();
        let text = timings.to_string();
        let (a, b) = (text.find("     2.5  kernels::a"), text.find("     4.0  kernels::b"));
        assert!(b.is_some() && b < a && text.contains("a step"), "{text}");
        std::fs::write(file.path(), "no tab").unwrap();
        assert!(timings.read_guests(file.path()).is_err());
    }
}
