//! The loop of a view: events of the run, keys and signals, one after the other.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::control::{RunEvent, WatchedRun};
use super::draw::{self, theme::ScreenTheme};
use super::keys::KeyParser;
use super::state::{KeyAction, ViewState};
use super::terminal::{SignalEvent, ViewScreen, ViewSignals};
use crate::errors::Error;
use crate::terminal::KeyReader;

/// An escape byte without another byte for this long is the escape key.
pub const ESCAPE_ALONE: Duration = Duration::from_millis(100);

/// Shows a run until the user quits, a signal comes, or the run closes the view.
pub async fn show(run: &mut impl WatchedRun, state: &mut ViewState) -> Result<(), Error> {
    let theme = ScreenTheme::from_environment();
    // Before the screen: a signal without a handler would end this process and leave the terminal raw.
    let mut signals = ViewSignals::new()?;
    let mut screen = ViewScreen::enter()?;
    let (input, mut typed) = mpsc::channel(8);
    let _keys = KeyReader::start(input, watch::channel(false).0, None)
        .map_err(|source| Error::System { action: "read keys", source })?;
    let mut parser = KeyParser::default();
    let mut changed = true;
    loop {
        if std::mem::take(&mut changed) {
            screen.draw(|frame| draw::screen(frame, state, theme))?;
        }
        let keys = tokio::select! {
            bytes = typed.recv() => match bytes {
                Some(bytes) => parser.feed(&bytes),
                // The terminal is gone.
                None => return Ok(()),
            },
            () = tokio::time::sleep(ESCAPE_ALONE), if parser.is_pending() => {
                parser.flush().into_iter().collect()
            }
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
