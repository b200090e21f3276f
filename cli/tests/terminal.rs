//! The terminal as console: raw while the run goes on, as before after every end.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use support::{bzimage, fake_host, vprof};

/// `vprof run` on a terminal of its own, waiting for a portable host that never speaks.
struct Session {
    child: Child,
    master: File,
    /// Held open so that the terminal lives on after the end.
    slave: OwnedFd,
    _directory: tempfile::TempDir,
}

impl Session {
    fn start(more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (bundle, bin) = fake_host(directory.path(), "exec sleep 1000");
        let kernel = directory.path().join("kernel");
        fs::write(&kernel, bzimage(5000)).unwrap();
        let pty = openpty(None, None).unwrap();
        let mut command = vprof(["run", "--host", "portable", "--portable-host"]);
        command.arg(bundle).arg(kernel).arg("-o").arg(directory.path().join("out.vprof")).args(more);
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        let slave = || pty.slave.try_clone().unwrap();
        command.stdin(slave()).stdout(slave()).stderr(slave());
        // SAFETY: setsid and ioctl are async-signal-safe; the child makes its standard input its terminal.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().unwrap();
        Self { child, master: pty.master.into(), slave: pty.slave, _directory: directory }
    }

    fn is_raw(&self) -> bool {
        let flags = tcgetattr(&self.slave).unwrap().local_flags;
        !flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }

    fn until(&mut self, what: &str, met: impl Fn(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !met(self) {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Everything printed so far, once vprof has ended.
    fn end(mut self) -> (i32, bool, String) {
        self.until("vprof ends", |s| s.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code().unwrap();
        let raw = self.is_raw();
        nix::fcntl::fcntl(&self.master, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .unwrap();
        let mut text = Vec::new();
        // Ends with EAGAIN, as the slave is still open.
        let _ = self.master.read_to_end(&mut text);
        (code, raw, String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Both fail only where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_escape_key_ends_the_run_and_the_terminal_is_as_before() {
    let mut session = Session::start(&[]);
    session.until("raw mode", |s| s.is_raw());
    session.master.write_all(b"abc\x03\x1d").unwrap();
    let (code, raw, text) = session.end();
    assert_eq!(code, 1, "{text}");
    assert!(!raw);
    assert!(text.contains("Ctrl-] ends the run"), "{text}");
    assert!(text.contains("stopped before the guest ran"), "{text}");
}

#[test]
fn a_signal_leaves_the_terminal_as_before() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut session = Session::start(&["-q"]);
        session.until("raw mode", |s| s.is_raw());
        kill(Pid::from_raw(i32::try_from(session.child.id()).unwrap()), signal).unwrap();
        let (code, raw, text) = session.end();
        assert_eq!(code, 1, "{signal}: {text}");
        assert!(!raw, "{signal}");
    }
}

#[test]
fn a_failing_host_leaves_the_terminal_as_before() {
    let mut session = Session::start(&["--host-timeout", "300ms"]);
    session.until("raw mode", |s| s.is_raw());
    let (code, raw, text) = session.end();
    assert_eq!(code, 4, "{text}");
    assert!(!raw);
    assert!(text.contains("froze while it booted"), "{text}");
}

#[test]
fn without_the_console_keys_keep_their_meaning() {
    let mut session = Session::start(&["--console", "none"]);
    let pid = session.child.id();
    session.until("QEMU starts", |_| {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let mut names =
            children.split_whitespace().map(|child| fs::read_to_string(format!("/proc/{child}/comm")));
        names.any(|name| name.is_ok_and(|name| name == "sleep\n"))
    });
    assert!(!session.is_raw());
    // Ctrl-C, as a signal this time.
    session.master.write_all(b"\x03").unwrap();
    let (code, _, text) = session.end();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("stopped before the guest ran"), "{text}");
}
