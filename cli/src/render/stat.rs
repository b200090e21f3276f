//! `vprof stat` for people, and as CSV.

use std::fmt::Write as _;

use profile::stat::{CounterStat, ExitStat, Stat};
use text::clean::escaped;
use text::units;

use super::table::{Align, Table};
use super::{Page, csv};

/// States in the order in which they are shown; all others of a profile follow.
const STATES: [&str; 7] = ["guest", "halted", "waiting", "kvm", "vmm", "sampler", "paused"];

/// The figures with at most `rows` rows of exits, interrupts and counters each; of counters only those that are not 0.
pub fn render(stat: &Stat, rows: usize, page: Page) -> String {
    let mut text = title(stat, page);
    vcpus(&mut text, stat, page);
    if let Some(what) = &stat.not_had {
        let _ = writeln!(text, "\nnot known: {}", escaped(what));
    }
    exits(&mut text, stat, rows, page);
    interrupts(&mut text, stat, rows, page);
    served(&mut text, stat, rows, page);
    counters(&mut text, stat, rows, page);
    text
}

fn title(stat: &Stat, page: Page) -> String {
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

fn heading(text: &mut String, page: Page, name: &str, more: usize) {
    let note = if more > 0 { format!(" ({more} more, -n 0 shows all)") } else { String::new() };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "\n{}{note}", page.style.bold(name));
}

#[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
fn part(ns: u64, of: u64) -> String {
    if of == 0 { "-".to_owned() } else { units::percent(ns as f64 / of as f64) }
}

fn vcpus(text: &mut String, stat: &Stat, page: Page) {
    heading(text, page, "Where the time of each vCPU went", 0);
    let names = STATES.map(|name| (name, Align::Right));
    let columns = [("vCPU", Align::Right)].into_iter().chain(names);
    let columns: Vec<_> = columns.chain([("wall", Align::Right), ("exits", Align::Right)]).collect();
    let mut table = Table::new(&columns).indent(2);
    for vcpu in &stat.vcpus {
        let state = |name| part(vcpu.states.get(name).copied().unwrap_or(0), vcpu.wall_ns);
        let mut cells = vec![vcpu.id.to_string()];
        cells.extend(STATES.map(state));
        let exits = if stat.not_had.is_some() { "-".to_owned() } else { units::count(vcpu.exits) };
        cells.extend([units::brief(vcpu.wall_ns), exits]);
        table.row(cells);
    }
    text.push_str(&table.render(page.width));
}

/// Reason, and who answered where.
fn what(exit: &ExitStat) -> String {
    match (&exit.device, exit.address) {
        // Whether it has ports or memory is the device's business.
        (Some(device), _) => {
            let how = exit.reason.rsplit(' ').next().unwrap_or_default();
            format!("{}, {how}", escaped(device))
        }
        (None, Some(address)) => format!("{}: {address:#x}", exit.reason),
        (None, None) => exit.reason.clone(),
    }
}

fn exits(text: &mut String, stat: &Stat, rows: usize, page: Page) {
    let exits = stat.by_device();
    if exits.is_empty() {
        return;
    }
    heading(text, page, "Exits to vprof, from exit to next entry", exits.len().saturating_sub(rows));
    let names = ["count", "total", "mean", "p50", "p99", "max"].map(|name| (name, Align::Right));
    let columns: Vec<_> = [("reason", Align::Left)].into_iter().chain(names).collect();
    let mut table = Table::new(&columns).indent(2).flexible(0);
    for exit in exits.iter().take(rows) {
        let times = [exit.mean_ns, exit.p50_ns, exit.p99_ns, exit.max_ns].map(units::brief);
        let first = [what(exit), units::count(exit.count), units::brief(exit.total_ns)];
        table.row(first.into_iter().chain(times).collect());
    }
    text.push_str(&table.render(page.width));
}

fn interrupts(text: &mut String, stat: &Stat, rows: usize, page: Page) {
    if stat.interrupts.is_empty() {
        return;
    }
    heading(text, page, "Interrupts from devices", stat.interrupts.len().saturating_sub(rows));
    let columns = [("device", Align::Left), ("vector", Align::Right), ("count", Align::Right)];
    let mut table = Table::new(&columns).indent(2).flexible(0);
    for interrupt in stat.interrupts.iter().take(rows) {
        let vector = interrupt.vector.map_or_else(|| "line".to_owned(), |vector| vector.to_string());
        table.row(vec![escaped(&interrupt.device).into_owned(), vector, units::count(interrupt.count)]);
    }
    text.push_str(&table.render(page.width));
}

fn served(text: &mut String, stat: &Stat, rows: usize, page: Page) {
    let served = stat.served_by_name();
    if served.is_empty() {
        return;
    }
    heading(text, page, "Interrupts that the guest has served", served.len().saturating_sub(rows));
    let right = ["vector", "count", "total", "mean", "max"].map(|name| (name, Align::Right));
    let columns: Vec<_> = [("interrupt", Align::Left)].into_iter().chain(right).collect();
    let mut table = Table::new(&columns).indent(2).flexible(0);
    for served in served.iter().take(rows) {
        let vector = served.vector.map_or_else(|| "-".to_owned(), |vector| vector.to_string());
        let times = [served.total_ns, served.mean_ns, served.max_ns].map(units::brief);
        let first = [escaped(&served.name).into_owned(), vector, units::count(served.count)];
        table.row(first.into_iter().chain(times).collect());
    }
    text.push_str(&table.render(page.width));
}

/// Sums over vCPUs, in the order of their values within counts and within times.
fn counters(text: &mut String, stat: &Stat, rows: usize, page: Page) {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    // By name, as they stand in the list.
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
    let mut table = Table::new(&[("counter", Align::Left), ("value", Align::Right)]).indent(2);
    for (name, value) in sums.into_iter().take(rows) {
        let shown = if is_time(name) { units::brief(value) } else { units::count(value) };
        table.row(vec![escaped(name).into_owned(), shown]);
    }
    text.push_str(&table.render(page.width));
}

/// The columns of [`as_csv`].
const CSV: [&str; 14] = [
    "from_s", "to_s", "kind", "vcpu", "name", "device", "address", "count", "total_ns", "mean_ns", "p50_ns",
    "p99_ns", "max_ns", "value",
];

/// The heading of [`as_csv`].
pub fn csv_heading() -> String {
    csv::line(&CSV)
}

/// Every figure as a line: states (`value` in ns), exits, interrupts, those that the guest has served (`address` is the vector),
/// and counters (`value`).
pub fn as_csv(stat: &Stat) -> String {
    let span = [format!("{:.6}", stat.from_s), format!("{:.6}", stat.to_s)];
    let line = |rest: [String; 12]| csv::line(&span.iter().cloned().chain(rest).collect::<Vec<_>>());
    let none = String::new;
    let simple = |kind: &str, vcpu: String, name: &str, value: u64| {
        let mut rest: [String; 12] = std::array::from_fn(|_| none());
        (rest[0], rest[1], rest[2], rest[11]) = (kind.to_owned(), vcpu, name.to_owned(), value.to_string());
        line(rest)
    };
    let mut text = String::new();
    for vcpu in &stat.vcpus {
        let id = vcpu.id.to_string();
        for (name, ns) in &vcpu.states {
            text.push_str(&simple("state", id.clone(), name, *ns));
        }
        text.push_str(&simple("wall", id, "wall", vcpu.wall_ns));
    }
    for exit in &stat.exits {
        let numbers = [exit.count, exit.total_ns, exit.mean_ns, exit.p50_ns, exit.p99_ns, exit.max_ns]
            .map(|n| n.to_string());
        let [count, total, mean, p50, p99, max] = numbers;
        let vcpu = exit.vcpu.map_or_else(none, |vcpu| vcpu.to_string());
        let address = exit.address.map_or_else(none, |address| format!("{address:#x}"));
        let device = exit.device.clone().unwrap_or_default();
        let reason = exit.reason.clone();
        text.push_str(&line([
            "exit".to_owned(),
            vcpu,
            reason,
            device,
            address,
            count,
            total,
            mean,
            p50,
            p99,
            max,
            none(),
        ]));
    }
    for interrupt in &stat.interrupts {
        let name = interrupt.vector.map_or_else(|| "line".to_owned(), |vector| vector.to_string());
        let mut rest: [String; 12] = std::array::from_fn(|_| none());
        (rest[0], rest[2], rest[3]) = ("interrupt".to_owned(), name, interrupt.device.clone());
        rest[5] = interrupt.count.to_string();
        text.push_str(&line(rest));
    }
    for served in &stat.served {
        let vcpu = served.vcpu.map_or_else(none, |vcpu| vcpu.to_string());
        let vector = served.vector.map_or_else(none, |vector| vector.to_string());
        let [count, total, mean, max] =
            [served.count, served.total_ns, served.mean_ns, served.max_ns].map(|n| n.to_string());
        let name = served.name.clone();
        let kind = "served".to_owned();
        text.push_str(&line([
            kind,
            vcpu,
            name,
            none(),
            vector,
            count,
            total,
            mean,
            none(),
            none(),
            max,
            none(),
        ]));
    }
    for counter in &stat.kvm_counters {
        text.push_str(&simple("kvm", counter.vcpu.to_string(), &counter.name, counter.value));
    }
    text
}
