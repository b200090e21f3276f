//! Results of a test program, read from the lines that libtest prints.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// How many guest tests may fail and be run again, each alone: more is no accident of the emulation.
const MAX_REPEATED: usize = 8;

/// Result of one test program.
#[derive(Debug)]
pub struct Outcome {
    status: ExitStatus,
    lines: Summary,
}

/// Counts and names from the output of a test program.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    /// Names of tests that failed.
    failed: Vec<String>,
    /// How many the summary line says have failed: fewer, where the program ended without one.
    failed_count: usize,
    /// How many passed.
    passed_count: usize,
}

impl Outcome {
    /// The program has ended well.
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Names of tests that failed.
    pub fn failed(&self) -> &[String] {
        &self.lines.failed
    }

    /// Number of tests that passed.
    pub fn passed(&self) -> usize {
        self.lines.passed_count
    }

    /// Number of tests that ran.
    pub fn count(&self) -> usize {
        self.lines.passed_count + self.lines.failed.len()
    }

    /// Few tests failed, and the program came to its end.
    pub fn is_worth_repeating(&self) -> bool {
        !self.is_success() && self.lines.is_worth_repeating()
    }
}

impl Summary {
    /// Takes in a line as libtest prints it.
    fn add_line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed.push(name.to_owned());
        }
        if let Some(summary) = line.strip_prefix("test result: ") {
            let count = |word: &str| {
                let (number, _) = summary.split_once(word)?;
                number.rsplit([' ', '.']).find(|part| !part.is_empty())?.parse::<usize>().ok()
            };
            self.passed_count += count(" passed").unwrap_or(0);
            self.failed_count += count(" failed").unwrap_or(0);
        }
    }

    fn is_worth_repeating(&self) -> bool {
        (1..=MAX_REPEATED).contains(&self.failed.len()) && self.failed_count == self.failed.len()
    }
}

/// Runs a test program, passes its output on, and returns what its lines say.
///
/// # Errors
/// The program does not start, or its output cannot be read.
pub fn run(command: &mut Command) -> Result<Outcome> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {name}"))?;
    let stdout = child.stdout.take().with_context(|| format!("the output of {name} is not piped"))?;
    let mut lines = Summary::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.with_context(|| format!("cannot read the output of {name}"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        lines.add_line(&line);
    }
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    Ok(Outcome { status, lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_read_from_the_output() {
        let mut summary = Summary::default();
        for line in [
            "running 3 tests",
            "test kernels::a ... ok",
            "test kernels::b ... FAILED",
            "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 82 filtered out; finished in 1.00s",
        ] {
            summary.add_line(line);
        }
        let expected = Summary { failed: vec!["kernels::b".to_owned()], failed_count: 1, passed_count: 12 };
        assert_eq!(summary, expected);
        assert!(summary.is_worth_repeating());
        // One more began to fail and took the summary along.
        summary.add_line("test kernels::c ... FAILED");
        assert!(!summary.is_worth_repeating());
    }
}
