//! One line on stderr for the step that is under way.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use guest_images::Progress;

/// Time between two pictures of the spinner.
const FRAME: Duration = Duration::from_millis(200);
/// Time between two lines of a log on work in the background.
const NOTE: Duration = Duration::from_secs(10);
/// A step that took less is not worth a line of a log.
const WORTH_A_LINE: Duration = Duration::from_secs(2);

/// A spinner with the seconds gone on a terminal, a line at the start and the end of a long step elsewhere.
#[derive(Debug)]
pub struct ProgressLine {
    terminal: bool,
    step: Mutex<Option<ProgressStep>>,
    /// State of the work in the background; empty if there is none.
    note: Arc<Mutex<String>>,
}

#[derive(Debug)]
struct ProgressStep {
    text: String,
    start: Instant,
    /// Draws until the other end is dropped.
    spinner: Option<(Sender<()>, JoinHandle<()>)>,
}

impl ProgressLine {
    /// Makes a line for the present kind of standard error.
    pub fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), step: Mutex::default(), note: Arc::default() }
    }

    /// Does something under a step's name; the line is gone afterwards, whatever came of it.
    pub fn during<T>(&self, step: &str, work: impl FnOnce() -> T) -> T {
        self.begin(step);
        let result = work();
        self.end();
        result
    }

    /// Returns the place for words on work in the background, which a terminal shows next to the step that is
    /// under way.
    pub fn background(&self) -> BackgroundNote {
        BackgroundNote { shown: self.terminal.then(|| Arc::clone(&self.note)), printed: Instant::now() }
    }

    fn finish(&self, step: ProgressStep) {
        let took = step.start.elapsed();
        if let Some((stop, thread)) = step.spinner {
            drop(stop);
            // It only draws: if it died, nothing but the picture is lost.
            let _ = thread.join();
            eprint!("\r\x1b[K");
        }
        if took >= WORTH_A_LINE {
            eprintln!("{}: {:.1} s", step.text, took.as_secs_f64());
        }
    }
}

impl Progress for ProgressLine {
    fn begin(&self, text: &str) {
        self.end();
        let start = Instant::now();
        let spinner = self.terminal.then(|| spin(text.to_owned(), start, Arc::clone(&self.note)));
        if spinner.is_none() {
            eprintln!("{text} ...");
        }
        let step = ProgressStep { text: text.to_owned(), start, spinner };
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }

    fn end(&self) {
        let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(step) = step {
            self.finish(step);
        }
    }
}

impl Drop for ProgressLine {
    // An error may leave a step open; its message must not follow the spinner on one line.
    fn drop(&mut self) {
        self.end();
    }
}

/// State of work in the background, such as "120 of 249 crates of vprof are compiled".
#[derive(Debug)]
pub struct BackgroundNote {
    /// Text next to the step on a terminal.
    shown: Option<Arc<Mutex<String>>>,
    /// Time of the last line elsewhere.
    printed: Instant,
}

impl BackgroundNote {
    /// Shows a new state. Where standard error is not a terminal, this prints a line, but at most every 10 s.
    pub fn set(&mut self, text: String) {
        match &self.shown {
            Some(shown) => *shown.lock().unwrap_or_else(PoisonError::into_inner) = text,
            None if self.printed.elapsed() >= NOTE => {
                eprintln!("{text}");
                self.printed = Instant::now();
            }
            None => {}
        }
    }
}

impl Drop for BackgroundNote {
    fn drop(&mut self) {
        if let Some(shown) = &self.shown {
            shown.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

fn spin(text: String, start: Instant, note: Arc<Mutex<String>>) -> (Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = channel();
    let thread = thread::spawn(move || {
        for picture in ['|', '/', '-', '\\'].into_iter().cycle() {
            let note = note.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let note = if note.is_empty() { note } else { format!(" ({note})") };
            eprint!("\r\x1b[K{picture} {text} {} s{note}", start.elapsed().as_secs());
            let _ = io::stderr().flush();
            if stopped.recv_timeout(FRAME) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    (stop, thread)
}
