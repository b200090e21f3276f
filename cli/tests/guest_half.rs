//! The process in which a guest runs, on this machine's KVM; control of a run, and ways in which a run ends.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::{meta_of, on_an_old_kernel, run, stderr, stdout, vprof};
use testkit::{Terminal, eventually};
use vmm::kvm_check;

/// Longest time until a process has started or ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run of a kernel that does nothing but `jmp .`.
struct EndlessRun {
    directory: tempfile::TempDir,
    vprof: Child,
}

impl EndlessRun {
    /// Starts the run; `None` without KVM.
    fn start() -> Option<Self> {
        Self::start_as(|command| command)
    }

    /// Starts the run after a change of its command; `None` without KVM.
    fn start_as(change: impl FnOnce(&mut Command) -> &mut Command) -> Option<Self> {
        if let Err(error) = kvm_check::open() {
            testkit::missing(&format!("/dev/kvm ({error})"));
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut kernel = testkit::bz_image(4096);
        // The 64-bit entry is 0x200 bytes into the kernel, which follows a setup of 2.5 KiB.
        kernel[5 * 512 + 0x200..][..2].copy_from_slice(&[0xeb, 0xfe]);
        let path = directory.path().join("vmlinuz");
        fs::write(&path, kernel).unwrap();
        let mut command = vprof(["run", "-q", "--host", "kvm", "--memory", "64M", "--control"]);
        command
            .arg(directory.path().join("p.sock"))
            .arg("-o")
            .arg(directory.path().join("p.vprof"))
            .arg(path);
        command
            .env("A_SECRET", "of the user")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Some(Self { vprof: change(&mut command).spawn().unwrap(), directory })
    }

    fn profile(&self) -> PathBuf {
        self.directory.path().join("p.vprof")
    }

    /// Returns the process id of the guest half, once the guest runs.
    fn half(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.vprof.id());
        eventually("a guest half whose guest runs", PATIENCE, || {
            let child: u32 = fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok()?;
            let threads = fs::read_dir(format!("/proc/{child}/task")).ok()?;
            let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).ok();
            threads.flatten().filter_map(name).any(|name| name.trim() == "vcpu 0").then_some(child)
        })
    }

    /// Returns the number of samples that the profile has.
    fn samples(&self) -> Option<u64> {
        let output = run([Path::new("query"), &self.profile(), Path::new("SELECT count(*) FROM sample")]);
        stdout(&output).lines().last()?.trim().parse().ok()
    }

    fn wait_for_samples(&self, count: u64) {
        eventually("samples", PATIENCE, || self.samples().filter(|samples| *samples >= count));
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.vprof.id().cast_signed()), signal).unwrap();
    }

    /// Waits for the end; returns the exit code and the message.
    fn end(&mut self) -> (Option<i32>, String) {
        let status = self.vprof.wait().unwrap();
        let mut message = String::new();
        std::io::Read::read_to_string(&mut self.vprof.stderr.take().unwrap(), &mut message).unwrap();
        (status.code(), message)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("p.sock")
    }

    /// Returns what `vprof ctl --json` prints for this run.
    fn ctl(&self, arguments: &[&str]) -> Value {
        let output =
            vprof(["ctl", "--json"]).args(arguments).arg("--run").arg(self.socket()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the run's status is as wanted, and returns the status.
    fn wait_for_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually("a control socket", PATIENCE, || self.socket().exists().then_some(()));
        eventually(what, PATIENCE, || Some(self.ctl(&["status"])).filter(|status| wanted(status)))
    }

    /// Returns the only row of a query's result as CSV.
    fn row(&self, sql: &str) -> String {
        let output = vprof(["query"]).arg(self.profile()).args([sql, "--csv"]).output().unwrap();
        stdout(&output).lines().nth(1).unwrap_or_else(|| panic!("{sql}: {}", stderr(&output))).to_owned()
    }
}

impl Drop for EndlessRun {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ended = self.vprof.kill();
        let _status = self.vprof.wait();
    }
}

#[test]
fn a_guest_half_has_no_rights_and_nothing_of_the_user() {
    let Some(run) = EndlessRun::start() else { return };
    let half = run.half();
    let read = |file: &str| fs::read_to_string(format!("/proc/{half}/{file}")).unwrap();
    let environment = read("environ");
    assert!(environment.starts_with("TMPDIR=") && !environment.contains("A_SECRET"), "{environment}");
    let status = eventually("a filter of system calls", PATIENCE, || {
        Some(read("status")).filter(|status| status.contains("\nSeccomp:\t2\n"))
    });
    for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    for thread in fs::read_dir(format!("/proc/{half}/task")).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
    }
    let directory = run.directory.path().to_str().unwrap();
    for descriptor in fs::read_dir(format!("/proc/{half}/fd")).unwrap() {
        let Ok(target) = fs::read_link(descriptor.unwrap().path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        assert!(!target.starts_with(directory), "{target}");
    }
}

#[test]
fn a_guest_half_that_is_killed_leaves_a_profile_and_a_sentence() {
    let Some(mut run) = EndlessRun::start() else { return };
    let half = run.half();
    run.wait_for_samples(1);
    kill(Pid::from_raw(half.cast_signed()), Signal::SIGKILL).unwrap();
    let (code, message) = run.end();
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("the guest's process ended: signal: 9 (SIGKILL)"), "{message}");
    assert!(run.samples().is_some_and(|samples| samples > 0), "{message}");
}

#[test]
fn a_guest_runs_on_a_kernel_of_2018() {
    let Some(run) = EndlessRun::start_as(on_an_old_kernel) else { return };
    run.wait_for_samples(1);
    let output = meta_of(&run.profile(), "sandbox");
    assert!(output.contains("rights") && !output.contains("files"), "no Landlock: {output}");
}

#[test]
fn a_guest_half_ends_with_its_vprof() {
    let Some(mut run) = EndlessRun::start() else { return };
    let half = run.half();
    run.vprof.kill().unwrap();
    run.vprof.wait().unwrap();
    eventually("its end", PATIENCE, || (!Path::new(&format!("/proc/{half}")).exists()).then_some(()));
}

/// Asserts that `vprof top` shows the run, takes keys, and leaves the terminal and the guest as they were.
fn seen_in_a_terminal(run: &EndlessRun) {
    let mut command = vprof(["top"]);
    command.arg(run.socket());
    let mut top = Terminal::start(command, 24, 80);
    let text = top.until("row of the guest", |text| {
        text.lines().any(|line| line.trim_end().ends_with(" [early boot]")) && text.contains("300 Hz")
    });
    assert!(text.contains("[1 programs]"), "{text}");
    top.press("?");
    top.until("help", |text| text.contains("any key goes back"));
    top.press("q");
    top.until("table", |text| text.contains("[1 programs]"));
    top.press("/early\r\r");
    // The only instruction of the guest.
    top.until("functions of the guest", |text| {
        text.contains(" programs > [early boot]") && text.contains("0x100200")
    });
    top.press("\r");
    top.until("their callees", |text| text.contains(" programs > [early boot] > callees of "));
    top.press("\x7f\x7f");
    top.until("programs", |text| text.contains("[1 programs]"));
    top.press("2");
    top.until("functions", |text| text.contains("[2 functions]"));
    top.press("q");
    let (status, transcript) = top.end();
    assert!(status.success(), "{transcript}");
}

#[test]
fn sampling_stops_and_resumes_and_the_run_is_ended() {
    let Some(mut run) = EndlessRun::start() else { return };
    let number =
        |value: &Value, name: &str| value[name].as_f64().unwrap_or_else(|| panic!("no {name}: {value}"));
    run.wait_for_status("samples", |status| status["samples"].as_u64() >= Some(500));
    let before = run.wait_for_status("sampling", |status| status["sampling"] == true);
    run.ctl(&["stop"]);
    let stopped = run.wait_for_status("stop", |status| status["sampling"] == false);
    run.ctl(&["mark", "off"]);
    // At 1,000 Hz a second without samples is not an accident.
    let still = run.wait_for_status("second without samples", |status| {
        number(status, "time_s") > number(&stopped, "time_s") + 1.0
    });
    run.ctl(&["mark", "on", "again"]);
    run.ctl(&["rate", "300"]);
    run.ctl(&["start"]);
    let after = run.wait_for_status("samples at another rate", |status| {
        status["samples"].as_u64() >= still["samples"].as_u64().map(|samples| samples + 100)
    });
    let tables = run.ctl(&["tables", "--last", "1s"]);
    let sampling = &tables["sampling"];
    assert_eq!((&sampling["on"], &sampling["rate_hz"]), (&true.into(), &300.0.into()), "{tables}");
    seen_in_a_terminal(&run);
    let written = run.ctl(&["write"]);
    assert!(number(&written, "time_s") > number(&tables, "time_s"), "{written}");
    run.ctl(&["end"]);
    let (code, message) = run.end();
    assert_eq!(code, Some(0), "{message}");

    let marks =
        "SELECT group_concat(text, ', ') FROM (SELECT text FROM event WHERE kind = 'mark' ORDER BY time_ns)";
    assert_eq!(run.row(marks), "\"off, on again\"");
    // One more tick finds the request.
    let between = "SELECT count(*) <= 1 FROM sample, (SELECT min(time_ns) a, max(time_ns) b FROM event \
                   WHERE kind = 'mark') WHERE time_ns BETWEEN a AND b";
    assert_eq!(run.row(between), "1");
    let rates = "SELECT group_concat(rate_hz) FROM (SELECT rate_hz FROM rate ORDER BY time_ns)";
    assert_eq!(run.row(rates), "\"0.0,300.0\"");
    let report = vprof(["report", "--json"]).arg(run.profile()).output().unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let unsampled = number(&report, "unsampled_s");
    let most = number(&after, "time_s") - number(&before, "time_s");
    assert!((0.5..most).contains(&unsampled), "{unsampled} of {most} s");
}

#[test]
fn a_signal_ends_the_run_with_a_complete_profile() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let Some(mut run) = EndlessRun::start() else { return };
        run.wait_for_samples(1);
        run.signal(signal);
        let (code, message) = run.end();
        assert_eq!(code, Some(0), "{signal}: {message}");
        assert_eq!(run.row("SELECT value FROM meta WHERE key = 'complete'"), "1", "{signal}: {message}");
        assert!(run.samples() > Some(0), "{signal}: {message}");
    }
}

/// A file that may not grow is what a full disk is to its writer.
#[test]
fn a_full_disk_ends_the_run_and_what_was_written_stays_readable() {
    // SAFETY: no handler is set, the signal is only ignored: then the write fails instead.
    let ignore = || match unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    };
    // SAFETY: between fork and exec one system call is made, and nothing is allocated.
    let Some(mut run) = EndlessRun::start_as(|command| unsafe { command.pre_exec(ignore) }) else { return };
    run.wait_for_samples(100);
    let bytes = fs::metadata(run.profile()).unwrap().len().max(256 << 10);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let pid = run.vprof.id().cast_signed();
    // SAFETY: `limit` is valid for the call, and the pointer for the old limit may be null.
    let done = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let (code, message) = run.end();
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("p.vprof"), "{message}");
    assert!(run.samples() >= Some(100), "{message}");
}
