//! `cargo xtask fuzz`: builds the fuzz targets, runs them one after the other, and prints their results.

mod output;
mod table;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use guest_images::find_program;

use crate::progress::ProgressLine;
use crate::workspace;
use output::FuzzOutcome;
use table::TargetFigures;

/// Document with the table of the last figures of all targets.
const DOCUMENT: &str = "docs/testing.md";
/// Memory that a target may take, MiB.
const MEMORY: u32 = 2048;
/// Time that one input may take, seconds.
const SLOWEST: u32 = 10;
/// Names the directory that a target writes its seeds into (`fuzz-targets/src/lib.rs`).
const SEEDS: &str = "VPROF_FUZZ_SEEDS";
/// AddressSanitizer takes two static tables of SQLite's one C file for one table that is there twice.
const SANITIZER: (&str, &str) = ("ASAN_OPTIONS", "detect_odr_violation=0");
/// The only platform that vprof runs on.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, Args)]
pub struct FuzzArgs {
    /// Target to run [default: all]
    target: Option<String>,
    /// Time for each target, s
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Write the figures into the table of docs/testing.md
    #[arg(long)]
    write: bool,
}

/// Directories of targets and builds.
struct FuzzPaths {
    /// The workspace of the programs.
    fuzz: PathBuf,
    /// Directory of built targets.
    built: PathBuf,
}

impl FuzzPaths {
    fn new() -> Result<Self> {
        let root = workspace::root()?;
        Ok(Self { fuzz: root.join("fuzz"), built: workspace::target(&root).join("fuzz") })
    }

    /// Returns the names of all targets, sorted: each has a program.
    fn targets(&self) -> Result<Vec<String>> {
        let directory = self.fuzz.join("src/bin");
        let listed =
            fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
        let mut names = Vec::new();
        for entry in listed {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "rs")
                && let Some(name) = path.file_stem().and_then(|name| name.to_str())
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns a target's directory of this kind, and creates it if it is missing.
    fn directory(&self, kind: &str, target: &str) -> Result<PathBuf> {
        let path = self.fuzz.join(kind).join(target);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    fn program(&self, target: &str) -> PathBuf {
        self.built.join(TRIPLE).join("release").join(target)
    }
}

/// Fuzzes; the exit code is 1 if a target found a fault.
pub fn run(options: &FuzzArgs) -> Result<ExitCode> {
    let paths = FuzzPaths::new()?;
    let mut targets = paths.targets()?;
    if let Some(wanted) = &options.target {
        if !targets.contains(wanted) {
            bail!("there is no fuzz target {wanted}: choose one of {}", targets.join(", "));
        }
        targets.retain(|target| target == wanted);
    }
    let line = ProgressLine::new();
    ensure_tools()?;
    build(&paths, options.target.as_deref(), &line)?;
    let mut figures = Vec::new();
    for target in targets {
        let seconds = options.seconds;
        let outcome =
            line.during(&format!("fuzzing {target} for {seconds} s"), || fuzz(&paths, &target, seconds))?;
        if let Some(found) = &outcome.found {
            eprintln!("{target}: {found}");
        }
        figures.push(TargetFigures { target, seconds, outcome });
        if options.write {
            // After each target: all of them take hours.
            let path = workspace::root()?.join(DOCUMENT);
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
            fs::write(&path, table::with_figures(&text, &figures)?)
                .with_context(|| format!("cannot write {DOCUMENT}"))?;
        }
    }
    print!("{}", table::table(&figures));
    let clean = figures.iter().all(|figures| figures.outcome.found.is_none());
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fails with the command that installs the first missing tool.
fn ensure_tools() -> Result<()> {
    if find_program("rustup").is_none() {
        bail!("fuzzing needs Rust's nightly toolchain and rustup to choose it: see https://rustup.rs");
    }
    let nightly = rustup().args(["rustc", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !nightly.context("cannot start rustup")?.success() {
        bail!(
            "fuzzing needs Rust's nightly toolchain: type `rustup toolchain install nightly --profile minimal`"
        );
    }
    if find_program("cargo-fuzz").is_none() {
        bail!("cargo-fuzz is not installed: type `cargo install cargo-fuzz --locked`");
    }
    Ok(())
}

/// Returns a call of `rustup run nightly`, whatever toolchain this command was started with.
fn rustup() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]);
    command
}

fn build(paths: &FuzzPaths, target: Option<&str>, line: &ProgressLine) -> Result<()> {
    let mut cargo = rustup();
    // One unit per crate, which is the default, takes many minutes of a small machine.
    cargo.args(["cargo", "fuzz", "build", "--codegen-units", "16", "--fuzz-dir"]).arg(&paths.fuzz);
    cargo.arg("--target-dir").arg(&paths.built).args(target).current_dir(&paths.fuzz);
    let output =
        line.during("building the fuzz targets", || cargo.output()).context("cannot start cargo fuzz")?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        bail!("the fuzz targets do not build ({})", output.status);
    }
    Ok(())
}

/// Runs one target, from its seeds and from what earlier runs found.
fn fuzz(paths: &FuzzPaths, target: &str, seconds: u32) -> Result<FuzzOutcome> {
    let program = paths.program(target);
    let start = || format!("cannot start {}", program.display());
    let [corpus, artifacts, seeds] =
        ["corpus", "artifacts", "seeds"].map(|kind| paths.directory(kind, target));
    let (corpus, artifacts, seeds) = (corpus?, artifacts?, seeds?);
    // Without seeds a target would start fuzzing; -runs=0 makes it end at once.
    let offered = Command::new(&program)
        .arg("-runs=0")
        .env(SEEDS, &seeds)
        .env(SANITIZER.0, SANITIZER.1)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(start)?;
    if !offered.success() {
        bail!("the target {target} does not start ({offered}): run {} to see why", program.display());
    }
    let mut child = Command::new(&program)
        .arg(&corpus)
        .arg(&seeds)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY}"))
        .arg(format!("-timeout={SLOWEST}"))
        // Inputs are made of many small parts: they may grow sooner than is usual.
        .args(["-len_control=20", "-print_final_stats=1"])
        .env(SANITIZER.0, SANITIZER.1)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(start)?;
    let mut outcome = FuzzOutcome::default();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            outcome.take(&String::from_utf8_lossy(&line.context("cannot read what the target says")?));
        }
    }
    let status = child.wait().context("cannot wait for the target")?;
    if !status.success() && outcome.found.is_none() {
        outcome.found = Some(format!("ended with {status}"));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn quoted(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    #[test]
    fn the_documents_name_the_targets_that_there_are() {
        let targets = FuzzPaths::new().unwrap().targets().unwrap();
        let targets: BTreeSet<_> = targets.iter().map(String::as_str).collect();
        let root = workspace::root().unwrap();
        let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
        let testing = read(DOCUMENT);
        let (_, described) = testing.split_once("| target | coverage |").unwrap();
        let (described, _) = described.split_once("\n\n").unwrap();
        let described: BTreeSet<_> = described.lines().filter_map(|row| quoted(row).next()).collect();
        assert_eq!(described, targets);
        let security = read("docs/security.md");
        let lists =
            security.lines().filter_map(|line| line.split_once("fuzz target")?.1.split([';', '|']).next());
        // Paths of other tests may follow.
        let mentioned: BTreeSet<_> = lists.flat_map(quoted).filter(|name| !name.contains('/')).collect();
        assert!(mentioned.len() > 5 && mentioned.is_subset(&targets), "{mentioned:?}");
    }
}
