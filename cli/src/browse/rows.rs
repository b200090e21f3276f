//! Rows of tables, with what is below each.

use profile::report::{By, CodeLine, FunctionListing, Row, TreeNode};
use text::clean::escaped;
use text::units;

use super::source::{Call, Place, View};
use crate::render::summary::wrapped;
use crate::render::{by, with_module};
use crate::top::table::{CellValue, TableColumn, column};

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

/// A row.
#[derive(Debug, Clone)]
pub struct BrowseRow {
    /// A value for each column.
    pub cells: Vec<CellValue>,
    /// Share of its own samples, and of all with it on their stack.
    pub shares: (f64, f64),
    /// Destination of the Enter key.
    pub below: Below,
    /// Function of the row.
    pub call: Option<Call>,
}

impl Default for BrowseRow {
    fn default() -> Self {
        let below = Below::Nothing("this is the innermost table");
        Self { cells: Vec::new(), shares: (0.0, 0.0), below, call: None }
    }
}

/// A table, most samples first, or code in the order of addresses.
#[derive(Debug, Default)]
pub struct BrowseTable {
    /// The columns.
    pub columns: &'static [TableColumn],
    /// Columns of the screen that the last column keeps.
    pub least: u16,
    /// The rows.
    pub rows: Vec<BrowseRow>,
    /// Row that is selected first.
    pub first: usize,
    /// The guest and its run.
    pub title: String,
    /// Samples that the table is of.
    pub samples: String,
}

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
        let columns: &'static [TableColumn] = if by.is_code() { &CODE } else { &OTHERS };
        Self { columns, least: 24, rows, ..Self::default() }
    }

    /// True if rows have a total, by which they can be sorted.
    pub fn has_totals(&self) -> bool {
        self.columns.iter().any(|column| column.name == "total")
    }

    /// Orders the rows by their own samples, or by all.
    pub fn sort(&mut self, by_total: bool) {
        let share = |row: &BrowseRow| if by_total { row.shares.1 } else { row.shares.0 };
        self.rows.sort_by(|a, b| share(b).total_cmp(&share(a)));
    }
}

/// Completes a row of `--by`.
pub fn key_row(kind: By, row: &Row, with: BrowseRow) -> BrowseRow {
    let (share, margin, bar) = CellValue::from_share(&row.own.interval());
    let name = CellValue::Text(by::label(kind, row));
    let samples = CellValue::Count(row.own.samples);
    let cells = if kind.is_code() {
        let mode = CellValue::Text(escaped(row.kind.as_deref().unwrap_or_default()).into_owned());
        vec![share, margin, bar, CellValue::Share(row.total.share), samples, mode, name]
    } else {
        vec![share, margin, bar, samples, CellValue::Id(row.tid.or(row.pid).unwrap_or(0).into()), name]
    };
    BrowseRow { cells, shares: (row.own.share, row.total.share), ..with }
}

/// Completes a row of a tree of calls.
pub fn call_row(node: &TreeNode, with: BrowseRow) -> BrowseRow {
    // Deep trees keep room for names.
    let indent = "  ".repeat(usize::try_from(node.depth).unwrap_or(0).min(20));
    let name = format!("{indent}{}", with_module(&node.symbol, node.module.as_deref()));
    let (all, it) = (CellValue::Share(node.estimate.share), CellValue::Share(node.part));
    let cells = vec![all, it, CellValue::Count(node.estimate.samples), CellValue::Text(name)];
    BrowseRow { cells, shares: (node.estimate.share, node.estimate.share), ..with }
}

const LINES: [TableColumn; 4] =
    [column("self", 7, 0), column("below", 7, 2), column("address", 18, 1), column("instruction", 0, 0)];
/// Columns of the screen for a line of a note.
const NOTE: usize = 60;

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
        rows.extend(wrapped_note.lines().map(text));
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
        rows.push(BrowseRow { cells, shares: (*self_part, *called_part), ..BrowseRow::default() });
    }
    let (own, total) = (listing.own, listing.total);
    BrowseTable {
        columns: &LINES,
        least: 20,
        rows,
        first: hottest.map_or(0, |(_, row)| row),
        title: with_module(&listing.symbol, listing.module.as_deref()),
        samples: format!("self {}, total {}", units::percent(own.share), units::percent(total.share)),
    }
}
