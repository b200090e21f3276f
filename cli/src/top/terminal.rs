//! The terminal while somebody looks: another screen, which is left on every way out, and for as long as this process is
//! stopped.

use std::io::{self, IsTerminal, Stdout};

use nix::sys::signal::{Signal, raise};
use ratatui::Terminal;
use ratatui::backend::Backend;
use tokio::signal::unix::{self, SignalKind, signal};

use super::backend::Ansi;
use super::draw::{self, theme::Theme};
use super::state::State;
use crate::errors::{Error, UsageError};
use crate::terminal::{RawMode, is_foreground};

/// Goes to the alternate screen and hides the cursor (xterm: DECSET 1049 and 25).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// Undoes it.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Checks that this terminal is usable for a live view.
pub fn check() -> Result<(), Error> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(UsageError::NoTerminal.into());
    }
    match std::env::var("TERM") {
        Ok(term) if !term.is_empty() && term != "dumb" => Ok(()),
        term => Err(UsageError::PlainTerminal(term.unwrap_or_default()).into()),
    }
}

fn failed(source: io::Error) -> Error {
    Error::System { action: "use the terminal", source }
}

/// The screen; dropping it leaves it.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<Ansi<Stdout>>,
    raw: Option<RawMode>,
}

impl Screen {
    /// Goes to the screen.
    pub fn enter() -> Result<Self, Error> {
        let raw = RawMode::enter_screen(ENTER, LEAVE).map_err(failed)?;
        let terminal = Terminal::new(Ansi::new(io::stdout())).map_err(failed)?;
        Ok(Self { terminal, raw: Some(raw) })
    }

    /// Draws what has changed, if the screen is there.
    pub fn draw(&mut self, state: &mut State, theme: Theme) -> Result<(), Error> {
        if self.raw.is_some() {
            self.terminal.draw(|frame| draw::screen(frame, state, theme)).map_err(failed)?;
        }
        Ok(())
    }

    /// What is there is not what was drawn.
    pub fn forget(&mut self) -> Result<(), Error> {
        self.terminal.clear().map_err(failed)
    }

    /// Leaves the screen and stops this process until it is told to go on.
    pub fn suspend(&mut self) -> Result<(), Error> {
        self.raw = None;
        raise(Signal::SIGSTOP).map_err(|error| failed(error.into()))?;
        self.resume()
    }

    /// Goes on after this process was stopped, by whomever; in the background without a screen.
    pub fn resume(&mut self) -> Result<(), Error> {
        if !is_foreground() {
            self.raw = None;
            return Ok(());
        }
        match &self.raw {
            Some(raw) => raw.again(ENTER).map_err(failed)?,
            None => self.raw = Some(RawMode::enter_screen(ENTER, LEAVE).map_err(failed)?),
        }
        self.terminal.backend_mut().hide_cursor().map_err(failed)?;
        self.forget()
    }
}

/// What a signal says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Leave.
    End,
    /// The terminal has another size.
    Resized,
    /// Stop until [`Told::Continue`].
    Stop,
    /// This process was stopped, and goes on.
    Continue,
}

/// The signals that a screen has to do with.
#[derive(Debug)]
pub struct Signals {
    ends: [unix::Signal; 4],
    resized: unix::Signal,
    stop: unix::Signal,
    cont: unix::Signal,
}

impl Signals {
    /// Takes them from now on.
    pub fn new() -> Result<Self, Error> {
        let listen =
            |kind| signal(kind).map_err(|source| Error::System { action: "wait for signals", source });
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

    /// The next one. May be dropped, and called again.
    pub async fn next(&mut self) -> Told {
        let [interrupt, terminate, hangup, quit] = &mut self.ends;
        tokio::select! {
            _ = interrupt.recv() => Told::End,
            _ = terminate.recv() => Told::End,
            _ = hangup.recv() => Told::End,
            _ = quit.recv() => Told::End,
            _ = self.resized.recv() => Told::Resized,
            _ = self.stop.recv() => Told::Stop,
            _ = self.cont.recv() => Told::Continue,
        }
    }
}
