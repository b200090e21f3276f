//! A guest that runs, and its results.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::Terminal;
use testkit::events::{EmulationFailure, failed_by_emulation};

use crate::GuestTurn;
use crate::report::Report;
use crate::turn::restrict;

/// Pause between two checks of a run.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum time without a sample: emulated guests freeze now and then (docs/limits.md), and would delay all
/// others until their limit.
const FROZEN: Duration = Duration::from_secs(60);

/// Pause between two checks of a guest whose time is over.
const GRACE: Duration = Duration::from_secs(2);

/// State of a guest that has taken no sample for [`FROZEN`].
#[derive(Debug)]
pub(crate) struct FrozenGuest {
    pub(crate) state: String,
}

/// A `vprof run` in progress; killed when dropped.
#[derive(Debug)]
pub struct ActiveRun {
    child: Child,
    stdout: std::fs::File,
    stderr: std::fs::File,
    directory: Option<tempfile::TempDir>,
    profile: PathBuf,
    deadline: Instant,
    turn: Option<GuestTurn>,
}

/// A `vprof run` that has ended.
#[derive(Debug)]
pub struct Run {
    /// Exit status of the process.
    pub status: ExitStatus,
    /// All of its standard output, as text.
    pub stdout: String,
    /// All of its standard output.
    pub stdout_bytes: Vec<u8>,
    /// All of its standard error.
    pub stderr: String,
    profile: PathBuf,
    _directory: tempfile::TempDir,
}

impl ActiveRun {
    pub(crate) fn spawn(
        mut command: Command,
        directory: tempfile::TempDir,
        profile: PathBuf,
        limit: Duration,
        turn: GuestTurn,
    ) -> Self {
        if let Some(cpus) = turn.cpus() {
            // SAFETY: one system call on a value that the closure owns.
            unsafe { command.pre_exec(move || restrict(&cpus)) };
        }
        let mut running = Self::in_turn(command, directory, profile, limit);
        running.turn = Some(turn);
        running
    }

    /// Starts `vprof` for a guest that has its turn already.
    pub(crate) fn in_turn(
        mut command: Command,
        directory: tempfile::TempDir,
        profile: PathBuf,
        limit: Duration,
    ) -> Self {
        let open = || tempfile::tempfile().expect("a temporary file");
        let (stdout, stderr) = (open(), open());
        command.stdout(stdout.try_clone().expect("a descriptor"));
        command.stderr(stderr.try_clone().expect("a descriptor"));
        // Ignored as after `trap "" XFSZ` in a shell, so that the write fails instead.
        // SAFETY: signal is async-signal-safe, and nothing else happens between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::signal(libc::SIGXFSZ, libc::SIG_IGN) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        Self {
            child: command.spawn().expect("vprof starts"),
            stdout,
            stderr,
            directory: Some(directory),
            profile,
            deadline: Instant::now() + limit,
            turn: None,
        }
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the profile being written.
    pub fn profile(&self) -> &Path {
        &self.profile
    }

    /// Sends a signal to `vprof`.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, signal).expect("vprof still runs");
    }

    /// Returns the output of `vprof ctl --json` for this run.
    pub fn ctl(&self, arguments: &[&str]) -> Value {
        let output = self.call_ctl(&[&["--json"], arguments].concat());
        if !output.status.success() {
            self.note_emulation_failure();
        }
        assert!(
            output.status.success(),
            "{arguments:?}: {}; the run itself: {}",
            String::from_utf8_lossy(&output.stderr),
            read_all(&mut self.stderr.try_clone().expect("another handle"))
        );
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Starts `vprof top` on this run, in a terminal of 80 columns and 24 lines.
    pub fn top(&self) -> Terminal {
        let mut command = Command::new(crate::vprof());
        command.arg("top").arg(self.profile.with_extension("sock"));
        Terminal::start(command, 24, 80)
    }

    /// Limits all files that `vprof` writes to this many bytes: a full disk.
    pub fn limit_file_size(&self, bytes: u64) {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // SAFETY: `limit` is valid for the call, and the pointer for the old limit may be null.
        let done = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Waits for the end, whatever the exit status.
    pub fn wait(mut self) {
        self.child.wait().expect("vprof is our child");
    }

    /// Waits until the profile holds at least this many samples.
    pub fn wait_for_samples(&mut self, count: i64) {
        self.wait_for_rows("FROM sample", count);
    }

    /// Waits until the profile holds at least this many rows of a query, from its `FROM` on.
    pub fn wait_for_rows(&mut self, from: &str, count: i64) {
        self.wait_until(from, |run| {
            run.profile.exists()
                && query(&run.profile, &format!("SELECT count(*) {from}"))
                    .and_then(|rows| rows.first()?.first()?.as_i64())
                    .is_some_and(|n| n >= count)
        });
    }

    /// Waits until the output of `vprof ctl` is as wanted, and returns it.
    pub fn wait_for_ctl(&mut self, arguments: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let mut answer = Value::Null;
        self.wait_until("control socket", |run| run.profile.with_extension("sock").exists());
        self.wait_until("such answer", |run| {
            answer = run.ctl(arguments);
            wanted(&answer)
        });
        answer
    }

    fn wait_until(&mut self, what: &str, mut met: impl FnMut(&mut Self) -> bool) {
        while !met(self) {
            let ended = self.child.try_wait().expect("vprof is our child");
            if let Some(status) = ended {
                self.note_emulation_failure();
                panic!("no {what} ({status}); {}", self.state());
            }
            self.assert_in_time(what);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Notes that the emulation has failed, if vprof has said so: the test is then run again.
    fn note_emulation_failure(&self) {
        let stderr = read_all(&mut self.stderr.try_clone().expect("another handle"));
        if let Some(failure) = emulation_failure(&stderr) {
            failed_by_emulation(failure);
        }
    }

    /// Calls `vprof ctl` for this run.
    fn call_ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(crate::vprof());
        command.arg("ctl").args(arguments).arg("--run").arg(self.profile.with_extension("sock"));
        command.output().expect("vprof starts")
    }

    /// Returns text that may explain why the run makes no progress.
    fn state(&mut self) -> String {
        let stderr = read_all(&mut self.stderr);
        let status = self.call_ctl(&["status"]);
        let console = "SELECT CAST(bytes AS TEXT) FROM console ORDER BY time_ns DESC LIMIT 20";
        format!(
            "stderr: {stderr}\nstatus: {}{}\nconsole, the last first: {:?}",
            String::from_utf8_lossy(&status.stdout),
            String::from_utf8_lossy(&status.stderr),
            query(&self.profile, console)
        )
    }

    /// Waits for the end, within the limit of the guest.
    pub fn finish(self) -> Run {
        self.watched(None).unwrap_or_else(|frozen| panic!("the guest froze: {}", frozen.state))
    }

    /// Waits for the end; an error when no sample has been taken for [`FROZEN`].
    pub(crate) fn finish_unless_frozen(self) -> Result<Run, FrozenGuest> {
        self.watched(Some(FROZEN))
    }

    fn watched(mut self, frozen: Option<Duration>) -> Result<Run, FrozenGuest> {
        let (mut samples, mut since, mut asked) = (None, Instant::now(), Instant::now());
        loop {
            if let Some(status) = self.child.try_wait().expect("vprof is our child") {
                return Ok(self.ended(status));
            }
            self.assert_in_time("end");
            if let Some(frozen) = frozen
                && asked.elapsed() > frozen / 10
            {
                asked = Instant::now();
                let now = self.samples();
                if now.is_none() || now != samples {
                    (samples, since) = (now, asked);
                } else if since.elapsed() > frozen {
                    return Err(FrozenGuest { state: self.state() });
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the number of samples; `None` if vprof does not answer, as before it has a guest, or takes
    /// none.
    fn samples(&self) -> Option<u64> {
        let status: Value = serde_json::from_slice(&self.call_ctl(&["status", "--json"]).stdout).ok()?;
        status["samples"].as_u64().filter(|_| status["sampling"] != false)
    }

    fn assert_in_time(&mut self, what: &str) {
        if Instant::now() < self.deadline {
            return;
        }
        let samples = self.samples();
        std::thread::sleep(GRACE);
        if samples.is_some() && samples == self.samples() {
            failed_by_emulation(EmulationFailure::Frozen);
        }
        panic!("no {what} in time; {}", self.state());
    }

    fn ended(&mut self, status: ExitStatus) -> Run {
        let stdout_bytes = read_bytes(&mut self.stdout);
        Run {
            status,
            stdout: String::from_utf8_lossy(&stdout_bytes).into_owned(),
            stdout_bytes,
            stderr: read_all(&mut self.stderr),
            profile: self.profile.clone(),
            _directory: self.directory.take().expect("taken only here"),
        }
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Both fail only if the process is gone already, as wanted.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the failure of QEMU's emulation of SVM that the messages of vprof report.
fn emulation_failure(stderr: &str) -> Option<EmulationFailure> {
    let signs = [
        ("the guest caused a triple fault", EmulationFailure::TripleFault),
        ("the guest in the emulated host had a triple fault", EmulationFailure::TripleFault),
        ("the portable host froze", EmulationFailure::Frozen),
        ("the emulated host stalled", EmulationFailure::Frozen),
        ("the portable host ended", EmulationFailure::Other),
    ];
    let found = signs.into_iter().find(|(sign, _)| stderr.contains(sign));
    found.filter(|_| stderr.contains("host: portable")).map(|(_, failure)| failure)
}

impl Run {
    /// Makes the run of a vprof on another machine from its results.
    pub(crate) fn from_parts(status: ExitStatus, stdout: String, stderr: String, profile: &[u8]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("out.vprof");
        if !profile.is_empty() {
            std::fs::write(&path, profile).expect("room for a profile");
        }
        let stdout_bytes = stdout.clone().into_bytes();
        Self { status, stdout, stdout_bytes, stderr, profile: path, _directory: directory }
    }

    /// Returns the failure of QEMU's emulation of SVM, if it has failed (docs/limits.md).
    pub(crate) fn emulation_failed(&self) -> Option<EmulationFailure> {
        // A host that froze early and was started again by vprof itself has not failed.
        if self.status.success() { None } else { emulation_failure(&self.stderr) }
    }

    /// Asserts exit code 0.
    pub fn succeeded(self) -> Self {
        self.exited(0)
    }

    /// Asserts an exit code.
    pub fn exited(self, code: i32) -> Self {
        // Shown if the test fails later.
        println!("{}", self.stderr);
        if self.status.code() != Some(code)
            && let Some(failure) = self.emulation_failed()
        {
            failed_by_emulation(failure);
        }
        assert_eq!(
            self.status.code(),
            Some(code),
            "{}\nstdout: {}\nstderr: {}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Returns the path of the profile.
    pub fn profile(&self) -> &Path {
        &self.profile
    }

    /// Parses the standard output as JSON.
    pub fn stdout_json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("JSON")
    }

    /// Returns the output of `vprof report --json`.
    pub fn report(&self) -> Report {
        self.report_with(&[])
    }

    /// Returns the output of `vprof report --json` with more options.
    pub fn report_with(&self, options: &[&str]) -> Report {
        let arguments: Vec<&str> = ["report"].iter().chain(options).copied().collect();
        Report::new(self.json(&arguments))
    }

    /// Returns the output of a command of vprof on the profile with `--json`: its name, and options.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = Command::new(crate::vprof())
            .args(arguments)
            .arg("--json")
            .arg(&self.profile)
            .output()
            .expect("vprof starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Returns the output of `vprof report --exact --json`.
    pub fn exact_report(&self) -> Value {
        self.json(&["report", "--exact"])
    }

    /// Calls `vprof` on the profile; returns its exit code and standard error.
    pub fn call(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output =
            Command::new(crate::vprof()).args(arguments).arg(&self.profile).output().expect("vprof starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Returns the CSV of a query.
    ///
    /// # Panics
    /// The query fails.
    pub fn csv(&self, sql: &str) -> String {
        let output =
            Command::new(crate::vprof()).arg("query").arg(&self.profile).args([sql, "--csv"]).output();
        let output = output.expect("vprof starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Returns the report on user code of one program, by `what`.
    pub fn user_code(&self, program: &str, what: &str) -> Report {
        self.report_with(&["--by", what, "--process", program, "--mode", "user"])
    }

    /// Returns the stacks of the samples in user code of one program as text, innermost function first, with
    /// their counts.
    pub fn user_stacks(&self, program: &str) -> Vec<(String, i64)> {
        let rows = self.query(&format!(
            "SELECT text, count(*) FROM sample JOIN v_stacks ON v_stacks.id = sample.stack \
             JOIN mode ON mode.id = sample.mode JOIN instance ON instance.id = sample.instance \
             WHERE instance.comm = '{program}' AND mode.name = 'user' GROUP BY text"
        ));
        let stack = |row: &Vec<Value>| Some((row[0].as_str()?.to_owned(), row[1].as_i64()?));
        rows.iter().filter_map(stack).collect()
    }

    /// Returns the rows of `vprof query --json`, each a list of values.
    pub fn query(&self, sql: &str) -> Vec<Vec<Value>> {
        query(&self.profile, sql).expect("the query works")
    }

    /// Returns the console's output. A row of the profile may end in the middle of a word.
    pub fn console(&self) -> String {
        let rows = self.query("SELECT CAST(bytes AS TEXT) FROM console ORDER BY rowid");
        rows.iter().filter_map(|row| row[0].as_str()).collect()
    }

    /// Returns the only value of a query, a number.
    pub fn number(&self, sql: &str) -> f64 {
        self.query(sql)[0][0].as_f64().expect("a number")
    }
}

fn query(profile: &Path, sql: &str) -> Option<Vec<Vec<Value>>> {
    let output =
        Command::new(crate::vprof()).args(["query", "--json"]).arg(profile).arg(sql).output().ok()?;
    if !output.status.success() {
        return None;
    }
    // One object per row, columns in the order of the query.
    let rows: Vec<serde_json::Map<String, Value>> = serde_json::from_slice(&output.stdout).ok()?;
    Some(rows.into_iter().map(|row| row.into_iter().map(|(_, v)| v).collect()).collect())
}

fn read_all(file: &mut std::fs::File) -> String {
    String::from_utf8_lossy(&read_bytes(file)).into_owned()
}

fn read_bytes(file: &mut std::fs::File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_emulation_are_known_by_the_sentences_of_vprof() {
        let host = "vprof: host: portable: /dev/kvm does not run 64-bit kernel code natively\n";
        let fault = "vprof: the guest in the emulated host had a triple fault after 8.14 s: a known fault of \
                     QEMU's SVM emulation (docs/limits.md), which `--retry` answers by a new run\n";
        let stalled = "vprof: the emulated host stalled after 12.00 s: vCPU 1 had no ticks for 10 s\n";
        let failure = |text: String| emulation_failure(&text);
        assert_eq!(failure(format!("{host}{fault}")), Some(EmulationFailure::TripleFault));
        assert_eq!(failure(format!("{host}{stalled}")), Some(EmulationFailure::Frozen));
        assert_eq!(failure(host.to_owned()), None);
        assert_eq!(failure(fault.to_owned()), None, "natively it is the guest's");
    }
}
