//! The guest's command on the console, or with its output at the machine's ports.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Pid, getpid, setsid, tcsetpgrp};

use crate::STATUS_SETUP;
use crate::output::OutputPorts;

/// Environment of every command.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("USER", "root"),
    ("SHELL", "/bin/sh"),
    ("TERM", "vt220"),
    ("LANG", "C.UTF-8"),
];

/// Runs the command to its end and reaps every process that dies meanwhile. Returns the exit status and the
/// command's duration.
pub fn run(argv: Vec<OsString>) -> (u8, Duration) {
    let mut words = argv.into_iter();
    let Some(program) = words.next() else {
        return (STATUS_SETUP, Duration::ZERO);
    };
    let mut command = Command::new(&program);
    command.args(words).env_clear().envs(ENVIRONMENT.iter().copied());
    command.current_dir(if Path::new("/root").is_dir() { "/root" } else { "/" });
    if let Err(error) = on_terminal(&mut command) {
        // The command still has init's console, only without job control.
        eprintln!("guest-init: no terminal for the command: {error}");
    }
    let mut errors: Box<dyn Write> = Box::new(io::stderr());
    if let Some(ports) = OutputPorts::open() {
        // What cannot be started has its message where the command would have had its own.
        if let Ok(port) = ports.errors.try_clone() {
            errors = Box::new(port);
        }
        command.stdout(ports.output).stderr(ports.errors);
    }
    let begun = Instant::now();
    let status = match command.spawn() {
        Ok(child) => reap_until_end_of(child.id()),
        Err(error) => {
            // Nobody is left to report a failed write to.
            let _ = writeln!(errors, "guest-init: {}: {error}", program.display());
            if error.kind() == ErrorKind::NotFound { 127 } else { 126 }
        }
    };
    (status, begun.elapsed())
}

/// Gives the command the console's terminal and makes the command its foreground process group, so that a
/// shell has job control and Ctrl-C reaches the command.
///
/// Init is the leader of the terminal's session. If the command were the leader, its end would hang up the
/// terminal, and the kernel would discard output that is not sent yet.
fn on_terminal(command: &mut Command) -> io::Result<()> {
    let terminal = console_terminal()?;
    // A terminal that cannot control a session is still usable; only an interactive shell reports a missing
    // one.
    let controls = setsid().is_ok() && {
        // SAFETY: the descriptor is open, and the request takes a number, not a pointer.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) == 0 }
    };
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
    if controls {
        command.process_group(0);
        // SAFETY: init has one thread, and the closure makes a few system calls and allocates nothing.
        unsafe { command.pre_exec(|| Ok(come_to_foreground()?)) };
        // Init is in the background from here on, and would be stopped for using the terminal.
        // SAFETY: no handler is set, the signal is only ignored.
        unsafe { signal(Signal::SIGTTOU, SigHandler::SigIgn) }?;
    }
    Ok(())
}

/// Makes the group of the calling process the foreground group of the terminal on descriptor 0.
fn come_to_foreground() -> nix::Result<()> {
    // Init ignores the signal, but programs expect the default.
    // SAFETY: no handler is set.
    unsafe { signal(Signal::SIGTTOU, SigHandler::SigDfl) }?;
    // A background process can take the foreground only while that signal is blocked or ignored.
    let stop = SigSet::from(Signal::SIGTTOU);
    stop.thread_block()?;
    tcsetpgrp(io::stdin(), getpid())?;
    stop.thread_unblock()
}

/// Returns the terminal of `/dev/console`, which itself cannot control a session.
fn console_terminal() -> io::Result<File> {
    let active = fs::read_to_string("/sys/class/tty/console/active")?;
    let name = active.split_whitespace().next_back().unwrap_or("console");
    OpenOptions::new().read(true).write(true).open(Path::new("/dev").join(name))
}

fn reap_until_end_of(child: u32) -> u8 {
    let ended = |pid: Pid| u32::try_from(pid.as_raw()) == Ok(child);
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if ended(pid) => {
                return u8::try_from(code).unwrap_or(1);
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if ended(pid) => {
                return u8::try_from(128 + signal as i32).unwrap_or(255);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            // Not possible while the child lives.
            Err(_) => return STATUS_SETUP,
        }
    }
}
