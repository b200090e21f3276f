//! The export for the Firefox Profiler as that profiler's own code reads it: its command line, from npm.

mod npm;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use export::{Format, Request};
use npm::Package;
use profile::{Profile, made_up};
use serde_json::Value;

const PROFILER: Package = Package {
    name: "@firefox-devtools/profiler-cli@0.10.0",
    integrity: "sha512-f9fqdHh7B6ddQIYrwrEs4FE5D8BMOsXSorYF4NRFfwPaGikVBlhorBxHT7zrb6WMgJgKQYHC9kazkRjbItLx8Q==",
};

const SAMPLES: u64 = 2_000;
/// Limit of time: the profiler answers within seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// A profile loaded in its daemon, which is stopped with this.
struct Loaded {
    script: PathBuf,
    directory: tempfile::TempDir,
    daemon: Child,
}

impl Loaded {
    fn new(script: PathBuf, profile: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let daemon = Self::node(&script, directory.path())
            .arg("--daemon")
            .arg(profile)
            .args(["--session", "test"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.path().join("errors")).expect("a file"))
            .spawn()
            .expect("node starts");
        Self { script, directory, daemon }
    }

    fn node(script: &Path, sessions: &Path) -> Command {
        let mut command = Command::new("node");
        command.arg(script).env("PROFILER_CLI_SESSION_DIR", sessions).env("PROFILER_CLI_NO_SYMBOLICATE", "1");
        command
    }

    /// Returns its answer; waits while it is still loading.
    fn ask(&self, words: &[&str]) -> Value {
        let start = Instant::now();
        loop {
            let mut command = Self::node(&self.script, self.directory.path());
            let output =
                command.args(words).args(["--session", "test", "--json"]).output().expect("node starts");
            if let Ok(said) = serde_json::from_slice(&output.stdout) {
                return said;
            }
            let answer = String::from_utf8_lossy(&output.stderr).into_owned();
            let daemon = || fs::read_to_string(self.directory.path().join("errors"));
            assert!(start.elapsed() < PATIENCE, "{words:?}: {answer}; the daemon: {:?}", daemon());
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Both fail only if the daemon has exited already.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn the_firefox_profiler_finds_what_the_profile_says() {
    let Some(package) = PROFILER.fetched() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    made_up::write_profile(&path, SAMPLES, 100);
    let opened = Profile::open(&path).expect("a profile");
    let mut bytes = Vec::new();
    export::write(&opened, &Request::new(Format::Firefox), &mut bytes, &mut |_, _| {}).expect("an export");
    let file = directory.path().join("made-up.json");
    fs::write(&file, bytes).expect("room");

    let loaded = Loaded::new(package.join("dist/profiler-cli.js"), &file);
    let threads = loaded.ask(&["thread", "list"]);
    let threads = threads["threads"].as_array().expect("threads");
    let named = |name: &str| threads.iter().find(|thread| thread["name"] == name);
    let mut all = 0;
    for vcpu in ["vCPU 0", "vCPU 1"] {
        let thread = named(vcpu).unwrap_or_else(|| panic!("no {vcpu} in {threads:?}"));
        assert_eq!(thread["processName"], "vCPUs");
        let handle = thread["threadHandle"].as_str().expect("a handle");
        let samples = loaded.ask(&["thread", "samples", "--thread", handle, "--include-idle"]);
        let categories = &samples["categoryBreakdown"];
        all += categories["totalSamples"].as_u64().expect("a number");
        let found: BTreeMap<&str, u64> = categories["categories"]
            .as_array()
            .expect("categories")
            .iter()
            .map(|one| (one["name"].as_str().expect("a name"), one["samples"].as_u64().expect("a number")))
            .collect();
        let sql = format!(
            "SELECT mode.name, count(*) FROM sample JOIN mode ON mode.id = mode WHERE vcpu = {} GROUP BY mode.name",
            vcpu.trim_start_matches("vCPU ")
        );
        let rows = opened.query(&sql).expect("the query works").rows;
        assert_eq!(rows.len(), found.len(), "{rows:?} {found:?}");
        for row in rows {
            let [profile::store::Value::Text(mode), profile::store::Value::Integer(count)] = row.as_slice()
            else {
                panic!("{row:?}")
            };
            let category = match mode.as_str() {
                "user" => "User",
                "kernel" => "Kernel",
                "hardirq" => "Hard interrupt",
                other => panic!("made-up samples are not of {other}"),
            };
            assert_eq!(i64::try_from(found[category]), Ok(*count), "{vcpu}: {mode}");
        }
        let functions = loaded.ask(&["thread", "functions", "--thread", handle, "--limit", "0"]);
        let text = functions.to_string();
        for wanted in ["user_function_50", "kernel_function_50", "user_inlined_0"] {
            assert!(text.contains(wanted), "{vcpu}: no {wanted} in {text}");
        }
    }
    assert_eq!(all, SAMPLES);
}
