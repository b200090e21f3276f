//! `vprof stat` for people, and as CSV.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use display::clean::escaped;
use display::csv::{CsvWriter, Formulas};
use display::units;
use profile::stat::{CounterStat, Stat};
use serde::Serialize;

use super::summary::vcpu_name;
use super::table::{ColumnAlign, TextTable};
use super::{PageLayout, visible};

/// Order of the states; other states of a profile follow.
const STATES: [&str; 7] = ["guest", "halted", "waiting", "kvm", "vmm", "sampler", "paused"];

/// Formats the figures with at most `rows` rows each of exits, interrupts, waits and counters other than 0.
pub fn render(stat: &Stat, rows: usize, page: PageLayout) -> String {
    let mut text = title(stat, page);
    vcpus(&mut text, stat, page);
    if let Some(what) = &stat.unavailable {
        let _ = writeln!(text, "\nnot known: {}", escaped(what));
    }
    exits(&mut text, stat, rows, page);
    sites(&mut text, stat, rows, page);
    interrupts(&mut text, stat, rows, page);
    served(&mut text, stat, rows, page);
    waits(&mut text, stat, rows, page);
    counters(&mut text, stat, rows, page);
    text
}

fn title(stat: &Stat, page: PageLayout) -> String {
    let kernel =
        stat.kernel.as_deref().map_or_else(|| "a guest".to_owned(), |k| format!("Linux {}", escaped(k)));
    let span = if stat.from_s > 0.0 {
        format!("{:.2} s to {:.2} s", stat.from_s, stat.to_s)
    } else {
        format!("{:.2} s", stat.to_s)
    };
    let state = if stat.complete { "" } else { ", not complete" };
    let line = format!("{span} of {kernel}, host: {}{state}", escaped(&stat.host));
    page.style.bold(&super::table::cut(&line, page.width)) + "\n"
}

fn heading(text: &mut String, page: PageLayout, name: &str, more: usize) {
    let note = if more > 0 { format!(" ({more} more, -n 0 shows all)") } else { String::new() };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "\n{}{note}", page.style.bold(name));
}

#[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
fn part(ns: u64, of: u64) -> String {
    if of == 0 { "-".to_owned() } else { units::percent(ns as f64 / of as f64) }
}

fn vcpus(text: &mut String, stat: &Stat, page: PageLayout) {
    heading(text, page, "Time of each vCPU by state", 0);
    let names = STATES.map(|name| (name, ColumnAlign::Right));
    let columns = [("vCPU", ColumnAlign::Right)].into_iter().chain(names);
    let columns: Vec<_> =
        columns.chain([("wall", ColumnAlign::Right), ("exits", ColumnAlign::Right)]).collect();
    // States that did not occur are the first to be left out; column 0 is the vCPU's number.
    let none = |place: &usize| {
        let name = STATES[*place - 1];
        stat.vcpus.iter().all(|vcpu| vcpu.states.get(name).is_none_or(|ns| *ns == 0))
    };
    let (absent, present): (Vec<usize>, Vec<usize>) = (2..=STATES.len()).rev().partition(none);
    let last = STATES.len() + 1;
    let spare = [absent.as_slice(), &[last, last + 1], present.as_slice()].concat();
    let mut table = TextTable::new(&columns).indent(2).spare(&spare);
    for vcpu in &stat.vcpus {
        let state = |name| part(vcpu.states.get(name).copied().unwrap_or(0), vcpu.wall_ns);
        let mut cells = vec![vcpu_name((vcpu.id, vcpu.number), vcpu.vm.as_deref())];
        cells.extend(STATES.map(state));
        let unknown = stat.unavailable.is_some() && stat.exits.is_empty();
        let exits = if unknown { "-".to_owned() } else { units::count(vcpu.exits) };
        cells.extend([units::brief(vcpu.wall_ns), exits]);
        table.row(cells);
    }
    text.push_str(&table.render(page.width));
}

/// Formats the reason of an exit, with its device or address.
fn what(reason: &str, device: Option<&str>, address: Option<u64>) -> String {
    match (device, address) {
        // The device determines whether the access is to a port or to memory.
        (Some(device), _) => {
            let how = reason.rsplit(' ').next().unwrap_or_default();
            format!("{}, {how}", escaped(device))
        }
        (None, Some(address)) => format!("{reason}: {address:#x}"),
        (None, None) => reason.to_owned(),
    }
}

/// Returns the heading of the longest time: only that of the whole run is known.
fn longest(stat: &Stat) -> &'static str {
    if stat.from_s > 0.0 { "max of run" } else { "max" }
}

fn exits(text: &mut String, stat: &Stat, rows: usize, page: PageLayout) {
    let exits = stat.by_device();
    if exits.is_empty() {
        return;
    }
    // Those of an attached machine go to another VMM, or to KVM alone.
    let whose = if stat.unavailable.is_some() { "Exits" } else { "Exits to vprof" };
    let name = format!("{whose}, from exit to next entry");
    heading(text, page, &name, exits.len().saturating_sub(rows));
    let names =
        ["count", "total", "mean", "p50", "p99", longest(stat)].map(|name| (name, ColumnAlign::Right));
    let columns: Vec<_> = [("reason", ColumnAlign::Left)].into_iter().chain(names).collect();
    let mut table = TextTable::new(&columns).indent(2).flexible(0);
    for exit in exits.iter().take(rows) {
        let times = [exit.mean_ns, exit.p50_ns, exit.p99_ns, exit.max_ns].map(units::brief);
        let reason = what(&exit.reason, exit.device.as_deref(), exit.address);
        let first = [reason, units::count(exit.count), units::brief(exit.total_ns)];
        table.row(first.into_iter().chain(times).collect());
    }
    text.push_str(&table.render(page.width));
}

fn sites(text: &mut String, stat: &Stat, rows: usize, page: PageLayout) {
    let sites = stat.sites_by_function();
    if sites.is_empty() {
        return;
    }
    heading(text, page, "Exits by process and function of the guest", sites.len().saturating_sub(rows));
    // Without an estimate all errors are 0.
    let estimated = sites.iter().any(|site| site.count_error > 0.0);
    let errors = if estimated {
        &["count", "error", "total", "error", "mean"][..]
    } else {
        &["count", "total", "mean"]
    };
    let names = ["process", "function", "reason"].map(|name| (name, ColumnAlign::Left));
    let right = errors.iter().map(|name| (*name, ColumnAlign::Right));
    let columns: Vec<_> = names.into_iter().chain(right).collect();
    let mut table = TextTable::new(&columns).indent(2).flexible(1);
    for site in sites.iter().take(rows) {
        let function = site.function.as_deref().map_or(Cow::Borrowed("-"), |name| visible(name));
        let function = match &site.module {
            Some(module) if *function != format!("[{module}]") => format!("{function} [{}]", escaped(module)),
            _ => function.into_owned(),
        };
        let reason = what(&site.reason, site.device.as_deref(), site.address);
        let mut cells = vec![visible(&site.process).into_owned(), function, reason];
        let error = |error: f64, of: u64| estimated.then(|| relative(error, of));
        cells.push(units::count(site.count));
        cells.extend(error(site.count_error, site.count));
        cells.push(units::brief(site.total_ns));
        cells.extend(error(site.total_error_ns, site.total_ns));
        cells.push(units::brief(site.mean_ns));
        table.row(cells);
    }
    text.push_str(&table.render(page.width));
}

/// Formats a standard error in percent of the number that it is of.
#[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
fn relative(error: f64, of: u64) -> String {
    if of == 0 || error <= 0.0 { String::new() } else { units::percent(error / of as f64) }
}

fn interrupts(text: &mut String, stat: &Stat, rows: usize, page: PageLayout) {
    if stat.interrupts.is_empty() {
        return;
    }
    heading(text, page, "Interrupts from devices", stat.interrupts.len().saturating_sub(rows));
    let columns =
        [("device", ColumnAlign::Left), ("vector", ColumnAlign::Right), ("count", ColumnAlign::Right)];
    let mut table = TextTable::new(&columns).indent(2).flexible(0);
    for interrupt in stat.interrupts.iter().take(rows) {
        let vector = interrupt.vector.map_or_else(|| "line".to_owned(), |vector| vector.to_string());
        table.row(vec![escaped(&interrupt.device).into_owned(), vector, units::count(interrupt.count)]);
    }
    text.push_str(&table.render(page.width));
}

fn served(text: &mut String, stat: &Stat, rows: usize, page: PageLayout) {
    let served = stat.served_by_name();
    if served.is_empty() {
        return;
    }
    heading(text, page, "Interrupts that the guest has served", served.len().saturating_sub(rows));
    let right = ["vector", "count", "total", "mean", longest(stat)].map(|name| (name, ColumnAlign::Right));
    let columns: Vec<_> = [("interrupt", ColumnAlign::Left)].into_iter().chain(right).collect();
    let mut table = TextTable::new(&columns).indent(2).flexible(0);
    for served in served.iter().take(rows) {
        let vector = served.vector.map_or_else(|| "-".to_owned(), |vector| vector.to_string());
        let times = [served.total_ns, served.mean_ns, served.max_ns].map(units::brief);
        let first = [escaped(&served.name).into_owned(), vector, units::count(served.count)];
        table.row(first.into_iter().chain(times).collect());
    }
    text.push_str(&table.render(page.width));
}

fn waits(text: &mut String, stat: &Stat, rows: usize, page: PageLayout) {
    let waits = stat.waits_by_process();
    if waits.is_empty() {
        return;
    }
    let name = "Waits of vCPUs for a CPU of the host, by the process that had it";
    heading(text, page, name, waits.len().saturating_sub(rows));
    let right = ["pid", "count", "total", "mean"].map(|name| (name, ColumnAlign::Right));
    let columns: Vec<_> = [("process", ColumnAlign::Left)].into_iter().chain(right).collect();
    let mut table = TextTable::new(&columns).indent(2).flexible(0);
    for wait in waits.iter().take(rows) {
        let name = wait.pid.map_or(Cow::Borrowed("others"), |_| escaped(&wait.name));
        let pid = wait.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let times = [wait.total_ns, wait.mean_ns].map(units::brief);
        table.row([name.into_owned(), pid, units::count(wait.count)].into_iter().chain(times).collect());
    }
    text.push_str(&table.render(page.width));
}

/// Adds sums over vCPUs, in the order of their values within counts and within times.
fn counters(text: &mut String, stat: &Stat, rows: usize, page: PageLayout) {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    // The list is sorted by name.
    for CounterStat { name, value, .. } in &stat.kvm_counters {
        match sums.last_mut() {
            Some((last, sum)) if *last == name => *sum += value,
            _ => sums.push((name, *value)),
        }
    }
    sums.retain(|(_, value)| *value > 0);
    if sums.is_empty() {
        return;
    }
    let is_time = |name: &str| name.ends_with("_ns");
    sums.sort_by_key(|(name, value)| (is_time(name), std::cmp::Reverse(*value)));
    heading(text, page, "KVM's counters", sums.len().saturating_sub(rows));
    let mut table =
        TextTable::new(&[("counter", ColumnAlign::Left), ("value", ColumnAlign::Right)]).indent(2);
    for (name, value) in sums.into_iter().take(rows) {
        let shown = if is_time(name) { units::brief(value) } else { units::count(value) };
        table.row(vec![escaped(name).into_owned(), shown]);
    }
    text.push_str(&table.render(page.width));
}

/// A line of the CSV output. A figure that does not apply is empty.
#[derive(Clone, Default, Serialize)]
struct CsvRow<'a> {
    from_s: &'a str,
    to_s: &'a str,
    /// `state`, `wall`, `exit`, `site`, `interrupt`, `served`, `wait` or `kvm`.
    kind: &'static str,
    vcpu: Option<u16>,
    name: Cow<'a, str>,
    device: Option<&'a str>,
    /// Hexadecimal address of an exit, vector of a served interrupt, or process that a wait is for.
    address: Option<String>,
    count: Option<u64>,
    total_ns: Option<u64>,
    mean_ns: Option<u64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    /// Time in a state, ns, or value of a counter.
    value: Option<u64>,
    /// Process of the guest that exits are from, its id, and function and module.
    process: Option<&'a str>,
    pid: Option<i32>,
    function: Option<&'a str>,
    module: Option<&'a str>,
    /// Standard errors of `count` and of `total_ns`.
    count_error: Option<f64>,
    total_error_ns: Option<f64>,
}

/// Writes the names of the columns of [`write_csv`].
pub fn write_csv_heading(out: impl io::Write) -> io::Result<()> {
    CsvWriter::new(out, Formulas::Quoted).heading(&CsvRow::default())
}

/// Writes every figure as a line: states, exits, exits by function, interrupts, interrupts that the guest has
/// served, waits, and counters.
pub fn write_csv(stat: &Stat, out: impl io::Write, formulas: Formulas) -> io::Result<()> {
    let [from_s, to_s] = [stat.from_s, stat.to_s].map(|s| format!("{s:.6}"));
    let mut csv = CsvWriter::new(out, formulas);
    let span = CsvRow { from_s: &from_s, to_s: &to_s, ..CsvRow::default() };
    let value = |kind, vcpu, name, value| CsvRow {
        kind,
        vcpu: Some(vcpu),
        name: Cow::Borrowed(name),
        value: Some(value),
        ..span.clone()
    };
    for vcpu in &stat.vcpus {
        for (name, ns) in &vcpu.states {
            csv.row(&value("state", vcpu.id, name, *ns))?;
        }
        csv.row(&value("wall", vcpu.id, "wall", vcpu.wall_ns))?;
    }
    for exit in &stat.exits {
        csv.row(&CsvRow {
            kind: "exit",
            vcpu: exit.vcpu,
            name: Cow::Borrowed(&exit.reason),
            device: exit.device.as_deref(),
            address: exit.address.map(|address| format!("{address:#x}")),
            count: Some(exit.count),
            total_ns: Some(exit.total_ns),
            mean_ns: Some(exit.mean_ns),
            p50_ns: Some(exit.p50_ns),
            p99_ns: Some(exit.p99_ns),
            max_ns: Some(exit.max_ns),
            ..span.clone()
        })?;
    }
    for site in &stat.exit_sites {
        csv.row(&CsvRow {
            kind: "site",
            vcpu: site.vcpu,
            name: Cow::Borrowed(&site.reason),
            device: site.device.as_deref(),
            address: site.address.map(|address| format!("{address:#x}")),
            count: Some(site.count),
            total_ns: Some(site.total_ns),
            mean_ns: Some(site.mean_ns),
            process: Some(&site.process),
            pid: site.pid,
            function: site.function.as_deref(),
            module: site.module.as_deref(),
            count_error: Some(site.count_error),
            total_error_ns: Some(site.total_error_ns),
            ..span.clone()
        })?;
    }
    for interrupt in &stat.interrupts {
        let name = interrupt.vector.map_or(Cow::Borrowed("line"), |vector| Cow::Owned(vector.to_string()));
        csv.row(&CsvRow {
            kind: "interrupt",
            name,
            device: Some(&interrupt.device),
            count: Some(interrupt.count),
            ..span.clone()
        })?;
    }
    for served in &stat.served {
        csv.row(&CsvRow {
            kind: "served",
            vcpu: served.vcpu,
            name: Cow::Borrowed(&served.name),
            address: served.vector.map(|vector| vector.to_string()),
            count: Some(served.count),
            total_ns: Some(served.total_ns),
            mean_ns: Some(served.mean_ns),
            max_ns: Some(served.max_ns),
            ..span.clone()
        })?;
    }
    for wait in &stat.host_waits {
        csv.row(&CsvRow {
            kind: "wait",
            vcpu: wait.vcpu,
            name: Cow::Borrowed(&wait.name),
            address: wait.pid.map(|pid| pid.to_string()),
            count: Some(wait.count),
            total_ns: Some(wait.total_ns),
            mean_ns: Some(wait.mean_ns),
            ..span.clone()
        })?;
    }
    for counter in &stat.kvm_counters {
        csv.row(&value("kvm", counter.vcpu, &counter.name, counter.value))?;
    }
    Ok(())
}
