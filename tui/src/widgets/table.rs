//! A table with its selected row, and the lines above one.

use display::clean::escaped;
use display::units;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::theme::ScreenTheme;
use super::{RowSlot, put, put_right};
use crate::list::ListState;
use crate::table::{CellValue, ScreenTable, SortOrder, TableRow};

/// Columns left of a table.
pub const INDENT: u16 = 1;

/// A table on the screen.
#[derive(Debug)]
pub struct TableView<'a, T> {
    /// Its columns.
    pub table: &'a ScreenTable<T>,
    /// Rows from the first one on the screen on.
    pub rows: &'a [&'a TableRow<T>],
    /// Position of the selected row among them.
    pub selected: Option<usize>,
    /// Order that the headings show.
    pub order: SortOrder,
    /// Sentence in place of rows.
    pub empty: &'a str,
}

impl<T> TableView<'_, T> {
    /// Draws headings and rows.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, theme: ScreenTheme) {
        let Self { table, rows, selected, empty, .. } = self;
        let places = table.fit(area.width.saturating_sub(INDENT));
        let slot = |x: u16, y: u16, width: u16| RowSlot { x: area.x + INDENT + x, y, width };
        let headed = u16::from(table.columns.iter().any(|column| !column.name.is_empty()));
        for (at, x, width) in places.iter().filter(|_| headed > 0) {
            self.heading(buffer, slot(*x, area.y, *width), *at, theme);
        }
        let top = area.y + headed;
        if rows.is_empty() && top < area.bottom() {
            put(buffer, slot(0, top, area.width - INDENT), empty, Style::new(), theme);
        }
        for ((at, row), y) in rows.iter().enumerate().zip(top..area.bottom()) {
            let style = if Some(at) == *selected { theme.notice() } else { Style::new() };
            buffer.set_style(Rect { y, height: 1, ..area }, style);
            if let ([note @ CellValue::Text(_)], [_, _, ..]) = (row.cells.as_slice(), places.as_slice()) {
                cell(buffer, slot(0, y, area.width - INDENT), (note, 0), style, theme);
                continue;
            }
            for (at, x, width) in &places {
                if let Some(value) = row.cells.get(*at) {
                    cell(buffer, slot(*x, y, *width), (value, *at), style, theme);
                }
            }
        }
    }

    fn heading(&self, buffer: &mut Buffer, slot: RowSlot, at: usize, theme: ScreenTheme) {
        let Some(column) = self.table.columns.get(at) else { return };
        let sorts = at == self.order.column && self.table.sorts;
        let mark = match (sorts, self.order.reversed, theme.unicode) {
            (false, ..) => "",
            (true, false, true) => "▼",
            (true, true, true) => "▲",
            (true, false, false) => "v",
            (true, true, false) => "^",
        };
        // All rows of code but the first ones, which are notes, have text in the same columns.
        let cells = self.table.rows.last().map(|row| row.cells.as_slice()).unwrap_or_default();
        if column.name.is_empty() {
            put(buffer, slot, "0", Style::new(), theme);
            put_right(buffer, slot, "100 %", Style::new(), theme);
        } else if at + 1 == self.table.columns.len() || matches!(cells.get(at), Some(CellValue::Text(_))) {
            put(buffer, slot, &format!("{}{mark}", column.name), theme.heading(), theme);
        } else {
            put_right(buffer, slot, &format!("{mark}{}", column.name), theme.heading(), theme);
        }
    }
}

fn cell(
    buffer: &mut Buffer,
    slot: RowSlot,
    (value, at): (&CellValue, usize),
    style: Style,
    theme: ScreenTheme,
) {
    match value {
        CellValue::Text(text) => {
            put(buffer, slot, text, style, theme);
        }
        CellValue::Bar(part) => {
            put(buffer, slot, &theme.bar(*part, slot.width), theme.fg(Color::Cyan).patch(style), theme);
        }
        number => {
            // The limits of `vprof report`: its first column is coloured by the share.
            let hot = match (at, number) {
                (0, CellValue::Share(0.05..)) => theme.fg(Color::Red).add_modifier(Modifier::BOLD),
                (0, CellValue::Share(0.005..)) => theme.fg(Color::Green),
                _ => Style::new(),
            };
            put_right(buffer, slot, &number.shown(), hot.patch(style), theme);
        }
    }
}

/// Formats the filter of a list, and which of `rows` rows are the `body` rows on the screen.
pub fn shown(list: &ListState, first: usize, rows: usize, body: usize) -> String {
    let mut note = String::new();
    if !list.filter.is_empty() {
        note = format!("with \"{}\"  ", escaped(&list.filter));
    }
    if rows > body {
        note += &format!("{}-{} of {}", first + 1, (first + body).min(rows), units::count(rows as u64));
    }
    note.trim_end().to_owned()
}

/// Draws the way to a table; its end, if all of it has no room. Returns the column after it.
pub fn path(buffer: &mut Buffer, slot: RowSlot, names: &[String], theme: ScreenTheme) -> u16 {
    let room = usize::from(slot.width);
    let length = |from: usize| names[from..].iter().map(|name| name.chars().count() + 3).sum::<usize>();
    let from = (0..names.len()).find(|from| length(*from) <= room).unwrap_or(names.len().saturating_sub(1));
    let text = names[from..].join(" > ");
    let text = if from > 0 { format!("> {text}") } else { text };
    put(buffer, slot, &text, theme.heading(), theme)
}

/// Draws the names of tables with their keys, that of the shown one in brackets, and a note at the right. A
/// screen without room for both has the keys only.
pub fn tabs<'a>(
    buffer: &mut Buffer,
    slot: RowSlot,
    tables: impl Iterator<Item = (usize, &'a str, bool)> + Clone,
    note: &str,
    theme: ScreenTheme,
) {
    let room = usize::from(slot.width).saturating_sub(note.chars().count() + 1);
    let length = |each: usize| tables.clone().map(|(_, name, _)| name.len() + each).sum::<usize>();
    // Two columns between names, or one.
    let (far, names) = (length(4) <= room, length(3) < room);
    let right = slot.x + slot.width;
    let mut x = slot.x;
    for (key, name, shown) in tables {
        let name = if names || shown { format!("{key} {name}") } else { key.to_string() };
        let (name, style) = match shown {
            true => (format!("[{name}]"), theme.heading()),
            false => (format!(" {name} "), Style::new()),
        };
        let end = put(buffer, RowSlot { x, width: right.saturating_sub(x), ..slot }, &name, style, theme);
        x = end.saturating_sub(u16::from(names && !far && !shown));
    }
    beside(buffer, slot, x, note, theme);
}

/// Draws a note at the right of a line whose text ends at column `x`.
pub fn beside(buffer: &mut Buffer, slot: RowSlot, x: u16, note: &str, theme: ScreenTheme) {
    let room = (slot.x + slot.width).saturating_sub(x + 1);
    put_right(buffer, RowSlot { x: x + 1, width: room, ..slot }, note, Style::new(), theme);
}
