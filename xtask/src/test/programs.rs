//! The workspace's test programs, as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use guest_images::cargo;
use serde_json::Value;

use crate::demo::GuestTools;
use crate::workspace;

/// The target with the tests of guests.
const GUESTS: &str = "guests";
/// Tests that measure how soon a guest on KVM is served, or how fast code runs: another program next to them
/// would disturb the measurement.
const ALONE: &[(&str, &str)] = &[
    ("attach", "flat"),
    ("sampler", "load"),
    ("sampler", "stopped"),
    ("vmm", "flat"),
    ("vmm", "ticks"),
    ("vmm", "probes"),
];
/// Files of tests that take longer than the units of any package.
const LONG: &[(&str, &str)] = &[("attach", "sampled")];
/// Files of tests that wait for servers and for pauses most of the time: they take no CPU from the others.
const WAITING: &[(&str, &str)] = &[("cli", "agent_sinks"), ("sampler", "survival")];
/// Package with the features of the whole workspace.
const FEATURES: &str = "workspace-features";
/// The target that is the product.
const VPROF: &str = "vprof";

/// Every test program of the workspaces, and the `vprof` of the same build.
#[derive(Debug)]
pub struct TestPrograms {
    tests: Vec<TestProgram>,
    vprof: Option<PathBuf>,
}

/// One test program.
#[derive(Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// Name of the target: a library, a binary, or a file of tests.
    target: String,
    /// Name of the package's directory.
    package: String,
    /// Directory of the package, where cargo starts its tests.
    directory: PathBuf,
    executable: PathBuf,
    /// It is a file of tests, not those of a library or a program.
    is_file: bool,
}

impl TestPrograms {
    /// Builds all programs in one call, so that the features of dependencies are the same in each and no
    /// dependency is built twice. Programs that no test starts are built, too, because a lint may find
    /// something only in them: code, for example, that nothing but a test uses. `with_lab` adds those of the
    /// workspace `lab`, in a call of their own.
    ///
    /// # Errors
    /// One does not compile.
    pub fn build(packages: &[String], with_lab: bool) -> Result<Self> {
        let mut main = cargo();
        choose(main.args(["build", "--lib"]), packages);
        let mut built = messages(main)?;
        if with_lab {
            let mut lab = cargo();
            workspace::choose_lab(lab.args(["build", "--workspace"]))?;
            built.extend(messages(lab)?);
        }
        let vprof = built.iter().find_map(vprof);
        let tests = built.iter().filter_map(TestProgram::from_message).collect();
        Ok(Self { tests, vprof })
    }

    /// Returns the `vprof` that was built, if it was.
    pub fn vprof(&self) -> Option<&Path> {
        self.vprof.as_deref()
    }

    /// Returns the programs that may run side by side, the long ones first: units take longer than most files
    /// of tests.
    pub fn side_by_side(&self) -> Vec<&TestProgram> {
        let is_other = |program: &&TestProgram| {
            program.target == GUESTS || program.is_in(ALONE) || program.is_in(WAITING)
        };
        let mut tests: Vec<_> = self.tests.iter().filter(|program| !is_other(program)).collect();
        tests.sort_by_key(|program| (!program.is_in(LONG), program.is_file));
        tests
    }

    /// Returns the programs that run one after the other next to those that run side by side.
    pub fn waiting(&self) -> Vec<&TestProgram> {
        self.tests.iter().filter(|program| program.is_in(WAITING)).collect()
    }

    /// Returns the programs that run alone, without that of guests.
    pub fn alone(&self) -> impl Iterator<Item = &TestProgram> {
        self.tests.iter().filter(|program| program.is_in(ALONE))
    }

    /// Returns the program of guest tests.
    ///
    /// # Errors
    /// There is none.
    pub fn guests(&self) -> Result<&TestProgram> {
        let found = self.tests.iter().find(|program| program.target == GUESTS);
        found.context("cargo has built no tests of guests")
    }
}

/// Builds programs, tests and examples by a call of cargo, and returns its messages.
fn messages(mut cargo: Command) -> Result<Vec<Value>> {
    cargo.args(["--bins", "--tests", "--examples", "--message-format", "json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo build")?;
    ensure!(output.status.success(), "cannot build the tests ({})", output.status);
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Returns the path of `vprof`, if the message reports it.
fn vprof(message: &Value) -> Option<PathBuf> {
    let is_it = message["target"]["name"] == VPROF && message["profile"]["test"] == false;
    message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
}

/// Adds the choice of packages to a call of cargo: all, if none is given.
pub fn choose(cargo: &mut Command, packages: &[String]) {
    if packages.is_empty() {
        cargo.arg("--workspace");
        return;
    }
    for package in packages {
        cargo.args(["--package", package]);
    }
    // It has no test, but all features: without it, cargo would build the dependencies once more with fewer.
    cargo.args(["--package", FEATURES]);
    // One crate is built again and again. A build of the whole links too much for this to be faster.
    cargo.env("CARGO_INCREMENTAL", "1");
}

/// Makes a copy next to the program that has its symbols, but no debug information, and returns its path. It
/// is small, because an emulated host loads the whole program.
///
/// # Errors
/// binutils are missing, or there is no room for the copy.
pub fn without_debug_information(program: &Path) -> Result<PathBuf> {
    let copy = program.with_file_name("vprof-under-test");
    let status = Command::new("objcopy").arg("--strip-debug").arg(program).arg(&copy).status();
    let status = status.context("cannot start objcopy (Debian package binutils)")?;
    ensure!(status.success(), "objcopy cannot copy {} ({status})", program.display());
    Ok(copy)
}

impl TestProgram {
    /// Reads a message of `--message-format json` (The Cargo Book, External Tools), if it reports a test
    /// program.
    fn from_message(message: &Value) -> Option<Self> {
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let executable = message["executable"].as_str().filter(|_| is_test)?;
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
        Some(Self {
            target: message["target"]["name"].as_str()?.to_owned(),
            package: directory.file_name()?.to_string_lossy().into_owned(),
            directory: directory.to_owned(),
            executable: executable.into(),
            is_file: message["target"]["kind"][0] == "test",
        })
    }

    /// Returns the path of the program.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Returns the name of the package's directory.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// Returns true if a list of packages and targets has this program.
    fn is_in(&self, list: &[(&str, &str)]) -> bool {
        list.contains(&(&self.package, &self.target))
    }

    /// Returns the name for users: package and target.
    pub fn label(&self) -> String {
        // Rust has no name with a hyphen.
        if self.package.replace('-', "_") == self.target {
            format!("{} (units)", self.package)
        } else {
            format!("{} {}", self.package, self.target)
        }
    }

    /// Returns a call of the program, in the directory and the environment that cargo gives it.
    pub fn command(&self, tools: Option<&GuestTools>) -> Command {
        let mut command = Command::new(&self.executable);
        if let Some(tools) = tools {
            tools.set_environment(&mut command);
        }
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TestProgram {
        /// Makes the program of a package's units.
        pub fn made_up(package: &str, executable: PathBuf) -> Self {
            let package = package.to_owned();
            Self { target: package.clone(), package, directory: PathBuf::new(), executable, is_file: false }
        }
    }

    #[test]
    fn a_test_program_is_found_in_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/vmm/Cargo.toml","target":{"name":"flat","kind":["test"]},
            "profile":{"test":true},"executable":"/w/target/debug/deps/flat-1"}"#;
        let message = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let program = TestProgram::from_message(&message(line)).unwrap();
        assert_eq!(program.label(), "vmm flat");
        assert_eq!(program.directory, Path::new("/w/vmm"));
        assert!(program.is_file && program.is_in(ALONE));
        assert_eq!(TestProgram::from_message(&message(&line.replace("true", "false"))), None);
        let built = line.replace("true", "false").replace("flat\"", "vprof\"");
        assert_eq!(vprof(&message(&built)), Some("/w/target/debug/deps/flat-1".into()));
        assert_eq!(vprof(&message(&built.replace("false", "true"))), None);
    }

    #[test]
    fn long_programs_come_first_and_those_that_measure_not_at_all() {
        let program = |package: &str, target: &str| TestProgram {
            target: target.to_owned(),
            is_file: package != target,
            ..TestProgram::made_up(package, PathBuf::new())
        };
        let tests = [
            ("cli", "diff"),
            ("vmm", "vmm"),
            ("attach", "sampled"),
            ("vmm", "flat"),
            ("cli", "agent_sinks"),
            ("vprof-tests", GUESTS),
        ];
        let tests = tests.map(|(package, target)| program(package, target)).into();
        let programs = TestPrograms { tests, vprof: None };
        let labels = |programs: Vec<&TestProgram>| -> Vec<String> {
            programs.into_iter().map(TestProgram::label).collect()
        };
        assert_eq!(labels(programs.side_by_side()), ["attach sampled", "vmm (units)", "cli diff"]);
        assert_eq!(labels(programs.waiting()), ["cli agent_sinks"]);
    }
}
