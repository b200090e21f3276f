//! The line on standard error that shows how far a command is.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use text::clean::escaped;
use text::units;

use crate::render::{table, terminal_columns};

/// Goes to the line's start and erases it (ECMA-48: EL).
const ERASE: &str = "\r\x1b[K";
/// What takes less than this shows nothing.
const LONG: Duration = Duration::from_millis(500);
/// Time between two drawings.
const AGAIN: Duration = Duration::from_millis(100);

/// A line that is drawn over itself where standard error is a terminal, and gone when this is dropped.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    live: bool,
    due: Instant,
    shown: bool,
}

impl Progress {
    /// Nothing shown yet. `what` is what is done, like "reading".
    pub fn new(what: &'static str, quiet: bool) -> Self {
        let live = !quiet && io::stderr().is_terminal();
        Self { what, live, due: Instant::now() + LONG, shown: false }
    }

    /// Shows how many samples are done.
    pub fn samples(&mut self, done: u64, all: u64) {
        if !self.live || Instant::now() < self.due {
            return;
        }
        let part = if all == 0 { 1.0 } else { (done as f64 / all as f64).min(1.0) };
        let line = format!("{}  {}  {}", self.what, units::counted(done, "sample"), units::percent(part));
        let line = table::cut(&escaped(&line), terminal_columns().unwrap_or(80).saturating_sub(1));
        // There is nobody to tell that standard error can't be written.
        let _ = write!(io::stderr().lock(), "{ERASE}{line}");
        (self.shown, self.due) = (true, Instant::now() + AGAIN);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr().lock(), "{ERASE}");
        }
    }
}
