//! Packages of npm that read vprof's exports.
//!
//! They come by the machine's own settings and stay in the cache for tests. Without node, npm or network a
//! test fails (`testkit::missing`).

use std::path::PathBuf;

use serde_json::Value;
use testkit::{cached, missing, tool};

/// A package of one version.
pub struct Package {
    /// Name and version for npm.
    pub name: &'static str,
    /// Hash of its content, as npm records it.
    pub integrity: &'static str,
}

impl Package {
    /// Returns the directory with its content, fetched if it is missing; `None` if it is not usable and not
    /// required.
    pub fn fetched(&self) -> Option<PathBuf> {
        drop(tool("node")?);
        let fetched = cached(&format!("npm/{}", self.name.replace('/', "-")), |directory| {
            let packed = tool("npm")?.args(["pack", self.name, "--json"]).current_dir(directory).output();
            let packed = packed.expect("npm starts");
            if !packed.status.success() {
                missing(&format!("{} from npm, which cannot fetch it: check the network", self.name));
                return None;
            }
            let said: Value = serde_json::from_slice(&packed.stdout).expect("JSON of npm pack");
            assert_eq!(said[0]["integrity"], self.integrity, "npm has another {}", self.name);
            let file = said[0]["filename"].as_str().expect("a file");
            let unpacked = tool("tar")?.args(["xzf", file]).current_dir(directory).status();
            assert!(unpacked.expect("tar starts").success(), "tar unpacks {file}");
            Some(())
        })?;
        Some(fetched.join("package"))
    }
}
