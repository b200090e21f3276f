//! A guest that runs, and what it left.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::Terminal;
use testkit::events::{Failure, failed_by_emulation};

use crate::Turn;
use crate::report::Report;

/// How often a run is looked at.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a guest may go without a sample: emulated ones freeze now and then (docs/limits.md), and would hold up all others
/// until their limit.
const FROZEN: Duration = Duration::from_secs(60);

/// Between two looks at a guest whose time is over.
const GRACE: Duration = Duration::from_secs(2);

/// A `vprof run` under way; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: std::fs::File,
    stderr: std::fs::File,
    directory: Option<tempfile::TempDir>,
    profile: PathBuf,
    deadline: Instant,
    turn: Option<Turn>,
}

/// A `vprof run` that has ended.
#[derive(Debug)]
pub struct Run {
    /// How the process ended.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
    profile: PathBuf,
    _directory: tempfile::TempDir,
}

impl Running {
    pub(crate) fn spawn(
        command: Command,
        directory: tempfile::TempDir,
        profile: PathBuf,
        limit: Duration,
        turn: Turn,
    ) -> Self {
        let mut running = Self::beside(command, directory, profile, limit);
        running.turn = Some(turn);
        running
    }

    /// For a guest whose turn it is already.
    pub(crate) fn beside(
        mut command: Command,
        directory: tempfile::TempDir,
        profile: PathBuf,
        limit: Duration,
    ) -> Self {
        let open = || tempfile::tempfile().expect("a temporary file");
        let (stdout, stderr) = (open(), open());
        command.stdout(stdout.try_clone().expect("a descriptor"));
        command.stderr(stderr.try_clone().expect("a descriptor"));
        // As from a shell that says `trap "" XFSZ`: what fails is the write.
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

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The profile being written.
    pub fn profile(&self) -> &Path {
        &self.profile
    }

    /// Sends a signal to `vprof`.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, signal).expect("vprof still runs");
    }

    /// What `vprof ctl` says of this run, with `--json`.
    pub fn ctl(&self, arguments: &[&str]) -> Value {
        let output = self.ask(&[&["--json"], arguments].concat());
        assert!(
            output.status.success(),
            "{arguments:?}: {}; the run itself: {}",
            String::from_utf8_lossy(&output.stderr),
            read_all(&mut self.stderr.try_clone().expect("another handle"))
        );
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// `vprof top` on this run, in a terminal of 80 columns and 24 lines.
    pub fn top(&self) -> Terminal {
        let mut command = Command::new(crate::vprof());
        command.arg("top").arg(self.profile.with_extension("sock"));
        Terminal::start(command, 24, 80)
    }

    /// From now on no file that `vprof` writes may grow beyond this many bytes: a full disk.
    pub fn limit_file_size(&self, bytes: u64) {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // SAFETY: `limit` is valid for the call, and no old limit is asked for.
        let done = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Waits for the end, however that is.
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

    /// Waits until `vprof ctl` says what is wanted, and gives that.
    pub fn wait_for_ctl(&mut self, arguments: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let mut said = Value::Null;
        self.wait_until("control socket", |run| run.profile.with_extension("sock").exists());
        self.wait_until("such answer", |run| {
            said = run.ctl(arguments);
            wanted(&said)
        });
        said
    }

    fn wait_until(&mut self, what: &str, mut met: impl FnMut(&mut Self) -> bool) {
        while !met(self) {
            let ended = self.child.try_wait().expect("vprof is our child");
            if let Some(status) = ended {
                panic!("no {what} ({status}); {}", self.state());
            }
            self.assert_in_time(what);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A call of `vprof ctl` for this run.
    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(crate::vprof());
        command.arg("ctl").args(arguments).arg("--run").arg(self.profile.with_extension("sock"));
        command.output().expect("vprof starts")
    }

    /// What may explain why it makes no progress.
    fn state(&mut self) -> String {
        let stderr = read_all(&mut self.stderr);
        let status = self.ask(&["status"]);
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
        self.watched(None).unwrap_or_else(|state| panic!("the guest froze: {state}"))
    }

    /// The same, or the state of a guest that has taken no sample for [`FROZEN`].
    pub(crate) fn finish_unless_frozen(self) -> Result<Run, String> {
        self.watched(Some(FROZEN))
    }

    fn watched(mut self, frozen: Option<Duration>) -> Result<Run, String> {
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
                    return Err(self.state());
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// How many samples there are; `None` where vprof does not answer, as before it has a guest, or takes none.
    fn samples(&self) -> Option<u64> {
        let status: Value = serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).ok()?;
        status["samples"].as_u64().filter(|_| status["sampling"] != false)
    }

    fn assert_in_time(&mut self, what: &str) {
        if Instant::now() < self.deadline {
            return;
        }
        let samples = self.samples();
        std::thread::sleep(GRACE);
        if samples.is_some() && samples == self.samples() {
            failed_by_emulation(Failure::Frozen);
        }
        panic!("no {what} in time; {}", self.state());
    }

    fn ended(&mut self, status: ExitStatus) -> Run {
        Run {
            status,
            stdout: read_all(&mut self.stdout),
            stderr: read_all(&mut self.stderr),
            profile: self.profile.clone(),
            _directory: self.directory.take().expect("taken only here"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Both fail only if the process is gone already, which is what is wanted.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Run {
    /// A run that was elsewhere, of which this came back.
    pub(crate) fn of(status: ExitStatus, stdout: String, stderr: String, profile: &[u8]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("out.vprof");
        if !profile.is_empty() {
            std::fs::write(&path, profile).expect("room for a profile");
        }
        Self { status, stdout, stderr, profile: path, _directory: directory }
    }

    /// How QEMU's emulation of SVM has failed the guest, if it has (docs/limits.md).
    pub(crate) fn emulation_failed(&self) -> Option<Failure> {
        // One that froze early and was started again by vprof itself has not failed.
        if self.status.success() || !self.stderr.contains("host: portable") {
            return None;
        }
        let signs = [
            ("the guest caused a triple fault", Failure::TripleFault),
            ("the portable host froze", Failure::Frozen),
            ("the emulated host stalled", Failure::Frozen),
            ("the portable host ended", Failure::Other),
        ];
        signs.into_iter().find(|(sign, _)| self.stderr.contains(sign)).map(|(_, failure)| failure)
    }

    /// Asserts exit code 0.
    pub fn succeeded(self) -> Self {
        self.exited(0)
    }

    /// Asserts an exit code.
    pub fn exited(self, code: i32) -> Self {
        // Where the test fails later on, this is shown with it.
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

    /// The profile file.
    pub fn profile(&self) -> &Path {
        &self.profile
    }

    /// What it printed, as JSON.
    pub fn said(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("JSON")
    }

    /// What `vprof report --json` says.
    pub fn report(&self) -> Report {
        self.report_with(&[])
    }

    /// What `vprof report --json` says with more options.
    pub fn report_with(&self, options: &[&str]) -> Report {
        let arguments: Vec<&str> = ["report"].iter().chain(options).copied().collect();
        Report::new(self.json(&arguments))
    }

    /// What a command of vprof says of the profile with `--json`: its name, and options.
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

    /// What `vprof report --exact --json` says.
    pub fn exact_report(&self) -> Value {
        self.json(&["report", "--exact"])
    }

    /// Calls `vprof` on the profile: its exit code and what it says on standard error.
    pub fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output =
            Command::new(crate::vprof()).args(arguments).arg(&self.profile).output().expect("vprof starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// What `vprof report --json` says of user code of one program, by `what`.
    pub fn user_code(&self, program: &str, what: &str) -> Report {
        self.report_with(&["--by", what, "--process", program, "--mode", "user"])
    }

    /// Stacks as text, innermost function first, of the samples in user code of one program, and how often they came.
    pub fn user_stacks(&self, program: &str) -> Vec<(String, i64)> {
        let rows = self.query(&format!(
            "SELECT text, count(*) FROM sample JOIN v_stacks ON v_stacks.id = sample.stack \
             JOIN mode ON mode.id = sample.mode JOIN instance ON instance.id = sample.instance \
             WHERE instance.comm = '{program}' AND mode.name = 'user' GROUP BY text"
        ));
        let stack = |row: &Vec<Value>| Some((row[0].as_str()?.to_owned(), row[1].as_i64()?));
        rows.iter().filter_map(stack).collect()
    }

    /// The rows of `vprof query --json`, each a list of values.
    pub fn query(&self, sql: &str) -> Vec<Vec<Value>> {
        query(&self.profile, sql).expect("the query works")
    }

    /// What the guest wrote to its console. A row of the profile may end in the middle of a word.
    pub fn console(&self) -> String {
        let rows = self.query("SELECT CAST(bytes AS TEXT) FROM console ORDER BY rowid");
        rows.iter().filter_map(|row| row[0].as_str()).collect()
    }

    /// The only value of a query, a number.
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
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}
