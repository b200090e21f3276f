//! `vprof rusage` for people, and as CSV.

use std::io;

use display::clean::escaped;
use display::csv::{CsvWriter, Formulas};
use display::units;
use profile::rusage::{ChildrenRusage, CpuRusage, CpuTimes, ProcessRusage, Rusage, ThreadRusage, difference};
use serde::Serialize;

use super::PageLayout;
use super::paragraph::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};

/// Note on the columns of times.
const SIDES: &str = ": reported user and system time, and measured time";
/// Mark of a figure of the guest that is outside of the interval of the measured one.
const OUTSIDE: &str = "*";

/// Renders CPU times with at most `rows` rows per table.
pub fn render(rusage: &Rusage, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    let kernel =
        rusage.kernel.as_deref().map_or_else(|| "a guest".to_owned(), |k| format!("Linux {}", escaped(k)));
    let title = format!(
        "CPU time that {kernel} reported, and CPU time that vprof measured; host: {}",
        escaped(&rusage.host)
    );
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    if rusage.unsampled_s > 0.0 {
        let off = units::seconds(rusage.unsampled_s);
        let note = format!(
            "Sampling was stopped for {off}: reported times include that period, measured times do not. The two do \
             not compare, and no row is marked."
        );
        wrapped(&mut text, &note, "", page.width);
    }
    processes(&mut text, rusage, rows, page);
    children(&mut text, rusage, rows, page);
    threads(&mut text, &rusage.threads, rows, page);
    for cpu in &rusage.cpus {
        cpu_states(&mut text, cpu, rusage.unsampled_s > 0.0, page);
    }
    text.push('\n');
    let note = "* the reported time differs from the measured one by more than chance explains, over all rows (Holm, \
                5 %). Reported: user and system as getrusage and /proc/PID/stat showed them at the last reading. \
                Measured: in the guest, without interrupts that hit the process (irq). Reported times include what \
                the host, the VMM and vprof took meanwhile, which the guest's kernel cannot see; measured times do \
                not. So a process may be marked although its kernel counts as it should.";
    wrapped(&mut text, note, "", page.width);
    if let Some(note) = since(rusage) {
        wrapped(&mut text, &note, "", page.width);
    }
    if !rusage.intervals_valid {
        let note =
            "The sampling clock was fixed: a program can be in step with it, and no interval is valid.";
        wrapped(&mut text, note, "", page.width);
    }
    text
}

/// Returns the note on the first reading of what existed before vprof started.
fn since(rusage: &Rusage) -> Option<String> {
    let starts = rusage.processes.iter().filter_map(|process| process.since_s);
    let (count, cpus) = (starts.clone().count(), rusage.cpus.iter().filter_map(|cpu| cpu.since_s));
    let since = starts.chain(cpus).reduce(f64::min)?;
    let processes = match count {
        0 => String::new(),
        1 => " and 1 process".to_owned(),
        many => format!(" and {} processes", units::count(many as u64)),
    };
    let since = units::seconds(since);
    Some(format!(
        "The CPUs{processes} existed before the guest's CPU accounting was first read, {since} after the run's \
         start: both sides count from then on. --json has the times reported until then (before)."
    ))
}

fn more(all: usize, rows: usize) -> String {
    match all.saturating_sub(rows) {
        0 => String::new(),
        left => format!(" ({} more, -n 0 shows all)", units::count(left as u64)),
    }
}

/// Returns a difference of times with its sign.
fn signed(ns: i64) -> String {
    let text = units::brief(ns.unsigned_abs());
    if ns < 0 { format!("-{text}") } else { format!("+{text}") }
}

/// Returns the larger side of an interval.
fn half(middle: u64, (low, high): (u64, u64)) -> String {
    units::brief(middle.saturating_sub(low).max(high.saturating_sub(middle)))
}

fn processes(text: &mut String, rusage: &Rusage, rows: usize, page: PageLayout) {
    let list = &rusage.processes;
    heading(text, page, "Processes", &format!("{SIDES}{}", more(list.len(), rows)));
    let right = |name| (name, ColumnAlign::Right);
    let columns = [
        ("process", ColumnAlign::Left),
        right("user"),
        right("system"),
        right("measured"),
        right("+- (95 %)"),
        right("difference"),
        right("irq"),
        ("", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(0).spare(&[6, 1, 2, 4]);
    for process in list.iter().take(rows) {
        table.row(vec![
            format!("{}#{}", escaped(&process.comm), process.instance),
            units::brief(process.reported_user_ns),
            units::brief(process.reported_system_ns),
            units::brief(process.measured_cpu_ns),
            half(process.measured_cpu_ns, (process.measured_low_ns, process.measured_high_ns)),
            if rusage.unsampled_s > 0.0 { "-".to_owned() } else { signed(process.difference_ns) },
            units::brief(process.interrupted_ns),
            if process.outside { OUTSIDE } else { "" }.to_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
}

/// Renders children that were waited for, as getrusage(RUSAGE_CHILDREN) returns them.
fn children(text: &mut String, rusage: &Rusage, rows: usize, page: PageLayout) {
    let mut list: Vec<_> =
        rusage.processes.iter().filter_map(|process| Some((process, process.children.as_ref()?))).collect();
    let Some((_, first)) = list.first() else { return };
    let note = if first.seen {
        ", and theirs (getrusage of children)"
    } else {
        ", and theirs (getrusage of children); measured: those that have ended, by their parents"
    };
    list.sort_by_key(|(_, children)| {
        std::cmp::Reverse(children.reported_user_ns.saturating_add(children.reported_system_ns))
    });
    heading(text, page, "Children that were waited for", &format!("{note}{}", more(list.len(), rows)));
    let right = |name| (name, ColumnAlign::Right);
    let columns = [
        ("of process", ColumnAlign::Left),
        right("known"),
        right("user"),
        right("system"),
        right("measured"),
        right("+- (95 %)"),
        right("difference"),
        right("faults"),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(0);
    for (process, children) in list.iter().take(rows) {
        table.row(vec![
            format!("{}#{}", escaped(&process.comm), process.instance),
            units::count(children.processes),
            units::brief(children.reported_user_ns),
            units::brief(children.reported_system_ns),
            units::brief(children.measured_cpu_ns),
            half(children.measured_cpu_ns, (children.measured_low_ns, children.measured_high_ns)),
            if rusage.unsampled_s > 0.0 { "-".to_owned() } else { signed(children.difference_ns) },
            units::count(children.minor_faults.saturating_add(children.major_faults)),
        ]);
    }
    text.push_str(&table.render(page.width));
}

fn threads(text: &mut String, list: &[ThreadRusage], rows: usize, page: PageLayout) {
    if list.is_empty() {
        return;
    }
    let note = format!("{SIDES}{}", more(list.len(), rows));
    heading(text, page, "Threads of processes with several", &note);
    let right = |name| (name, ColumnAlign::Right);
    let columns = [
        ("thread", ColumnAlign::Left),
        right("tid"),
        right("user"),
        right("system"),
        right("measured"),
        right("+- (95 %)"),
        ("", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(0).spare(&[1, 2, 3, 5]);
    for thread in list.iter().take(rows) {
        table.row(vec![
            escaped(thread.comm.as_deref().unwrap_or("?")).into_owned(),
            thread.tid.to_string(),
            units::brief(thread.reported_user_ns),
            units::brief(thread.reported_system_ns),
            units::brief(thread.measured_cpu_ns),
            half(thread.measured_cpu_ns, (thread.measured_low_ns, thread.measured_high_ns)),
            if thread.outside { OUTSIDE } else { "" }.to_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
}

fn cpu_states(text: &mut String, cpu: &CpuRusage, unsampled: bool, page: PageLayout) {
    heading(text, page, &format!("CPU {}", cpu.cpu), " (/proc/stat, and its vCPU)");
    let right = |name| (name, ColumnAlign::Right);
    let columns = [
        ("state", ColumnAlign::Left),
        right("reported"),
        right("measured"),
        right("+- (95 %)"),
        right("difference"),
    ];
    let mut table = TextTable::new(&columns).indent(2).spare(&[3]);
    let parts = cpu.reported.named().into_iter().zip(cpu.measured.named());
    for (((name, reported), (_, measured)), ((_, low), (_, high))) in
        parts.zip(cpu.low.named().into_iter().zip(cpu.high.named()))
    {
        let exact = low == high;
        table.row(vec![
            name.to_owned(),
            units::brief(reported),
            units::brief(measured),
            if exact { "exact".to_owned() } else { half(measured, (low, high)) },
            if unsampled { "-".to_owned() } else { signed(difference(reported, measured)) },
        ]);
    }
    text.push_str(&table.render(page.width));
}

/// A line of the CSV output. A time that does not apply is empty.
#[derive(Default, Serialize)]
struct CsvRow<'a> {
    /// `process`, `children`, `thread` or `cpu`.
    kind: &'static str,
    /// Name of the process or thread, or of the state of a CPU.
    name: &'a str,
    pid: Option<i32>,
    /// Instance number, or number of the CPU.
    instance: u32,
    tid: Option<i32>,
    /// Reported user time, or the reported time of a CPU.
    reported_user_ns: u64,
    reported_system_ns: Option<u64>,
    measured_cpu_ns: u64,
    measured_low_ns: u64,
    measured_high_ns: u64,
    interrupted_ns: Option<u64>,
    difference_ns: i64,
    outside: Option<bool>,
    /// Time of the first reading; empty for what began later.
    since_s: Option<f64>,
    before_user_ns: Option<u64>,
    before_system_ns: Option<u64>,
}

/// Writes every figure as a line: processes, their children, threads, and CPUs by state.
pub fn write_csv(rusage: &Rusage, out: impl io::Write, formulas: Formulas) -> io::Result<()> {
    let mut csv = CsvWriter::new(out, formulas);
    csv.heading(&CsvRow::default())?;
    for process in &rusage.processes {
        csv.row(&process_row(process))?;
    }
    for process in &rusage.processes {
        if let Some(children) = &process.children {
            csv.row(&children_row(process, children))?;
        }
    }
    for thread in &rusage.threads {
        csv.row(&thread_row(thread))?;
    }
    for cpu in &rusage.cpus {
        let [low, high, before] = [&cpu.low, &cpu.high, &cpu.before].map(CpuTimes::named);
        for (place, (name, reported)) in cpu.reported.named().into_iter().enumerate() {
            let (_, measured) = cpu.measured.named()[place];
            csv.row(&CsvRow {
                kind: "cpu",
                name,
                instance: cpu.cpu,
                reported_user_ns: reported,
                measured_cpu_ns: measured,
                measured_low_ns: low[place].1,
                measured_high_ns: high[place].1,
                difference_ns: difference(reported, measured),
                since_s: cpu.since_s,
                before_user_ns: Some(before[place].1),
                ..CsvRow::default()
            })?;
        }
    }
    Ok(())
}

fn process_row(process: &ProcessRusage) -> CsvRow<'_> {
    CsvRow {
        kind: "process",
        name: &process.comm,
        pid: Some(process.pid),
        instance: process.instance,
        reported_user_ns: process.reported_user_ns,
        reported_system_ns: Some(process.reported_system_ns),
        measured_cpu_ns: process.measured_cpu_ns,
        measured_low_ns: process.measured_low_ns,
        measured_high_ns: process.measured_high_ns,
        interrupted_ns: Some(process.interrupted_ns),
        difference_ns: process.difference_ns,
        outside: Some(process.outside),
        since_s: process.since_s,
        before_user_ns: Some(process.before_user_ns),
        before_system_ns: Some(process.before_system_ns),
        ..CsvRow::default()
    }
}

fn children_row<'a>(process: &'a ProcessRusage, children: &ChildrenRusage) -> CsvRow<'a> {
    CsvRow {
        kind: "children",
        name: &process.comm,
        pid: Some(process.pid),
        instance: process.instance,
        reported_user_ns: children.reported_user_ns,
        reported_system_ns: Some(children.reported_system_ns),
        measured_cpu_ns: children.measured_cpu_ns,
        measured_low_ns: children.measured_low_ns,
        measured_high_ns: children.measured_high_ns,
        difference_ns: children.difference_ns,
        since_s: process.since_s,
        ..CsvRow::default()
    }
}

fn thread_row(thread: &ThreadRusage) -> CsvRow<'_> {
    let reported = thread.reported_user_ns.saturating_add(thread.reported_system_ns);
    CsvRow {
        kind: "thread",
        name: thread.comm.as_deref().unwrap_or_default(),
        pid: Some(thread.pid),
        instance: thread.instance,
        tid: Some(thread.tid),
        reported_user_ns: thread.reported_user_ns,
        reported_system_ns: Some(thread.reported_system_ns),
        measured_cpu_ns: thread.measured_cpu_ns,
        measured_low_ns: thread.measured_low_ns,
        measured_high_ns: thread.measured_high_ns,
        difference_ns: difference(reported, thread.measured_cpu_ns),
        outside: Some(thread.outside),
        since_s: thread.since_s,
        ..CsvRow::default()
    }
}
