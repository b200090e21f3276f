//! Looks, keys and signals, one after the other.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::draw::theme::Theme;
use super::keys::Parser;
use super::state::{Action, State};
use super::steer::Run;
use super::terminal::{Screen, Signals, Told};
use crate::errors::Error;
use crate::terminal::KeyReader;

/// An escape that is followed by nothing for this long is the key of that name.
const ESCAPE_ALONE: Duration = Duration::from_millis(100);

/// Shows a run until somebody quits, or a signal comes, or it ends and was this process's own.
pub async fn show(run: &mut impl Run, state: &mut State) -> Result<(), Error> {
    let theme = Theme::of_environment();
    // Before the screen: a signal without a handler would leave the terminal as it is.
    let mut signals = Signals::new()?;
    let mut screen = Screen::enter()?;
    let (input, mut typed) = mpsc::channel(8);
    let _keys = KeyReader::start(input, watch::channel(false).0, None)
        .map_err(|source| Error::System { action: "read keys", source })?;
    let mut parser = Parser::default();
    let mut changed = true;
    loop {
        if std::mem::take(&mut changed) {
            screen.draw(state, theme)?;
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
                changed = state.event(event);
                if state.ended.is_some() && state.own_run {
                    return Ok(());
                }
                continue;
            }
            told = signals.next() => {
                match told {
                    // The run has heard it, too, and ends.
                    Told::End if state.own_run => {}
                    Told::End => return Ok(()),
                    Told::Resized => {}
                    Told::Stop => screen.suspend()?,
                    Told::Continue => screen.resume()?,
                }
                changed = true;
                continue;
            }
        };
        for key in keys {
            changed = true;
            match state.key(key) {
                None => {}
                Some(Action::Quit) => return Ok(()),
                Some(Action::Suspend) => screen.suspend()?,
                Some(Action::Redraw) => screen.forget()?,
                Some(Action::Send(command)) => run.send(command).await?,
            }
        }
    }
}
