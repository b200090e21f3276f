//! `report --trips`: calls of watched functions.

use display::clean::escaped;
use display::units;
use profile::report::{TripArgument, TripCaller, TripFunction, TripReport};

use super::PageLayout;
use super::exact::{histogram, more};
use super::paragraph::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};

/// Functions of a stack that a row shows, from the caller on.
const SHOWN_FRAMES: usize = 12;

/// Formats the report with at most `rows` rows per table.
pub fn render(report: &TripReport, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    let span = report.to_s - report.from_s;
    let title =
        format!("Watched functions for {}, from {} on", units::seconds(span), units::seconds(report.from_s));
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    if let Some(exit_s) = report.exit_s {
        let exit = format!("An exit to vprof and back takes {} on this host.", units::seconds(exit_s));
        wrapped(&mut text, &exit, "  ", page.width);
    }
    match &report.end {
        Some(end) if end != "the run ended" => {
            wrapped(&mut text, &format!("The data ends early: {}.", escaped(end)), "  ", page.width);
        }
        Some(_) => {}
        None => wrapped(&mut text, "The run is in progress or was cut short.", "  ", page.width),
    }
    for function in &report.functions {
        facts(&mut text, function, page);
        intervals(&mut text, function, page);
        processes(&mut text, function, rows, page);
        callers(&mut text, function, rows, page);
        for argument in function.arguments.iter().flatten() {
            values(&mut text, argument, rows, page);
        }
    }
    text
}

fn facts(text: &mut String, function: &TripFunction, page: PageLayout) {
    let TripFunction { symbol, calls, rate_hz, cost, .. } = function;
    let title = format!(": {}, {rate_hz:.1} per second", units::counted(*calls, "call"));
    heading(text, page, &prototype(function), &title);
    let spent = format!(
        "The calls cost about {}: {} vprof's own part, {} (95 %: {} to {}) the switches between guest and host.",
        units::seconds(cost.whole_s),
        units::seconds(cost.served_s),
        units::seconds(cost.switching_s),
        units::seconds(cost.switching_low_s),
        units::seconds(cost.switching_high_s),
    );
    wrapped(text, &spent, "  ", page.width);
    let mut note = |sentence: String| wrapped(text, &sentence, "  ", page.width);
    if function.lost > 0 {
        let lost = units::counted(function.lost, "call");
        note(format!(
            "{lost} have no record: what follows is about the others, and some intervals are too long."
        ));
    }
    if function.left_out > 0 {
        let left_out = units::counted(function.left_out, "later call");
        note(format!(
            "{left_out} are left out for the size of the profile; what follows is about the earlier ones."
        ));
    }
    if function.stacks_missed > 0 {
        note(format!("{} could not be read.", units::counted(function.stacks_missed, "stack")));
    }
    let recorded = calls.saturating_sub(function.lost).saturating_sub(function.left_out);
    if function.chosen < recorded {
        note(format!("{} of them chosen.", units::count(function.chosen)));
    }
    if function.arguments.is_none() {
        note(format!("The kernel's types do not describe the arguments of {}.", escaped(symbol)));
    }
}

/// Formats name and arguments of a function as C does.
fn prototype(function: &TripFunction) -> String {
    let name = escaped(&function.symbol);
    let Some(arguments) = &function.arguments else { return name.into_owned() };
    let argument = |argument: &TripArgument| {
        let (kind, name) = (escaped(&argument.type_name), escaped(&argument.name));
        format!("{kind}{}{name}", if kind.ends_with('*') || name.is_empty() { "" } else { " " })
    };
    format!("{name}({})", arguments.iter().map(argument).collect::<Vec<_>>().join(", "))
}

fn intervals(text: &mut String, function: &TripFunction, page: PageLayout) {
    let Some(interval) = &function.interval else { return };
    let quantiles = format!(
        "Time between calls: mean {}, median {}, 90 % below {}, 99 % below {}, the longest {}",
        units::seconds(interval.mean_s),
        units::seconds(interval.p50_s),
        units::seconds(interval.p90_s),
        units::seconds(interval.p99_s),
        units::seconds(interval.max_s),
    );
    wrapped(text, &quantiles, "  ", page.width);
    text.push_str(&histogram(interval, "intervals", page));
}

fn processes(text: &mut String, function: &TripFunction, rows: usize, page: PageLayout) {
    if function.processes.is_empty() {
        return;
    }
    let columns = [
        ("calls", ColumnAlign::Right),
        ("share", ColumnAlign::Right),
        ("pid", ColumnAlign::Right),
        ("process", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(3);
    for owner in function.processes.iter().take(rows) {
        let comm = escaped(&owner.comm);
        let name = match (owner.pid, owner.kernel_thread) {
            (0, _) => comm.into_owned(),
            (_, true) => format!("[{comm}]"),
            (_, false) => format!("{comm}#{}", owner.instance),
        };
        table.row(vec![units::count(owner.calls), units::percent(owner.share), owner.pid.to_string(), name]);
    }
    text.push('\n');
    text.push_str(&table.render(page.width));
    more(text, function.processes.len(), rows);
}

fn callers(text: &mut String, function: &TripFunction, rows: usize, page: PageLayout) {
    if function.callers.is_empty() {
        return;
    }
    let is_exact = function.callers.iter().all(|caller| caller.error == 0.0);
    let calls = if is_exact { "calls" } else { "calls, about" };
    let columns =
        [(calls, ColumnAlign::Right), ("share", ColumnAlign::Right), ("called by", ColumnAlign::Left)];
    let mut table = TextTable::new(&columns).indent(2).flexible(2);
    for caller in function.callers.iter().take(rows) {
        let TripCaller { stack, calls, error, share } = caller;
        let count = units::count(units::rounded(*calls));
        let count =
            if is_exact { count } else { format!("{count} ±{}", units::count(units::rounded(*error))) };
        let mut names: Vec<_> = stack.iter().take(SHOWN_FRAMES).map(|name| escaped(name)).collect();
        if stack.len() > SHOWN_FRAMES {
            names.push("...".into());
        }
        table.row(vec![count, units::percent(*share), names.join(" < ")]);
    }
    text.push('\n');
    text.push_str(&table.render(page.width));
    more(text, function.callers.len(), rows);
}

fn values(text: &mut String, argument: &TripArgument, rows: usize, page: PageLayout) {
    if argument.values.is_empty() {
        return;
    }
    let title = if argument.name.is_empty() { &argument.type_name } else { &argument.name };
    let title = escaped(title);
    let columns =
        [("calls", ColumnAlign::Right), ("share", ColumnAlign::Right), (title.as_ref(), ColumnAlign::Left)];
    let mut table = TextTable::new(&columns).indent(2).flexible(2);
    for value in argument.values.iter().take(rows) {
        table.row(vec![
            units::count(value.calls),
            units::percent(value.share),
            escaped(&value.value).into_owned(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render(page.width));
    more(text, argument.values.len(), rows);
}
