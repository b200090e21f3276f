//! `cargo xtask test`: all levels of tests; builds what they need first.

mod outcome;
mod passed;
mod programs;
mod timings;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use clap::Args;
use guest_images::{
    DebianOptions, DebianRelease, DemoOptions, FileFormat, KernelFlavour, KernelSeries, Progress, cargo,
};
use testkit::INCLUDE_IGNORED;

use self::outcome::{OutputMode, ProgramOutcome};
use self::passed::PassedPrograms;
use self::programs::{TestProgram, TestPrograms};
use self::timings::{HarnessEvents, StepTimes};
use crate::demo::{GuestTools, exit_code};
use crate::deps;
use crate::progress::ProgressLine;
use crate::workspace;

/// The images that end-to-end tests boot.
const IMAGES: &[(KernelSeries, KernelFlavour)] = &[
    (KernelSeries::V5_10, KernelFlavour::Cloud),
    (KernelSeries::V6_1, KernelFlavour::Cloud),
    (KernelSeries::V6_12, KernelFlavour::Cloud),
    (KernelSeries::Newest, KernelFlavour::Cloud),
];
/// Images that only ignored tests boot.
const MORE_IMAGES: &[(KernelSeries, KernelFlavour)] = &[
    (KernelSeries::V6_1, KernelFlavour::Generic),
    (KernelSeries::V6_1, KernelFlavour::Rt),
    (KernelSeries::V6_12, KernelFlavour::Generic),
    (KernelSeries::V6_12, KernelFlavour::Rt),
    (KernelSeries::Newest, KernelFlavour::Rt),
];
/// Packages whose tests boot guests.
const WITH_GUESTS: [&str; 2] = ["vprof-tests", "guest-images"];

/// Modules of guest tests whose guests measure nothing: two of them boot at a time.
const NEXT_TO_OTHERS: &[&str] = &[
    "attach::",
    "bad_moments::",
    "boot::",
    "conditions::",
    "control::",
    "devices::",
    "distribution::",
    "initrd::",
    "jit::",
    "kernels::",
    "lifecycle::",
    "mem::",
    "names::",
    "network::",
    "output::",
    "qcow2::",
    "stacks::",
    "trip::",
];
/// Number of guest tests that run or wait at a time.
const THREADS: [&str; 2] = ["--test-threads", "16"];
/// Maximum number of guest tests that fail by the emulation and are run again: more failures have another
/// cause.
const MAX_REPEATED: usize = 8;

/// Seed of property tests, so that the same tree always gives the same result; `PROPTEST_RNG_SEED` overrides
/// it.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20040229");

/// Values tried by a property test that names no number itself; with `--all` proptest's default (256).
const CASES: (&str, &str) = ("PROPTEST_CASES", "16");

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Also run ignored guest tests: more kernels, more ways to fail, longer runs
    #[arg(long)]
    all: bool,
    /// Run only the unit and KVM tests, no guest tests
    #[arg(long)]
    units: bool,
    /// Pass tests that need a program, a file or a device that this machine lacks
    #[arg(long)]
    allow_missing: bool,
    /// Run every test program, also those that are unchanged since they passed
    #[arg(long)]
    again: bool,
    /// Print at the end how long each step, the slowest test programs and each guest test took
    #[arg(long)]
    timings: bool,
    /// Build and test only this package, by its name or its folder; without tests that wait for servers
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Arguments for cargo test, like a test's name, or `--test flat`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl TestArgs {
    /// Sets the environment variables that tests read.
    fn set_environment(&self, command: &mut Command) {
        if std::env::var_os(SEED.0).is_none() {
            command.env(SEED.0, SEED.1);
        }
        if !self.all && std::env::var_os(CASES.0).is_none() {
            command.env(CASES.0, CASES.1);
        }
        if self.allow_missing {
            command.env(testkit::ALLOW_MISSING, "1");
        }
    }

    /// Returns the settings on which results depend, as text.
    fn settings(&self) -> String {
        let variables = [SEED.0, CASES.0].map(std::env::var_os);
        format!("{variables:?} {CASES:?} {SEED:?} {}", self.allow_missing)
    }

    /// Returns the arguments of `cargo test`.
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
pub fn run(options: &TestArgs) -> Result<ExitCode> {
    let root = workspace::root()?;
    let packages =
        options.packages.iter().map(|name| package_name(&root, name)).collect::<Result<Vec<_>>>()?;
    // Other packages need no image.
    let boot_guests =
        packages.is_empty() || packages.iter().any(|package| WITH_GUESTS.contains(&package.as_str()));
    if !boot_guests && !options.arguments.is_empty() {
        return run_cargo(cargo(), &packages, options);
    }
    let line = ProgressLine::new();
    let timings = StepTimes::new();
    let ensure = if options.allow_missing { deps::ensure } else { deps::ensure_for_tests };
    if boot_guests && !timings.measure("Debian packages", || ensure(&line))? {
        return Ok(ExitCode::FAILURE);
    }
    let with_lab = options.all && packages.is_empty();
    let build = || timings.measure("test programs", || TestPrograms::build(&packages, with_lab));
    // Fetching packages waits for the network, the compiler does not.
    let (programs, portable_host) = std::thread::scope(|scope| {
        let images = boot_guests
            .then(|| scope.spawn(|| timings.measure("guest images", || build_images(options.all, &line))));
        let programs = build();
        let host =
            images.map(|images| images.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        anyhow::Ok((programs?, host.transpose()?))
    })?;
    line.end();
    let tools = portable_host.map(|portable_host| {
        let vprof = programs.vprof().context("cargo has built no vprof")?;
        anyhow::Ok(GuestTools { vprof: programs::without_debug_information(vprof)?, portable_host })
    });
    let tools = tools.transpose()?;
    if let Some(tools) = &tools
        && !options.arguments.is_empty()
    {
        return run_cargo(tools.cargo(), &packages, options);
    }
    TestSession {
        passed: &PassedPrograms::read(&root, programs.vprof(), &options.settings())?,
        programs: &programs,
        packages: &packages,
        tools: tools.as_ref(),
        options,
        timings: &timings,
    }
    .run()
}

/// Returns the name of a package that is given by its name or its folder: `cli` is `vprof`.
fn package_name(root: &Path, given: &str) -> Result<String> {
    let Ok(manifest) = fs::read_to_string(root.join(given).join("Cargo.toml")) else {
        return Ok(given.to_owned());
    };
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.map(str::to_owned).with_context(|| format!("{given}/Cargo.toml names no package"))
}

/// Calls `cargo test` with the arguments that were given.
fn run_cargo(mut cargo: Command, packages: &[String], options: &TestArgs) -> Result<ExitCode> {
    // Programs inherit it.
    options.set_environment(&mut cargo);
    cargo.args(["test", "--no-fail-fast"]);
    programs::choose(&mut cargo, packages);
    let status = cargo.args(options.for_cargo()).status().context(NO_CARGO)?;
    Ok(exit_code(status))
}

const NO_CARGO: &str = "cannot start cargo test";

/// Builds the images that the tests boot; returns the portable host's bundle.
fn build_images(all: bool, line: &ProgressLine) -> Result<PathBuf> {
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
        guest_images::kvm_host(line)?;
    }
    guest_images::portable_host(line)
}

/// Test programs of the workspace that run one after the other or side by side.
struct TestSession<'a> {
    programs: &'a TestPrograms,
    /// Packages that were chosen; empty for all.
    packages: &'a [String],
    /// Programs and images for guests; `None` where no package was chosen that boots one.
    tools: Option<&'a GuestTools>,
    options: &'a TestArgs,
    timings: &'a StepTimes,
    passed: &'a PassedPrograms,
}

/// Totals of the programs that have run.
#[derive(Debug, Default)]
struct TestTotals {
    /// Labels of programs that failed.
    failed: Vec<String>,
    /// Tests that passed.
    passed: usize,
    /// Tests that lacked something and passed because they were allowed to.
    skipped: usize,
    /// Programs that did not run because they are unchanged since they passed.
    unchanged: usize,
}

impl TestTotals {
    fn add(&mut self, label: String, outcome: &ProgramOutcome) {
        self.passed += outcome.passed();
        self.skipped += outcome.skipped();
        self.failed.extend((!outcome.is_success()).then_some(label));
    }
}

impl TestSession<'_> {
    /// Runs every test program, the guests' last, and the examples in the documentation.
    fn run(&self) -> Result<ExitCode> {
        let mut totals = self.timings.measure("test programs side by side", || self.run_side_by_side())?;
        self.timings.measure("test programs alone", || {
            for program in self.programs.alone() {
                match self.run_changed(program, OutputMode::PassedOn)? {
                    Some(outcome) => totals.add(program.label(), &outcome),
                    None => totals.unchanged += 1,
                }
            }
            anyhow::Ok(())
        })?;
        let documentation = self.timings.measure("documentation examples", || {
            let mut cargo = cargo();
            programs::choose(cargo.arg("test"), self.packages);
            cargo.args(["--doc", "--quiet"]).status().context(NO_CARGO)
        })?;
        totals.failed.extend((!documentation.success()).then(|| "documentation examples".to_owned()));
        let boot = self.tools.is_some() && !self.options.units;
        let events = boot.then(|| self.run_guests(&mut totals)).transpose()?;

        if self.options.timings {
            let guests = events.as_ref().map(HarnessEvents::guest_times).unwrap_or_default();
            print!("{}{guests}", self.timings);
        }
        println!("{} tests passed", totals.passed);
        if let Some(events) = events {
            println!("{}", events.repeats());
        }
        if totals.unchanged > 0 {
            println!(
                "{} test programs are unchanged since they passed (--again runs them too)",
                totals.unchanged
            );
        }
        if totals.skipped > 0 {
            println!("{} of them SKIPPED: their requirements are missing", totals.skipped);
        }
        if totals.failed.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("failed: {}", totals.failed.join(", "));
        Ok(ExitCode::FAILURE)
    }

    /// Runs one program for each CPU at a time, and one of those that wait. Each one's output is printed at
    /// its end.
    fn run_side_by_side(&self) -> Result<TestTotals> {
        let mut queues = [self.programs.side_by_side(), self.programs.waiting()];
        if !self.packages.is_empty() {
            for program in queues[1].drain(..) {
                println!("     Left out {}, which waits for servers: name it to run it", program.label());
            }
        }
        let [busy, waiting] = &queues.map(|programs| Mutex::new(programs.into_iter()));
        let totals = Mutex::new(TestTotals::default());
        let work = |queue: &Mutex<std::vec::IntoIter<&TestProgram>>| {
            // The lock is held only while the next one is taken.
            while let Some(program) = { queue.lock().unwrap_or_else(PoisonError::into_inner).next() } {
                let outcome = self.run_changed(program, OutputMode::Kept)?;
                let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                match outcome {
                    Some(outcome) => {
                        print!("     Ran {}{}", program.label(), outcome.output());
                        totals.add(program.label(), &outcome);
                    }
                    None => totals.unchanged += 1,
                }
            }
            anyhow::Ok(())
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let queues = std::iter::repeat_n(busy, workers).chain([waiting]);
            let workers: Vec<_> = queues.map(|queue| scope.spawn(move || work(queue))).collect();
            for worker in workers {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            anyhow::Ok(())
        })?;
        Ok(totals.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs one program, if it has changed since it passed, and notes the result.
    fn run_changed(&self, program: &TestProgram, output: OutputMode) -> Result<Option<ProgramOutcome>> {
        if self.options.all {
            return self.run_program(program, output).map(Some);
        }
        let fingerprint = self.passed.fingerprint(program)?;
        if !self.options.again && self.passed.contains(program, &fingerprint) {
            return Ok(None);
        }
        let outcome = self.run_program(program, output)?;
        let is_whole = outcome.is_success() && outcome.skipped() == 0;
        self.passed.note(program, is_whole.then_some(fingerprint))?;
        Ok(Some(outcome))
    }

    /// Runs one program with the tests' environment.
    fn run_program(&self, program: &TestProgram, output: OutputMode) -> Result<ProgramOutcome> {
        if output == OutputMode::PassedOn {
            println!("     Running {}", program.label());
        }
        let command = self.command(program);
        self.timings.measure_program(&program.label(), || outcome::run(command, output))
    }

    fn command(&self, program: &TestProgram) -> Command {
        let mut command = program.command(self.tools);
        self.options.set_environment(&mut command);
        command.args(self.options.all.then_some(INCLUDE_IGNORED));
        command
    }

    /// Runs the guest tests; those that failed by the emulation once more, each alone.
    fn run_guests(&self, totals: &mut TestTotals) -> Result<HarnessEvents> {
        let guests = self.programs.guests()?;
        let file = tempfile::NamedTempFile::new().context("cannot make a file for the events of tests")?;
        let run = |step: &str, arguments: &[&str]| {
            let mut command = self.command(guests);
            command.env(testkit::events::EVENTS, file.path()).args(arguments);
            self.timings.measure(step, || outcome::run(command, OutputMode::PassedOn))
        };
        // Several tests may wait for one guest. The harness bounds the guests, and runs those alone that
        // share no CPU.
        let others = run("guests side by side", &[NEXT_TO_OTHERS, &THREADS].concat())?;
        let skipped = NEXT_TO_OTHERS.iter().flat_map(|module| ["--skip", module]);
        let alone: Vec<&str> = skipped.chain(THREADS).collect();
        let alone = run("guests that measure", &alone)?;
        let events = HarnessEvents::read(file.path())?;
        let failed = others.failed().zip(alone.failed()).map(|(others, alone)| [others, alone].concat());
        let by_emulation = |failed: &Vec<String>| {
            failed.len() <= MAX_REPEATED && failed.iter().all(|test| events.has_failed_by_emulation(test))
        };
        totals.add(guests.label(), &others);
        totals.add(guests.label(), &alone);
        if !(others.is_success() && alone.is_success())
            && let Some(failed) = failed.filter(by_emulation)
            && self.timings.measure("guests, once more", || self.repeat(guests, &failed))?
        {
            totals.passed += failed.len();
            totals.failed.retain(|label| *label != guests.label());
        }
        Ok(events)
    }

    /// Runs guest tests that failed by the emulation of SVM (docs/limits.md) once more, each alone. True if
    /// all passed.
    fn repeat(&self, guests: &TestProgram, failed: &[String]) -> Result<bool> {
        println!("REPEATED, failed by the emulation: {}", failed.join(", "));
        let mut command = guests.command(self.tools);
        command.args(["--exact", INCLUDE_IGNORED, "--test-threads", "1"]).args(failed);
        let outcome = outcome::run(command, OutputMode::PassedOn)?;
        ensure!(outcome.count() > 0, "no guest test has one of the names {}", failed.join(", "));
        Ok(outcome.is_success() && outcome.passed() == failed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_tests_are_asked_for_after_the_two_dashes() {
        let arguments = |all, words: &[&str]| {
            let arguments = words.iter().map(OsString::from).collect();
            let packages = Vec::new();
            TestArgs {
                all,
                again: false,
                timings: false,
                units: false,
                allow_missing: false,
                packages,
                arguments,
            }
            .for_cargo()
            .join(" ".as_ref())
            .into_string()
            .unwrap()
        };
        assert_eq!(arguments(false, &["kernels::"]), "kernels::");
        assert_eq!(arguments(true, &[]), "-- --include-ignored");
        assert_eq!(
            arguments(true, &["--test", "flat", "--", "--nocapture"]),
            "--test flat -- --include-ignored --nocapture"
        );
    }

    #[test]
    fn a_package_is_known_by_its_folder() {
        let root = workspace::root().unwrap();
        assert_eq!(package_name(&root, "cli").unwrap(), "vprof");
        assert_eq!(package_name(&root, "vprof").unwrap(), "vprof");
        assert_eq!(package_name(&root, "guest-images/programs").unwrap(), "guest-programs");
        assert!(package_name(&root, "fuzz").is_ok() && package_name(&root, ".").is_err());
    }
}
