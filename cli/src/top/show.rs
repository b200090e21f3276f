//! The loop of a view: events of the run, keys and signals, one after the other.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::control::{RunEvent, WatchedRun};
use super::draw::{self, theme::ScreenTheme};
use super::keys::{KeyParser, KeyPress};
use super::state::{KeyAction, ViewState};
use super::terminal::{SignalEvent, ViewScreen, ViewSignals};
use crate::errors::Error;
use crate::terminal::KeyReader;

/// An escape byte without another byte for this long is the escape key.
const ESCAPE_ALONE: Duration = Duration::from_millis(100);

/// Keys that are typed on the terminal of a view.
pub struct TypedKeys {
    bytes: mpsc::Receiver<Vec<u8>>,
    parser: KeyParser,
    _reader: KeyReader,
}

impl TypedKeys {
    /// Begins to read the terminal.
    pub fn start() -> Result<Self, Error> {
        let (input, bytes) = mpsc::channel(8);
        let reader = KeyReader::start(input, watch::channel(false).0, None)
            .map_err(|source| Error::System { action: "read keys", source })?;
        Ok(Self { bytes, parser: KeyParser::default(), _reader: reader })
    }

    /// Waits for keys; `None` if the terminal is gone. Nothing is lost if the wait is given up.
    pub async fn next(&mut self) -> Option<Vec<KeyPress>> {
        tokio::select! {
            bytes = self.bytes.recv() => bytes.map(|bytes| self.parser.feed(&bytes)),
            () = tokio::time::sleep(ESCAPE_ALONE), if self.parser.is_pending() => {
                Some(self.parser.flush().into_iter().collect())
            }
        }
    }
}

/// Shows a run until the user quits, a signal comes, or the run closes the view.
pub async fn show(run: &mut impl WatchedRun, state: &mut ViewState) -> Result<(), Error> {
    let theme = ScreenTheme::from_environment();
    // Before the screen: a signal without a handler would end this process and leave the terminal raw.
    let mut signals = ViewSignals::new()?;
    let mut screen = ViewScreen::enter()?;
    let mut typed = TypedKeys::start()?;
    let mut changed = true;
    loop {
        if std::mem::take(&mut changed) {
            screen.draw(|frame| draw::screen(frame, state, theme))?;
        }
        let keys = tokio::select! {
            keys = typed.next() => match keys {
                Some(keys) => keys,
                // The terminal is gone.
                None => return Ok(()),
            },
            event = run.next(), if state.ended.is_none() => {
                if event == RunEvent::Closed {
                    return Ok(());
                }
                changed = state.event(event);
                continue;
            }
            signal = signals.next() => {
                match signal {
                    // The run gets the same signal, and ends.
                    SignalEvent::End if state.own_run && state.ended.is_none() => {}
                    SignalEvent::End => return Ok(()),
                    SignalEvent::Resized => {}
                    SignalEvent::Stop => screen.suspend()?,
                    SignalEvent::Continue => screen.resume()?,
                }
                changed = true;
                continue;
            }
        };
        for key in keys {
            changed = true;
            match state.key(key) {
                None => {}
                Some(KeyAction::Quit) => return Ok(()),
                Some(KeyAction::Suspend) => screen.suspend()?,
                Some(KeyAction::Redraw) => screen.invalidate()?,
                Some(KeyAction::Send(command)) => run.send(command).await?,
            }
        }
    }
}
