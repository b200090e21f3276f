//! Parts of a screen that every view draws: text in a row, a question, a table, the help.
//!
//! A view asks for a place and gives a text; cutting it, and replacing characters that the terminal lacks, is
//! done here, because a view must fit any terminal. For example, [`put`] writes `a long na~` into ten columns
//! of an ASCII terminal.

pub mod calls;
pub mod help;
pub mod table;
pub mod theme;

use display::clean::escaped;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use theme::ScreenTheme;

/// Smallest usable screen.
const LEAST: (u16, u16) = (40, 10);
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
