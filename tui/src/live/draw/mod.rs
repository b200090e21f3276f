//! One screen, of any size.
//!
//! ```text
//!  header    kernel, host, time, rate, samples; the span, and what its samples hit
//!  bars      a row for each vCPU, or for several: over time, and its states in the span
//!  tabs      the panes, or the way to a table below a row
//!  pane      a table or lines; the selected row reversed
//!  bottom    keys, a question, or a message
//! ```

mod bars;
mod header;
mod help;
mod pane;

use display::clean::escaped;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use super::state::{UserPrompt, ViewState};
use crate::widgets::theme::ScreenTheme;
use crate::widgets::{RowSlot, is_too_small, prompt, put, split, too_small};

/// Lower screens have one line less of everything.
const LOW: u16 = 16;

/// Draws the screen.
pub fn screen(frame: &mut Frame<'_>, state: &mut ViewState, theme: ScreenTheme) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if is_too_small(area) {
        too_small(buffer, area, "vprof top", theme);
        return;
    }
    let bottom = Rect { y: area.bottom() - 1, height: 1, ..area };
    let upper = Rect { height: area.height - 1, ..area };
    match &mut state.help {
        Some(down) => *down = help::draw(buffer, upper, *down, state.own_run, theme),
        None => main(buffer, upper, state, theme),
    }
    if let Some(cursor) = last_line(buffer, bottom, state, theme) {
        frame.set_cursor_position(cursor);
    }
}

fn main(buffer: &mut Buffer, area: Rect, state: &mut ViewState, theme: ScreenTheme) {
    let low = area.height < LOW;
    let [header, rest] = split(area, if low { 1 } else { 2 });
    header::draw(buffer, header, state, theme);
    let [bars, rest] =
        split(rest, bars::rows(&state.snapshot, area.height.saturating_sub(5) / 3) + u16::from(!low));
    bars::draw(buffer, bars, state, theme);
    pane::draw(buffer, rest, state, theme);
}

/// Draws the last line; returns the position of the cursor.
fn last_line(buffer: &mut Buffer, area: Rect, state: &ViewState, theme: ScreenTheme) -> Option<Position> {
    let place = RowSlot { x: area.x, y: area.y, width: area.width };
    let (question, typed) = match &state.question {
        Some(UserPrompt::Filter(filter)) => ("show only rows with: ", &filter.typed),
        Some(UserPrompt::Mark(typed)) => ("mark: ", typed),
        Some(UserPrompt::End) => {
            put(buffer, place, "End the run? y ends it, any other key cancels.", theme.notice(), theme);
            return None;
        }
        None => {
            let (line, style) = match (&state.message, &state.ended) {
                (Some(message), _) => (escaped(message).into_owned(), theme.notice()),
                (None, Some(reason)) => (format!("{}; q quits", escaped(reason)), theme.notice()),
                (None, None) => (hint(area.width, state).to_owned(), Style::new()),
            };
            put(buffer, place, &line, style, theme);
            return None;
        }
    };
    Some(prompt(buffer, place, question, typed, theme))
}

fn hint(width: u16, state: &ViewState) -> &'static str {
    match (state.help.is_some(), state.details().is_empty(), width) {
        (true, ..) => "any key goes back, arrows scroll",
        (_, true, ..60) => "? help  q quit  Tab pane  Enter in",
        (_, true, 60..110) => "? help  q quit  Tab pane  Enter in  / filter  s sort  w span  space pause",
        (_, true, _) => {
            "? help  q quit  Tab pane  Enter in  c callers  / filter  s sort  w span  space pause  S stop sampling"
        }
        (_, false, ..60) => "? help  q quit  Enter in  Esc out",
        (_, false, _) => "? help  q quit  Enter in  Esc out  c callers  / filter  w span  space pause",
    }
}

#[cfg(test)]
mod tests;
