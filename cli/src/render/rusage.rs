//! `vprof rusage` for people, and as CSV.

use std::fmt::Write as _;

use profile::rusage::{CpuRusage, Rusage, ThreadRusage, difference};
use text::clean::escaped;
use text::units;

use super::summary::{heading, wrapped};
use super::table::{Align, Table};
use super::{Page, csv};

/// What marks a figure of the guest outside of the interval of the truth.
const OUTSIDE: &str = "*";

/// The books with at most `rows` rows per table.
pub fn render(rusage: &Rusage, rows: usize, page: Page) -> String {
    let mut text = String::new();
    let kernel =
        rusage.kernel.as_deref().map_or_else(|| "a guest".to_owned(), |k| format!("Linux {}", escaped(k)));
    let title =
        format!("What {kernel} told of its CPU time, and what was so; host: {}", escaped(&rusage.host));
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    if rusage.unsampled_s > 0.0 {
        let off = units::duration(std::time::Duration::from_secs_f64(rusage.unsampled_s));
        let note = format!(
            "Sampling was stopped for {off}: what is told holds that time, the truth does not. They do not compare, and \
             nothing is marked."
        );
        wrapped(&mut text, &note, "", page.width);
    }
    processes(&mut text, rusage, rows, page);
    children(&mut text, rusage, rows, page);
    threads(&mut text, &rusage.threads, rows, page);
    for cpu in &rusage.cpus {
        of_cpu(&mut text, cpu, page);
    }
    text.push('\n');
    let note = "* what is told is further from the truth than chance explains, over all rows (Holm, 5 %). Told: user and system as getrusage and \
                /proc/PID/stat show them when they were last read. Truly: in the guest, without interrupts that hit the process (irq). What the host, the VMM and vprof \
                took meanwhile is in what is told, since the guest's kernel cannot see it, and not in the latter: a process \
                may be marked though its kernel counts as it should.";
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

/// From when on things that were there before vprof count.
fn since(rusage: &Rusage) -> Option<String> {
    let starts = rusage.processes.iter().filter_map(|process| process.since_s);
    let (count, cpus) = (starts.clone().count(), rusage.cpus.iter().filter_map(|cpu| cpu.since_s));
    let since = starts.chain(cpus).reduce(f64::min)?;
    let processes = match count {
        0 => String::new(),
        1 => " and 1 process".to_owned(),
        many => format!(" and {} processes", units::count(many as u64)),
    };
    let since = units::duration(std::time::Duration::from_secs_f64(since));
    Some(format!(
        "The CPUs{processes} were there before the guest's books were first read, {since} after the run's start: both sides \
         count from then on. --json has what was told by then (before)."
    ))
}

fn more(all: usize, rows: usize) -> String {
    match all.saturating_sub(rows) {
        0 => String::new(),
        left => format!(" ({} more, -n 0 shows all)", units::count(left as u64)),
    }
}

/// A difference of times with its sign.
fn signed(ns: i64) -> String {
    let text = units::brief(ns.unsigned_abs());
    if ns < 0 { format!("-{text}") } else { format!("+{text}") }
}

/// The larger side of an interval.
fn half(middle: u64, (low, high): (u64, u64)) -> String {
    units::brief(middle.saturating_sub(low).max(high.saturating_sub(middle)))
}

fn processes(text: &mut String, rusage: &Rusage, rows: usize, page: Page) {
    let list = &rusage.processes;
    heading(text, page.style, "Processes", &more(list.len(), rows));
    let right = |name| (name, Align::Right);
    let columns = [
        ("process", Align::Left),
        right("told user"),
        right("system"),
        right("truly"),
        right("+- (95 %)"),
        right("difference"),
        right("irq"),
        ("", Align::Left),
    ];
    let mut table = Table::new(&columns).indent(2).flexible(0);
    for process in list.iter().take(rows) {
        table.row(vec![
            format!("{}#{}", escaped(&process.comm), process.instance),
            units::brief(process.reported_user_ns),
            units::brief(process.reported_system_ns),
            units::brief(process.true_cpu_ns),
            half(process.true_cpu_ns, (process.true_low_ns, process.true_high_ns)),
            if rusage.unsampled_s > 0.0 { "-".to_owned() } else { signed(process.difference_ns) },
            units::brief(process.interrupted_ns),
            if process.outside { OUTSIDE } else { "" }.to_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
}

/// Children that were waited for, as getrusage(RUSAGE_CHILDREN) returns them.
fn children(text: &mut String, rusage: &Rusage, rows: usize, page: Page) {
    let mut list: Vec<_> =
        rusage.processes.iter().filter_map(|process| Some((process, process.children.as_ref()?))).collect();
    let Some((_, first)) = list.first() else { return };
    let note = if first.seen {
        ", and theirs (getrusage of children)"
    } else {
        ", and theirs (getrusage of children); truly: of those that have ended, by their parents"
    };
    list.sort_by_key(|(_, children)| {
        std::cmp::Reverse(children.reported_user_ns.saturating_add(children.reported_system_ns))
    });
    heading(text, page.style, "Children that were waited for", &format!("{note}{}", more(list.len(), rows)));
    let right = |name| (name, Align::Right);
    let columns = [
        ("of process", Align::Left),
        right("known"),
        right("told user"),
        right("system"),
        right("truly"),
        right("+- (95 %)"),
        right("difference"),
        right("faults"),
    ];
    let mut table = Table::new(&columns).indent(2).flexible(0);
    for (process, children) in list.iter().take(rows) {
        table.row(vec![
            format!("{}#{}", escaped(&process.comm), process.instance),
            units::count(children.processes),
            units::brief(children.reported_user_ns),
            units::brief(children.reported_system_ns),
            units::brief(children.true_cpu_ns),
            half(children.true_cpu_ns, (children.true_low_ns, children.true_high_ns)),
            if rusage.unsampled_s > 0.0 { "-".to_owned() } else { signed(children.difference_ns) },
            units::count(children.minor_faults.saturating_add(children.major_faults)),
        ]);
    }
    text.push_str(&table.render(page.width));
}

fn threads(text: &mut String, list: &[ThreadRusage], rows: usize, page: Page) {
    if list.is_empty() {
        return;
    }
    heading(text, page.style, "Threads of processes with several", &more(list.len(), rows));
    let right = |name| (name, Align::Right);
    let columns = [
        ("thread", Align::Left),
        right("tid"),
        right("told user"),
        right("system"),
        right("truly"),
        right("+- (95 %)"),
        ("", Align::Left),
    ];
    let mut table = Table::new(&columns).indent(2).flexible(0);
    for thread in list.iter().take(rows) {
        table.row(vec![
            escaped(thread.comm.as_deref().unwrap_or("?")).into_owned(),
            thread.tid.to_string(),
            units::brief(thread.reported_user_ns),
            units::brief(thread.reported_system_ns),
            units::brief(thread.true_cpu_ns),
            half(thread.true_cpu_ns, (thread.true_low_ns, thread.true_high_ns)),
            if thread.outside { OUTSIDE } else { "" }.to_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
}

fn of_cpu(text: &mut String, cpu: &CpuRusage, page: Page) {
    heading(text, page.style, &format!("CPU {}", cpu.cpu), " (/proc/stat, and its vCPU)");
    let right = |name| (name, Align::Right);
    let columns =
        [("state", Align::Left), right("told"), right("truly"), right("+- (95 %)"), right("told - truly")];
    let mut table = Table::new(&columns).indent(2);
    let parts = cpu.reported.named().into_iter().zip(cpu.truly.named());
    for (((name, told), (_, truly)), ((_, low), (_, high))) in
        parts.zip(cpu.low.named().into_iter().zip(cpu.high.named()))
    {
        let exact = low == high;
        table.row(vec![
            name.to_owned(),
            units::brief(told),
            units::brief(truly),
            if exact { "exact".to_owned() } else { half(truly, (low, high)) },
            signed(difference(told, truly)),
        ]);
    }
    text.push_str(&table.render(page.width));
}

/// Every figure as a line: processes, their children, threads, and CPUs by state.
pub fn as_csv(rusage: &Rusage) -> String {
    let mut text = csv::line(&[
        "kind",
        "name",
        "pid",
        "instance",
        "tid",
        "reported_user_ns",
        "reported_system_ns",
        "true_cpu_ns",
        "true_low_ns",
        "true_high_ns",
        "interrupted_ns",
        "difference_ns",
        "outside",
        "since_s",
        "before_user_ns",
        "before_system_ns",
    ]);
    for p in &rusage.processes {
        text.push_str(&csv::line(&[
            "process".to_owned(),
            p.comm.clone(),
            p.pid.to_string(),
            p.instance.to_string(),
            String::new(),
            p.reported_user_ns.to_string(),
            p.reported_system_ns.to_string(),
            p.true_cpu_ns.to_string(),
            p.true_low_ns.to_string(),
            p.true_high_ns.to_string(),
            p.interrupted_ns.to_string(),
            p.difference_ns.to_string(),
            u8::from(p.outside).to_string(),
            start(p.since_s),
            p.before_user_ns.to_string(),
            p.before_system_ns.to_string(),
        ]));
    }
    for p in &rusage.processes {
        let Some(children) = &p.children else { continue };
        text.push_str(&csv::line(&[
            "children".to_owned(),
            p.comm.clone(),
            p.pid.to_string(),
            p.instance.to_string(),
            String::new(),
            children.reported_user_ns.to_string(),
            children.reported_system_ns.to_string(),
            children.true_cpu_ns.to_string(),
            children.true_low_ns.to_string(),
            children.true_high_ns.to_string(),
            String::new(),
            children.difference_ns.to_string(),
            String::new(),
            start(p.since_s),
            String::new(),
            String::new(),
        ]));
    }
    for t in &rusage.threads {
        let told = t.reported_user_ns.saturating_add(t.reported_system_ns);
        text.push_str(&csv::line(&[
            "thread".to_owned(),
            t.comm.clone().unwrap_or_default(),
            t.pid.to_string(),
            t.instance.to_string(),
            t.tid.to_string(),
            t.reported_user_ns.to_string(),
            t.reported_system_ns.to_string(),
            t.true_cpu_ns.to_string(),
            t.true_low_ns.to_string(),
            t.true_high_ns.to_string(),
            String::new(),
            difference(told, t.true_cpu_ns).to_string(),
            u8::from(t.outside).to_string(),
            start(t.since_s),
            String::new(),
            String::new(),
        ]));
    }
    for cpu in &rusage.cpus {
        let sides = cpu.reported.named().into_iter().zip(cpu.truly.named());
        let ends = cpu.low.named().into_iter().zip(cpu.high.named());
        let since = start(cpu.since_s);
        let before = cpu.before.named().into_iter();
        for ((((name, told), (_, truly)), ((_, low), (_, high))), (_, before)) in sides.zip(ends).zip(before)
        {
            let difference = difference(told, truly);
            // A told time of a CPU stands in the column of user time.
            let _ = write!(
                text,
                "cpu,{name},,{},,{told},,{truly},{low},{high},,{difference},,{since},{before},\r\n",
                cpu.cpu
            );
        }
    }
    text
}

/// When the books were first read, empty for what began later.
fn start(since_s: Option<f64>) -> String {
    since_s.map(|s| s.to_string()).unwrap_or_default()
}
