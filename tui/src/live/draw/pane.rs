//! The names of all panes, and the pane that is shown; or the way to a table below a row, and the table.

use display::units;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::live::panes::PaneKind;
use crate::live::state::ViewState;
use crate::widgets::table::{INDENT, TableView, beside, path, shown, tabs};
use crate::widgets::theme::ScreenTheme;
use crate::widgets::{RowSlot, split};

/// Draws the names, the headings and the rows that fit.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &mut ViewState, theme: ScreenTheme) {
    let table = state.table();
    let [head, rest] = split(area, 1);
    let headed = !table.columns.iter().all(|column| column.name.is_empty());
    let body = usize::from(rest.height.saturating_sub(u16::from(headed)));
    state.page = body.max(1);
    let follows = state.follows();
    let count = table.rows.len();
    let furthest = count.saturating_sub(body);
    let here = state.here_mut();
    let first = if follows {
        here.list.scroll = here.list.scroll.min(furthest);
        furthest - here.list.scroll
    } else {
        here.follow(&table);
        here.list.show(count, body);
        here.list.scroll
    };
    let slot = RowSlot { x: head.x, y: head.y, width: head.width };
    let rows = shown(&state.here().list, first, count, body);
    match state.details().is_empty() {
        true => panes(buffer, slot, state, &rows, theme),
        false => way(buffer, slot, state, &rows, theme),
    }
    let list = &state.here().list;
    let rows: Vec<_> = table.rows.iter().skip(first).collect();
    let view = TableView {
        table: &table,
        rows: &rows,
        selected: (!follows).then(|| list.selected - first),
        order: list.order,
        empty: if list.filter.is_empty() { table.empty } else { "No row has this text." },
    };
    view.draw(buffer, rest, theme);
}

/// Draws the names of the panes.
fn panes(buffer: &mut Buffer, slot: RowSlot, state: &ViewState, rows: &str, theme: ScreenTheme) {
    let known = match (state.pane, state.snapshot.exact) {
        (PaneKind::Tasks, true) => "exact  ",
        (PaneKind::Tasks, false) => "sampled  ",
        _ => "",
    };
    let tables = PaneKind::ALL.iter().map(|pane| (pane.place() + 1, pane.name(), *pane == state.pane));
    tabs(buffer, slot, tables, format!("{known}{rows}").trim_end(), theme);
}

/// Draws the way to the table, and the samples of its part.
fn way(buffer: &mut Buffer, slot: RowSlot, state: &ViewState, rows: &str, theme: ScreenTheme) {
    let root = state.pane.name().to_owned();
    let names: Vec<String> =
        std::iter::once(root).chain(state.details().iter().map(|level| level.name.clone())).collect();
    let detail = state.details().last().and_then(|level| level.detail.as_ref());
    let samples = detail.map(|detail| units::counted(detail.samples, "sample"));
    let note = format!("{}  {rows}", samples.unwrap_or_default());
    let note = note.trim();
    let width = u16::try_from(note.len() + 2).unwrap_or(slot.width);
    let place = RowSlot { x: slot.x + INDENT, width: slot.width.saturating_sub(width + INDENT), ..slot };
    let x = path(buffer, place, &names, theme);
    beside(buffer, slot, x, note, theme);
}
