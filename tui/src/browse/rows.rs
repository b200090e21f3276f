//! Rows of tables, with what is below each.

use display::clean::escaped;
use display::units;
use profile::report::{By, CodeLine, FunctionListing, Row, TreeNode};

use super::source::{Call, Place, View};
use crate::table::{CellValue, ScreenTable, TableColumn, TableRow, column};
use crate::widgets::calls::{CALLS, CALLS_LAST, call_cells};
use render::paragraph::wrapped;
use render::{by, with_module};

/// Destination of the Enter key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Below {
    /// The functions of a part of the profile.
    Part(Box<Place>),
    /// Another table of the same part, and its name.
    Place(View, String),
    /// None, and the reason.
    Nothing(&'static str),
}

/// Place of a row among the tables.
#[derive(Debug, Clone)]
pub struct RowTarget {
    /// Destination of the Enter key.
    pub below: Below,
    /// Function of the row.
    pub call: Option<Call>,
}

impl Default for RowTarget {
    fn default() -> Self {
        Self { below: Below::Nothing("this is the innermost table"), call: None }
    }
}

/// A row.
pub type BrowseRow = TableRow<RowTarget>;

/// A table, most samples first, or code in the order of addresses.
#[derive(Debug, Default)]
pub struct BrowseTable {
    /// The rows.
    pub table: ScreenTable<RowTarget>,
    /// Row that is selected first.
    pub first: usize,
    /// The guest and its run.
    pub title: String,
    /// Samples that the table is of.
    pub samples: String,
}

/// Sentence for a table without rows.
const NO_SAMPLE: &str = "No sample fits.";

/// Columns of rows of code, and of others.
const CODE: [TableColumn; 7] = [
    column("self", 7, 0),
    column("±", 6, 4),
    column("", 10, 6),
    column("total", 7, 1),
    column("samples", 9, 5),
    column("mode", 6, 3),
    column("name", 0, 0),
];
const OTHERS: [TableColumn; 6] = [
    column("share", 7, 0),
    column("±", 6, 4),
    column("", 10, 6),
    column("samples", 9, 5),
    column("id", 7, 3),
    column("name", 0, 0),
];

impl BrowseTable {
    /// Makes a table of `--by`.
    pub fn of_keys(by: By, rows: Vec<BrowseRow>) -> Self {
        let columns = if by.is_code() { CODE.to_vec() } else { OTHERS.to_vec() };
        let table = ScreenTable { columns, rows, last: 24, empty: NO_SAMPLE, sorts: true };
        Self { table, ..Self::default() }
    }

    /// Makes a table of callers or callees.
    pub fn of_calls(rows: Vec<BrowseRow>) -> Self {
        let columns = CALLS.to_vec();
        let table = ScreenTable { columns, rows, last: CALLS_LAST, empty: NO_SAMPLE, sorts: false };
        Self { table, ..Self::default() }
    }
}

/// Makes a row of `--by`.
pub fn key_row(kind: By, row: &Row, target: RowTarget) -> BrowseRow {
    let (share, margin, bar) = CellValue::from_share(&row.own.interval());
    let name = CellValue::Text(by::label(kind, row));
    let samples = CellValue::Count(row.own.samples);
    let cells = if kind.is_code() {
        let mode = CellValue::Text(escaped(row.kind.as_deref().unwrap_or_default()).into_owned());
        vec![share, margin, bar, CellValue::Share(row.total.share), samples, mode, name]
    } else {
        vec![share, margin, bar, samples, CellValue::Id(row.tid.or(row.pid).unwrap_or(0).into()), name]
    };
    BrowseRow { cells, target }
}

/// Makes a row of a tree of calls.
pub fn call_row(node: &TreeNode, target: RowTarget) -> BrowseRow {
    let name = with_module(&node.symbol, node.module.as_deref());
    let parts = (node.estimate.share, node.part);
    BrowseRow { cells: call_cells(node.depth, &name, parts, node.estimate.samples), target }
}

const LINES: [TableColumn; 4] =
    [column("self", 7, 0), column("below", 7, 2), column("address", 18, 1), column("instruction", 0, 0)];
/// Columns of the screen for a line of a note.
const NOTE: usize = 76;

/// Makes a table of a function's machine code.
pub fn code_table(listing: &FunctionListing) -> BrowseTable {
    let share = |part: f64| if part == 0.0 { CellValue::Id(0) } else { CellValue::Share(part) };
    let text = |text: &str| BrowseRow {
        cells: vec![CellValue::Id(0), CellValue::Id(0), CellValue::Id(0), CellValue::Text(text.to_owned())],
        ..BrowseRow::default()
    };
    let mut rows = Vec::new();
    for note in &listing.notes {
        let mut wrapped_note = String::new();
        wrapped(&mut wrapped_note, &escaped(note), "", NOTE);
        let note = |line: &str| {
            let cells = vec![CellValue::Text(line.to_owned())];
            BrowseRow { cells, ..BrowseRow::default() }
        };
        rows.extend(wrapped_note.lines().map(note));
    }
    let mut source = None;
    let mut hottest: Option<(u64, usize)> = None;
    for line in &listing.lines {
        let CodeLine { place, text: instruction, own, self_part, called_part, source: at, .. } = line;
        if at.is_some() && *at != source {
            rows.push(text(&format!("; {}", escaped(at.as_deref().unwrap_or_default()))));
            source.clone_from(at);
        }
        if hottest.is_none_or(|(most, _)| *own > most) {
            hottest = Some((*own, rows.len()));
        }
        let address = CellValue::Text(format!("{:#x}", place.address));
        let cells =
            vec![share(*self_part), share(*called_part), address, CellValue::Text(instruction.clone())];
        rows.push(BrowseRow { cells, ..BrowseRow::default() });
    }
    let (own, total) = (listing.own, listing.total);
    let table = ScreenTable { columns: LINES.to_vec(), rows, last: 20, empty: NO_SAMPLE, sorts: false };
    BrowseTable {
        table,
        first: hottest.map_or(0, |(_, row)| row),
        title: with_module(&listing.symbol, listing.module.as_deref()),
        samples: format!("self {}, total {}", units::percent(own.share), units::percent(total.share)),
    }
}
