//! Packages of npm that read vprof's exports.
//!
//! They come by the machine's own settings and are kept in cargo's directory for tests. Without node, npm or
//! network a test reports that, and is skipped.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A package of one version.
pub struct Package {
    /// Name and version for npm.
    pub name: &'static str,
    /// Hash of its content, as npm records it.
    pub integrity: &'static str,
}

fn skipped(why: &str) {
    // Not eprintln!, which tests capture.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn output(command: &mut Command) -> Option<Output> {
    command.output().inspect_err(|error| skipped(&format!("{:?}: {error}", command.get_program()))).ok()
}

impl Package {
    /// Returns the directory with its content, fetched if it is missing; `None` if it is not available or not
    /// usable.
    pub fn fetched(&self) -> Option<PathBuf> {
        output(Command::new("node").arg("--version"))?;
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name.replace('/', "-"));
        let content = directory.join("package");
        if content.join("package.json").exists() {
            return Some(content);
        }
        fs::create_dir_all(&directory).expect("a directory");
        let packed = output(Command::new("npm").args(["pack", self.name, "--json"]).current_dir(&directory))?;
        if !packed.status.success() {
            skipped(&format!("npm can't fetch {}: no network?", self.name));
            return None;
        }
        let said: Value = serde_json::from_slice(&packed.stdout).expect("JSON of npm pack");
        assert_eq!(said[0]["integrity"], self.integrity, "npm has another {}", self.name);
        let file = said[0]["filename"].as_str().expect("a file");
        let unpacked = output(Command::new("tar").args(["xzf", file]).current_dir(&directory))?;
        assert!(unpacked.status.success(), "tar unpacks {file}");
        Some(content)
    }
}
