//! The help of a view: lines of keys and their actions, which scroll.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::theme::ScreenTheme;
use super::{RowSlot, put};
use crate::keys::KeyPress;

/// Columns of keys.
const KEYS: u16 = 13;

/// Draws lines of help from line `down` on, each a key and its action; a line without a key is text, or a
/// heading if it ends with a colon. Returns the first line, which is limited by the length of the text.
pub fn draw_lines(
    buffer: &mut Buffer,
    area: Rect,
    down: usize,
    all: &[(&str, &str)],
    theme: ScreenTheme,
) -> usize {
    let down = down.min(all.len().saturating_sub(usize::from(area.height)));
    for ((key, text), y) in all.iter().skip(down).zip(area.top()..area.bottom()) {
        let x = area.x + 1;
        let style = if text.ends_with(':') && key.is_empty() { theme.heading() } else { Style::new() };
        if key.is_empty() {
            put(buffer, RowSlot { x, y, width: area.width - 1 }, text, style, theme);
        } else {
            put(buffer, RowSlot { x, y, width: KEYS - 1 }, key, theme.heading(), theme);
            put(
                buffer,
                RowSlot { x: x + KEYS, y, width: area.width.saturating_sub(1 + KEYS) },
                text,
                style,
                theme,
            );
        }
    }
    down
}

/// Returns the first line of the help after a key; `None` if the key closes the help.
pub fn scroll(down: usize, key: KeyPress, page: usize) -> Option<usize> {
    match key {
        KeyPress::Down | KeyPress::Char('j' | ' ') => Some(down.saturating_add(1)),
        KeyPress::Up | KeyPress::Char('k') => Some(down.saturating_sub(1)),
        KeyPress::PageDown => Some(down.saturating_add(page)),
        KeyPress::PageUp => Some(down.saturating_sub(page)),
        _ => None,
    }
}
