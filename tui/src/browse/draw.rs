//! One screen, of any size.
//!
//! ```text
//!  title     the guest and its run; the samples of the table
//!  path      the tables on the way to the one that is shown
//!  kinds     kinds of tables of the same part, that of the shown one in brackets
//!  headings  and rows, the selected one reversed
//!  bottom    keys, a question, or a message
//! ```

use display::clean::escaped;
use profile::report::Direction;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use super::source::{KINDS, View};
use super::state::{BrowseState, Level};
use crate::widgets::table::{INDENT, TableView, beside, path, shown, tabs};
use crate::widgets::theme::ScreenTheme;
use crate::widgets::{RowSlot, help, is_too_small, prompt, put, split, too_small};

/// Lower screens have no title.
const LOW: u16 = 16;
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
    ("s, r", "sort by the next column; the other way round"),
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
        Some(down) => *down = help::draw_lines(buffer, upper, *down, &HELP, theme),
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
        // The number of samples is never cut: the title gives way.
        let samples = u16::try_from(table.samples.width() + 2).unwrap_or(slot.width);
        let shorter = RowSlot { width: slot.width.saturating_sub(samples), ..slot };
        let end = put(buffer, shorter, &table.title, Style::new(), theme);
        beside(buffer, slot, end + 1, &table.samples, theme);
    }
    let [head, rest] = split(rest, 2);
    let slot = |y: u16, indent: u16| RowSlot { x: head.x + indent, y, width: head.width - indent };
    let names: Vec<String> = state.levels().iter().map(name).collect();
    path(buffer, slot(head.y, INDENT), &names, theme);
    let body = usize::from(rest.height.saturating_sub(1));
    state.page = body.max(1);
    let count = state.level().rows().len();
    let level = state.level_mut();
    level.list.show(count, body);
    let note = shown(&level.list, level.list.scroll, count, body);
    kinds(buffer, slot(head.y + 1, 0), level, &note, theme);
    rows(buffer, rest, level, theme);
}

/// Formats the name of a table in the way to the one that is shown.
fn name(level: &Level) -> String {
    match &level.place.view {
        View::Calls(_, Direction::Callers) => format!("callers of {}", level.place.name),
        View::Calls(_, Direction::Callees) => format!("callees of {}", level.place.name),
        View::Code(_) => format!("code of {}", level.place.name),
        View::By(_) => level.place.name.clone(),
    }
}

/// Draws the kinds of tables of the same part, and a note.
fn kinds(buffer: &mut Buffer, slot: RowSlot, level: &Level, note: &str, theme: ScreenTheme) {
    let View::By(by) = level.place.view else {
        return beside(buffer, slot, slot.x, note, theme);
    };
    let kinds = KINDS.iter().enumerate();
    let kinds = kinds.map(|(place, kind)| ((place + 1) % KINDS.len(), kind.name(), *kind == by));
    tabs(buffer, slot, kinds, note, theme);
}

fn rows(buffer: &mut Buffer, area: Rect, level: &Level, theme: ScreenTheme) {
    let Level { table, list, .. } = level;
    let rows = level.rows();
    let view = TableView {
        table: &table.table,
        rows: rows.get(list.scroll..).unwrap_or_default(),
        selected: Some(list.selected - list.scroll),
        order: list.order,
        empty: if list.filter.is_empty() { table.table.empty } else { "No row has this text." },
    };
    view.draw(buffer, area, theme);
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
