//! The names of all panes, and the pane that is shown.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Style};
use text::clean::escaped;
use text::units;

use super::theme::ScreenTheme;
use super::{RowSlot, put, put_right};
use crate::top::panes::PaneKind;
use crate::top::state::ViewState;
use crate::top::table::{CellValue, PaneTable};

/// Columns left of a table.
const INDENT: u16 = 1;

/// Draws the names, the headings and the rows that fit.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &mut ViewState, theme: ScreenTheme) {
    let table = state.pane.table(&state.snapshot, state.instances, state.here().order, &state.here().filter);
    let headed = !matches!(state.pane, PaneKind::Console);
    let body = usize::from(area.height.saturating_sub(1 + u16::from(headed)));
    let furthest = table.rows.len().saturating_sub(body);
    state.page = body.max(1);
    let here = state.here_mut();
    here.scroll = here.scroll.min(furthest);
    let first = if state.pane.follows() { furthest - state.here().scroll } else { state.here().scroll };
    tabs(buffer, area, state, &where_in(&table, state, first, body), theme);
    let places = table.fit(area.width.saturating_sub(INDENT));
    let mut y = area.y + 1;
    if headed {
        headings(buffer, Position { x: area.x + INDENT, y }, state, &table, &places, theme);
        y += 1;
    }
    for (row, y) in table.rows.iter().skip(first).zip(y..area.bottom()) {
        for (at, x, width) in &places {
            if let Some(value) = row.get(*at) {
                cell(buffer, RowSlot { x: area.x + INDENT + x, y, width: *width }, value, theme);
            }
        }
    }
    if table.rows.is_empty() && y < area.bottom() {
        let sentence = if state.here().filter.is_empty() { table.empty } else { "No row has this text." };
        put(
            buffer,
            RowSlot { x: area.x + INDENT, y, width: area.width - INDENT },
            sentence,
            Style::new(),
            theme,
        );
    }
}

/// Formats the source of task states, the filter, and the rows that are on the screen.
fn where_in(table: &PaneTable, state: &ViewState, first: usize, body: usize) -> String {
    let filter = &state.here().filter;
    let filter = if filter.is_empty() { String::new() } else { format!("with \"{}\"  ", escaped(filter)) };
    let known = match (state.pane, state.snapshot.exact) {
        (PaneKind::Tasks, true) => "exact  ",
        (PaneKind::Tasks, false) => "sampled ",
        _ => "",
    };
    let filter = format!("{known}{filter}");
    let rows = table.rows.len();
    match rows <= body {
        true => filter,
        false => {
            format!("{filter}{}-{} of {}", first + 1, (first + body).min(rows), units::count(rows as u64))
        }
    }
}

/// Draws the names of the panes, that of the shown one in brackets.
fn tabs(buffer: &mut Buffer, area: Rect, state: &ViewState, note: &str, theme: ScreenTheme) {
    let long: usize = PaneKind::ALL.iter().map(|pane| pane.name().len() + 4).sum();
    let names = usize::from(area.width) >= long;
    let mut x = area.x;
    for pane in PaneKind::ALL {
        let key = pane.place() + 1;
        let shown = pane == state.pane;
        let name = if names || shown { format!("{key} {}", pane.name()) } else { key.to_string() };
        let (name, style) = match shown {
            true => (format!("[{name}]"), theme.heading()),
            false => (format!(" {name} "), Style::new()),
        };
        let width = area.right().saturating_sub(x);
        x = put(buffer, RowSlot { x, y: area.y, width }, &name, style, theme);
    }
    let room = area.right().saturating_sub(x + 1);
    put_right(buffer, RowSlot { x: x + 1, y: area.y, width: room }, note.trim_end(), Style::new(), theme);
}

fn headings(
    buffer: &mut Buffer,
    start: Position,
    state: &ViewState,
    table: &PaneTable,
    places: &[(usize, u16, u16)],
    theme: ScreenTheme,
) {
    let order = state.here().order;
    for (at, x, width) in places {
        let Some(column) = table.columns.get(*at) else { continue };
        let sorts = *at == order.column && !state.pane.follows();
        let mark = match (sorts, order.reversed, theme.unicode) {
            (false, ..) => "",
            (true, false, true) => "▼",
            (true, true, true) => "▲",
            (true, false, false) => "v",
            (true, true, false) => "^",
        };
        let place = RowSlot { x: start.x + x, y: start.y, width: *width };
        if *at + 1 == table.columns.len() || is_text(table, *at) {
            put(buffer, place, &format!("{}{mark}", column.name), theme.heading(), theme);
        } else {
            put_right(buffer, place, &format!("{mark}{}", column.name), theme.heading(), theme);
        }
    }
}

/// Returns true for a column of text, which is aligned to the left.
fn is_text(table: &PaneTable, column: usize) -> bool {
    matches!(table.rows.first().and_then(|row| row.get(column)), Some(CellValue::Text(_)))
}

fn cell(buffer: &mut Buffer, place: RowSlot, value: &CellValue, theme: ScreenTheme) {
    match value {
        CellValue::Text(text) => {
            put(buffer, place, text, Style::new(), theme);
        }
        CellValue::Bar(part) => {
            put(buffer, place, &theme.bar(*part, place.width), theme.fg(Color::Cyan), theme);
        }
        number => put_right(buffer, place, &number.shown(), Style::new(), theme),
    }
}
