//! The export for the Firefox Profiler as that profiler's own code reads it: its command line, from npm.

mod npm;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use export::{Format, Request};
use npm::Package;
use profile::{Profile, made_up};
use serde_json::Value;
use testkit::OwnProcess;

const PROFILER: Package = Package {
    name: "@firefox-devtools/profiler-cli@0.10.0",
    integrity: "sha512-f9fqdHh7B6ddQIYrwrEs4FE5D8BMOsXSorYF4NRFfwPaGikVBlhorBxHT7zrb6WMgJgKQYHC9kazkRjbItLx8Q==",
};

const SAMPLES: u64 = 2_000;
/// Limit of time of one daemon: it answers within seconds, where it comes up at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// Limit of daemons.
const MOST_DAEMONS: u32 = 5;

/// A profile loaded in the profiler's daemon.
struct Loaded {
    script: PathBuf,
    profile: PathBuf,
    daemon: Daemon,
}

/// The daemon, which is stopped with this, and the directory of its session.
struct Daemon {
    directory: tempfile::TempDir,
    process: OwnProcess,
}

impl Daemon {
    fn start(script: &Path, profile: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let process = node(script, directory.path())
            .arg("--daemon")
            .arg(profile)
            .args(["--session", "test"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.path().join("errors")).expect("a file"))
            .spawn()
            .expect("node starts");
        Self { directory, process: OwnProcess(process) }
    }

    /// Returns its answer; waits while it is still loading.
    ///
    /// # Errors
    ///
    /// What is said if it has no answer in time, or has ended.
    fn ask(&mut self, script: &Path, words: &[&str]) -> Result<Value, String> {
        let start = Instant::now();
        loop {
            let mut command = node(script, self.directory.path());
            let output =
                command.args(words).args(["--session", "test", "--json"]).output().expect("node starts");
            if let Ok(said) = serde_json::from_slice(&output.stdout) {
                return Ok(said);
            }
            let ended = self.process.0.try_wait().expect("a child");
            if ended.is_some() || start.elapsed() >= PATIENCE {
                let answer = String::from_utf8_lossy(&output.stderr);
                let said = fs::read_to_string(self.directory.path().join("errors")).expect("a file");
                return Err(format!("{words:?}: {answer}; the daemon ({ended:?}): {said}"));
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

fn node(script: &Path, sessions: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(script).env("PROFILER_CLI_SESSION_DIR", sessions).env("PROFILER_CLI_NO_SYMBOLICATE", "1");
    command
}

impl Loaded {
    fn new(script: PathBuf, profile: PathBuf) -> Self {
        let daemon = Daemon::start(&script, &profile);
        Self { script, profile, daemon }
    }

    /// Returns its answer. A daemon that does not come up is replaced.
    fn ask(&mut self, words: &[&str]) -> Value {
        let mut failures = Vec::new();
        for _ in 0..MOST_DAEMONS {
            match self.daemon.ask(&self.script, words) {
                Ok(said) => return said,
                Err(failure) => failures.push(failure),
            }
            self.daemon = Daemon::start(&self.script, &self.profile);
        }
        panic!("{failures:?}")
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

    let mut loaded = Loaded::new(package.join("dist/profiler-cli.js"), file);
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
