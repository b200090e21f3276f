//! The launcher of the portable host against a QEMU that misbehaves.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use support::{fake_host, stderr, vprof};

/// A portable host whose QEMU is a script.
struct FakeHost {
    directory: tempfile::TempDir,
    bundle: PathBuf,
    path: String,
}

impl FakeHost {
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = format!("echo $$ >> '{}'\n{script}", directory.path().join("pids").display());
        let (bundle, bin) = fake_host(directory.path(), &log);
        fs::write(directory.path().join("kernel"), testkit::bz_image(5000)).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        Self { directory, bundle, path }
    }

    fn run(&self, more: &[&str]) -> Command {
        let file = |name: &str| self.directory.path().join(name);
        let mut command = vprof(["run", "--host", "portable", "--portable-host"]);
        command.arg(&self.bundle).arg(file("kernel")).arg("-o").arg(file("out.vprof"));
        command.args(more).env("PATH", &self.path);
        command
    }

    /// Process ids of all starts of QEMU.
    fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.directory.path().join("pids")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn no_profile(&self) -> bool {
        !self.directory.path().join("out.vprof").exists()
    }
}

/// Returns true once the process is gone, or a zombie.
fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'),
    }
}

fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    testkit::eventually(what, Duration::from_secs(20), || met().then_some(()));
}

#[test]
fn a_silent_host_is_killed_and_tried_three_times() {
    let fake = FakeHost::new("exec sleep 1000");
    let output = fake.run(&["--host-timeout", "200ms", "-v"]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("it had frozen"), "{error}");
    assert!(error.contains("the portable host froze while it booted"), "{error}");
    assert!(error.contains("also after 2 restarts"), "{error}");
    let pids = fake.pids();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|pid| is_gone(*pid)));
    assert!(fake.no_profile());
}

#[test]
fn a_host_that_dies_is_reported_with_its_last_words() {
    let fake = FakeHost::new("echo 'no such machine' >&2; exit 7");
    let output = fake.run(&[]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("ended while it booted (exit status: 7)"), "{error}");
    assert!(error.contains("no such machine"), "{error}");
    assert_eq!(fake.pids().len(), 1);
    assert!(fake.no_profile());
}

#[test]
fn a_host_that_sends_an_invalid_message_is_refused() {
    // The port is the only socket that is inherited; 0xffffffff is a frame of 4 GiB.
    let script = "for fd in /proc/$$/fd/*; do case $(readlink $fd) in socket*) port=${fd##*/};; esac; done\n\
                  printf '\\377\\377\\377\\377' >&$port; exec sleep 1000";
    let fake = FakeHost::new(script);
    let output = fake.run(&[]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("a message of 4294967295 bytes"), "{error}");
    assert!(fake.pids().iter().all(|pid| is_gone(*pid)));
}

#[test]
fn a_signal_ends_the_run_and_the_host() {
    let fake = FakeHost::new("exec sleep 1000");
    let mut child = fake.run(&["-q"]).spawn().unwrap();
    wait_until("QEMU starts", || fake.pids().len() == 1);
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(is_gone(fake.pids()[0]));
    assert!(fake.no_profile());
}

#[test]
fn the_host_dies_with_a_killed_vprof() {
    let fake = FakeHost::new("exec sleep 1000");
    let mut child = fake.run(&["-q"]).spawn().unwrap();
    wait_until("QEMU starts", || fake.pids().len() == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let pid = fake.pids()[0];
    wait_until("QEMU dies with vprof", || is_gone(pid));
}
