//! A program in a terminal, as somebody sees it who sits there.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};

/// It draws twice a second; this ends what would hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program that runs in a terminal of its own; killed when dropped.
#[allow(missing_debug_implementations, reason = "a screen has none")]
pub struct Terminal {
    child: Child,
    keys: File,
    /// Held open, so that the terminal outlives the program.
    slave: OwnedFd,
    before: Termios,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    pub(crate) fn start(mut command: Command, rows: u16, cols: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a terminal");
        let before = tcgetattr(&pty.slave).expect("a terminal");
        let slave = || pty.slave.try_clone().expect("a descriptor");
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
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
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, cols, 0)));
        let keys = File::from(pty.master);
        let mut output = keys.try_clone().expect("a descriptor");
        let drawn = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends with EIO, once nobody has the other end open.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..count]);
            }
        });
        Self { child: command.spawn().expect("the program starts"), keys, slave: pty.slave, before, screen }
    }

    /// What is on the screen, a line each.
    pub fn text(&self) -> String {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let screen = screen.screen();
        screen.rows(0, screen.size().1).fold(String::new(), |mut text, row| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{row}");
            text
        })
    }

    /// Waits until the screen is as wanted, and gives its text.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            let ended = self.child.try_wait().expect("our child");
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "no {what} ({ended:?}) on:\n{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits for the program's end; asserts that it leaves the terminal as it was, the first screen shown.
    pub fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("our child") {
                Some(status) => break status,
                None => assert!(start.elapsed() < PATIENCE, "it does not end:\n{}", self.text()),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(
            tcgetattr(&self.slave).expect("a terminal") == self.before,
            "the terminal's modes are changed"
        );
        while self.screen.lock().unwrap_or_else(PoisonError::into_inner).screen().alternate_screen() {
            assert!(start.elapsed() < PATIENCE, "the alternate screen is left on");
            std::thread::sleep(Duration::from_millis(20));
        }
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
