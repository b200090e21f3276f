//! The loop of every view: keys, signals and events, one after the other.
//!
//! A view draws itself, and says what a key means; the loop owns the terminal, because a terminal that stays
//! raw after an error or a signal is unusable. For example, Ctrl-Z in a view of another process restores the
//! screen, stops this process, and draws everything again when the shell continues it.

use std::time::Duration;

use ratatui::Frame;
use tokio::sync::{mpsc, watch};

use crate::ViewError;
use crate::keys::{KeyParser, KeyPress};
use crate::screen::{SignalEvent, ViewScreen, ViewSignals};
use crate::terminal::KeyReader;
use crate::widgets::theme::ScreenTheme;

/// An escape byte without another byte for this long is the escape key.
const ESCAPE_ALONE: Duration = Duration::from_millis(100);

/// What the loop does for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewAction<C> {
    /// Give a command to the source of what the view shows.
    Send(C),
    /// Leave the screen.
    Quit,
    /// Stop this process, as a shell's job.
    Suspend,
    /// Redraw the screen: another program has written to the terminal.
    Redraw,
}

/// What the loop does after an event of the view's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewUpdate {
    /// Draw the view.
    Changed,
    /// Nothing: the screen shows the same.
    Unchanged,
    /// Leave the screen.
    Leave,
}

/// A view that fills the terminal.
pub trait TerminalView {
    /// Command to the source of what the view shows.
    type Command;
    /// Failure of that source, or of the terminal.
    type Error: From<ViewError>;

    /// Draws the whole view.
    fn draw(&mut self, frame: &mut Frame<'_>, theme: ScreenTheme);

    /// Processes a key.
    fn key(&mut self, key: KeyPress) -> Option<ViewAction<Self::Command>>;

    /// Waits for the next event of the source. The future may be dropped, and the method called again.
    fn next(&mut self) -> impl Future<Output = ViewUpdate>;

    /// Gives a command to the source.
    ///
    /// # Errors
    /// The source failed, and the view cannot go on.
    fn send(&mut self, command: Self::Command) -> impl Future<Output = Result<(), Self::Error>>;

    /// Returns true if a signal that ends this process ends the view at once.
    fn leaves_at_signal(&self) -> bool {
        true
    }
}

/// Keys that are typed on the terminal of a view.
struct TypedKeys {
    bytes: mpsc::Receiver<Vec<u8>>,
    parser: KeyParser,
    _reader: KeyReader,
}

impl TypedKeys {
    /// Begins to read the terminal.
    fn start() -> Result<Self, ViewError> {
        let (input, bytes) = mpsc::channel(8);
        let reader = KeyReader::start(input, watch::channel(false).0, None)
            .map_err(|source| ViewError::System { action: "read keys", source })?;
        Ok(Self { bytes, parser: KeyParser::default(), _reader: reader })
    }

    /// Waits for keys; `None` if the terminal is gone. Nothing is lost if the wait is given up.
    async fn next(&mut self) -> Option<Vec<KeyPress>> {
        tokio::select! {
            bytes = self.bytes.recv() => bytes.map(|bytes| self.parser.feed(&bytes)),
            () = tokio::time::sleep(ESCAPE_ALONE), if self.parser.is_pending() => {
                Some(self.parser.flush().into_iter().collect())
            }
        }
    }
}

/// Shows a view until the user quits, a signal comes, or the view leaves. `stop_process` stops this process
/// until a shell continues it.
///
/// # Errors
/// The terminal or the view's source failed.
pub async fn show<V: TerminalView>(view: &mut V, stop_process: fn()) -> Result<(), V::Error> {
    let theme = ScreenTheme::from_environment();
    // Before the screen: a signal without a handler would end this process and leave the terminal raw.
    let mut signals = ViewSignals::new()?;
    let mut screen = ViewScreen::enter(stop_process)?;
    let mut typed = TypedKeys::start()?;
    let mut changed = true;
    loop {
        if std::mem::take(&mut changed) {
            screen.draw(|frame| view.draw(frame, theme))?;
        }
        let keys = tokio::select! {
            keys = typed.next() => match keys {
                Some(keys) => keys,
                // The terminal is gone.
                None => return Ok(()),
            },
            update = view.next() => {
                match update {
                    ViewUpdate::Leave => return Ok(()),
                    ViewUpdate::Changed => changed = true,
                    ViewUpdate::Unchanged => {}
                }
                continue;
            }
            signal = signals.next() => {
                match signal {
                    SignalEvent::End if view.leaves_at_signal() => return Ok(()),
                    SignalEvent::End | SignalEvent::Resized => {}
                    SignalEvent::Stop => screen.suspend()?,
                    SignalEvent::Continue => screen.resume()?,
                }
                changed = true;
                continue;
            }
        };
        for key in keys {
            changed = true;
            match view.key(key) {
                None => {}
                Some(ViewAction::Quit) => return Ok(()),
                Some(ViewAction::Suspend) => screen.suspend()?,
                Some(ViewAction::Redraw) => screen.invalidate()?,
                Some(ViewAction::Send(command)) => {
                    // The source may take a moment, and the view says so.
                    screen.draw(|frame| view.draw(frame, theme))?;
                    view.send(command).await?;
                }
            }
        }
    }
}
