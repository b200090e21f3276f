//! `cargo xtask test`: every floor of the tests, with everything they need built before.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use guest_images::{DebianOptions, DebianRelease, DemoOptions, FileFormat, Flavour, Progress, Series};
use serde_json::Value;

use crate::demo::{Tools, exit_code};
use crate::deps;
use crate::progress::Line;

/// The images that end-to-end tests boot.
const IMAGES: &[(Series, Flavour)] = &[
    (Series::V5_10, Flavour::Cloud),
    (Series::V6_1, Flavour::Cloud),
    (Series::V6_12, Flavour::Cloud),
    (Series::Newest, Flavour::Cloud),
];
/// Those that only ignored ones boot.
const MORE_IMAGES: &[(Series, Flavour)] = &[
    (Series::V6_1, Flavour::Generic),
    (Series::V6_1, Flavour::Rt),
    (Series::V6_12, Flavour::Generic),
    (Series::V6_12, Flavour::Rt),
    (Series::Newest, Flavour::Rt),
];
/// What libtest calls for tests that are ignored, too.
const INCLUDE_IGNORED: &str = "--include-ignored";

/// How many guest tests may fail and be run again, each alone: more is no accident of the emulation. On a slow machine two
/// emulated guests beside each other have accidents.
const MAX_REPEATED: usize = 8;
/// The seed of property tests, so that the same tree always gives the same result; `PROPTEST_RNG_SEED` overrides it.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20040229");

/// What the tests may be told.
#[derive(Debug, Args)]
pub struct Options {
    /// Also the guest tests that are ignored else: more kernels, more ways to fail, longer runs
    #[arg(long)]
    all: bool,
    /// Arguments for cargo test, like a test's name, or `-p symbols`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Options {
    /// What cargo test gets.
    fn for_cargo(&self) -> Vec<OsString> {
        let mut arguments = self.arguments.clone();
        if self.all {
            let end = arguments.iter().position(|argument| argument == "--").unwrap_or_else(|| {
                arguments.push("--".into());
                arguments.len() - 1
            });
            arguments.insert(end + 1, INCLUDE_IGNORED.into());
        }
        arguments
    }
}

/// Runs the tests.
pub fn run(options: &Options) -> Result<ExitCode> {
    let line = Line::new();
    if !deps::ensure_for_tests(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    for &(series, flavour) in IMAGES.iter().chain(if options.all { MORE_IMAGES } else { &[] }) {
        guest_images::demo(&DemoOptions { series, flavour }, &line)?;
    }
    guest_images::debian(&DebianOptions::default(), &line)?;
    if options.all {
        let (release, format) = (DebianRelease::Trixie, FileFormat::Qcow2);
        guest_images::debian(&DebianOptions { release, format }, &line)?;
    }
    guest_images::kvm_host(&line)?;
    let tools = Tools::build(&line)?;
    line.end();

    let test = |arguments: &[&str]| {
        let mut cargo = tools.cargo();
        if std::env::var_os(SEED.0).is_none() {
            cargo.env(SEED.0, SEED.1);
        }
        cargo.args(["test", "--no-fail-fast"]).args(arguments);
        cargo
    };
    if !options.arguments.is_empty() {
        let packages: &[&str] = if chooses_packages(&options.arguments) { &[] } else { &["--workspace"] };
        let status = test(packages).args(options.for_cargo()).status().context(NO_CARGO)?;
        return Ok(exit_code(status));
    }
    let (status, outcome) = watched(test(&["--workspace"]).args(options.for_cargo()))?;
    if status.success() || outcome.failed.is_empty() {
        return Ok(exit_code(status));
    }
    let guests = Guests::built(test(&["--workspace", "--no-run", "--message-format", "json"]), &tools)?;
    if !outcome.is_worth_repeating(&guests.names()?) {
        return Ok(exit_code(status));
    }
    guests.repeat(&outcome.failed)
}

const NO_CARGO: &str = "cannot start cargo test";

/// The program with the tests of guests.
struct Guests<'a> {
    program: PathBuf,
    tools: &'a Tools,
}

impl<'a> Guests<'a> {
    /// The one that this command, which only builds, says that it has built. `cargo test --test guests` would build
    /// dependencies once more, for it leaves out the features that tests of other packages ask for.
    fn built(mut command: Command, tools: &'a Tools) -> Result<Self> {
        let output = command.stderr(Stdio::inherit()).output().context(NO_CARGO)?;
        ensure!(output.status.success(), "cannot build the tests ({})", output.status);
        let program = String::from_utf8_lossy(&output.stdout).lines().find_map(program_of_guests);
        Ok(Self { program: program.context("cargo has built no tests of guests")?, tools })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        self.tools.tell(&mut command);
        // Where cargo starts it.
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests"));
        command
    }

    /// Names of all tests.
    fn names(&self) -> Result<Vec<String>> {
        let output = self.command().args(["--list", "--format", "terse"]).output().context(NO_GUESTS)?;
        ensure!(output.status.success(), "cannot list the tests of guests ({})", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// Runs tests that failed once more, each alone: QEMU's emulation of SVM fails a guest now and then (docs/limits.md), a
    /// mistake in vprof fails again.
    fn repeat(&self, failed: &[String]) -> Result<ExitCode> {
        eprintln!("REPEATED, failed beside others: {}", failed.join(", "));
        let mut command = self.command();
        command.args(["--exact", INCLUDE_IGNORED, "--test-threads", "1"]).args(failed);
        let (status, outcome) = watched(&mut command)?;
        let passed = status.success() && outcome.passed == failed.len();
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

const NO_GUESTS: &str = "cannot start the tests of guests";

/// The tests of guests, if they are what this line of `--message-format json` tells of (The Cargo Book, External Tools).
fn program_of_guests(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_it = message["reason"] == "compiler-artifact" && message["target"]["name"] == "guests";
    message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
}

/// What the lines of a test's output say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Names of tests that failed.
    failed: Vec<String>,
    /// How many the summaries say have failed: less, where a program ended without one.
    told: usize,
    /// How many passed.
    passed: usize,
}

impl Outcome {
    /// Takes a line in, as libtest prints it.
    fn take(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed.push(name.to_owned());
        }
        if let Some(summary) = line.strip_prefix("test result: ") {
            let count = |word: &str| {
                let (number, _) = summary.split_once(word)?;
                number.rsplit([' ', '.']).find(|part| !part.is_empty())?.parse::<usize>().ok()
            };
            self.passed += count(" passed").unwrap_or(0);
            self.told += count(" failed").unwrap_or(0);
        }
    }

    /// Only tests of guests failed, and few.
    fn is_worth_repeating(&self, guests: &[String]) -> bool {
        (1..=MAX_REPEATED).contains(&self.failed.len())
            && self.told == self.failed.len()
            && self.failed.iter().all(|name| guests.contains(name))
    }
}

/// Runs a command, passes its output on, and tells what it said.
fn watched(command: &mut Command) -> Result<(ExitStatus, Outcome)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context(NO_CARGO)?;
    let stdout = child.stdout.take().context("the output of cargo test is not piped")?;
    let mut outcome = Outcome::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read what cargo test says")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        outcome.take(&line);
    }
    Ok((child.wait().context("cannot wait for cargo test")?, outcome))
}

/// Do the arguments for cargo say which packages to test? What follows `--` is for the tests themselves.
fn chooses_packages(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .map(|argument| argument.to_string_lossy())
        .take_while(|argument| argument != "--")
        .any(|argument| argument.starts_with("-p") || argument.starts_with("--package"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_read_from_the_output() {
        let mut outcome = Outcome::default();
        for line in [
            "running 3 tests",
            "test kernels::a ... ok",
            "test kernels::b ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 82 filtered out; finished in 1.00s",
            "test result: ok. 11 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 5.95s",
        ] {
            outcome.take(line);
        }
        assert_eq!(outcome, Outcome { failed: vec!["kernels::b".to_owned()], told: 1, passed: 12 });
        let guests = ["kernels::b", "kernels::c"].map(str::to_owned);
        assert!(outcome.is_worth_repeating(&guests));
        assert!(
            !outcome.is_worth_repeating(&["kernels::a".to_owned()]),
            "one that no emulation is to blame for"
        );
        // One more began to fail and took the summary along.
        outcome.take("test kernels::c ... FAILED");
        assert!(!outcome.is_worth_repeating(&guests));
    }

    #[test]
    fn ignored_tests_are_asked_for_behind_the_two_dashes() {
        let told = |all, words: &[&str]| {
            let arguments = words.iter().map(OsString::from).collect();
            Options { all, arguments }.for_cargo().join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(told(false, &["kernels::"]), "kernels::");
        assert_eq!(told(true, &[]), "-- --include-ignored");
        assert_eq!(
            told(true, &["-p", "vmm", "--", "--nocapture"]),
            "-p vmm -- --include-ignored --nocapture"
        );
    }

    #[test]
    fn chosen_packages_are_respected() {
        let chooses =
            |words: &[&str]| chooses_packages(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(chooses(&["-p", "vmm"]));
        assert!(chooses(&["--package=vmm", "name"]));
        assert!(!chooses(&["some_name", "--", "-p"]));
        assert!(!chooses(&[]));
    }
}
