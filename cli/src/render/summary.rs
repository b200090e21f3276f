//! The summary of a profile for people: at most 80 columns, names of the guest made harmless.

use std::fmt::Write as _;
use std::time::Duration;

use sampler::report::{Function, Process, ProcessKind, Report, UserAddress, Vcpu};

use super::table::{Align, Table};
use super::{Style, escape, units};

/// Columns of a line.
const WIDTH: usize = 80;

/// The summary with at most `rows` rows per table.
pub fn render(report: &Report, rows: usize, style: Style) -> String {
    let mut text = String::new();
    head(&mut text, report, style);
    vcpus(&mut text, &report.vcpus, style);
    if report.busy_samples > 0 {
        processes(&mut text, report, rows, style);
        functions(&mut text, report, rows, style);
        user_addresses(&mut text, report, rows, style);
    } else {
        text.push_str("\nNo sample hit anything but idle vCPUs.\n");
    }
    if !report.missing.is_empty() {
        heading(&mut text, style, "Missing", "");
        for reason in &report.missing {
            wrapped(&mut text, &escape(reason), "  ");
        }
    }
    text
}

fn seconds(s: f64) -> String {
    units::duration(Duration::try_from_secs_f64(s).unwrap_or_default())
}

fn head(text: &mut String, report: &Report, style: Style) {
    let kernel = match &report.kernel {
        Some(release) => format!("Linux {}", escape(release)),
        None => "an unknown kernel".to_owned(),
    };
    let title = format!(
        "{} of {kernel} on {}, host: {}",
        seconds(report.duration_s),
        units::counted(report.vcpus.len() as u64, "vCPU"),
        escape(&report.host)
    );
    wrapped(text, &style.bold(&title), "");
    if report.host == "portable" {
        wrapped(
            text,
            "The host was emulated: times are not those of a real machine, shares still tell.",
            "  ",
        );
    }
    let restarts = report.meta.get("host_restarts").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    if restarts > 0 {
        let times = units::counted(restarts, "time");
        wrapped(text, &format!("The host froze early and was started anew, {times}."), "  ");
    }
    if !report.complete {
        wrapped(text, "The run was cut short, or goes on: what it recorded until then is here.", "  ");
    }
    if let Some(part) = part(report) {
        wrapped(text, &part, "  ");
    }
    let samples = format!(
        "{} ({} not idle), {} lost, {} of {} asked for, {} clock, seed {}",
        units::counted(report.samples, "sample"),
        units::count(report.busy_samples),
        units::count(report.lost),
        units::rate(report.measured_rate_hz),
        units::rate(report.rate_hz),
        escape(&report.clock),
        report.seed
    );
    wrapped(text, &samples, "  ");
    let late = |ns| units::duration(Duration::from_nanos(ns));
    let overhead = format!(
        "{} of vCPU time in the sampler, ticks served {} late (median), {} (99 of 100)",
        units::percent(report.overhead.share),
        late(report.lateness.median_ns),
        late(report.lateness.p99_ns)
    );
    wrapped(text, &overhead, "  ");
}

/// What part of the profile is shown, if not all.
fn part(report: &Report) -> Option<String> {
    let filter = &report.filter;
    let mut parts = Vec::new();
    if let Some(process) = &filter.process {
        parts.push(format!("process {}", escape(process)));
    }
    if let Some(vcpu) = filter.vcpu {
        parts.push(format!("vCPU {vcpu}"));
    }
    let time = |ns: u64| units::duration(Duration::from_nanos(ns));
    match (filter.from_ns, filter.to_ns) {
        (Some(from), Some(to)) => parts.push(format!("from {} to {}", time(from), time(to))),
        (Some(from), None) => parts.push(format!("from {}", time(from))),
        (None, Some(to)) => parts.push(format!("up to {}", time(to))),
        (None, None) => {}
    }
    (!parts.is_empty()).then(|| format!("Only {}.", parts.join(", ")))
}

fn heading(text: &mut String, style: Style, title: &str, note: &str) {
    text.push('\n');
    text.push_str(&style.bold(title));
    if !note.is_empty() {
        text.push_str(note);
    }
    text.push('\n');
}

fn vcpus(text: &mut String, vcpus: &[Vcpu], style: Style) {
    heading(text, style, "vCPUs", ": where their samples hit");
    let columns = ["vCPU", "samples", "lost", "user", "kernel", "hard irq", "soft irq", "idle"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right))).indent(2);
    for vcpu in vcpus {
        let mut cells = vec![vcpu.id.to_string(), units::count(vcpu.samples), units::count(vcpu.lost)];
        cells.extend([vcpu.user, vcpu.kernel, vcpu.hardirq, vcpu.softirq, vcpu.idle].map(units::percent));
        table.row(cells);
    }
    text.push_str(&table.render(WIDTH));
}

/// `47.4 - 49.0 %`.
fn interval(low: f64, high: f64) -> String {
    format!("{:.1} - {:.1} %", low * 100.0, high * 100.0)
}

fn process_name(process: &Process) -> String {
    let name = escape(&process.comm);
    match process.kind {
        ProcessKind::Process => format!("{name}#{}", process.instance),
        ProcessKind::KernelThread => format!("[{name}]"),
        ProcessKind::Interrupt | ProcessKind::Boot | ProcessKind::Unknown => name.into_owned(),
    }
}

fn processes(text: &mut String, report: &Report, rows: usize, style: Style) {
    heading(
        text,
        style,
        "Processes",
        &format!(": shares of the {} that were not idle", units::counted(report.busy_samples, "sample")),
    );
    let mut table = Table::new(&[
        ("share", Align::Right),
        ("95 % interval", Align::Right),
        ("user", Align::Right),
        ("kernel", Align::Right),
        ("samples", Align::Right),
        ("pid", Align::Right),
        ("name#instance", Align::Left),
    ])
    .indent(2)
    .flexible(6);
    for process in report.processes.iter().take(rows) {
        let is_task = matches!(process.kind, ProcessKind::Process | ProcessKind::KernelThread);
        table.row(vec![
            units::percent(process.share),
            interval(process.share_low, process.share_high),
            units::percent(process.user_share),
            units::percent(process.kernel_share),
            units::count(process.samples),
            if is_task { process.pid.to_string() } else { String::new() },
            process_name(process),
        ]);
    }
    text.push_str(&table.render(WIDTH));
    rest(text, report.processes.iter().skip(rows).map(|p| p.share));
}

fn functions(text: &mut String, report: &Report, rows: usize, style: Style) {
    let kernel: Vec<&Function> = report.functions.iter().filter(|f| f.mode != "user").collect();
    if kernel.is_empty() {
        return;
    }
    heading(text, style, "Kernel functions", "");
    let mut table = Table::new(&[
        ("share", Align::Right),
        ("95 % interval", Align::Right),
        ("samples", Align::Right),
        ("mode", Align::Left),
        ("function", Align::Left),
    ])
    .indent(2)
    .flexible(4);
    for function in kernel.iter().take(rows) {
        let name = escape(&function.symbol);
        table.row(vec![
            units::percent(function.share),
            interval(function.share_low, function.share_high),
            units::count(function.samples),
            escape(&function.mode).into_owned(),
            match &function.module {
                Some(module) => format!("{name} [{}]", escape(module)),
                None => name.into_owned(),
            },
        ]);
    }
    text.push_str(&table.render(WIDTH));
    rest(text, kernel.iter().skip(rows).map(|f| f.share));
}

fn user_addresses(text: &mut String, report: &Report, rows: usize, style: Style) {
    if report.user_addresses.is_empty() {
        return;
    }
    heading(text, style, "User code", " by process and address");
    let mut table = Table::new(&[
        ("share", Align::Right),
        ("samples", Align::Right),
        ("address", Align::Right),
        ("pid", Align::Right),
        ("name#instance", Align::Left),
    ])
    .indent(2)
    .flexible(4);
    for UserAddress { comm, pid, instance, address, samples, share } in
        report.user_addresses.iter().take(rows)
    {
        table.row(vec![
            units::percent(*share),
            units::count(*samples),
            address.clone(),
            pid.to_string(),
            format!("{}#{instance}", escape(comm)),
        ]);
    }
    text.push_str(&table.render(WIDTH));
    let left_out = report.user_addresses.iter().skip(rows).map(|a| a.share);
    rest(text, left_out);
}

/// What the rows beyond a table's end come to.
fn rest(text: &mut String, shares: impl Iterator<Item = f64>) {
    let (count, share) = shares.fold((0_u64, 0.0), |(count, sum), share| (count + 1, sum + share));
    if count > 0 {
        // Writing to a String can't fail.
        let _ =
            writeln!(text, "  {:>6}  in {} more; -n 0 shows all", units::percent(share), units::count(count));
    }
}

/// A line, continued with two more spaces where it is too long.
fn wrapped(text: &mut String, line: &str, indent: &str) {
    use unicode_width::UnicodeWidthStr;
    let mut used = 0;
    for word in line.split(' ') {
        // Escape sequences for bold take no columns.
        let width = word.replace("\x1b[1m", "").replace("\x1b[0m", "").width();
        if used > 0 && used + 1 + width > WIDTH {
            text.push('\n');
            text.push_str(indent);
            text.push_str("  ");
            used = indent.len() + 2;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        } else {
            text.push_str(indent);
            used = indent.len();
        }
        text.push_str(word);
        used += width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests;
