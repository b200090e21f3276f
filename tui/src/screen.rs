//! The terminal of a view: the alternate screen, which vprof leaves on every exit path and while this process
//! is stopped.

use std::io::{self, IsTerminal, Stdout};

use ratatui::backend::Backend;
use ratatui::{Frame, Terminal};
use tokio::signal::unix::{self, SignalKind, signal};

use crate::ViewError;
use crate::backend::AnsiBackend;
use crate::terminal::{RawMode, is_foreground};

/// Switches to the alternate screen and hides the cursor (xterm: DECSET 1049 and 25).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// Restores the screen and the cursor.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Reason why a terminal cannot show a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnusableTerminal {
    /// Standard input or output is not a terminal.
    NoTerminal,
    /// The terminal has no cursor control; the value of TERM.
    Plain(String),
}

/// Checks that standard input and output are a terminal that can show a view.
///
/// # Errors
/// They are not.
pub fn check_terminal() -> Result<(), UnusableTerminal> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(UnusableTerminal::NoTerminal);
    }
    match std::env::var("TERM") {
        Ok(term) if !term.is_empty() && term != "dumb" => Ok(()),
        term => Err(UnusableTerminal::Plain(term.unwrap_or_default())),
    }
}

fn failed(source: io::Error) -> ViewError {
    ViewError::System { action: "use the terminal", source }
}

/// Alternate screen; dropping it restores the terminal.
#[derive(Debug)]
pub struct ViewScreen {
    terminal: Terminal<AnsiBackend<Stdout>>,
    raw: Option<RawMode>,
    stop_process: fn(),
}

impl ViewScreen {
    /// Switches to the alternate screen. `stop_process` stops this process until it is continued.
    pub fn enter(stop_process: fn()) -> Result<Self, ViewError> {
        let raw = RawMode::enter_screen(ENTER, LEAVE).map_err(failed)?;
        let terminal = Terminal::new(AnsiBackend::new(io::stdout())).map_err(failed)?;
        Ok(Self { terminal, raw: Some(raw), stop_process })
    }

    /// Draws the changes, if the screen is active.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<(), ViewError> {
        if self.raw.is_some() {
            self.terminal.draw(draw).map_err(failed)?;
        }
        Ok(())
    }

    /// Clears the screen after another program has written to it.
    pub fn invalidate(&mut self) -> Result<(), ViewError> {
        self.terminal.clear().map_err(failed)
    }

    /// Restores the terminal, and stops this process until it is continued.
    pub fn suspend(&mut self) -> Result<(), ViewError> {
        self.raw = None;
        (self.stop_process)();
        self.resume()
    }

    /// Continues after this process was stopped; without a screen if it is in the background.
    pub fn resume(&mut self) -> Result<(), ViewError> {
        if !is_foreground() {
            self.raw = None;
            return Ok(());
        }
        match &self.raw {
            Some(raw) => raw.again(ENTER).map_err(failed)?,
            None => self.raw = Some(RawMode::enter_screen(ENTER, LEAVE).map_err(failed)?),
        }
        self.terminal.backend_mut().hide_cursor().map_err(failed)?;
        self.invalidate()
    }
}

/// Meaning of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalEvent {
    /// End the view.
    End,
    /// The terminal has another size.
    Resized,
    /// Stop the process until [`SignalEvent::Continue`].
    Stop,
    /// The process was stopped, and continues.
    Continue,
}

/// Signals that a view handles.
#[derive(Debug)]
pub struct ViewSignals {
    ends: [unix::Signal; 4],
    resized: unix::Signal,
    stop: unix::Signal,
    cont: unix::Signal,
}

impl ViewSignals {
    /// Installs the handlers.
    pub fn new() -> Result<Self, ViewError> {
        let listen =
            |kind| signal(kind).map_err(|source| ViewError::System { action: "wait for signals", source });
        Ok(Self {
            ends: [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
                listen(SignalKind::quit())?,
            ],
            resized: listen(SignalKind::window_change())?,
            stop: listen(SignalKind::from_raw(libc::SIGTSTP))?,
            cont: listen(SignalKind::from_raw(libc::SIGCONT))?,
        })
    }

    /// Waits for the next signal. The future may be dropped, and the method called again.
    pub async fn next(&mut self) -> SignalEvent {
        let [interrupt, terminate, hangup, quit] = &mut self.ends;
        tokio::select! {
            _ = interrupt.recv() => SignalEvent::End,
            _ = terminate.recv() => SignalEvent::End,
            _ = hangup.recv() => SignalEvent::End,
            _ = quit.recv() => SignalEvent::End,
            _ = self.resized.recv() => SignalEvent::Resized,
            _ = self.stop.recv() => SignalEvent::Stop,
            _ = self.cont.recv() => SignalEvent::Continue,
        }
    }
}
