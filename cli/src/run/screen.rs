//! The two streams of a run at the terminal: the guest's console and the live line, kept apart.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::Phase;
use display::clean::escaped;
use display::units;
use profile::session::SessionStatus;

use render::table;

/// Target of the guest's console.
#[derive(Debug)]
pub enum ConsoleTarget {
    /// Only into the profile.
    None,
    /// To standard output.
    Stdout,
    /// To a file.
    File(File),
}

/// Form of the live line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressMode {
    /// Not at all.
    Off,
    /// A line that is redrawn in place.
    Live,
    /// A live line, until the guest runs.
    UntilGuest,
    /// A line for each step before the guest runs, then one every ten seconds.
    Lines,
}

/// Interval of the lines of [`ProgressMode::Lines`].
const LINES_EVERY: Duration = Duration::from_secs(10);
/// Returns to the line's start and erases it (ECMA-48: EL).
const ERASE: &str = "\r\x1b[K";

/// Console and live line of a run, with one lock.
#[derive(Debug)]
pub struct RunScreen(Mutex<ScreenState>);

#[derive(Debug)]
struct ScreenState {
    console: ConsoleTarget,
    progress: ProgressMode,
    /// Console and live line are on the same terminal.
    shared: bool,
    live_shown: bool,
    console_at_line_start: bool,
    /// The same of what [`RunScreen::errors`] wrote to standard error.
    errors_at_line_start: bool,
    started: Instant,
    last_line: Option<Instant>,
    /// The first failure to write the console.
    failed: Option<io::Error>,
    /// Notes to print when the terminal is free again.
    held: Option<Vec<String>>,
}

impl RunScreen {
    /// Makes a screen; the console and the live line share a terminal where both streams are one.
    pub fn new(console: ConsoleTarget, progress: ProgressMode) -> Self {
        let shared = matches!(console, ConsoleTarget::Stdout) && io::stdout().is_terminal();
        Self(Mutex::new(ScreenState {
            console,
            progress,
            shared,
            live_shown: false,
            console_at_line_start: true,
            errors_at_line_start: true,
            started: Instant::now(),
            last_line: None,
            failed: None,
            held: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, ScreenState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes output of the guest.
    pub fn console(&self, bytes: &[u8]) {
        let mut state = self.lock();
        if state.shared {
            state.erase();
        }
        let written = match &mut state.console {
            ConsoleTarget::None => Ok(()),
            ConsoleTarget::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes).and_then(|()| stdout.flush())
            }
            ConsoleTarget::File(file) => file.write_all(bytes),
        };
        if let Err(error) = written {
            // A full disk or a closed pipe: the guest continues without a console, and the end of
            // the run reports it.
            state.console = ConsoleTarget::None;
            state.failed = Some(error);
        }
        state.console_at_line_start = bytes.last().is_none_or(|b| *b == b'\n');
    }

    /// Writes errors of a command in the guest to standard error, next to the live line.
    pub fn errors(&self, bytes: &[u8]) {
        let mut state = self.lock();
        state.erase();
        // A failed write to standard error can't be reported anywhere.
        let _ = io::stderr().lock().write_all(bytes);
        state.errors_at_line_start = bytes.last().is_none_or(|b| *b == b'\n');
    }

    /// Shows the progress of the run.
    pub fn progress(&self, phase: &Phase) {
        // While output to the console's terminal blocks, the lock is held; the line can wait for the
        // next time.
        let Ok(mut state) = self.0.try_lock() else { return };
        match state.progress {
            ProgressMode::Off => {}
            ProgressMode::UntilGuest if matches!(phase, Phase::Running(_)) => {
                state.erase();
                state.progress = ProgressMode::Off;
            }
            ProgressMode::Live | ProgressMode::UntilGuest
                if !state.errors_at_line_start || (state.shared && !state.console_at_line_start) => {}
            ProgressMode::Live | ProgressMode::UntilGuest => {
                let width = columns().saturating_sub(1);
                let line = table::cut(&line(phase), width);
                state.live_shown = true;
                // A failed write to standard error can't be reported anywhere.
                let _ = write!(io::stderr().lock(), "{ERASE}{line}");
            }
            ProgressMode::Lines => {
                let since_start = units::duration(state.started.elapsed());
                let due = match phase {
                    Phase::Preparing(_) => true,
                    Phase::Running(_) => state.last_line.is_none_or(|last| last.elapsed() >= LINES_EVERY),
                };
                if due {
                    if matches!(phase, Phase::Running(_)) {
                        state.last_line = Some(Instant::now());
                    }
                    let _ = writeln!(io::stderr().lock(), "vprof: {since_start:>7}: {}", line(phase));
                }
            }
        }
    }

    /// Prints a line on standard error, above the live line.
    pub fn note(&self, text: &str) {
        let mut state = self.lock();
        if let Some(held) = &mut state.held {
            held.push(text.to_owned());
            return;
        }
        state.erase();
        let within_line = !state.errors_at_line_start || (state.shared && !state.console_at_line_start);
        let start = if within_line { "\n" } else { "" };
        (state.console_at_line_start, state.errors_at_line_start) = (true, true);
        let _ = writeln!(io::stderr().lock(), "{start}vprof: {text}");
    }

    /// Keeps notes back from now on: another part of vprof uses the terminal.
    pub fn hold(&self) {
        self.lock().held.get_or_insert_default();
    }

    /// Prints the notes that were kept back.
    pub fn release(&self) {
        let held = self.lock().held.take();
        held.into_iter().flatten().for_each(|text| self.note(&text));
    }

    /// Removes the live line for good; returns the first failure to write the console.
    pub fn close(&self) -> Option<io::Error> {
        let mut state = self.lock();
        state.erase();
        state.progress = ProgressMode::Off;
        if state.shared && !state.console_at_line_start {
            let _ = writeln!(io::stdout().lock());
            state.console_at_line_start = true;
        }
        state.failed.take()
    }
}

impl ScreenState {
    fn erase(&mut self) {
        if std::mem::take(&mut self.live_shown) {
            let _ = write!(io::stderr().lock(), "{ERASE}");
        }
    }
}

/// Returns the width of standard error's terminal, in columns.
pub fn columns() -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize through the pointer, which is valid and exclusive for the call.
    let got = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if got == 0 && size.ws_col > 0 { usize::from(size.ws_col) } else { 80 }
}

fn line(phase: &Phase) -> String {
    match phase {
        Phase::Preparing(what) => format!("{what} ..."),
        Phase::Running(status) => running(status),
    }
}

fn running(status: &SessionStatus) -> String {
    let mut line = format!(
        "{}  {}  {}  {} lost",
        units::clock(status.elapsed),
        units::counted(status.samples, "sample"),
        units::rate(status.rate_hz),
        units::count(status.lost),
    );
    if let Some(why) = &status.stopped {
        line.push_str(&format!("  {why}"));
        return line;
    }
    match (&status.top, &status.kernel) {
        (Some((comm, share)), _) => {
            line.push_str(&format!("  top: {} {}", escaped(comm), units::percent(*share)));
        }
        (None, Some(release)) => line.push_str(&format!("  Linux {}", escaped(release))),
        (None, None) => line.push_str("  guest is booting"),
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_time_samples_rate_lost_samples_and_top_process() {
        let mut status = SessionStatus {
            sampling: true,
            awaits_start: false,
            wanted_hz: 1_000.0,
            elapsed: Duration::from_secs(75),
            samples: 74_123,
            lost: 2,
            rate_hz: 998.7,
            top: Some(("gzip\x1b[2J".to_owned(), 0.934)),
            kernel: Some("6.1.0".to_owned()),
            stopped: None,
        };
        assert_eq!(running(&status), "1:15  74,123 samples  999 Hz  2 lost  top: gzip\\x1b[2J 93.4 %");
        status.top = None;
        assert!(running(&status).ends_with("Linux 6.1.0"));
        status.kernel = None;
        assert!(running(&status).ends_with("guest is booting"));
    }
}
