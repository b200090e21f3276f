//! Builds `vprof` in the background, so that the caller can fetch packages and make images meanwhile.
//!
//! ```text
//! cargo tree ──▶ number of crates ──────────────┐
//! cargo build ──▶ a message of JSON per crate ──┴──▶ "120 of 249 crates of vprof are compiled"
//! ```
//!
//! Cargo's own bar would draw over the line of the step that runs meanwhile, and shows nothing at all where
//! standard error is not a terminal, such as in CI. So cargo is quiet here and its messages are counted.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};
use guest_images::Progress;
use serde_json::Value;

use crate::progress::{BackgroundNote, ProgressLine};
use crate::workspace;
use guest_images::cargo;

/// The choice between a `vprof` that has everything and one that is built soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VprofKind {
    /// Everything, optimized.
    Full,
    /// Optimized, without the feature `fleet`.
    WithoutFleet,
    /// Without the feature `fleet`, by the profile `demo`, which optimizes less.
    Demo,
}

impl VprofKind {
    /// Returns the options of cargo that choose features.
    fn features(self) -> &'static [&'static str] {
        match self {
            Self::Full => &[],
            Self::WithoutFleet | Self::Demo => &["--no-default-features"],
        }
    }

    /// Returns the name of cargo's profile.
    fn profile(self) -> &'static str {
        match self {
            Self::Full | Self::WithoutFleet => "release",
            Self::Demo => "demo",
        }
    }
}

/// A build that is under way. It ends if this is dropped before [`VprofBuild::finish`], such as after the
/// failure of what was done meanwhile.
#[derive(Debug)]
pub struct VprofBuild {
    cargo: Child,
    /// Counts messages until cargo ends, and returns the path of the program.
    counter: Option<JoinHandle<Option<PathBuf>>>,
}

impl VprofBuild {
    /// Starts to compile what has changed.
    ///
    /// # Errors
    /// The sources of a crate cannot be fetched, or cargo cannot be started.
    pub fn start(kind: VprofKind, line: &ProgressLine) -> Result<Self> {
        let all = line.during("fetching crates", || crates(kind))?.len();
        let mut cargo = package_command("build", kind)?;
        cargo.args(["--quiet", "--bin", "vprof", "--profile", kind.profile()]);
        cargo.args(["--message-format", "json-render-diagnostics"]);
        let mut cargo = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo build")?;
        let messages = cargo.stdout.take().context("cargo has an output")?;
        let note = line.background();
        let counter = thread::spawn(move || count(messages, all, note));
        Ok(Self { cargo, counter: Some(counter) })
    }

    /// Waits for the end of the build and returns the path of the program.
    ///
    /// # Errors
    /// It does not compile; the compiler has said why.
    pub fn finish(mut self, line: &ProgressLine) -> Result<PathBuf> {
        line.begin("compiling vprof");
        let program = self.counter.take().and_then(|counter| counter.join().ok());
        let status = self.cargo.wait().context("cannot wait for cargo")?;
        line.end();
        ensure!(status.success(), "cannot build vprof ({status})");
        program.flatten().context("cargo has built no vprof")
    }
}

impl Drop for VprofBuild {
    fn drop(&mut self) {
        // Both fail if cargo has ended, which is all that they are for.
        let _ = self.cargo.kill();
        let _ = self.cargo.wait();
    }
}

/// Returns a call of cargo for the package `vprof` with the features of this kind.
fn package_command(subcommand: &str, kind: VprofKind) -> Result<Command> {
    let mut cargo = cargo();
    cargo.args([subcommand, "--package", "vprof"]).args(kind.features());
    // Cargo hashes the wrapper's path into every symbol: without it, a program is the same in every checkout.
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "").current_dir(workspace::root()?).stdin(Stdio::null());
    Ok(cargo)
}

/// Returns the names and versions of all crates that a build compiles. Cargo fetches their sources for this.
fn crates(kind: VprofKind) -> Result<HashSet<String>> {
    let mut tree = package_command("tree", kind)?;
    tree.args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    let output = tree.output().context("cannot start cargo tree")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim_end());
    let list = String::from_utf8_lossy(&output.stdout);
    // A line may end in "(*)" or "(proc-macro)".
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    Ok(list.lines().filter(|line| !line.is_empty()).map(name).collect())
}

/// Counts crates until the messages end, and returns the path of the program.
fn count(messages: impl Read, all: usize, mut note: BackgroundNote) -> Option<PathBuf> {
    let mut crates = CompiledCrates::default();
    for line in BufReader::new(messages).lines().map_while(Result::ok) {
        if crates.read(&line) {
            note.set(format!("{} of {all} crates of vprof are compiled", crates.names.len()));
        }
    }
    crates.program
}

/// Crates that messages have reported.
#[derive(Debug, Default)]
struct CompiledCrates {
    names: HashSet<String>,
    program: Option<PathBuf>,
}

impl CompiledCrates {
    /// Reads a message of `--message-format json` (The Cargo Book, External Tools). Returns true if it
    /// reports a crate.
    fn read(&mut self, line: &str) -> bool {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return false };
        // A build script is compiled and run before its crate.
        if message["reason"] != "compiler-artifact" || message["target"]["kind"][0] == "custom-build" {
            return false;
        }
        if let Some(program) = message["executable"].as_str() {
            self.program = Some(program.into());
        }
        message["package_id"].as_str().is_some_and(|name| self.names.insert(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_counted_once() {
        let mut crates = CompiledCrates::default();
        let message = |name: &str, kind: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"registry+x#{name}","target":{{"kind":["{kind}"]}},"executable":{executable}}}"#
            )
        };
        assert!(!crates.read(&message("libc@0.2", "custom-build", r#""/target/build-script""#)));
        assert!(crates.read(&message("libc@0.2", "lib", "null")));
        // Once more for build scripts.
        assert!(!crates.read(&message("libc@0.2", "lib", "null")));
        assert!(!crates.read(r#"{"reason":"build-finished","success":true}"#));
        assert!(!crates.read("no JSON"));
        assert_eq!(crates.program, None);
        assert!(crates.read(&message("vprof@0.1.0", "bin", r#""/target/vprof""#)));
        assert_eq!((crates.names.len(), crates.program), (2, Some(PathBuf::from("/target/vprof"))));
    }

    #[test]
    fn a_build_without_fleet_lacks_what_only_fleets_need() {
        let names = |kind| -> HashSet<String> {
            let crates = crates(kind).expect("cargo tree");
            crates.iter().filter_map(|crate_| crate_.split(' ').next()).map(str::to_owned).collect()
        };
        let (full, demo) = (names(VprofKind::Full), names(VprofKind::Demo));
        for name in ["object_store", "opentelemetry-proto", "parquet", "reqwest", "upload", "zstd-sys"] {
            assert!(full.contains(name) && !demo.contains(name), "{name}");
        }
        assert!(demo.is_subset(&full) && demo.contains("sampler"), "{demo:?}");
        assert_eq!(names(VprofKind::WithoutFleet), demo);
    }
}
