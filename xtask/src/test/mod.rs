//! `cargo xtask test`: every floor of the tests, with everything they need built before.

mod outcome;
mod programs;
mod timings;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use guest_images::{
    DebianOptions, DebianRelease, DemoOptions, FileFormat, KernelFlavour, KernelSeries, Progress,
};

use self::outcome::Outcome;
use self::programs::{Programs, TestProgram};
use self::timings::Timings;
use crate::demo::{Tools, cargo, exit_code};
use crate::deps;
use crate::progress::Line;

/// The images that end-to-end tests boot.
const IMAGES: &[(KernelSeries, KernelFlavour)] = &[
    (KernelSeries::V5_10, KernelFlavour::Cloud),
    (KernelSeries::V6_1, KernelFlavour::Cloud),
    (KernelSeries::V6_12, KernelFlavour::Cloud),
    (KernelSeries::Newest, KernelFlavour::Cloud),
];
/// Those that only ignored ones boot.
const MORE_IMAGES: &[(KernelSeries, KernelFlavour)] = &[
    (KernelSeries::V6_1, KernelFlavour::Generic),
    (KernelSeries::V6_1, KernelFlavour::Rt),
    (KernelSeries::V6_12, KernelFlavour::Generic),
    (KernelSeries::V6_12, KernelFlavour::Rt),
    (KernelSeries::Newest, KernelFlavour::Rt),
];
/// Packages whose tests boot guests.
const WITH_GUESTS: [&str; 2] = ["vprof-tests", "guest-images"];
/// What libtest calls for tests that are ignored, too.
const INCLUDE_IGNORED: &str = "--include-ignored";

/// The seed of property tests, so that the same tree always gives the same result; `PROPTEST_RNG_SEED` overrides it.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20040229");

/// What the tests may be told.
#[derive(Debug, Args)]
pub struct Options {
    /// Also the guest tests that are ignored else: more kernels, more ways to fail, longer runs
    #[arg(long)]
    all: bool,
    /// Print at the end how long each step, test program and guest test took
    #[arg(long)]
    timings: bool,
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
    if !needs_guests(&options.arguments) {
        return run_cargo(&mut cargo(), options);
    }
    let line = Line::new();
    let mut timings = Timings::default();
    if !timings.measure("Debian packages", || deps::ensure_for_tests(&line))? {
        return Ok(ExitCode::FAILURE);
    }
    // Fetching packages waits for the network, the compiler does not.
    let (programs, portable_host) = timings.measure("test programs, guest images", || {
        std::thread::scope(|scope| {
            let images = scope.spawn(|| build_images(options.all, &line));
            let programs = Programs::build();
            let host = images.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            anyhow::Ok((programs?, host?))
        })
    })?;
    line.end();
    let tools = Tools { vprof: programs.vprof().to_owned(), portable_host };
    if !options.arguments.is_empty() {
        return run_cargo(&mut tools.cargo(), options);
    }
    let passed = run_all(&programs, &tools, options.all, &mut timings);
    if options.timings {
        print!("{timings}");
    }
    passed
}

/// Calls `cargo test` with the arguments that were given.
fn run_cargo(cargo: &mut Command, options: &Options) -> Result<ExitCode> {
    // Programs inherit it.
    if std::env::var_os(SEED.0).is_none() {
        cargo.env(SEED.0, SEED.1);
    }
    cargo.args(["test", "--no-fail-fast"]);
    // With another choice of packages, features of dependencies differ, and they are built again.
    if packages(&options.arguments).next().is_none() {
        cargo.arg("--workspace");
    }
    let status = cargo.args(options.for_cargo()).status().context(NO_CARGO)?;
    Ok(exit_code(status))
}

const NO_CARGO: &str = "cannot start cargo test";

/// Builds what the tests boot; returns the portable host's bundle.
fn build_images(all: bool, line: &Line) -> Result<PathBuf> {
    for &(series, flavour) in IMAGES.iter().chain(if all { MORE_IMAGES } else { &[] }) {
        guest_images::demo(&DemoOptions { series, flavour }, line)?;
    }
    guest_images::debian(&DebianOptions::default(), line)?;
    if all {
        let (release, format) = (DebianRelease::Trixie, FileFormat::Qcow2);
        guest_images::debian(&DebianOptions { release, format }, line)?;
        for release in [DebianRelease::Bookworm, DebianRelease::Trixie] {
            guest_images::corpus(release, line)?;
        }
    }
    guest_images::kvm_host(line)?;
    guest_images::portable_host(line)
}

/// Runs every test program, the guests' last, and the examples in the documentation.
fn run_all(programs: &Programs, tools: &Tools, all: bool, timings: &mut Timings) -> Result<ExitCode> {
    let included: &[&str] = if all { &[INCLUDE_IGNORED] } else { &[] };
    let mut failed = Vec::new();
    for program in programs.without_guests() {
        let ran = timings.measure(&program.label(), || run_program(program, tools, included))?;
        failed.extend((!ran.is_success()).then(|| program.label()));
    }
    let documentation = timings.measure("documentation examples", || {
        tools.cargo().args(["test", "--workspace", "--doc", "--quiet"]).status().context(NO_CARGO)
    })?;
    failed.extend((!documentation.success()).then(|| "documentation examples".to_owned()));

    let guests = programs.guests()?;
    let times = tempfile::NamedTempFile::new().context("cannot make a file for the times of guests")?;
    let outcome = timings.measure("guests", || {
        let mut command = guests.command(tools);
        outcome::run(command.env(timings::GUESTS_FILE, times.path()).args(included))
    })?;
    timings.read_guests(times.path())?;
    if outcome.is_worth_repeating() {
        if !repeat(guests, tools, outcome.failed())? {
            failed.push(guests.label());
        }
    } else if !outcome.is_success() {
        failed.push(guests.label());
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Runs one program with the tests' environment.
fn run_program(program: &TestProgram, tools: &Tools, arguments: &[&str]) -> Result<Outcome> {
    println!("     Running {}", program.label());
    let mut command = program.command(tools);
    if std::env::var_os(SEED.0).is_none() {
        command.env(SEED.0, SEED.1);
    }
    outcome::run(command.args(arguments))
}

/// Runs guest tests that failed once more, each alone: QEMU's emulation of SVM fails a guest now and then (docs/limits.md), a
/// mistake in vprof fails again. Returns whether all passed.
fn repeat(guests: &TestProgram, tools: &Tools, failed: &[String]) -> Result<bool> {
    eprintln!("REPEATED, failed next to others: {}", failed.join(", "));
    let mut command = guests.command(tools);
    command.args(["--exact", INCLUDE_IGNORED, "--test-threads", "1"]).args(failed);
    let outcome = outcome::run(&mut command)?;
    ensure!(outcome.count() > 0, "no guest test has one of the names {}", failed.join(", "));
    Ok(outcome.is_success() && outcome.passed() == failed.len())
}

/// The packages that the arguments for cargo choose. What follows `--` is for the tests themselves.
fn packages(arguments: &[OsString]) -> impl Iterator<Item = String> {
    let words = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    let mut words = words.take_while(|argument| argument != "--");
    std::iter::from_fn(move || {
        loop {
            let word = words.next()?;
            match word.as_str() {
                "-p" | "--package" => return words.next(),
                _ => {}
            }
            if let Some(name) = word.strip_prefix("--package=").or_else(|| word.strip_prefix("-p")) {
                return Some(name.to_owned());
            }
        }
    })
}

/// Whether tests may boot guests: those of chosen packages that do not, need no image.
fn needs_guests(arguments: &[OsString]) -> bool {
    let mut packages = packages(arguments).peekable();
    packages.peek().is_none() || packages.any(|name| WITH_GUESTS.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_tests_are_asked_for_behind_the_two_dashes() {
        let told = |all, words: &[&str]| {
            let arguments = words.iter().map(OsString::from).collect();
            Options { all, timings: false, arguments }.for_cargo().join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(told(false, &["kernels::"]), "kernels::");
        assert_eq!(told(true, &[]), "-- --include-ignored");
        assert_eq!(
            told(true, &["-p", "vmm", "--", "--nocapture"]),
            "-p vmm -- --include-ignored --nocapture"
        );
    }

    #[test]
    fn images_are_made_where_a_chosen_package_boots_guests() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let chosen = |given: &[&str]| packages(&words(given)).collect::<Vec<_>>();
        assert_eq!(chosen(&["-p", "vmm", "--package=symbols", "name", "--", "-p", "x"]), ["vmm", "symbols"]);
        assert!(needs_guests(&words(&[])) && needs_guests(&words(&["kernels::"])));
        assert!(needs_guests(&words(&["-p", "vmm", "-pvprof-tests"])));
        assert!(!needs_guests(&words(&["-p", "vmm", "guest"])));
    }
}
