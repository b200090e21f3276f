//! The names of all panes, and the one that is shown.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use text::clean::escaped;
use text::units;

use super::theme::Theme;
use super::{put, put_right};
use crate::top::panes::Pane;
use crate::top::state::State;
use crate::top::table::{Table, Value};

/// Columns left of a table.
const INDENT: u16 = 1;

/// Draws the names, the headings and the rows that fit.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &mut State, theme: Theme) {
    let table = state.pane.table(&state.look, state.here().order, &state.here().filter);
    let headed = !matches!(state.pane, Pane::Console);
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
        headings(buffer, (area.x + INDENT, y), state, &table, &places, theme);
        y += 1;
    }
    for (row, y) in table.rows.iter().skip(first).zip(y..area.bottom()) {
        for (at, x, width) in &places {
            if let Some(value) = row.get(*at) {
                cell(buffer, (area.x + INDENT + x, y, *width), value, theme);
            }
        }
    }
    if table.rows.is_empty() && y < area.bottom() {
        let sentence = if state.here().filter.is_empty() { table.empty } else { "No row has this text." };
        put(buffer, (area.x + INDENT, y, area.width - INDENT), sentence, Style::new(), theme);
    }
}

/// How tasks are known, the filter, and which rows are on the screen.
fn where_in(table: &Table, state: &State, first: usize, body: usize) -> String {
    let filter = &state.here().filter;
    let filter = if filter.is_empty() { String::new() } else { format!("with \"{}\"  ", escaped(filter)) };
    let known = match (state.pane, state.look.exact) {
        (Pane::Tasks, true) => "exact  ",
        (Pane::Tasks, false) => "sampled ",
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

/// The name of the pane that is shown stands in brackets.
fn tabs(buffer: &mut Buffer, area: Rect, state: &State, note: &str, theme: Theme) {
    let long: usize = Pane::ALL.iter().map(|pane| pane.name().len() + 4).sum();
    let names = usize::from(area.width) >= long;
    let mut x = area.x;
    for pane in Pane::ALL {
        let key = pane.place() + 1;
        let shown = pane == state.pane;
        let name = if names || shown { format!("{key} {}", pane.name()) } else { key.to_string() };
        let (name, style) = match shown {
            true => (format!("[{name}]"), theme.heading()),
            false => (format!(" {name} "), Style::new()),
        };
        let width = area.right().saturating_sub(x);
        x = put(buffer, (x, area.y, width), &name, style, theme);
    }
    let room = area.right().saturating_sub(x + 1);
    put_right(buffer, (x + 1, area.y, room), note.trim_end(), Style::new(), theme);
}

fn headings(
    buffer: &mut Buffer,
    (left, y): (u16, u16),
    state: &State,
    table: &Table,
    places: &[(usize, u16, u16)],
    theme: Theme,
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
        let place = (left + x, y, *width);
        if *at + 1 == table.columns.len() || is_text(table, *at) {
            put(buffer, place, &format!("{}{mark}", column.name), theme.heading(), theme);
        } else {
            put_right(buffer, place, &format!("{mark}{}", column.name), theme.heading(), theme);
        }
    }
}

/// It starts at the left of its column.
fn is_text(table: &Table, column: usize) -> bool {
    matches!(table.rows.first().and_then(|row| row.get(column)), Some(Value::Text(_)))
}

fn cell(buffer: &mut Buffer, place: (u16, u16, u16), value: &Value, theme: Theme) {
    match value {
        Value::Text(text) => {
            put(buffer, place, text, Style::new(), theme);
        }
        Value::Bar(part) => {
            put(buffer, place, &theme.bar(*part, place.2), theme.fg(Color::Cyan), theme);
        }
        number => put_right(buffer, place, &number.shown(), Style::new(), theme),
    }
}
