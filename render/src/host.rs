//! `report --host`: time of the vCPUs' threads in the guest and in the host.

use display::units;
use profile::report::{HostFunction, HostReport, ThreadPlace};

use super::PageLayout;
use super::paragraph::{heading, wrapped};
use super::summary::{estimate_cells, estimate_columns, rest};
use super::table::{ColumnAlign, TextTable};

/// Formats the report with at most `rows` functions.
pub fn render(report: &HostReport, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    let time = units::seconds(report.run_s);
    let title = format!("Time of the vCPUs: {time}, by {}", units::counted(report.ticks, "tick"));
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    if report.ticks == 0 {
        wrapped(&mut text, "No tick fell into the chosen time.", "  ", page.width);
        return text;
    }
    places(&mut text, report, page);
    functions(&mut text, report, rows, page);
    text
}

fn places(text: &mut String, report: &HostReport, page: PageLayout) {
    let mut columns = estimate_columns("share", page);
    columns.push(("place", ColumnAlign::Left));
    let mut table = TextTable::new(&columns).indent(2);
    for place in &report.places {
        let mut cells = estimate_cells(&place.estimate, page);
        cells.push(
            match place.place {
                ThreadPlace::Guest => "guest",
                ThreadPlace::Kvm => "KVM, between two stays in the guest",
                ThreadPlace::Vmm => "VMM",
                ThreadPlace::Waiting => "waiting for a CPU of the host",
                ThreadPlace::Halted => "halted",
            }
            .to_owned(),
        );
        table.row(cells);
    }
    text.push_str(&table.render(page.width));
}

fn functions(text: &mut String, report: &HostReport, rows: usize, page: PageLayout) {
    heading(
        text,
        page,
        "Functions of the host",
        ": shares of the vCPUs' time, without that of sleeping vCPUs",
    );
    if report.without_stack > 0 {
        let ticks = units::counted(report.without_stack, "tick");
        wrapped(text, &format!("{ticks} outside of the guest without a stack"), "  ", page.width);
    }
    if report.cut_stacks > 0 {
        let (all, cut) = (units::count(report.stacks), units::count(report.cut_stacks));
        let note =
            format!("{cut} of {all} stacks lack their outermost functions, whose totals are too small");
        wrapped(text, &note, "  ", page.width);
    }
    let mut columns = estimate_columns("self", page);
    columns.extend([
        ("total", ColumnAlign::Right),
        ("kind", ColumnAlign::Left),
        ("function", ColumnAlign::Left),
    ]);
    let name = columns.len().saturating_sub(1);
    let mut table = TextTable::new(&columns).indent(2).flexible(name);
    for HostFunction { symbol, module, kind, own, total } in report.functions.iter().take(rows) {
        let mut cells = estimate_cells(own, page);
        let kind = if kind == "user" { "VMM" } else { kind };
        cells.extend([
            units::percent(total.share),
            kind.to_owned(),
            super::with_module(symbol, module.as_deref()),
        ]);
        table.row(cells);
    }
    text.push_str(&table.render(page.width));
    rest(text, report.functions.iter().skip(rows).map(|function| function.own.share));
}
