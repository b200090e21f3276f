//! `report --by`: one table.

use std::io;

use display::clean::escaped;
use display::csv::{CsvWriter, Formulas};
use display::units;
use profile::report::{Breakdown, By, Estimate, Report, Row};

use super::PageLayout;
use super::paragraph::{heading, wrapped};
use super::summary::{WIDE, estimate_cells, estimate_columns, interval, nothing, rest, shares_note, title};
use super::table::{ColumnAlign, TextTable, cut};

/// Formats the table with at most `rows` rows.
pub fn render(report: &Report, breakdown: &Breakdown, rows: usize, page: PageLayout) -> String {
    let mut text = title(report, page);
    if breakdown.rows.is_empty() && breakdown.outside.samples == 0 {
        text.push_str(nothing(report));
        return text;
    }
    heading(&mut text, page, &rows_of(breakdown), &shares_note(report));
    let has = |by| breakdown.keys().any(|key| key == by);
    if has(By::Instruction) && report.is_emulated() {
        wrapped(&mut text, BLOCKS, "  ", page.width);
    }
    if has(By::Line) && !breakdown.has_lines() {
        wrapped(&mut text, NO_LINES, "  ", page.width);
    }
    if !breakdown.rows.is_empty() {
        text.push_str(&table(breakdown, rows, page).render(page.width));
    }
    let left_out: Vec<f64> = breakdown.rows.iter().skip(rows).map(|row| row.own.share).collect();
    rest(&mut text, left_out.into_iter());
    if breakdown.outside.samples > 0 {
        let share = units::percent(breakdown.outside.share);
        text.push_str(&format!("  {share:>6}  {}\n", outside(breakdown)));
    }
    text
}

/// Formats the title of the rows: `Programs, functions`.
fn rows_of(breakdown: &Breakdown) -> String {
    let further = breakdown.further.iter().map(|by| plural(*by).to_lowercase());
    std::iter::once(plural(breakdown.by).to_owned()).chain(further).collect::<Vec<_>>().join(", ")
}

fn plural(by: By) -> &'static str {
    match by {
        By::Function => "Functions",
        By::Instruction => "Instructions",
        By::Line => "Source lines",
        By::Process => "Programs",
        By::Instance => "Processes",
        By::Thread => "Threads",
        By::Cgroup => "Control groups",
        By::Module => "Modules",
        By::Irq => "Interrupts",
        By::Syscall => "System calls",
        By::Vm => "Virtual machines",
        By::Host => "Hosts",
    }
}

fn outside(breakdown: &Breakdown) -> &'static str {
    match (breakdown.by, breakdown.further.as_slice()) {
        (By::Irq, []) => "outside of interrupts",
        (By::Syscall, []) => "in interrupts, or before there were tasks",
        (By::Vm | By::Host, []) => "of one virtual machine: the profile is not merged (`vprof merge`)",
        _ => "in none of these",
    }
}

/// Note on source lines in a profile that has none.
const NO_LINES: &str = "No source line is known: none of the code has debug information in the guest. `vprof symbolize` \
                        reads it from debug files.";

/// Note on single instructions in a profile of an emulated host.
pub const BLOCKS: &str = "Emulated host: a tick waits for the end of a block of code, so samples are exact to a block, \
                          not to an instruction.";

/// Columns for the name of a unit or a container; a shorter part of an id is enough.
const LONGEST_UNIT: usize = 24;

/// A column of the rows' own data: heading, alignment, text.
type RowColumn = (&'static str, ColumnAlign, fn(&Row) -> String);

fn columns(by: By, wide: bool) -> &'static [RowColumn] {
    const KIND: RowColumn = ("mode", ColumnAlign::Left, |row| optional(row.kind.as_deref()));
    match by {
        By::Function => &[KIND, ("function", ColumnAlign::Left, in_module)],
        By::Instruction if wide => &[
            KIND,
            ("address", ColumnAlign::Right, |row| optional(row.address.as_deref())),
            ("offset", ColumnAlign::Right, offset),
            ("function", ColumnAlign::Left, function),
        ],
        By::Instruction => {
            &[KIND, ("offset", ColumnAlign::Right, offset), ("function", ColumnAlign::Left, function)]
        }
        By::Line => &[KIND, ("line", ColumnAlign::Left, in_module)],
        By::Module => &[KIND, ("module", ColumnAlign::Left, name)],
        By::Process => &[("program", ColumnAlign::Left, task)],
        By::Instance => &[
            ("pid", ColumnAlign::Right, |row| number(row.pid)),
            ("name#instance, command line", ColumnAlign::Left, titled),
        ],
        By::Thread => &[
            ("tid", ColumnAlign::Right, |row| number(row.tid)),
            ("process", ColumnAlign::Left, |row| optional(row.process.as_deref())),
            ("thread", ColumnAlign::Left, name),
        ],
        By::Cgroup => &[
            ("unit or container", ColumnAlign::Left, |row| {
                cut(&optional(row.container.as_deref().or(row.unit.as_deref())), LONGEST_UNIT)
            }),
            ("control group", ColumnAlign::Left, name),
        ],
        By::Irq => &[
            ("kind", ColumnAlign::Left, |row| optional(row.kind.as_deref())),
            ("interrupt", ColumnAlign::Left, name),
        ],
        By::Syscall => &[("system call", ColumnAlign::Left, name)],
        By::Vm => &[
            ("host", ColumnAlign::Left, |row| optional(row.host.as_deref())),
            ("virtual machine", ColumnAlign::Left, name),
        ],
        By::Host => &[("host", ColumnAlign::Left, name)],
    }
}

/// Returns the column with the name by one of several keys.
fn name_column(by: By) -> RowColumn {
    match by {
        By::Instruction => ("instruction", ColumnAlign::Left, in_module),
        By::Instance => ("process", ColumnAlign::Left, task),
        By::Cgroup => ("cgroup", ColumnAlign::Left, name),
        other => columns(other, false).last().copied().unwrap_or(("", ColumnAlign::Left, name)),
    }
}

/// Formats the name of a row with all that identifies it, in one line.
pub fn label(by: By, row: &Row) -> String {
    match by {
        By::Instance => titled(row),
        By::Thread => format!("{}  {}", optional(row.process.as_deref()), name(row)),
        other => name_column(other).2(row),
    }
}

/// Formats a table of rows by several keys: a name for each.
fn table_of_keys(breakdown: &Breakdown, rows: usize, page: PageLayout) -> TextTable {
    let names: Vec<RowColumn> = breakdown.keys().map(name_column).collect();
    let code = breakdown.is_code();
    let mut headings = estimate_columns(if code { "self" } else { "share" }, page);
    headings.extend(code.then_some(("total", ColumnAlign::Right)));
    // Names before the last one, which has what is left of the line.
    let most = if page.width == usize::MAX { usize::MAX } else { (page.width / (names.len() + 2)).max(8) };
    headings.extend(names.iter().map(|(name, align, _)| (*name, *align)));
    let last = headings.len() - 1;
    let mut table = TextTable::new(&headings).indent(2).flexible(last).styled(page.style);
    if page.width < WIDE {
        // The time, the interval, the total.
        table = table.spare(if code { &[2, 1, 3] } else { &[2, 1] });
    }
    for row in breakdown.rows.iter().take(rows) {
        let mut cells = estimate_cells(&row.own, page);
        cells.extend(code.then(|| units::percent(row.total.share)));
        cells.extend(names.iter().enumerate().map(|(position, (_, _, text))| {
            let name = text(&row.by_key(position));
            if position + 1 < names.len() { cut(&name, most) } else { name }
        }));
        table.hot_row(row.own.share, cells);
    }
    table
}

/// Names of the columns of [`write_csv`] after those of the keys.
const CSV_COLUMNS: [&str; 23] = [
    "in_module",
    "address",
    "of_process",
    "pid",
    "tid",
    "vm",
    "host",
    "command",
    "unit",
    "self_samples",
    "self_share",
    "self_share_low",
    "self_share_high",
    "self_time_s",
    "self_time_low_s",
    "self_time_high_s",
    "total_samples",
    "total_share",
    "total_share_low",
    "total_share_high",
    "total_time_s",
    "total_time_low_s",
    "total_time_high_s",
];

/// Writes all rows with a heading: a name and a kind for each key, then the members of [`Row`].
pub fn write_csv(breakdown: &Breakdown, out: impl io::Write, formulas: Formulas) -> io::Result<()> {
    let mut csv = CsvWriter::new(out, formulas);
    let keys = breakdown.keys().flat_map(|by| [by.name().to_owned(), format!("{}_kind", by.name())]);
    csv.row(&keys.chain(CSV_COLUMNS.map(str::to_owned)).collect::<Vec<_>>())?;
    for row in &breakdown.rows {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let mut fields: Vec<String> = Vec::new();
        for position in 0..=breakdown.further.len() {
            let Row { name, kind, .. } = row.by_key(position);
            fields.extend([name, kind.unwrap_or_default()]);
        }
        fields.extend([
            text(&row.module),
            text(&row.address),
            text(&row.process),
            number(row.pid),
            number(row.tid),
        ]);
        fields.extend([text(&row.vm), text(&row.host), text(&row.command), text(&row.unit)]);
        for estimate in [&row.own, &row.total] {
            fields.push(estimate.samples.to_string());
            let Estimate { share, share_low, share_high, time_s, time_low_s, time_high_s, .. } = *estimate;
            let figures = [share, share_low, share_high, time_s, time_low_s, time_high_s];
            fields.extend(figures.map(|figure| figure.to_string()));
        }
        csv.row(&fields)?;
    }
    Ok(())
}

fn table(breakdown: &Breakdown, rows: usize, page: PageLayout) -> TextTable {
    if !breakdown.further.is_empty() {
        return table_of_keys(breakdown, rows, page);
    }
    let code = breakdown.by.is_code();
    let wide = page.width >= WIDE;
    let own = columns(breakdown.by, wide);
    let mut headings = estimate_columns(if code { "self" } else { "share" }, page);
    if code {
        headings.push(("total", ColumnAlign::Right));
        headings.extend(wide.then_some(("95 % interval", ColumnAlign::Right)));
    }
    headings.extend(own.iter().map(|(name, align, _)| (*name, *align)));
    let name = headings.len() - 1;
    let mut table = TextTable::new(&headings).indent(2).flexible(name).styled(page.style);
    for row in breakdown.rows.iter().take(rows) {
        let mut cells = estimate_cells(&row.own, page);
        if code {
            cells.push(units::percent(row.total.share));
            cells.extend(wide.then(|| interval(row.total.share_low, row.total.share_high)));
        }
        cells.extend(own.iter().map(|(_, _, text)| text(row)));
        table.hot_row(row.own.share, cells);
    }
    table
}

fn optional(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| escaped(text).into_owned())
}

fn number(id: Option<i32>) -> String {
    id.map_or_else(String::new, |id| id.to_string())
}

fn name(row: &Row) -> String {
    super::visible(&row.name).into_owned()
}

fn task(row: &Row) -> String {
    match row.kind.as_deref() {
        Some("kernel_thread") => format!("[{}]", escaped(&row.name)),
        _ => name(row),
    }
}

/// Formats a process with its command line or title.
fn titled(row: &Row) -> String {
    let command = row.command.as_deref().map(|command| format!("  {}", escaped(command)));
    task(row) + &command.unwrap_or_default()
}

fn in_module(row: &Row) -> String {
    super::with_module(&row.name, row.module.as_deref())
}

/// Splits an instruction's name into its function and the offset in it, which must not be cut with a long
/// name.
fn split(name: &str) -> (&str, Option<&str>) {
    match name.rfind("+0x") {
        Some(at) if name[at + 3..].bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            (&name[..at], Some(&name[at..]))
        }
        _ => (name, None),
    }
}

fn offset(row: &Row) -> String {
    split(&row.name).1.unwrap_or_default().to_owned()
}

/// Formats the function of an instruction. User code without a file belongs to its process.
fn function(row: &Row) -> String {
    super::with_module(split(&row.name).0, row.process.as_deref().or(row.module.as_deref()))
}

#[cfg(test)]
mod tests {
    use profile::report::KeyName;

    use super::super::TextStyle;
    use super::*;

    fn estimate(samples: u64) -> Estimate {
        let share = samples as f64 / 100.0;
        Estimate { samples, share, share_high: 1.0, time_s: share * 0.1, ..Estimate::default() }
    }

    fn row(name: &str, kind: &str, own: u64, total: u64) -> Row {
        let name = name.to_owned();
        let (own, total) = (estimate(own), estimate(total));
        Row { name, kind: Some(kind.to_owned()), own, total, ..Row::default() }
    }

    #[test]
    fn a_process_has_its_title_and_no_name_is_an_empty_cell() {
        let title = Some("postgres: walwriter".to_owned());
        let rows = vec![
            Row { pid: Some(7), command: title, ..row("postgres#18", "process", 60, 60) },
            row("", "process", 30, 30),
        ];
        let breakdown = Breakdown { by: By::Instance, further: Vec::new(), rows, outside: estimate(10) };
        let text = table(&breakdown, 10, PageLayout { width: 80, style: TextStyle::Plain }).render(80);
        assert!(text.contains("postgres#18  postgres: walwriter"), "{text}");
        assert!(text.trim_end().ends_with("''"), "{text}");
    }

    #[test]
    fn offsets_outlive_long_names() {
        assert_eq!(split("schedule+0x1f"), ("schedule", Some("+0x1f")));
        assert_eq!(split("0x401000"), ("0x401000", None));
        assert_eq!(split("operator+0xyz"), ("operator+0xyz", None));
        assert_eq!(split("größe+0x"), ("größe", Some("+0x")));
    }

    #[test]
    fn tables_fit_their_page() {
        use unicode_width::UnicodeWidthStr;
        let with = |by| {
            [Vec::new(), vec![By::Function], vec![By::Function, By::Thread]].map(|further| (by, further))
        };
        for (by, further) in By::ALL.into_iter().flat_map(|(_, by)| with(by)) {
            let long = Row {
                module: Some("libstdc++.so.6".to_owned()),
                address: Some("0xffffffffffffffff".to_owned()),
                process: Some("0123456789abcde#12345".to_owned()),
                pid: Some(4_000_000),
                tid: Some(4_000_000),
                container: Some("0123456789abcdef0123456789abcdef".to_owned()),
                further: vec![KeyName { name: "further_\x1b[2J".repeat(9), kind: None }; further.len()],
                ..row(&("long_\x1b[2J".repeat(30) + "+0x12345"), "kernel_thread", 60, 100)
            };
            let rows = vec![long, row("short", "user", 30, 30)];
            let breakdown = Breakdown { by, further, rows, outside: estimate(10) };
            for width in [60, 80, 120] {
                let page = PageLayout { width, style: TextStyle::Plain };
                let text = table(&breakdown, 10, page).render(width);
                for line in text.lines() {
                    assert!(line.width() <= width, "{by:?}: {} columns: {line}", line.width());
                    assert!(!line.contains(char::is_control), "{line:?}");
                }
                assert_eq!(text.lines().count(), 3);
            }
        }
    }
}
