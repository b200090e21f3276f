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
pub mod help;
mod pane;
pub mod table;
pub mod theme;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use super::state::{UserPrompt, ViewState};
use text::clean::escaped;
use theme::ScreenTheme;

/// Smallest usable screen.
const LEAST: (u16, u16) = (40, 10);
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

/// Splits off the upper rows.
pub fn split(area: Rect, rows: u16) -> [Rect; 2] {
    let rows = rows.min(area.height);
    [Rect { height: rows, ..area }, Rect { y: area.y + rows, height: area.height - rows, ..area }]
}

/// True if the screen has no room for a view.
pub fn is_too_small(area: Rect) -> bool {
    area.width < LEAST.0 || area.height < LEAST.1
}

/// Draws the size that the view of this name needs.
pub fn too_small(buffer: &mut Buffer, area: Rect, name: &str, theme: ScreenTheme) {
    let (columns, rows) = LEAST;
    let lines = [
        "Too small.".to_owned(),
        format!("{name} needs {columns}x{rows},"),
        format!("this is {}x{}.", area.width, area.height),
        "q quits.".to_owned(),
    ];
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        put(buffer, RowSlot { x: area.x, y, width: area.width }, line, Style::new(), theme);
    }
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

/// Draws a question and what was typed so far; returns the position of the cursor.
pub fn prompt(
    buffer: &mut Buffer,
    slot: RowSlot,
    question: &str,
    typed: &str,
    theme: ScreenTheme,
) -> Position {
    // A long text is cut at its start, as the user types at its end.
    let typed = escaped(typed);
    let room = usize::from(slot.width).saturating_sub(question.len() + 1);
    let mut end = typed.as_ref();
    while end.width() > room {
        end = end.char_indices().nth(1).map_or("", |(at, _)| &end[at..]);
    }
    let x = put(buffer, slot, &format!("{question}{end}"), theme.heading(), theme);
    Position { x: x.min((slot.x + slot.width).saturating_sub(1)), y: slot.y }
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

/// Part of a row of the screen.
#[derive(Debug, Clone, Copy)]
pub struct RowSlot {
    pub x: u16,
    pub y: u16,
    pub width: u16,
}

/// Writes a text at the left of the slot; returns the column after it.
pub fn put(buffer: &mut Buffer, slot: RowSlot, text: &str, style: Style, theme: ScreenTheme) -> u16 {
    let RowSlot { x, y, width } = slot;
    let text = theme.cut(text, width);
    buffer.set_stringn(x, y, text, usize::from(width), style).0
}

/// Writes a text at the right of the slot.
pub fn put_right(buffer: &mut Buffer, slot: RowSlot, text: &str, style: Style, theme: ScreenTheme) {
    let RowSlot { x, y, width } = slot;
    let text = theme.cut(text, width);
    let own = u16::try_from(text.width()).unwrap_or(width).min(width);
    buffer.set_stringn(x + width - own, y, text, usize::from(own), style);
}

#[cfg(test)]
mod tests;
