//! Packages of npm that read what vprof exports.
//!
//! They come by the machine's own settings and are kept in cargo's directory for tests. Without node, npm or network a test
//! fails (`testkit::missing`).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::{missing, tool};

/// A package of one version.
pub struct Package {
    /// Name and version, as npm takes them.
    pub name: &'static str,
    /// What npm says of its content.
    pub integrity: &'static str,
}

impl Package {
    /// The directory with its content, fetched where it is not there yet; `None` where it cannot be fetched or used, and need not be.
    pub fn fetched(&self) -> Option<PathBuf> {
        drop(tool("node")?);
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name.replace('/', "-"));
        let content = directory.join("package");
        if content.join("package.json").exists() {
            return Some(content);
        }
        fs::create_dir_all(&directory).expect("a directory");
        let packed = tool("npm")?.args(["pack", self.name, "--json"]).current_dir(&directory).output();
        let packed = packed.expect("npm starts");
        if !packed.status.success() {
            missing(&format!("{} from npm, which cannot fetch it: check the network", self.name));
            return None;
        }
        let said: Value = serde_json::from_slice(&packed.stdout).expect("JSON of npm pack");
        assert_eq!(said[0]["integrity"], self.integrity, "npm has another {}", self.name);
        let file = said[0]["filename"].as_str().expect("a file");
        let unpacked = tool("tar")?.args(["xzf", file]).current_dir(&directory).status();
        assert!(unpacked.expect("tar starts").success(), "tar unpacks {file}");
        Some(content)
    }
}
