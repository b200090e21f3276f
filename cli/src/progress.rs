//! The line on standard error that shows the progress of a command.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use display::clean::escaped;
use display::units;

use render::{table, terminal_columns};

/// Returns to the line's start and erases it (ECMA-48: EL).
const ERASE: &str = "\r\x1b[K";
/// Commands that take less time show no progress.
const LONG: Duration = Duration::from_millis(500);
/// Time between two drawings.
const AGAIN: Duration = Duration::from_millis(100);

/// A line that is redrawn in place if standard error is a terminal, and erased on drop.
#[derive(Debug)]
pub struct ProgressLine {
    action: &'static str,
    live: bool,
    due: Instant,
    shown: bool,
}

impl ProgressLine {
    /// Shows nothing yet. `action` is like "reading".
    pub fn new(action: &'static str, quiet: bool) -> Self {
        let live = !quiet && io::stderr().is_terminal();
        Self { action, live, due: Instant::now() + LONG, shown: false }
    }

    /// Shows the number of samples that are done.
    pub fn samples(&mut self, done: u64, all: u64) {
        if !self.live || Instant::now() < self.due {
            return;
        }
        let part = if all == 0 { 1.0 } else { (done as f64 / all as f64).min(1.0) };
        let line = format!("{}  {}  {}", self.action, units::counted(done, "sample"), units::percent(part));
        let line = table::cut(&escaped(&line), terminal_columns().unwrap_or(80).saturating_sub(1));
        // A failed write to standard error can't be reported anywhere.
        let _ = write!(io::stderr().lock(), "{ERASE}{line}");
        (self.shown, self.due) = (true, Instant::now() + AGAIN);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr().lock(), "{ERASE}");
        }
    }
}
