//! The terminal as console: raw during the run, and restored after every end.

mod support;

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{fake_host, vprof};
use testkit::{Terminal, bz_image, eventually};

const SOON: Duration = Duration::from_secs(20);

/// `vprof run` on a terminal, waiting for a portable host that is silent.
struct TerminalSession {
    terminal: Terminal,
    _directory: tempfile::TempDir,
}

impl TerminalSession {
    fn start(more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (bundle, bin) = fake_host(directory.path(), "exec sleep 1000");
        let kernel = directory.path().join("kernel");
        fs::write(&kernel, bz_image(5000)).unwrap();
        let mut command = vprof(["run", "--host", "portable", "--portable-host"]);
        command.arg(bundle).arg(kernel).arg("-o").arg(directory.path().join("out.vprof")).args(more);
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        Self { terminal: Terminal::start(command, 24, 80), _directory: directory }
    }

    fn until_raw(&self) {
        eventually("raw mode", SOON, || self.terminal.is_raw().then_some(()));
    }

    /// Waits for the end; returns the exit code and everything printed, once the terminal is restored.
    fn end(self) -> (i32, String) {
        let (status, text) = self.terminal.end();
        (status.code().unwrap(), text)
    }
}

#[test]
fn the_escape_key_ends_the_run_and_the_terminal_is_restored() {
    let mut session = TerminalSession::start(&["--console", "-"]);
    session.until_raw();
    session.terminal.press("abc\x03\x1d");
    let (code, text) = session.end();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("Ctrl-] ends the run"), "{text}");
    assert!(text.contains("stopped before the guest ran"), "{text}");
}

#[test]
fn a_signal_restores_the_terminal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let session = TerminalSession::start(&["-q", "--console", "-"]);
        session.until_raw();
        kill(Pid::from_raw(i32::try_from(session.terminal.pid()).unwrap()), signal).unwrap();
        let (code, text) = session.end();
        assert_eq!(code, 1, "{signal}: {text}");
    }
}

#[test]
fn a_failing_host_restores_the_terminal() {
    let session = TerminalSession::start(&["--console", "-", "--host-timeout", "300ms"]);
    session.until_raw();
    let (code, text) = session.end();
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("froze while it booted"), "{text}");
}

#[test]
fn a_run_shows_its_progress_and_ends_by_ctrl_c() {
    let mut session = TerminalSession::start(&[]);
    let pid = session.terminal.pid();
    eventually("QEMU", SOON, || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let mut names =
            children.split_whitespace().map(|child| fs::read_to_string(format!("/proc/{child}/comm")));
        names.any(|name| name.is_ok_and(|name| name == "sleep\n")).then_some(())
    });
    let text = session.terminal.until("progress", |text| text.contains("starting the portable host"));
    assert!(text.contains("Ctrl-C ends the run") && text.contains("--console -"), "{text}");
    // Keys keep their meaning: Ctrl-C is a signal.
    assert!(!session.terminal.is_raw());
    session.terminal.press("\x03");
    let (code, text) = session.end();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("stopping the run; press Ctrl-C again to abort it"), "{text}");
    assert!(text.contains("stopped before the guest ran"), "{text}");
}
