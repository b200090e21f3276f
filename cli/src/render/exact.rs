//! `report --exact`: tasks and their states, where they slept, who woke whom.

use profile::report::{ExactCost, ExactReport, OffCpu, Part, Parts, Task, TaskStates};
use std::collections::BTreeMap;
use text::clean::escaped;
use text::units;

use super::Page;
use super::summary::{heading, wrapped};
use super::table::{Align, Table};

/// Branches with a smaller part of all sleep are left out of the tree.
const LEAST_PART: f64 = 0.005;

/// Functions that almost every sleep begins or ends with, which the tree leaves out (Linux 6.1 and 6.12).
const EVERYWHERE: [&str; 4] = ["__schedule", "schedule", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"];

/// The report with at most `rows` rows per table.
pub fn render(report: &ExactReport, rows: usize, page: Page) -> String {
    let mut text = String::new();
    facts(&mut text, report, page);
    tasks(&mut text, report, rows, page);
    children(&mut text, report, rows, page);
    faults(&mut text, report, rows, page);
    sleeps(&mut text, report, rows, page);
    off_cpu(&mut text, report, rows, page);
    wakeups(&mut text, report, rows, page);
    sources(&mut text, report, rows, page);
    soft_interrupts(&mut text, report, rows, page);
    interrupts(&mut text, report, rows, page);
    text
}

fn facts(text: &mut String, report: &ExactReport, page: Page) {
    let sum = |of: fn(&profile::report::ExactVcpu) -> u64| report.vcpus.iter().map(of).sum::<u64>();
    let span = report.to_s - report.from_s;
    let title = format!("Exact data of {}, from {} on", units::seconds(span), units::seconds(report.from_s));
    wrapped(text, &page.style.bold(&title), "", page.width);
    let events = format!(
        "{}, {} lost",
        units::counted(sum(|vcpu| vcpu.probe_exits), "event"),
        units::count(sum(|vcpu| vcpu.lost)),
    );
    wrapped(text, &events, "  ", page.width);
    let served: f64 = report.vcpus.iter().map(|vcpu| vcpu.cost_s).sum();
    wrapped(text, &cost(report.cost.as_ref(), served), "  ", page.width);
    let known = report.vcpus.iter().all(|vcpu| vcpu.guest_switches.is_some());
    let (seen, own) = (sum(|vcpu| vcpu.switches), sum(|vcpu| vcpu.guest_switches.unwrap_or(0)));
    let seen = units::count(seen);
    let switches = match known {
        true => format!("{seen} switches seen; the guest's own count says {}", units::count(own)),
        false => format!("{seen} switches seen"),
    };
    wrapped(text, &switches, "  ", page.width);
    if !report.complete {
        wrapped(text, "Events were lost: what tasks did meanwhile is unknown.", "  ", page.width);
    }
    match &report.end {
        Some(end) if end != "the run ended" => {
            wrapped(text, &format!("It ends early: {}.", escaped(end)), "  ", page.width);
        }
        Some(_) => {}
        None => wrapped(text, "The run was cut short, or goes on.", "  ", page.width),
    }
}

/// What exact mode cost, in one clause; of a profile that does not tell the whole, vprof's own part alone.
pub(super) fn cost(cost: Option<&ExactCost>, served_s: f64) -> String {
    let Some(cost) = cost else {
        return format!(
            "vprof's own part of their cost is {} of the vCPUs' time, without the switches between guest and host",
            units::seconds(served_s)
        );
    };
    format!(
        "exact mode cost about {} of the vCPUs' {}: {} vprof's own part, {} (95 %: {} to {}) the switches between \
         guest and host",
        units::seconds(cost.whole_s),
        units::seconds(cost.of_s),
        units::seconds(cost.served_s),
        units::seconds(cost.switching_s),
        units::seconds(cost.switching_low_s),
        units::seconds(cost.switching_high_s),
    )
}

pub(super) fn name(task: &Task) -> String {
    let comm = escaped(&task.comm);
    match &task.thread {
        _ if task.kernel_thread => format!("[{comm}]"),
        Some(thread) if *thread != task.comm => format!("{comm}#{}/{}", task.instance, escaped(thread)),
        _ if task.pid == 0 => comm.into_owned(),
        _ => format!("{comm}#{}", task.instance),
    }
}

pub(super) fn ms(s: f64) -> String {
    format!("{:.1}", s * 1e3)
}

fn tasks(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    heading(text, page.style, "Tasks", ": ms in each state; user and trap are parts of running by samples");
    let right = ["tid", "life", "running", "user", "trap", "irq", "runnable", "sleep", "disk", "other"];
    let mut columns: Vec<(&str, Align)> = right.map(|name| (name, Align::Right)).to_vec();
    columns.push(("task", Align::Left));
    let mut table = Table::new(&columns).indent(2).flexible(10);
    for task in report.tasks.iter().take(rows) {
        let of = |names: &[&str]| {
            let fits = task.states.iter().filter(|s| names.contains(&s.state.as_str()));
            // The sum of nothing is -0.
            fits.fold(0.0, |sum, state| sum + state.s)
        };
        let share = |of: fn(&Parts) -> Part| {
            task.parts.as_ref().map_or("-".to_owned(), |parts| format!("{:.0} %", of(parts).share * 100.0))
        };
        table.row(vec![
            task.task.tid.to_string(),
            ms(task.life_s),
            ms(task.running_s),
            share(|parts| parts.user),
            share(|parts| parts.trap),
            ms(of(&["interrupted"])),
            ms(of(&["runnable"])),
            ms(of(&["sleep"])),
            ms(of(&["disk"])),
            ms(of(&["sampler", "stopped", "zombie", "unknown"])),
            name(&task.task),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.tasks.len(), rows);
}

/// What the children of processes did that they have waited for.
fn children(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    if report.children.is_empty() {
        return;
    }
    heading(
        text,
        page.style,
        "Children",
        ": ms in each state of all that a process has waited for, and of theirs",
    );
    let right = ["waited for", "sums of", "life", "running", "irq", "runnable", "sleep", "disk", "other"];
    let mut columns: Vec<(&str, Align)> = right.map(|name| (name, Align::Right)).to_vec();
    columns.push(("process", Align::Left));
    let mut table = Table::new(&columns).indent(2).flexible(9);
    for process in report.children.iter().take(rows) {
        let of = |names: &[&str]| {
            let fits = process.states.iter().filter(|s| names.contains(&s.state.as_str()));
            ms(fits.fold(0.0, |sum, state| sum + state.s))
        };
        table.row(vec![
            units::count(process.waited_for),
            units::count(process.processes),
            ms(process.life_s),
            ms(process.running_s),
            of(&["interrupted"]),
            of(&["runnable"]),
            of(&["sleep"]),
            of(&["disk"]),
            of(&["sampler", "stopped", "zombie", "unknown"]),
            format!("{}#{}", escaped(&process.comm), process.instance),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.children.len(), rows);
}

pub(super) fn more(text: &mut String, all: usize, rows: usize) {
    let left = all.saturating_sub(rows) as u64;
    if left > 0 {
        text.push_str(&format!("  {} more; -n 0 shows all\n", units::count(left)));
    }
}

/// Kinds of page faults in the time of tasks on a CPU.
fn faults(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    let of = |task: &TaskStates| {
        let parts = task.parts?;
        let faults = [parts.text_fault, parts.data_fault, parts.kernel_fault];
        faults.iter().any(|part| part.samples > 0).then_some(faults)
    };
    let list: Vec<_> = report.tasks.iter().filter_map(|task| Some((task, of(task)?))).collect();
    if list.is_empty() {
        return;
    }
    heading(text, page.style, "Page faults", ": parts of running by samples, with 95 % intervals");
    let kinds = ["text", "data", "kernel"].map(|name| (name, Align::Right));
    let columns = [kinds.as_slice(), &[("task", Align::Left)]].concat();
    let mut table = Table::new(&columns).indent(2).flexible(3);
    for (task, faults) in list.iter().take(rows) {
        let cell = |part: &Part| {
            format!("{:.1} % ({:.1} to {:.1})", part.share * 100.0, part.low * 100.0, part.high * 100.0)
        };
        table.row(faults.iter().map(cell).chain([name(&task.task)]).collect());
    }
    text.push_str(&table.render(page.width));
    more(text, list.len(), rows);
}

/// What the tasks waited for, by wait_reason.
fn sleeps(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    heading(text, page.style, "Waits", ": what tasks waited for, kernel threads left out");
    let mut list: Vec<(&TaskStates, &profile::report::StateTime)> = Vec::new();
    for task in report.tasks.iter().filter(|task| !task.task.kernel_thread) {
        let waits = |state: &&profile::report::StateTime| {
            !matches!(state.state.as_str(), "running" | "interrupted" | "sampler")
        };
        list.extend(
            task.states.iter().filter(waits).filter(|state| state.s > 0.0).map(|state| (task, state)),
        );
    }
    list.sort_by(|a, b| b.1.s.total_cmp(&a.1.s));
    let mut table = Table::new(&[
        ("ms", Align::Right),
        ("of life", Align::Right),
        ("times", Align::Right),
        ("state", Align::Left),
        ("for", Align::Left),
        ("task", Align::Left),
    ])
    .indent(2)
    .flexible(5);
    for (task, state) in list.iter().take(rows) {
        table.row(vec![
            ms(state.s),
            units::percent(state.share),
            units::count(state.count),
            state.state.clone(),
            state.wait_reason.clone(),
            name(&task.task),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, list.len(), rows);
}

/// A node of the tree of sleeps.
#[derive(Default)]
struct Node {
    s: f64,
    count: u64,
    below: BTreeMap<String, Node>,
}

impl Node {
    fn add<'a>(&mut self, mut path: impl Iterator<Item = &'a str>, s: f64, count: u64) {
        self.s += s;
        self.count += count;
        if let Some(next) = path.next() {
            self.below.entry(next.to_owned()).or_default().add(path, s, count);
        }
    }
}

fn off_cpu(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    heading(text, page.style, "Off CPU", ": where tasks slept, kernel threads left out");
    let mut root = Node::default();
    for sleep in report.off_cpu.iter().filter(|sleep| !sleep.task.kernel_thread) {
        let OffCpu { task, s, count, stack, .. } = sleep;
        let task = name(task);
        let functions =
            stack.iter().rev().map(String::as_str).filter(|function| !EVERYWHERE.contains(function));
        root.add(std::iter::once(task.as_str()).chain(functions), *s, *count);
    }
    let mut table = Table::new(&[("ms", Align::Right), ("times", Align::Right), ("function", Align::Left)])
        .indent(2)
        .flexible(2);
    let (mut shown, mut left) = (0, 0);
    grow(&root, 0, root.s * LEAST_PART, &mut |depth, function, node: &Node| {
        if shown == rows.saturating_mul(4) {
            left += 1;
            return;
        }
        shown += 1;
        let indent = "  ".repeat(depth.min(20));
        table.row(vec![ms(node.s), units::count(node.count), format!("{indent}{}", escaped(function))]);
    });
    text.push_str(&table.render(page.width));
    more(text, shown + left, shown);
}

/// Shows the branches of `node`, most time first; a chain without branches stays on one line's depth.
fn grow(node: &Node, depth: usize, least: f64, show: &mut impl FnMut(usize, &str, &Node)) {
    let mut list: Vec<(&String, &Node)> = node.below.iter().filter(|(_, below)| below.s > least).collect();
    list.sort_by(|a, b| b.1.s.total_cmp(&a.1.s));
    for (name, mut below) in list {
        // A chain of calls is one line.
        let mut names = vec![name.as_str()];
        while let Some((next, only)) = below.below.iter().next().filter(|_| depth > 0) {
            // Some slept right here, or in several functions below.
            if only.count != below.count {
                break;
            }
            names.push(next);
            below = only;
        }
        // Its innermost functions tell most.
        show(depth, &names.iter().rev().copied().collect::<Vec<_>>().join(" < "), below);
        grow(below, depth + 1, least, show);
    }
}

fn wakeups(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    heading(text, page.style, "Wakes", ": who woke whom");
    let mut table = Table::new(&[("times", Align::Right), ("woken", Align::Left), ("by", Align::Left)])
        .indent(2)
        .flexible(2);
    for wakeup in report.wakeups.iter().take(rows) {
        let by = match (&wakeup.waker, wakeup.by.as_str()) {
            (Some(task), _) => name(task),
            (None, "hard") => "a hard interrupt".to_owned(),
            _ => "a soft interrupt".to_owned(),
        };
        table.row(vec![units::count(wakeup.count), name(&wakeup.woken), by]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.wakeups.len(), rows);
}

fn sources(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    if report.sources.is_empty() {
        return;
    }
    heading(text, page.style, "Interrupts", ": what raised them, and the time of their handlers");
    let right = ["count", "ms", "mean us", "max us", "vector"].map(|name| (name, Align::Right));
    let columns: Vec<_> = right.into_iter().chain([("interrupt", Align::Left)]).collect();
    let mut table = Table::new(&columns).indent(2).flexible(5);
    for source in report.sources.iter().take(rows) {
        table.row(vec![
            units::count(source.count),
            ms(source.s),
            format!("{:.1}", source.mean_s * 1e6),
            format!("{:.1}", source.max_s * 1e6),
            source.vector.map_or("-".to_owned(), |vector| vector.to_string()),
            escaped(&source.name).into_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.sources.len(), rows);
}

fn soft_interrupts(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    if report.soft_interrupts.is_empty() {
        return;
    }
    heading(text, page.style, "Soft interrupts", ": estimated by samples, for no event tells their end");
    let right = ["samples", "ms", "95 % interval"].map(|name| (name, Align::Right));
    let columns: Vec<_> = right.into_iter().chain([("soft interrupt", Align::Left)]).collect();
    let mut table = Table::new(&columns).indent(2).flexible(3);
    for soft in report.soft_interrupts.iter().take(rows) {
        let estimate = &soft.estimate;
        table.row(vec![
            units::count(estimate.samples),
            ms(estimate.time_s),
            format!("{} - {}", ms(estimate.time_low_s), ms(estimate.time_high_s)),
            escaped(&soft.name).into_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.soft_interrupts.len(), rows);
}

fn interrupts(text: &mut String, report: &ExactReport, rows: usize, page: Page) {
    heading(text, page.style, "Hard interrupts", ": whom they interrupted");
    let mut table = Table::new(&[
        ("vCPU", Align::Right),
        ("ms", Align::Right),
        ("times", Align::Right),
        ("task", Align::Left),
    ])
    .indent(2)
    .flexible(3);
    for time in report.interrupts.iter().take(rows) {
        table.row(vec![time.vcpu.to_string(), ms(time.s), units::count(time.count), name(&time.task)]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.interrupts.len(), rows);
}
