//! The tables of a profile, one below the other.
//!
//! ```text
//!  ReportSource ──tables──▶ BrowseState ──▶ screen
//!        ▲                       ▲
//!        └─────────places────────┴──keys
//! ```
//!
//! Each table is one that `vprof report` or `vprof annotate` prints, read by the same functions. For example,
//! Enter on a function reads its callees, as `--callees` does.

mod draw;
mod rows;
mod source;
mod state;
#[cfg(test)]
mod tests;

use std::future::pending;
use std::path::Path;

use profile::Filter;
use ratatui::Frame;

use crate::ViewError;
use crate::frame::{TerminalView, ViewAction, ViewUpdate};
use crate::keys::KeyPress;
use crate::widgets::theme::ScreenTheme;
use source::ReportSource;
use state::{BrowseState, Step};

/// View of a profile.
#[derive(Debug)]
pub struct BrowseView {
    source: ReportSource,
    state: BrowseState,
}

impl BrowseView {
    /// Opens the profile, and reads the table of programs of a part of it.
    ///
    /// # Errors
    /// The profile cannot be read, or has no such part.
    pub fn open(profile: &Path, part: Filter) -> Result<Self, ViewError> {
        let source = ReportSource::open(profile)?;
        let place = source::Place::of_programs(part);
        let table = source.table(&place)?;
        Ok(Self { source, state: BrowseState::new(place, table) })
    }
}

impl TerminalView for BrowseView {
    type Command = Box<Step>;
    type Error = ViewError;

    fn draw(&mut self, frame: &mut Frame<'_>, theme: ScreenTheme) {
        draw::screen(frame, &mut self.state, theme);
    }

    fn key(&mut self, key: KeyPress) -> Option<ViewAction<Box<Step>>> {
        let action = self.state.key(key);
        if matches!(action, Some(ViewAction::Send(_))) {
            // A large profile takes a moment.
            self.state.message = Some("reading ...".to_owned());
        }
        action
    }

    async fn next(&mut self) -> ViewUpdate {
        pending().await
    }

    async fn send(&mut self, step: Box<Step>) -> Result<(), ViewError> {
        self.state.arrive(self.source.table(&step.place), *step);
        Ok(())
    }
}
