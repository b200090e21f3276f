//! Wall time of the steps of `cargo xtask test`, and events of the guest tests.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Test programs in the table: the slowest ones.
const SLOWEST: usize = 10;

/// Wall time of each step, and of each test program within the steps.
#[derive(Debug)]
pub struct StepTimes {
    begin: Instant,
    /// In the order in which they ended.
    steps: Mutex<Vec<(String, Duration)>>,
    programs: Mutex<Vec<(String, Duration)>>,
}

/// Events noted by the harness of guest tests (`testkit::events`).
#[derive(Debug, Default, PartialEq)]
pub struct HarnessEvents {
    /// Seconds of the guests, by test.
    guests: BTreeMap<String, f64>,
    /// Repeats because the emulation failed, by cause.
    repeated: BTreeMap<String, usize>,
    /// Tests that failed by the emulation.
    failed: BTreeSet<String>,
}

impl StepTimes {
    /// Starts the clock.
    pub fn new() -> Self {
        Self { begin: Instant::now(), steps: Mutex::default(), programs: Mutex::default() }
    }

    /// Does a step and keeps how long it took.
    pub fn measure<T>(&self, step: &str, work: impl FnOnce() -> T) -> T {
        measure_into(&self.steps, step, work)
    }

    /// Runs a test program, which is a part of a step, and keeps how long it took.
    pub fn measure_program<T>(&self, label: &str, run: impl FnOnce() -> T) -> T {
        measure_into(&self.programs, label, run)
    }
}

fn measure_into<T>(times: &Mutex<Vec<(String, Duration)>>, name: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    let took = (name.to_owned(), begin.elapsed());
    times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
    result
}

impl HarnessEvents {
    /// Reads the file in which the harness of guest tests has written.
    ///
    /// # Errors
    /// The file cannot be read, or has a line that is not an event.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the events of tests in {}", file.display()))?;
        let mut events = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [kind, test, value] = fields[..] else { bail!("not an event of a test: {line:?}") };
            match kind {
                "guest" => {
                    let seconds: f64 = value.parse().context("a time of a guest is not a number")?;
                    *events.guests.entry(test.to_owned()).or_default() += seconds;
                }
                "repeated" => *events.repeated.entry(value.to_owned()).or_default() += 1,
                "failed" => drop(events.failed.insert(test.to_owned())),
                _ => bail!("not an event of a test: {line:?}"),
            }
        }
        Ok(events)
    }

    /// True if a test has failed by the emulation.
    pub fn has_failed_by_emulation(&self, test: &str) -> bool {
        self.failed.contains(test)
    }

    /// Returns a sentence with the number of failures of the emulation by cause.
    pub fn repeats(&self) -> String {
        if self.repeated.is_empty() && self.failed.is_empty() {
            return "the emulation failed in no guest".to_owned();
        }
        let causes: Vec<String> =
            self.repeated.iter().map(|(cause, count)| format!("{count} by {cause}")).collect();
        let causes = if causes.is_empty() { "none".to_owned() } else { causes.join(", ") };
        let failed = self.failed.len();
        format!(
            "repeated within guest tests because the emulation failed: {causes}; tests that failed by it: {failed}"
        )
    }

    /// Returns a line for each test that booted a guest, the longest first.
    pub fn guest_times(&self) -> String {
        let mut guests: Vec<_> = self.guests.iter().collect();
        guests.sort_by(|a, b| b.1.total_cmp(a.1));
        let lines = guests.into_iter().map(|(test, seconds)| format!("{seconds:>8.1}  {test}\n"));
        format!("\n seconds  guests of the test, also next to others\n{}", lines.collect::<String>())
    }
}

impl fmt::Display for StepTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [steps, mut programs] = [&self.steps, &self.programs]
            .map(|times| times.lock().unwrap_or_else(PoisonError::into_inner).clone());
        programs.sort_by_key(|(_, took)| Reverse(*took));
        let in_all = ("in all".to_owned(), self.begin.elapsed());
        writeln!(f, "\n seconds  step")?;
        for (step, took) in steps.iter().chain([&in_all]) {
            writeln!(f, "{:>8.1}  {step}", took.as_secs_f64())?;
        }
        writeln!(f, "\n seconds  slowest test programs, next to others")?;
        for (program, took) in programs.iter().take(SLOWEST) {
            writeln!(f, "{:>8.1}  {program}", took.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HarnessEvents> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        HarnessEvents::read(file.path())
    }

    #[test]
    fn guests_of_a_test_are_added_up_and_the_longest_comes_first() {
        let timings = StepTimes::new();
        assert_eq!(timings.measure("a step", || 7), 7);
        for number in 0..=SLOWEST {
            timings.measure_program(&format!("program {number}"), || {});
        }
        let text = timings.to_string();
        assert!(text.contains("a step") && text.contains("in all"), "{text}");
        assert_eq!(text.matches("program ").count(), SLOWEST, "{text}");
        let text = read("guest\tkernels::a\t1.5\nguest\tkernels::b\t4.0\nguest\tkernels::a\t1.0\n").unwrap();
        let text = text.guest_times();
        let (a, b) = (text.find("     2.5  kernels::a"), text.find("     4.0  kernels::b"));
        assert!(b.is_some() && b < a, "{text}");
        assert!(read("no tab").is_err());
    }

    #[test]
    fn repeats_are_counted_by_cause() {
        let events =
            "repeated\ta\tfrozen\nrepeated\tb\ttriple fault\nrepeated\ta\tfrozen\nfailed\tc\tfrozen\n";
        let events = read(events).unwrap();
        assert!(events.repeats().contains("2 by frozen, 1 by triple fault; tests that failed by it: 1"));
        assert!(events.has_failed_by_emulation("c") && !events.has_failed_by_emulation("a"));
        assert_eq!(HarnessEvents::default().repeats(), "the emulation failed in no guest");
    }
}
