//! One screen, of any size.
//!
//! ```text
//!  title     the guest and its run; the samples of the table
//!  path      the tables on the way to the one that is shown
//!  kinds     kinds of tables of the same part, that of the shown one in brackets
//!  headings  and rows, the selected one reversed
//!  bottom    keys, a question, or a message
//! ```

use profile::report::Direction;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use text::clean::escaped;
use text::units;

use super::rows::BrowseRow;
use super::source::{KINDS, View};
use super::state::{BrowseState, Level};
use crate::top::draw::theme::ScreenTheme;
use crate::top::draw::{RowSlot, help, is_too_small, prompt, put, put_right, split, too_small};
use crate::top::table::{CellValue, fit};

/// Lower screens have no title.
const LOW: u16 = 16;
/// Columns left of a table.
const INDENT: u16 = 1;

/// Keys and their actions, and the meaning of the figures.
const HELP: [(&str, &str); 25] = [
    ("", "Keys:"),
    ("Enter", "go in: the functions of a process, thread, control group or"),
    ("", "             module; the callees of a function; the code of a callee"),
    ("Esc, Backsp.", "go out again"),
    ("1 to 9, 0", "tables of the same part by program, process, thread,"),
    ("", "             function, module, source line, instruction, control"),
    ("", "             group, interrupt, system call; Tab: the next"),
    ("c", "callers of a function; there: callees, and back"),
    ("a", "machine code of the selected function, with its samples"),
    ("/, Esc", "show only rows with a text or an id; show all again"),
    ("s", "sort functions by their own samples, or by all"),
    ("j k, arrows", "select a row; PgUp PgDn by a page, g G the ends"),
    ("Ctrl-L", "redraw the screen"),
    ("q", "quit"),
    ("", ""),
    ("", "Columns:"),
    ("share, self", "part of the samples that were not idle and hit the row"),
    ("total", "part of those that had the row on their stack"),
    ("±", "distance from the share to the end of its 95 % interval"),
    ("of it", "part of the samples of the function that the tree is of"),
    ("below", "in code: part of the function's samples in what the"),
    ("", "             instruction called, or in what has interrupted it"),
    ("", ""),
    ("", "The tables are those of `vprof report --by`, --callers, --callees and"),
    ("", "`vprof annotate`, whose help explains them."),
];

/// Draws the screen.
pub fn screen(frame: &mut Frame<'_>, state: &mut BrowseState, theme: ScreenTheme) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if is_too_small(area) {
        too_small(buffer, area, "vprof report", theme);
        return;
    }
    let bottom = Rect { y: area.bottom() - 1, height: 1, ..area };
    let upper = Rect { height: area.height - 1, ..area };
    match &mut state.help {
        Some(down) => *down = help::lines(buffer, upper, *down, &HELP, theme),
        None => main(buffer, upper, state, theme),
    }
    if let Some(cursor) = last_line(buffer, bottom, state, theme) {
        frame.set_cursor_position(cursor);
    }
}

fn main(buffer: &mut Buffer, area: Rect, state: &mut BrowseState, theme: ScreenTheme) {
    let [title, rest] = split(area, u16::from(area.height >= LOW));
    if title.height > 0 {
        let table = &state.level().table;
        let slot = RowSlot { x: title.x + INDENT, y: title.y, width: title.width - INDENT };
        let end = put(buffer, slot, &table.title, Style::new(), theme);
        let room = title.right().saturating_sub(end + 2);
        put_right(
            buffer,
            RowSlot { x: end + 2, y: title.y, width: room },
            &table.samples,
            Style::new(),
            theme,
        );
    }
    let [head, rest] = split(rest, 2);
    path(buffer, head, state, theme);
    let body = usize::from(rest.height.saturating_sub(1));
    state.page = body.max(1);
    let count = state.level().rows().len();
    let level = state.level_mut();
    level.selected = level.selected.min(count.saturating_sub(1));
    // The selected row is on the screen.
    level.scroll = level.scroll.min(level.selected).max((level.selected + 1).saturating_sub(body.max(1)));
    kinds(buffer, RowSlot { x: head.x, y: head.y + 1, width: head.width }, level, (count, body), theme);
    rows(buffer, rest, level, theme);
}

/// Draws the way to the table: its end, where all of it has no room.
fn path(buffer: &mut Buffer, area: Rect, state: &BrowseState, theme: ScreenTheme) {
    let name = |level: &Level| match &level.place.view {
        View::Calls(_, Direction::Callers) => format!("callers of {}", level.place.name),
        View::Calls(_, Direction::Callees) => format!("callees of {}", level.place.name),
        View::Code(_) => format!("code of {}", level.place.name),
        View::By(_) => level.place.name.clone(),
    };
    let names: Vec<String> = state.levels().iter().map(name).collect();
    let room = usize::from(area.width.saturating_sub(INDENT));
    let length = |from: usize| names[from..].iter().map(|name| name.chars().count() + 3).sum::<usize>();
    let from = (0..names.len()).find(|from| length(*from) <= room).unwrap_or(names.len() - 1);
    let text = names[from..].join(" > ");
    let text = if from > 0 { format!("> {text}") } else { text };
    let slot = RowSlot { x: area.x + INDENT, y: area.y, width: area.width - INDENT };
    put(buffer, slot, &text, theme.heading(), theme);
}

/// Draws the kinds of tables, and which rows are on the screen.
fn kinds(
    buffer: &mut Buffer,
    slot: RowSlot,
    level: &Level,
    (count, body): (usize, usize),
    theme: ScreenTheme,
) {
    let mut x = slot.x;
    let right = slot.x + slot.width;
    if let View::By(shown) = level.place.view {
        let long: usize = KINDS.iter().map(|by| by.name().len() + 4).sum();
        let names = usize::from(slot.width) >= long;
        for (place, by) in KINDS.into_iter().enumerate() {
            let key = (place + 1) % KINDS.len();
            let name = if names || by == shown { format!("{key} {}", by.name()) } else { key.to_string() };
            let (name, style) = match by == shown {
                true => (format!("[{name}]"), theme.heading()),
                false => (format!(" {name} "), Style::new()),
            };
            x = put(buffer, RowSlot { x, width: right.saturating_sub(x), ..slot }, &name, style, theme);
        }
    }
    let mut note = String::new();
    if !level.filter.is_empty() {
        note = format!("with \"{}\"  ", escaped(&level.filter));
    }
    if count > body {
        let last = (level.scroll + body).min(count);
        note += &format!("{}-{last} of {}", level.scroll + 1, units::count(count as u64));
    }
    let room = right.saturating_sub(x + 1);
    put_right(buffer, RowSlot { x: x + 1, width: room, ..slot }, note.trim_end(), Style::new(), theme);
}

fn rows(buffer: &mut Buffer, area: Rect, level: &Level, theme: ScreenTheme) {
    let columns = level.table.columns;
    let places = fit(columns, level.table.least, area.width.saturating_sub(INDENT));
    let rows = level.rows();
    let is_text = |at: usize| {
        let first = level.table.rows.last().and_then(|row| row.cells.get(at));
        matches!(first, Some(CellValue::Text(_)))
    };
    for (at, x, width) in &places {
        let Some(column) = columns.get(*at) else { continue };
        let slot = RowSlot { x: area.x + INDENT + x, y: area.y, width: *width };
        let mark = if level.by_total == (column.name == "total") && matches!(column.name, "self" | "total") {
            "*"
        } else {
            ""
        };
        let name =
            if level.table.has_totals() { format!("{mark}{}", column.name) } else { column.name.to_owned() };
        if *at + 1 == columns.len() || is_text(*at) {
            put(buffer, slot, &name, theme.heading(), theme);
        } else {
            put_right(buffer, slot, &name, theme.heading(), theme);
        }
    }
    let lines = area.y + 1..area.bottom();
    if rows.is_empty() {
        let sentence = if level.filter.is_empty() { "No sample fits." } else { "No row has this text." };
        let slot = RowSlot { x: area.x + INDENT, y: area.y + 1, width: area.width - INDENT };
        if slot.y < area.bottom() {
            put(buffer, slot, sentence, Style::new(), theme);
        }
    }
    for ((position, row), y) in rows.iter().enumerate().skip(level.scroll).zip(lines) {
        let style = if position == level.selected { theme.notice() } else { Style::new() };
        if position == level.selected {
            buffer.set_style(Rect { y, height: 1, ..area }, style);
        }
        for (at, x, width) in &places {
            let slot = RowSlot { x: area.x + INDENT + x, y, width: *width };
            cell(buffer, slot, (row, *at), style, theme);
        }
    }
}

fn cell(
    buffer: &mut Buffer,
    slot: RowSlot,
    (row, at): (&BrowseRow, usize),
    style: Style,
    theme: ScreenTheme,
) {
    match row.cells.get(at) {
        None => {}
        Some(CellValue::Text(text)) => {
            put(buffer, slot, text, style, theme);
        }
        Some(CellValue::Bar(part)) => {
            put(buffer, slot, &theme.bar(*part, slot.width), theme.fg(Color::Cyan).patch(style), theme);
        }
        Some(number) => {
            // The limits of `vprof report`: its first column is coloured by the share.
            let hot = match (at, row.shares.0) {
                (0, 0.05..) => theme.fg(Color::Red).add_modifier(Modifier::BOLD),
                (0, 0.005..) => theme.fg(Color::Green),
                _ => Style::new(),
            };
            put_right(buffer, slot, &number.shown(), hot.patch(style), theme);
        }
    }
}

/// Draws the last line; returns the position of the cursor.
fn last_line(buffer: &mut Buffer, area: Rect, state: &BrowseState, theme: ScreenTheme) -> Option<Position> {
    let slot = RowSlot { x: area.x, y: area.y, width: area.width };
    if let Some(filter) = &state.question {
        return Some(prompt(buffer, slot, "show only rows with: ", &filter.typed, theme));
    }
    match &state.message {
        Some(message) => put(buffer, slot, &escaped(message), theme.notice(), theme),
        None => put(buffer, slot, hint(area.width, state), Style::new(), theme),
    };
    None
}

fn hint(width: u16, state: &BrowseState) -> &'static str {
    match (state.help.is_some(), width) {
        (true, _) => "any key goes back, arrows scroll",
        (_, ..60) => "? help  q quit  Enter in  Esc out",
        (_, 60..90) => "? help  q quit  Enter in  Esc out  / filter  a code  c callers  Tab tables",
        _ => {
            "? help  q quit  Enter in  Esc out  / filter  a code  c callers  s sort  Tab, 1 to 0 tables of this part"
        }
    }
}
