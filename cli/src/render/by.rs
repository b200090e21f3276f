//! `report --by`: one table.

use sampler::report::{Breakdown, By, Estimate, Report, Row};

use super::summary::{heading, interval, rest, title};
use super::table::{Align, Table};
use super::{Page, escape, units};

/// The table with at most `rows` rows.
pub fn render(report: &Report, breakdown: &Breakdown, rows: usize, page: Page) -> String {
    let mut text = title(report, page);
    if breakdown.rows.is_empty() && breakdown.outside.samples == 0 {
        text.push_str("\nNo sample fits.\n");
        return text;
    }
    let all = units::counted(report.busy_samples, "sample");
    heading(
        &mut text,
        page.style,
        plural(breakdown.by),
        &format!(": shares of the {all} that were not idle"),
    );
    if !breakdown.rows.is_empty() {
        text.push_str(&table(breakdown, rows).render(page.width));
    }
    let left_out: Vec<f64> = breakdown.rows.iter().skip(rows).map(|row| row.own.share).collect();
    rest(&mut text, left_out.into_iter());
    if breakdown.outside.samples > 0 {
        let share = units::percent(breakdown.outside.share);
        text.push_str(&format!("  {share:>6}  {}\n", outside(breakdown.by)));
    }
    text
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
    }
}

fn outside(by: By) -> &'static str {
    match by {
        By::Irq => "outside of interrupts",
        By::Syscall => "in interrupts, or before there were tasks",
        _ => "in none of these",
    }
}

/// A column of a row's own: heading, side, text.
type Column = (&'static str, Align, fn(&Row) -> String);

fn columns(by: By) -> &'static [Column] {
    const KIND: Column = ("mode", Align::Left, |row| optional(row.kind.as_deref()));
    match by {
        By::Function => &[KIND, ("function", Align::Left, in_module)],
        By::Instruction => &[
            KIND,
            ("address", Align::Right, |row| optional(row.address.as_deref())),
            ("instruction", Align::Left, instruction),
        ],
        By::Line => &[KIND, ("line", Align::Left, in_module)],
        By::Module => &[KIND, ("module", Align::Left, name)],
        By::Process => &[("program", Align::Left, task)],
        By::Instance => &[("pid", Align::Right, |row| number(row.pid)), ("name#instance", Align::Left, task)],
        By::Thread => &[
            ("tid", Align::Right, |row| number(row.tid)),
            ("process", Align::Left, |row| optional(row.process.as_deref())),
            ("thread", Align::Left, name),
        ],
        By::Cgroup => &[
            ("unit or container", Align::Left, |row| {
                optional(row.container.as_deref().or(row.unit.as_deref()))
            }),
            ("control group", Align::Left, name),
        ],
        By::Irq => {
            &[("kind", Align::Left, |row| optional(row.kind.as_deref())), ("interrupt", Align::Left, name)]
        }
        By::Syscall => &[("system call", Align::Left, name)],
    }
}

fn table(breakdown: &Breakdown, rows: usize) -> Table {
    let code = breakdown.by.is_code();
    let own = columns(breakdown.by);
    let mut headings =
        vec![(if code { "self" } else { "share" }, Align::Right), ("95 % interval", Align::Right)];
    if code {
        headings.push(("total", Align::Right));
    }
    headings.push(("samples", Align::Right));
    headings.extend(own.iter().map(|(name, align, _)| (*name, *align)));
    let mut table = Table::new(&headings).indent(2).flexible(headings.len() - 1);
    for row in breakdown.rows.iter().take(rows) {
        let Estimate { samples, share, share_low, share_high } = row.own;
        let mut cells = vec![units::percent(share), interval(share_low, share_high)];
        if code {
            cells.push(units::percent(row.total.share));
        }
        cells.push(units::count(samples));
        cells.extend(own.iter().map(|(_, _, text)| text(row)));
        table.row(cells);
    }
    table
}

fn optional(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| escape(text).into_owned())
}

fn number(id: Option<i32>) -> String {
    id.map_or_else(String::new, |id| id.to_string())
}

fn name(row: &Row) -> String {
    escape(&row.name).into_owned()
}

fn task(row: &Row) -> String {
    match row.kind.as_deref() {
        Some("kernel_thread") => format!("[{}]", escape(&row.name)),
        _ => name(row),
    }
}

fn in_module(row: &Row) -> String {
    super::with_module(&row.name, row.module.as_deref())
}

/// User code without a file belongs to its process.
fn instruction(row: &Row) -> String {
    super::with_module(&row.name, row.process.as_deref().or(row.module.as_deref()))
}
