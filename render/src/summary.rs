//! The summary of a profile as text, with names of the guest escaped.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use display::clean::escaped;
use display::units;
use profile::Filter;
use profile::merge::MERGED;
use profile::report::{
    CommandTimes, Estimate, ExactCost, Function, ModeGroup, ProcessKind, Report, WalkEnds,
};
use profile::rows::AWAITED;
use profile::watch::WATCH;

use super::PageLayout;
use super::paragraph::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};

/// Advice of all warnings of a serial port.
pub const SERIAL_ADVICE: &str =
    "Send a command's output to a file or /dev/null, and have the kernel write less with `--append quiet`.";

/// Columns from which tables have more columns; on narrower pages names need the room.
pub(super) const WIDE: usize = 110;

/// Formats the summary of the report on `profile` with at most `rows` rows per table: the answer first, the
/// way it was measured last.
pub fn render(report: &Report, profile: &Path, rows: usize, page: PageLayout) -> String {
    let mut text = title(report, page);
    stalls(&mut text, report, page);
    command(&mut text, report, page);
    serial(&mut text, report, page);
    if report.samples == 0 {
        text.push('\n');
        wrapped(&mut text, &without_samples(report), "", page.width);
    } else if report.busy_samples == 0 {
        text.push_str("\nNo sample hit anything but idle vCPUs.\n");
    } else if report.chosen_samples == 0 {
        text.push_str(nothing(report));
    } else {
        programs(&mut text, report, rows, page);
        functions(&mut text, report, rows, page);
        quality(&mut text, report, profile, page);
    }
    vcpus(&mut text, report, page);
    measurement(&mut text, report, page);
    if !report.missing.is_empty() {
        heading(&mut text, page, "Missing", "");
        for reason in &report.missing {
            wrapped(&mut text, &escaped(reason), "  ", page.width);
        }
    }
    text
}

/// Formats the title: the guest, and the part of the profile that is shown.
pub fn title(report: &Report, page: PageLayout) -> String {
    let mut text = String::new();
    let machines = report.meta.get(MERGED).and_then(|count| count.parse::<u64>().ok());
    let kernel = match (&report.kernel, machines) {
        (Some(release), None) => format!("Linux {}", escaped(release)),
        (None, None) => "an unknown kernel".to_owned(),
        (Some(release), Some(count)) => {
            format!("Linux {} in {}", escaped(release), units::counted(count, "virtual machine"))
        }
        (None, Some(count)) => units::counted(count, "virtual machine"),
    };
    let title = format!(
        "{} of {kernel} on {}, host: {}",
        units::seconds(report.duration_s),
        units::counted(report.vcpus.len() as u64, "vCPU"),
        escaped(&report.host)
    );
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    if report.host == "portable" || report.host == "tcg" {
        let note =
            "The host was emulated: times are not those of a real machine; relative shares are meaningful.";
        wrapped(&mut text, note, "  ", page.width);
    }
    if !report.complete {
        let note = match machines {
            None => "The run is in progress or was cut short; the summary covers the data recorded so far.",
            Some(_) => "Some of the runs did not end properly; the summary lists them as missing.",
        };
        wrapped(&mut text, note, "  ", page.width);
    }
    if !report.intervals_valid {
        let note =
            "The clock was not random: a program can be in step with it, so the intervals are not valid.";
        wrapped(&mut text, note, "  ", page.width);
    }
    if report.is_slowed() {
        let note = format!(
            "Sampling took {} of the vCPUs' time, which slowed the guest. Use a lower rate (-F), or a less busy host.",
            units::percent(report.overhead.share)
        );
        wrapped(&mut text, &note, "  ", page.width);
    }
    if let Some(part) = part(&report.filter) {
        wrapped(&mut text, &part, "  ", page.width);
    }
    text
}

/// Adds the way in which the profile was measured.
fn measurement(text: &mut String, report: &Report, page: PageLayout) {
    heading(text, page, "Measurement", "");
    let restarts = report.meta.get("host_restarts").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    if restarts > 0 {
        let times = units::counted(restarts, "time");
        let failed = format!("The host's emulation failed before this run, which was begun again {times}.");
        wrapped(text, &failed, "  ", page.width);
    }
    let samples = format!(
        "{} ({} not idle), {}, {} of {} requested, {} clock{}",
        units::counted(report.samples, "sample"),
        units::count(report.busy_samples),
        lost(report),
        units::rate(report.measured_rate_hz),
        units::rate(report.rate_hz),
        escaped(&report.clock),
        // Each run of a merged profile has its own.
        if report.meta.contains_key(MERGED) { String::new() } else { format!(", seed {}", report.seed) }
    );
    wrapped(text, &samples, "  ", page.width);
    if report.flat_samples > 0 {
        let of_stacks = if report.filter.symbol.is_some() { 0 } else { report.flat_samples };
        let flat = format!(
            "{} have stacks, and stand for {} without in totals, callers, system calls and interrupts",
            units::counted(report.busy_samples.saturating_sub(of_stacks), "sample"),
            units::count(report.flat_samples)
        );
        wrapped(text, &flat, "  ", page.width);
    }
    if report.unsampled_s > 0.0 {
        let off = units::seconds(report.unsampled_s);
        wrapped(text, &format!("sampling was off for {off}, which no share includes"), "  ", page.width);
    }
    if report.ticks.vmm + report.ticks.waiting > 0 {
        let waiting = "while the vCPU had no CPU of the host";
        // A tick in the VMM of an attached machine has no sample.
        let outside = match report.host == "attached" {
            true => {
                format!("excluded from shares: {} {waiting}", units::counted(report.ticks.waiting, "tick"))
            }
            false => format!(
                "excluded from shares: {} in the VMM, {} {waiting}",
                units::counted(report.ticks.vmm, "tick"),
                units::count(report.ticks.waiting)
            ),
        };
        wrapped(text, &outside, "  ", page.width);
    }
    let late = |ns| units::duration(Duration::from_nanos(ns));
    let overhead = format!(
        "{} of vCPU time in the sampler, ticks served {} late (median), {} (p99)",
        units::percent(report.overhead.share),
        late(report.lateness.median_ns),
        late(report.lateness.p99_ns)
    );
    wrapped(text, &overhead, "  ", page.width);
    longer(text, report, page);
    if report.meta.get("exact").is_some_and(|value| value == "1") {
        wrapped(text, &exact(report), "  ", page.width);
    }
    if let Some(calls) = trips(report) {
        wrapped(text, &calls, "  ", page.width);
    }
}

/// Adds stalls of the guest, or of a CPU or a thread: as its kernel reports them, or by its vCPUs and tasks.
fn stalls(text: &mut String, report: &Report, page: PageLayout) {
    for (kind, what) in [
        ("stall", "The guest's kernel reports a stall"),
        ("standstill", "The guest made no progress"),
        (WATCH, "The watch reports a stall"),
    ] {
        let mut events = report.events.iter().filter(|event| event.kind == kind);
        let Some(first) = events.next() else { continue };
        let more = match events.count() {
            0 => String::new(),
            count => format!(", and {count} more (events of kind `{kind}`)"),
        };
        let at = units::seconds(first.time_s);
        wrapped(text, &format!("{what} at {at}: {}{more}", escaped(&first.text)), "  ", page.width);
    }
}

/// Formats the number of lost samples, and of samples without a stack.
fn lost(report: &Report) -> String {
    let lost = format!("{} lost", units::count(report.lost));
    let stackless = report.meta.get("samples_without_stack").and_then(|n| n.parse::<u64>().ok());
    match stackless.filter(|&count| count > 0) {
        Some(count) => format!("{lost}, {} without a stack", units::count(count)),
        None => lost,
    }
}

/// Formats the result of exact mode; `report --exact` has the details.
fn exact(report: &Report) -> String {
    let number = |key: &str| report.meta.get(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    if let Some(reason) = report.meta.get("exact_missing") {
        return format!("Exact mode: none, {}", escaped(reason));
    }
    let end = report.meta.get("exact_end").filter(|end| *end != "the run ended");
    let cost = ExactCost::from_meta(|key| report.meta.get(key).map(String::as_str), report.vcpus.len());
    let served = Duration::from_nanos(number("exact_cost_ns")).as_secs_f64();
    format!(
        "Exact mode: {}, {} lost; {}{}; `vprof report --exact` shows them",
        units::counted(number("exact_events"), "event"),
        units::count(number("exact_lost")),
        super::exact::cost(cost.as_ref(), served),
        end.map_or_else(String::new, |end| format!(", until {}", escaped(end)))
    )
}

/// Formats the calls of watched functions, if there are any; `report --trips` has the details.
fn trips(report: &Report) -> Option<String> {
    let number = |key: &str| report.meta.get(key).and_then(|value| value.parse::<u64>().ok());
    let end = report.meta.get("trip_end").filter(|end| *end != "the run ended");
    Some(format!(
        "Watched functions: {}, {} lost; they cost about {} of the vCPUs' time{}; `vprof report --trips` shows them",
        units::counted(number("trip_calls")?, "call"),
        units::count(number("trip_lost").unwrap_or(0)),
        units::seconds(Duration::from_nanos(number("trip_cost_ns").unwrap_or(0)).as_secs_f64()),
        end.map_or_else(String::new, |end| format!(", until {}", escaped(end)))
    ))
}

/// Returns the message for a profile without a sample.
fn without_samples(report: &Report) -> String {
    match (report.meta.get(AWAITED).filter(|condition| !condition.is_empty()), report.complete) {
        (Some(condition), true) => {
            format!("The run ended before {} was seen, so nothing was sampled.", escaped(condition))
        }
        (Some(condition), false) => {
            format!("Sampling begins with {}, which was not seen so far.", escaped(condition))
        }
        (None, _) => "No sample was taken.".to_owned(),
    }
}

/// Returns the message for a filter that chooses no sample.
pub(super) fn nothing(report: &Report) -> &'static str {
    let Filter { process, tree, instance, cgroup, thread, modes, .. } = &report.filter;
    let task = !process.is_empty() || [tree, instance, cgroup, thread].into_iter().any(Option::is_some);
    let is_irq = |group: &ModeGroup| !matches!(group, ModeGroup::User | ModeGroup::Kernel);
    if task && !modes.is_empty() && modes.iter().all(is_irq) {
        "\nNo sample fits: interrupts are charged to no process.\n"
    } else {
        "\nNo sample fits.\n"
    }
}

/// Formats the part of the profile that is shown; `None` for all.
pub fn part(filter: &Filter) -> Option<String> {
    let mut parts = Vec::new();
    if !filter.process.is_empty() {
        let names: Vec<_> = filter.process.iter().map(|name| escaped(name)).collect();
        parts.push(format!("process {}", names.join(" or ")));
    }
    let named = [
        ("the process subtree of", &filter.tree),
        ("instance", &filter.instance),
        ("control groups with", &filter.cgroup),
        ("thread", &filter.thread),
        ("stacks with", &filter.symbol),
        (if filter.symbol.is_some() { "of module" } else { "code of module" }, &filter.module),
    ];
    parts.extend(
        named.iter().filter_map(|(what, name)| Some(format!("{what} {}", escaped(name.as_deref()?)))),
    );
    let mode = |group: &ModeGroup| match group {
        ModeGroup::User => "user code",
        ModeGroup::Kernel => "kernel code",
        ModeGroup::Irq => "interrupts",
        ModeGroup::HardIrq => "hard interrupts",
        ModeGroup::SoftIrq => "soft interrupts",
    };
    if !filter.modes.is_empty() {
        parts.push(filter.modes.iter().map(mode).collect::<Vec<_>>().join(" and "));
    }
    if let Some(vcpu) = filter.vcpu {
        parts.push(format!("vCPU {vcpu}"));
    }
    let machines = [("virtual machine", &filter.vm), ("virtual machines of host", &filter.host)];
    parts.extend(
        machines.iter().filter_map(|(what, name)| Some(format!("{what} {}", escaped(name.as_deref()?)))),
    );
    let time = |ns: u64| units::duration(Duration::from_nanos(ns));
    match (filter.from_ns, filter.to_ns) {
        (Some(from), Some(to)) => parts.push(format!("from {} to {}", time(from), time(to))),
        (Some(from), None) => parts.push(format!("from {}", time(from))),
        (None, Some(to)) => parts.push(format!("up to {}", time(to))),
        (None, None) => {}
    }
    (!parts.is_empty()).then(|| format!("Only {}.", parts.join(", ")))
}

/// Adds the times of the run's own command.
fn command(text: &mut String, report: &Report, page: PageLayout) {
    let Some(CommandTimes { command, wall_s, cpu, user, system }) = &report.command else { return };
    let estimated =
        [("CPU time of its processes", cpu), ("  in user code", user), ("  in the kernel", system)];
    // Without samples nothing is known of the CPU time.
    let sampled = report.samples > 0;
    if wall_s.is_none() && !(sampled && cpu.is_some()) {
        return;
    }
    let title = format!("Command: {}", escaped(command));
    text.push('\n');
    wrapped(text, &page.style.bold(&title), "", page.width);
    let columns =
        [("time", ColumnAlign::Right), ("95 % interval", ColumnAlign::Right), ("what", ColumnAlign::Left)];
    let mut table = TextTable::new(&columns).indent(2).flexible(2);
    if let Some(wall) = wall_s {
        table.row(vec![units::seconds(*wall), String::new(), "wall, by the guest's clock".to_owned()]);
    }
    for (name, estimate) in estimated.into_iter().filter(|_| sampled) {
        let Some(Estimate { time_s, time_low_s, time_high_s, .. }) = estimate else { continue };
        let interval = format!("{} - {}", units::seconds(*time_low_s), units::seconds(*time_high_s));
        table.row(vec![units::seconds(*time_s), interval, name.to_owned()]);
    }
    text.push_str(&table.render(page.width));
}

/// Warns of output to the serial console that takes much of the time.
fn serial(text: &mut String, report: &Report, page: PageLayout) {
    if !report.has_much_serial() {
        return;
    }
    let note = format!(
        "The guest spent {} of its CPU time on writing to a serial port, which takes it an exit for each byte. {SERIAL_ADVICE}",
        units::percent(report.serial.share)
    );
    text.push('\n');
    wrapped(text, &note, "", page.width);
}

/// Formats a vCPU: its number, or in a merged profile the name of its virtual machine and its number there.
pub(super) fn vcpu_name((id, number): (u16, u16), vm: Option<&str>) -> String {
    vm.map_or_else(|| id.to_string(), |vm| format!("{}/{number}", escaped(vm)))
}

fn vcpus(text: &mut String, report: &Report, page: PageLayout) {
    // A tick in the VMM of an attached machine has no sample.
    let attached = report.host == "attached";
    heading(text, page, "vCPUs", ": samples by mode, and ticks outside of the guest");
    let columns =
        ["vCPU", "samples", "lost", "user", "kernel", "hardirq", "softirq", "idle", "VMM", "no CPU"];
    let mut table =
        TextTable::new(&columns.map(|name| (name, ColumnAlign::Right))).indent(2).spare(&[9, 8, 2, 1, 6, 5]);
    for vcpu in &report.vcpus {
        let name = vcpu_name((vcpu.id, vcpu.number), vcpu.vm.as_deref());
        let mut cells = vec![name, units::count(vcpu.samples), units::count(vcpu.lost)];
        cells.extend([vcpu.user, vcpu.kernel, vcpu.hardirq, vcpu.softirq, vcpu.idle].map(units::percent));
        // Ticks outside of the guest are counted; they are not a part of the guest's time.
        cells.push(if attached { "-".to_owned() } else { units::count(vcpu.vmm_samples) });
        cells.push(units::count(vcpu.waiting_samples));
        table.row(cells);
    }
    text.push_str(&table.render(page.width));
}

/// Formats an interval like `47.4 - 49.0 %`.
pub(super) fn interval(low: f64, high: f64) -> String {
    format!("{:.1} - {:.1} %", low * 100.0, high * 100.0)
}

/// Formats the name of a program: in brackets for a kernel thread, with the number of its processes if it had
/// several.
pub fn program_name(comm: &str, kernel_thread: bool, instances: u64) -> String {
    let name = super::visible(comm);
    let name = if kernel_thread { format!("[{name}]") } else { name.into_owned() };
    match instances {
        0 | 1 => name,
        several => format!("{name}, {} processes", units::count(several)),
    }
}

/// True if a page has room for a bar and the number of samples in each row.
pub(super) fn has_bars(page: PageLayout) -> bool {
    (WIDE..usize::MAX).contains(&page.width)
}

/// Columns of a bar.
const BAR: usize = 10;

/// Draws a share as a bar of eighths of a column.
pub(super) fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 80")]
    let eighths = (share.clamp(0.0, 1.0) * (8 * BAR) as f64).round() as usize;
    if !super::has_unicode() {
        return "#".repeat((eighths + 4) / 8);
    }
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Returns the columns of an estimate; a bar and the number of samples if the page is wide.
pub(super) fn estimate_columns(share: &'static str, page: PageLayout) -> Vec<(&'static str, ColumnAlign)> {
    let mut columns = vec![
        (share, ColumnAlign::Right),
        ("95 % interval", ColumnAlign::Right),
        ("time", ColumnAlign::Right),
    ];
    if has_bars(page) {
        columns.insert(1, ("", ColumnAlign::Left));
    }
    columns.extend((page.width >= WIDE).then_some(("samples", ColumnAlign::Right)));
    columns
}

pub(super) fn estimate_cells(estimate: &Estimate, page: PageLayout) -> Vec<String> {
    let Estimate { samples, share, share_low, share_high, time_s, .. } = *estimate;
    let mut cells = vec![units::percent(share), interval(share_low, share_high), units::seconds(time_s)];
    if has_bars(page) {
        cells.insert(1, bar(share));
    }
    cells.extend((page.width >= WIDE).then(|| units::count(samples)));
    cells
}

/// Note on a table of shares.
pub(super) fn shares_note(report: &Report) -> String {
    if report.filter.relative {
        let samples = units::counted(report.chosen_samples, "sample");
        return format!(": shares of the time of these samples alone, {samples}");
    }
    let samples = units::counted(report.busy_samples, "sample");
    format!(": shares of the time that was not idle, by {samples}")
}

fn programs(text: &mut String, report: &Report, rows: usize, page: PageLayout) {
    heading(text, page, "Programs", &shares_note(report));
    let mut columns = estimate_columns("share", page);
    columns.extend([
        ("user", ColumnAlign::Right),
        ("kernel", ColumnAlign::Right),
        ("pid", ColumnAlign::Right),
        ("program", ColumnAlign::Left),
    ]);
    let name = columns.len() - 1;
    let mut table = TextTable::new(&columns).indent(2).flexible(name).styled(page.style);
    for program in report.programs.iter().take(rows) {
        let mut cells = estimate_cells(&program.estimate, page);
        cells.extend([
            units::percent(program.user_share),
            units::percent(program.kernel_share),
            program.pid.map_or_else(String::new, |pid| pid.to_string()),
            program_name(&program.comm, program.kind == ProcessKind::KernelThread, program.instances),
        ]);
        table.hot_row(program.estimate.share, cells);
    }
    text.push_str(&table.render(page.width));
    rest(text, report.programs.iter().skip(rows).map(|program| program.estimate.share));
}

/// Share that is shown as 100.0 %: its interval cannot become much shorter.
const ALL: f64 = 0.999_5;

/// Adds the length of a run that halves the largest interval.
fn longer(text: &mut String, report: &Report, page: PageLayout) {
    let is_all = report.programs.first().is_some_and(|program| program.estimate.share >= ALL);
    if let Some(times) = report.needed_for_half.filter(|_| report.intervals_valid && !is_all) {
        let note = format!("to halve the interval of the largest share, run {times:.1} times as long");
        wrapped(text, &note, "  ", page.width);
    }
}

fn functions(text: &mut String, report: &Report, rows: usize, page: PageLayout) {
    heading(text, page, "Functions", "");
    let mut columns = estimate_columns("share", page);
    columns.extend([("mode", ColumnAlign::Left), ("function", ColumnAlign::Left)]);
    let name = columns.len() - 1;
    let mut table = TextTable::new(&columns).indent(2).flexible(name).styled(page.style);
    for function in report.functions.iter().take(rows) {
        let Function { symbol, module, mode, estimate } = function;
        let mut cells = estimate_cells(estimate, page);
        cells.extend([escaped(mode).into_owned(), super::with_module(symbol, module.as_deref())]);
        table.hot_row(estimate.share, cells);
    }
    text.push_str(&table.render(page.width));
    rest(text, report.functions.iter().skip(rows).map(|f| f.estimate.share));
}

/// Adds the quality of stack walks, and the code without names.
fn quality(text: &mut String, report: &Report, profile: &Path, page: PageLayout) {
    let walks = walks(&report.stacks.kernel, &report.stacks.user);
    let unnamed = unnamed(report, profile);
    if walks.is_some() || unnamed.is_some() {
        text.push('\n');
    }
    for line in walks.iter().chain(&unnamed) {
        wrapped(text, line, "", page.width);
    }
}

fn walks(kernel: &WalkEnds, user: &WalkEnds) -> Option<String> {
    let part = |ends: &WalkEnds, what: &str| {
        let walks = units::counted(ends.walks, what);
        (ends.walks > 0).then(|| format!("{} of {walks}", units::percent(ends.complete_share)))
    };
    let parts: Vec<String> =
        [part(kernel, "kernel walk"), part(user, "user walk")].into_iter().flatten().collect();
    if parts.is_empty() {
        return None;
    }
    let most = kernel.broken.iter().chain(&user.broken).max_by_key(|broken| broken.walks);
    let why = most.map_or_else(String::new, |broken| {
        format!(
            "; most of the others end with: {} ({})",
            escaped(&broken.reason),
            units::percent(broken.share)
        )
    });
    let doubt = if user.doubtful > 0 {
        format!(
            "; {} went through code without unwind tables, by its instructions or frame pointers",
            units::counted(user.doubtful, "user walk")
        )
    } else {
        String::new()
    };
    Some(format!("Stacks: {} are complete{why}{doubt}.", parts.join(" and ")))
}

/// Formats the share of code without names, and the way to name it.
fn unnamed(report: &Report, profile: &Path) -> Option<String> {
    let code = &report.user_code;
    if code.unnamed == 0 {
        return None;
    }
    let mut line = format!("Unnamed code: {} of user samples", units::percent(code.unnamed_share));
    if let Some(file) = code.files.first().filter(|file| file.unnamed > 0) {
        let path = escaped(&file.path);
        line.push_str(&match (&file.build_id, &file.read_from, &file.named_by) {
            (Some(id), _, by) if by.as_deref().is_none_or(is_stripped) => {
                format!("; most is {path}: {}", super::naming_advice(profile, id))
            }
            (None, Some(read), None) => format!("; most is {path} ({})", escaped(read)),
            _ => format!("; most is {path}"),
        });
    }
    Some(line + ".")
}

/// Returns true if the source of a file's names shows that the file was stripped, so that a debug file has
/// more.
fn is_stripped(named_by: &str) -> bool {
    matches!(named_by, ".dynsym" | ".gnu_debugdata" | "nothing")
}

/// Adds the sum of the rows beyond a table's end.
pub(super) fn rest(text: &mut String, shares: impl Iterator<Item = f64>) {
    let (count, share) = shares.fold((0_u64, 0.0), |(count, sum), share| (count + 1, sum + share));
    if count > 0 {
        // Writing to a String can't fail.
        let _ =
            writeln!(text, "  {:>6}  in {} more; -n 0 shows all", units::percent(share), units::count(count));
    }
}

#[cfg(test)]
mod tests;
