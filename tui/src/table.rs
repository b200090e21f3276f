//! Tables that can be sorted by a column, filtered, and drawn in the columns that fit.

use std::cmp::Ordering;

use display::units;
use statistics::estimate::Share;

/// CellValue of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum CellValue {
    /// Text, escaped.
    Text(String),
    /// A number without a unit, like a process id; empty for 0.
    Id(i64),
    /// A count.
    Count(u64),
    /// A part of the whole.
    Share(f64),
    /// Distance from the share to the end of its interval.
    Margin(f64),
    /// A rate per second.
    PerSecond(f64),
    /// A time, ns.
    Time(f64),
    /// A time since the run's start, s.
    Moment(f64),
    /// A part of the whole as a bar.
    Bar(f64),
    /// A size, bytes.
    Bytes(u64),
    /// A change of a size, bytes; empty for 0.
    Growth(i64),
}

impl CellValue {
    /// Makes a share, its margin, and its bar.
    pub fn from_share(share: &Share) -> (Self, Self, Self) {
        (Self::Share(share.share), Self::Margin(share.distance()), Self::Bar(share.share))
    }

    /// Formats the value; empty for a bar, which is drawn.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Id(0) | Self::Bar(_) => String::new(),
            Self::Id(id) => id.to_string(),
            Self::Count(count) => units::count(*count),
            Self::Share(part) | Self::Margin(part) => units::percent(*part),
            Self::PerSecond(rate) => per_second(*rate),
            Self::Time(ns) => units::brief(units::rounded(*ns)),
            Self::Moment(s) => format!("{s:.2} s"),
            Self::Bytes(bytes) => units::bytes(*bytes),
            Self::Growth(0) => String::new(),
            Self::Growth(bytes) => {
                let sign = if *bytes < 0 { '-' } else { '+' };
                format!("{sign}{}", units::bytes(bytes.unsigned_abs()))
            }
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => self.number().total_cmp(&other.number()),
        }
    }

    fn number(&self) -> f64 {
        match self {
            Self::Text(_) => 0.0,
            Self::Id(id) => *id as f64,
            Self::Count(count) => *count as f64,
            Self::Share(n) | Self::Margin(n) | Self::PerSecond(n) => *n,
            Self::Bytes(bytes) => *bytes as f64,
            Self::Growth(bytes) => *bytes as f64,
            Self::Time(n) | Self::Moment(n) | Self::Bar(n) => *n,
        }
    }

    /// True if a text has this text in it, in lower case, or an id is this number.
    pub fn contains(&self, text: &str) -> bool {
        match self {
            Self::Text(own) => own.to_lowercase().contains(text),
            Self::Id(_) => self.shown() == text,
            _ => false,
        }
    }
}

fn per_second(rate: f64) -> String {
    if rate.is_finite() && rate < 9.95 {
        format!("{:.1}", rate.max(0.0))
    } else {
        units::count(units::rounded(rate))
    }
}

/// TableColumn of a table.
#[derive(Debug, Clone, Copy)]
pub struct TableColumn {
    /// Heading.
    pub name: &'static str,
    /// Columns of the screen; the last column of a table takes the rest.
    pub width: u16,
    /// The column with the highest rank is dropped first if there is no room; rank 0 never is.
    pub rank: u8,
}

/// Makes a column; a short form for constant lists.
pub const fn column(name: &'static str, width: u16, rank: u8) -> TableColumn {
    TableColumn { name, width, rank }
}

/// A row, and the thing that it shows.
#[derive(Debug, Clone, Default)]
pub struct TableRow<T> {
    /// A value for each column; a single text is a note across all columns.
    pub cells: Vec<CellValue>,
    /// Thing that the row shows.
    pub target: T,
}

impl<T> TableRow<T> {
    /// True if the row has this text, in lower case, in a text, or this number as an id.
    pub fn contains(&self, text: &str) -> bool {
        text.is_empty() || self.cells.iter().any(|cell| cell.contains(text))
    }
}

/// A table; the last column is text of any length.
#[derive(Debug, Default)]
pub struct ScreenTable<T> {
    /// The columns. A bar has no name.
    pub columns: Vec<TableColumn>,
    /// The rows.
    pub rows: Vec<TableRow<T>>,
    /// Smallest width of the last column while other columns can be dropped.
    pub last: u16,
    /// Sentence for a table without rows.
    pub empty: &'static str,
    /// Rows can be sorted by a column; otherwise the table has its own order.
    pub sorts: bool,
}

/// Sort order of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SortOrder {
    /// Number of the column.
    pub column: usize,
    /// Reversed order: numbers from the smallest, text from the end.
    pub reversed: bool,
}

/// Columns between two cells.
const GAP: u16 = 2;
/// Width of the last column from which bars grow.
const WIDE: u16 = 64;
/// Limit of the columns by which bars grow.
const LONGER: u16 = 40;

impl<T> ScreenTable<T> {
    /// Keeps rows that have this text in a text, or this number as an id.
    pub fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.contains(&text));
    }

    /// Sorts the rows: numbers from the largest, text from the start. Other tables keep their order.
    pub fn sort(&mut self, order: SortOrder) {
        if !self.sorts {
            return;
        }
        let compare =
            |a: &TableRow<T>, b: &TableRow<T>| match (a.cells.get(order.column), b.cells.get(order.column)) {
                (Some(a @ CellValue::Text(_)), Some(b)) => a.compare(b),
                (Some(a), Some(b)) => b.compare(a),
                _ => Ordering::Equal,
            };
        match order.reversed {
            false => self.rows.sort_by(compare),
            true => self.rows.sort_by(|a, b| compare(b, a)),
        }
    }

    /// Returns the next column that sorts a table: bars and intervals do not.
    pub fn next_order(&self, column: usize) -> usize {
        let count = self.columns.len().max(1);
        let sorts =
            |at: &usize| self.columns.get(*at).is_some_and(|column| !["", "±"].contains(&column.name));
        (1..=count).map(|step| (column + step) % count).find(sorts).unwrap_or(0)
    }

    /// Returns the columns that fit.
    pub fn fit(&self, width: u16) -> Vec<(usize, u16, u16)> {
        fit(&self.columns, self.last, width)
    }
}

/// Returns the columns that fit, each with its number, position and width, where the last one keeps at least
/// `least` columns of the screen.
pub fn fit(columns: &[TableColumn], least: u16, width: u16) -> Vec<(usize, u16, u16)> {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let last = columns.len().saturating_sub(1);
    let fixed = |kept: &[usize]| -> u16 {
        kept.iter().filter(|at| **at != last).map(|at| columns[*at].width + GAP).sum()
    };
    while fixed(&kept) + least > width {
        let droppable = kept.iter().copied().filter(|at| columns[*at].rank > 0);
        let Some(first) = droppable.max_by_key(|at| (columns[*at].rank, *at)) else { break };
        kept.retain(|at| *at != first);
    }
    // Long bars differ more, where names have room.
    let longer = width.saturating_sub(fixed(&kept) + least.max(WIDE)) / 2;
    let mut x = 0;
    let mut places = Vec::new();
    for at in kept {
        let room = width.saturating_sub(x);
        let more = if columns[at].name.is_empty() { longer.min(LONGER) } else { 0 };
        let own = if at == last { room } else { (columns[at].width + more).min(room) };
        places.push((at, x, own));
        x = x.saturating_add(own + GAP);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> ScreenTable<()> {
        let text = |text: &str| CellValue::Text(text.to_owned());
        let row = |part, id, name| TableRow {
            cells: vec![CellValue::Share(part), CellValue::Bar(part), CellValue::Id(id), text(name)],
            target: (),
        };
        ScreenTable {
            columns: vec![
                column("share", 7, 0),
                column("", 10, 2),
                column("pid", 7, 1),
                column("name", 0, 0),
            ],
            rows: vec![row(0.25, 7, "b"), row(0.5, 42, "a"), row(0.125, 0, "Cc 42")],
            last: 16,
            empty: "",
            sorts: true,
        }
    }

    fn names(table: &ScreenTable<()>) -> Vec<String> {
        table.rows.iter().map(|row| row.cells[3].shown()).collect()
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let mut table = table();
        table.sort(SortOrder { column: 0, reversed: false });
        assert_eq!(names(&table), ["a", "b", "Cc 42"]);
        table.sort(SortOrder { column: 2, reversed: true });
        assert_eq!(names(&table), ["Cc 42", "b", "a"]);
        table.sort(SortOrder { column: 3, reversed: false });
        assert_eq!(names(&table), ["Cc 42", "a", "b"]);
        table.sorts = false;
        table.sort(SortOrder::default());
        assert_eq!(names(&table), ["Cc 42", "a", "b"]);
        table.sort(SortOrder { column: 9, reversed: false });
        table.filter("42");
        assert_eq!(names(&table), ["Cc 42", "a"]);
        table.filter("cC");
        assert_eq!(names(&table), ["Cc 42"]);
    }

    #[test]
    fn bars_are_no_order() {
        assert_eq!([0, 2, 3, 9].map(|column| table().next_order(column)), [2, 3, 0, 2]);
        assert_eq!(ScreenTable::<()>::default().next_order(3), 0);
    }

    #[test]
    fn columns_give_way_where_there_is_no_room() {
        let table = table();
        assert_eq!(table.fit(134), [(0, 0, 7), (1, 9, 30), (2, 41, 7), (3, 50, 84)]);
        assert_eq!(table.fit(60), [(0, 0, 7), (1, 9, 10), (2, 21, 7), (3, 30, 30)]);
        assert_eq!(table.fit(40), [(0, 0, 7), (2, 9, 7), (3, 18, 22)]);
        assert_eq!(table.fit(26), [(0, 0, 7), (3, 9, 17)]);
        assert_eq!(table.fit(5), [(0, 0, 5), (3, 7, 0)]);
        assert_eq!(ScreenTable::<()>::default().fit(80), []);
    }

    #[test]
    fn values_have_their_units() {
        let cases = [
            (CellValue::Share(0.123), "12.3 %"),
            (CellValue::Id(0), ""),
            (CellValue::Count(12_345), "12,345"),
            (CellValue::PerSecond(0.25), "0.2"),
            (CellValue::PerSecond(1_234.4), "1,234"),
            (CellValue::PerSecond(f64::NAN), "0"),
            (CellValue::Time(12_345.0), "12.3 us"),
            (CellValue::Bytes(3 << 20), "3 MiB"),
            (CellValue::Growth(-4096), "-4 KiB"),
            (CellValue::Growth(0), ""),
            (CellValue::Time(f64::INFINITY), "18446744074 s"),
        ];
        for (value, shown) in cases {
            assert_eq!(value.shown(), shown);
        }
    }
}
