//! A run in progress: its tables, twice a second, and the commands to it.
//!
//! ```text
//!  [`control::WatchedRun`] ──snapshots──▶ [`state::ViewState`] ──▶ screen
//!        ▲                                     ▲
//!        └──────────────commands───────────────┴──keys
//! ```
//!
//! The run may be this process or another one; a [`control::WatchedRun`] hides which, so that
//! `vprof run --top` and `vprof top` are one view.

pub mod control;
mod details;
mod draw;
#[cfg(test)]
mod fixture;
mod history;
mod panes;
pub mod state;

use std::future::pending;

use ratatui::Frame;

use crate::frame::{TerminalView, ViewAction, ViewUpdate};
use crate::keys::KeyPress;
use crate::widgets::theme::ScreenTheme;
use control::{RunCommand, RunEvent, WatchedRun};
use state::ViewState;

/// View of a run.
#[derive(Debug)]
pub struct LiveView<'a, R> {
    /// The run.
    pub run: &'a mut R,
    /// What is shown of it.
    pub state: &'a mut ViewState,
}

impl<R: WatchedRun> TerminalView for LiveView<'_, R> {
    type Command = RunCommand;
    type Error = R::Error;

    fn draw(&mut self, frame: &mut Frame<'_>, theme: ScreenTheme) {
        draw::screen(frame, self.state, theme);
    }

    fn key(&mut self, key: KeyPress) -> Option<ViewAction<RunCommand>> {
        self.state.key(key)
    }

    async fn next(&mut self) -> ViewUpdate {
        if self.state.ended.is_some() {
            return pending().await;
        }
        match self.run.next().await {
            RunEvent::Closed => ViewUpdate::Leave,
            event => match self.state.event(event) {
                true => ViewUpdate::Changed,
                false => ViewUpdate::Unchanged,
            },
        }
    }

    async fn send(&mut self, command: RunCommand) -> Result<(), R::Error> {
        self.run.send(command).await
    }

    fn leaves_at_signal(&self) -> bool {
        // The run gets the same signal, and ends.
        !self.state.own_run || self.state.ended.is_some()
    }
}
