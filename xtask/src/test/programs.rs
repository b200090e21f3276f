//! The workspace's test programs, as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::demo::Tools;

/// The target with the tests of guests.
const GUESTS: &str = "guests";

/// Every test program of the workspace.
#[derive(Debug)]
pub struct Programs(Vec<TestProgram>);

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
}

impl Programs {
    /// Builds all of them in one call, so that the features of dependencies are the same in each.
    ///
    /// # Errors
    /// One does not compile.
    pub fn build(mut cargo: Command) -> Result<Self> {
        cargo.args(["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
        let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo test")?;
        ensure!(output.status.success(), "cannot build the tests ({})", output.status);
        let messages = String::from_utf8_lossy(&output.stdout);
        Ok(Self(messages.lines().filter_map(TestProgram::from_message).collect()))
    }

    /// Those of units and of KVM.
    pub fn without_guests(&self) -> impl Iterator<Item = &TestProgram> {
        self.0.iter().filter(|program| program.target != GUESTS)
    }

    /// The one of guests.
    ///
    /// # Errors
    /// There is none.
    pub fn guests(&self) -> Result<&TestProgram> {
        let found = self.0.iter().find(|program| program.target == GUESTS);
        found.context("cargo has built no tests of guests")
    }
}

impl TestProgram {
    /// From a line of `--message-format json` (The Cargo Book, External Tools), if it reports a test program.
    fn from_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let executable = message["executable"].as_str().filter(|_| is_test)?;
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
        Some(Self {
            target: message["target"]["name"].as_str()?.to_owned(),
            package: directory.file_name()?.to_string_lossy().into_owned(),
            directory: directory.to_owned(),
            executable: executable.into(),
        })
    }

    /// Its name for people: package and target.
    pub fn label(&self) -> String {
        if self.package == self.target {
            format!("{} (units)", self.package)
        } else {
            format!("{} {}", self.package, self.target)
        }
    }

    /// A call of it, in the directory and the environment that cargo gives it.
    pub fn command(&self, tools: &Tools) -> Command {
        let mut command = Command::new(&self.executable);
        tools.tell(&mut command);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_found_in_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/vmm/Cargo.toml","target":{"name":"flat"},
            "profile":{"test":true},"executable":"/w/target/debug/deps/flat-1"}"#;
        let program = TestProgram::from_message(&line.replace('\n', "")).unwrap();
        assert_eq!(program.label(), "vmm flat");
        assert_eq!(program.directory, Path::new("/w/vmm"));
        assert_eq!(TestProgram::from_message(&line.replace("true", "false")), None);
        assert_eq!(TestProgram::from_message("warning: unused"), None);
    }
}
