//! Results of a test program, read from the lines that libtest prints.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};

/// Result of one test program.
#[derive(Debug)]
pub struct ProgramOutcome {
    status: ExitStatus,
    lines: SummaryLine,
    /// Everything that it printed, if that was kept.
    output: Option<String>,
}

/// Counts and names from the output of a test program.
#[derive(Debug, Default, PartialEq, Eq)]
struct SummaryLine {
    /// Names of tests that failed.
    failed: Vec<String>,
    /// Failed tests by the summary line; `None` if the program ended without one.
    failed_count: Option<usize>,
    /// Tests that passed.
    passed_count: usize,
    /// Tests that could not run and passed nevertheless.
    skipped_count: usize,
}

impl ProgramOutcome {
    /// True if the program ended with success.
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Returns the names of tests that failed; `None` if the program did not come to its end.
    pub fn failed(&self) -> Option<&[String]> {
        (self.lines.failed_count == Some(self.lines.failed.len())).then_some(&self.lines.failed[..])
    }

    /// Returns the number of tests that passed.
    pub fn passed(&self) -> usize {
        self.lines.passed_count
    }

    /// Returns the number of tests that ran.
    pub fn count(&self) -> usize {
        self.lines.passed_count + self.lines.failed.len()
    }

    /// Returns the number of tests that lacked something and passed because they were allowed to.
    pub fn skipped(&self) -> usize {
        self.lines.skipped_count
    }

    /// Returns everything that the program printed, if that was kept.
    pub fn output(&self) -> &str {
        self.output.as_deref().unwrap_or_default()
    }
}

impl SummaryLine {
    /// Takes in a line as libtest prints it.
    fn add_line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed.push(name.to_owned());
        }
        // testkit::missing
        self.skipped_count += usize::from(line.starts_with("SKIPPED "));
        if let Some(summary) = line.strip_prefix("test result: ") {
            let count = |word: &str| {
                let (number, _) = summary.split_once(word)?;
                number.rsplit([' ', '.']).find(|part| !part.is_empty())?.parse::<usize>().ok()
            };
            self.passed_count += count(" passed").unwrap_or(0);
            *self.failed_count.get_or_insert(0) += count(" failed").unwrap_or(0);
        }
    }
}

/// Destination of a program's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// It is passed on line by line.
    PassedOn,
    /// It is kept: other programs run at the same time.
    Kept,
}

/// Runs a test program, and returns what its lines say.
///
/// # Errors
/// The program does not start, or its output cannot be read.
pub fn run(mut command: Command, output: OutputMode) -> Result<ProgramOutcome> {
    let name = command.get_program().to_string_lossy().into_owned();
    // One pipe for both, so that the lines keep their order.
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let stdout = writer.try_clone().context("cannot make a pipe")?;
    let mut child =
        command.stdout(stdout).stderr(writer).spawn().with_context(|| format!("cannot start {name}"))?;
    // It holds the ends of the pipe that the program writes to.
    drop(command);
    let mut lines = SummaryLine::default();
    let mut kept = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.with_context(|| format!("cannot read the output of {name}"))?;
        let line = String::from_utf8_lossy(&line);
        match output {
            OutputMode::PassedOn => println!("{line}"),
            OutputMode::Kept => kept.extend([&line, "\n"]),
        }
        lines.add_line(&line);
    }
    let status = child.wait().with_context(|| format!("cannot wait for {name}"))?;
    Ok(ProgramOutcome { status, lines, output: (output == OutputMode::Kept).then_some(kept) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_read_from_the_output() {
        let mut summary = SummaryLine::default();
        for line in [
            "running 3 tests",
            "test kernels::a ... ok",
            "SKIPPED kernels::a: needs a kernel",
            "test kernels::b ... FAILED",
            "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 82 filtered out; finished in 1.00s",
        ] {
            summary.add_line(line);
        }
        let expected = SummaryLine {
            failed: vec!["kernels::b".to_owned()],
            failed_count: Some(1),
            passed_count: 12,
            skipped_count: 1,
        };
        assert_eq!(summary, expected);
    }

    #[test]
    fn a_program_that_did_not_come_to_its_end_names_no_failed_test() {
        let script = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(command, OutputMode::Kept).unwrap()
        };
        let whole =
            script("echo 'test a ... FAILED' >&2; echo 'test result: FAILED. 0 passed; 1 failed;'; exit 101");
        assert_eq!(whole.failed(), Some(&["a".to_owned()][..]));
        assert!(!whole.is_success() && whole.output().starts_with("test a"), "{whole:?}");
        assert_eq!(script("echo 'test a ... FAILED'; exit 1").failed(), None);
        assert_eq!(script("echo 'test a ... ok'; kill -9 $$").failed(), None);
    }
}
