//! `report --exact`: tasks and their states, their sleeps, and their wake-ups.

use display::clean::escaped;
use display::units;
use profile::report::{
    CpuPart, CpuParts, DelayBucket, DurationSummary, ExactCost, ExactReport, OffCpu, Task, TaskStates,
};
use std::collections::BTreeMap;

use super::PageLayout;
use super::paragraph::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};

/// Smallest part of all sleep of a branch in the tree.
const LEAST_PART: f64 = 0.005;

/// Functions that almost every sleep begins or ends with, which the tree leaves out (Linux 6.1 and 6.12).
const EVERYWHERE: [&str; 4] = ["__schedule", "schedule", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"];

/// Formats the report with at most `rows` rows per table.
pub fn render(report: &ExactReport, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    facts(&mut text, report, page);
    tasks(&mut text, report, rows, page);
    children(&mut text, report, rows, page);
    faults(&mut text, report, rows, page);
    delays(&mut text, report, rows, page);
    wakeup_latency(&mut text, report.wakeup_latency.as_ref(), page);
    sleeps(&mut text, report, rows, page);
    off_cpu(&mut text, report, rows, page);
    wakeups(&mut text, report, rows, page);
    sources(&mut text, report, rows, page);
    soft_interrupts(&mut text, report, rows, page);
    interrupts(&mut text, report, rows, page);
    text
}

fn facts(text: &mut String, report: &ExactReport, page: PageLayout) {
    let sum = |field: fn(&profile::report::ExactVcpu) -> u64| report.vcpus.iter().map(field).sum::<u64>();
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
        true => format!("{seen} switches seen; the guest's own count is {}", units::count(own)),
        false => format!("{seen} switches seen"),
    };
    wrapped(text, &switches, "  ", page.width);
    if !report.complete {
        wrapped(text, "Events were lost: the states of tasks at that time are unknown.", "  ", page.width);
    }
    match &report.end {
        Some(end) if end != "the run ended" => {
            wrapped(text, &format!("The data ends early: {}.", escaped(end)), "  ", page.width);
        }
        Some(_) => {}
        None => wrapped(text, "The run is in progress or was cut short.", "  ", page.width),
    }
}

/// Formats the cost of exact mode as a clause. An old profile has only the part of vprof itself.
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

fn tasks(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    heading(text, page, "Tasks", ": ms in each state; user and trap are parts of running by samples");
    let right = ["tid", "life", "running", "user", "trap", "irq", "runnable", "sleep", "disk", "other"];
    let mut columns: Vec<(&str, ColumnAlign)> = right.map(|name| (name, ColumnAlign::Right)).to_vec();
    columns.push(("task", ColumnAlign::Left));
    let mut table = TextTable::new(&columns).indent(2).flexible(10);
    for task in report.tasks.iter().take(rows) {
        let time = |names: &[&str]| {
            let fits = task.states.iter().filter(|s| names.contains(&s.state.as_str()));
            // The sum of nothing is -0.
            fits.fold(0.0, |sum, state| sum + state.s)
        };
        let share = |part: fn(&CpuParts) -> CpuPart| {
            task.parts.as_ref().map_or("-".to_owned(), |parts| format!("{:.0} %", part(parts).share * 100.0))
        };
        table.row(vec![
            task.task.tid.to_string(),
            ms(task.life_s),
            ms(task.running_s),
            share(|parts| parts.user),
            share(|parts| parts.trap),
            ms(time(&["interrupted"])),
            ms(time(&["runnable"])),
            ms(time(&["sleep"])),
            ms(time(&["disk"])),
            ms(time(&["sampler", "stopped", "zombie", "unknown"])),
            name(&task.task),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.tasks.len(), rows);
}

/// Adds the states of the children that processes have waited for.
fn children(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    if report.children.is_empty() {
        return;
    }
    heading(text, page, "Children", ": ms in each state of all that a process has waited for, and of theirs");
    let right = ["waited for", "sums of", "life", "running", "irq", "runnable", "sleep", "disk", "other"];
    let mut columns: Vec<(&str, ColumnAlign)> = right.map(|name| (name, ColumnAlign::Right)).to_vec();
    columns.push(("process", ColumnAlign::Left));
    let mut table = TextTable::new(&columns).indent(2).flexible(9);
    for process in report.children.iter().take(rows) {
        let time = |names: &[&str]| {
            let fits = process.states.iter().filter(|s| names.contains(&s.state.as_str()));
            ms(fits.fold(0.0, |sum, state| sum + state.s))
        };
        table.row(vec![
            units::count(process.waited_for),
            units::count(process.processes),
            ms(process.life_s),
            ms(process.running_s),
            time(&["interrupted"]),
            time(&["runnable"]),
            time(&["sleep"]),
            time(&["disk"]),
            time(&["sampler", "stopped", "zombie", "unknown"]),
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

/// Adds the kinds of page faults in the time of tasks on a CPU.
fn faults(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    let kinds = |task: &TaskStates| {
        let parts = task.parts?;
        let faults = [parts.text_fault, parts.data_fault, parts.kernel_fault];
        faults.iter().any(|part| part.samples > 0).then_some(faults)
    };
    let list: Vec<_> = report.tasks.iter().filter_map(|task| Some((task, kinds(task)?))).collect();
    if list.is_empty() {
        return;
    }
    heading(text, page, "Page faults", ": parts of running by samples, with 95 % intervals");
    let names = ["text", "data", "kernel"].map(|name| (name, ColumnAlign::Right));
    let columns = [names.as_slice(), &[("task", ColumnAlign::Left)]].concat();
    let mut table = TextTable::new(&columns).indent(2).flexible(3);
    for (task, faults) in list.iter().take(rows) {
        let cell = |part: &CpuPart| {
            format!("{:.1} % ({:.1} to {:.1})", part.share * 100.0, part.low * 100.0, part.high * 100.0)
        };
        table.row(faults.iter().map(cell).chain([name(&task.task)]).collect());
    }
    text.push_str(&table.render(page.width));
    more(text, list.len(), rows);
}

/// Adds the waits of tasks for a CPU, the task with the longest first.
fn delays(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    let mut list: Vec<_> = report.tasks.iter().filter_map(|task| Some((task.delay?, task))).collect();
    if list.is_empty() {
        return;
    }
    list.sort_by(|a, b| b.0.max_s.total_cmp(&a.0.max_s));
    heading(text, page, "Scheduling delays", ": waits for a CPU, from the wake-up or the preemption on");
    let right = ["max ms", "begun at s", "p99 ms", "mean ms", "times"].map(|name| (name, ColumnAlign::Right));
    let columns: Vec<_> = right.into_iter().chain([("task", ColumnAlign::Left)]).collect();
    let mut table = TextTable::new(&columns).indent(2).flexible(5);
    let fine = |s: f64| format!("{:.3}", s * 1e3);
    for (delay, task) in list.iter().take(rows) {
        table.row(vec![
            fine(delay.max_s),
            format!("{:.6}", delay.max_from_s),
            fine(delay.p99_s),
            fine(delay.mean_s),
            units::count(delay.count),
            name(&task.task),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, list.len(), rows);
}

/// Columns of the longest bar of a histogram.
const BAR: usize = 40;

/// Adds the histogram of wake-up latencies, in powers of two.
fn wakeup_latency(text: &mut String, latency: Option<&DurationSummary>, page: PageLayout) {
    let Some(latency) = latency else { return };
    heading(text, page, "Wake-up latencies", ": from wake-ups, and from starts of tasks, until they ran");
    let quantiles = format!(
        "{}: mean {}, median {}, 90 % below {}, 99 % below {}, the longest {}",
        units::counted(latency.count, "wake-up"),
        units::seconds(latency.mean_s),
        units::seconds(latency.p50_s),
        units::seconds(latency.p90_s),
        units::seconds(latency.p99_s),
        units::seconds(latency.max_s),
    );
    wrapped(text, &quantiles, "  ", page.width);
    text.push_str(&histogram(latency, "wake-ups", page));
}

/// Formats a histogram in powers of two; `what` is counted.
pub(super) fn histogram(durations: &DurationSummary, what: &str, page: PageLayout) -> String {
    let powers = by_power(&durations.buckets);
    let most = powers.iter().map(|power| power.count).max().unwrap_or(0).max(1);
    let columns = [
        ("us", ColumnAlign::Right),
        ("below us", ColumnAlign::Right),
        (what, ColumnAlign::Right),
        ("", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(3);
    for power in &powers {
        let bar = (power.count.saturating_mul(BAR as u64) / most).max(u64::from(power.count > 0));
        let bar = "#".repeat(usize::try_from(bar).unwrap_or(BAR).min(BAR));
        let fine = |s: f64| format!("{:.3}", s * 1e6);
        table.row(vec![fine(power.from_s), fine(power.to_s), units::count(power.count), bar]);
    }
    table.render(page.width)
}

/// Power of two ns below which all is one bucket: half of the end of the histogram's first one.
const LEAST_POWER: u32 = 5;

/// Returns the sums of buckets by powers of two ns, from the first to the last without a gap.
fn by_power(buckets: &[DelayBucket]) -> Vec<DelayBucket> {
    let power = |s: f64| units::rounded(s * 1e9).max(1).ilog2().max(LEAST_POWER);
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for bucket in buckets {
        let sum = sums.entry(power(bucket.from_s)).or_default();
        *sum = sum.saturating_add(bucket.count);
    }
    let (first, last) = (sums.keys().next().copied(), sums.keys().next_back().copied());
    let Some((first, last)) = first.zip(last) else { return Vec::new() };
    let end = |power: u32| 2_f64.powi(i32::try_from(power).unwrap_or(0)) / 1e9;
    let row = |power: u32| DelayBucket {
        from_s: if power == LEAST_POWER { 0.0 } else { end(power) },
        to_s: end(power + 1),
        count: sums.get(&power).copied().unwrap_or(0),
    };
    (first..=last).map(row).collect()
}

/// Adds the waits of tasks, by wait reason.
fn sleeps(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    heading(text, page, "Waits", ": waits of tasks by reason, without kernel threads");
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
    let mut table = TextTable::new(&[
        ("ms", ColumnAlign::Right),
        ("of life", ColumnAlign::Right),
        ("times", ColumnAlign::Right),
        ("state", ColumnAlign::Left),
        ("for", ColumnAlign::Left),
        ("task", ColumnAlign::Left),
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

/// Node of the tree of sleeps.
#[derive(Default)]
struct SleepNode {
    s: f64,
    count: u64,
    below: BTreeMap<String, SleepNode>,
}

impl SleepNode {
    fn add<'a>(&mut self, mut path: impl Iterator<Item = &'a str>, s: f64, count: u64) {
        self.s += s;
        self.count += count;
        if let Some(next) = path.next() {
            self.below.entry(next.to_owned()).or_default().add(path, s, count);
        }
    }
}

fn off_cpu(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    heading(text, page, "Off CPU", ": stacks of sleeping tasks, without kernel threads");
    let mut root = SleepNode::default();
    for sleep in report.off_cpu.iter().filter(|sleep| !sleep.task.kernel_thread) {
        let OffCpu { task, s, count, stack, .. } = sleep;
        let task = name(task);
        let functions =
            stack.iter().rev().map(String::as_str).filter(|function| !EVERYWHERE.contains(function));
        root.add(std::iter::once(task.as_str()).chain(functions), *s, *count);
    }
    let mut table = TextTable::new(&[
        ("ms", ColumnAlign::Right),
        ("times", ColumnAlign::Right),
        ("function", ColumnAlign::Left),
    ])
    .indent(2)
    .flexible(2);
    let (mut shown, mut left) = (0, 0);
    grow(&root, 0, root.s * LEAST_PART, &mut |depth, function, node: &SleepNode| {
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

/// Shows the branches of `node`, most time first. A chain without branches is one line.
fn grow(node: &SleepNode, depth: usize, least: f64, show: &mut impl FnMut(usize, &str, &SleepNode)) {
    let mut list: Vec<(&String, &SleepNode)> =
        node.below.iter().filter(|(_, below)| below.s > least).collect();
    list.sort_by(|a, b| b.1.s.total_cmp(&a.1.s));
    for (name, mut below) in list {
        // A chain of calls is one line.
        let mut names = vec![name.as_str()];
        while let Some((next, only)) = below.below.iter().next().filter(|_| depth > 0) {
            // Some tasks slept right here, or in several functions below.
            if only.count != below.count {
                break;
            }
            names.push(next);
            below = only;
        }
        // The innermost functions of a chain come first: they say most about the wait.
        show(depth, &names.iter().rev().copied().collect::<Vec<_>>().join(" < "), below);
        grow(below, depth + 1, least, show);
    }
}

fn wakeups(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    heading(text, page, "Wake-ups", ": woken tasks and their wakers");
    let mut table = TextTable::new(&[
        ("times", ColumnAlign::Right),
        ("woken", ColumnAlign::Left),
        ("by", ColumnAlign::Left),
    ])
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

fn sources(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    if report.sources.is_empty() {
        return;
    }
    heading(text, page, "Interrupts", ": sources, and the time of their handlers");
    let right = ["count", "ms", "mean us", "max us", "vector"].map(|name| (name, ColumnAlign::Right));
    let columns: Vec<_> = right.into_iter().chain([("interrupt", ColumnAlign::Left)]).collect();
    let mut table = TextTable::new(&columns).indent(2).flexible(5);
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

fn soft_interrupts(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    if report.soft_interrupts.is_empty() {
        return;
    }
    heading(text, page, "Soft interrupts", ": estimated by samples, as their end is not an event");
    let right = ["samples", "ms", "95 % interval"].map(|name| (name, ColumnAlign::Right));
    let columns: Vec<_> = right.into_iter().chain([("soft interrupt", ColumnAlign::Left)]).collect();
    let mut table = TextTable::new(&columns).indent(2).flexible(3);
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

fn interrupts(text: &mut String, report: &ExactReport, rows: usize, page: PageLayout) {
    heading(text, page, "Hard interrupts", ": tasks that were interrupted");
    let mut table = TextTable::new(&[
        ("vCPU", ColumnAlign::Right),
        ("ms", ColumnAlign::Right),
        ("times", ColumnAlign::Right),
        ("task", ColumnAlign::Left),
    ])
    .indent(2)
    .flexible(3);
    for time in report.interrupts.iter().take(rows) {
        table.row(vec![time.vcpu.to_string(), ms(time.s), units::count(time.count), name(&time.task)]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.interrupts.len(), rows);
}
