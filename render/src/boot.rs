//! The boot of a guest: `report --boot`, and a part of `vprof boot`.

mod systemd;

use display::clean::escaped;
use display::units;
use profile::boot::{Boot, Call, CpuEstimate, Phase, Unit, is_part_of_kernel};

use super::PageLayout;
use super::exact::more;
use super::paragraph::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};
use statistics::spread::ValueSpread;

/// Formats one boot with at most `rows` rows per table.
pub fn render(boot: &Boot, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    let kernel = boot.kernel.as_deref().unwrap_or("of unknown release");
    let started_s = boot.systemd.startup.as_ref().map(|startup| startup.at_s);
    let started_s = started_s.filter(|_| boot.phase("total").is_some_and(|total| total.ended));
    let until = match boot.reached_s.or(started_s) {
        Some(reached) => format!("up after {}", units::seconds(reached)),
        None => "up to the run's end".to_owned(),
    };
    let title = format!("Boot of Linux {}, host {}: {until}", escaped(kernel), escaped(&boot.host));
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    wrapped(
        &mut text,
        "Times count from the guest's first instruction; CPU time is estimated by samples.",
        "  ",
        page.width,
    );
    if let Some(from) = boot.sampled_from_s {
        let note = format!("Sampling began after {}, so the phases are not known.", units::seconds(from));
        wrapped(&mut text, &note, "  ", page.width);
    }
    phases(&mut text, &boot.phases, page);
    systemd::render(&mut text, &boot.systemd, rows, page);
    let early = TableHeading { title: "Early kernel", note: ": functions that start_kernel called" };
    calls(&mut text, early, &boot.early, rows, page);
    let initcalls = TableHeading { title: "Initcalls", note: ": those of modules, too" };
    calls(&mut text, initcalls, &boot.initcalls, rows, page);
    if !boot.init.is_empty() {
        heading(&mut text, page, "First process", "");
        let mut table = TextTable::new(&[
            ("from", ColumnAlign::Right),
            ("on", ColumnAlign::Left),
            ("program", ColumnAlign::Left),
        ])
        .indent(2)
        .flexible(2);
        for program in boot.init.iter().take(rows) {
            let (system, path) =
                (escaped(&program.filesystem).into_owned(), escaped(&program.path).into_owned());
            table.row(vec![units::seconds(program.from_s), system, path]);
        }
        text.push_str(&table.render(page.width));
        more(&mut text, boot.init.len(), rows);
    }
    unit_table(&mut text, "Units and control groups", &boot.units, rows, page);
    unit_table(&mut text, "Programs", &boot.processes, rows, page);
    text
}

fn phases(text: &mut String, phases: &[Phase], page: PageLayout) {
    heading(text, page, "Phases", "");
    let right = ["from", "to", "wall", "known to", "in the guest", "samples"];
    let mut columns: Vec<(&str, ColumnAlign)> = right.map(|name| (name, ColumnAlign::Right)).to_vec();
    columns.push(("phase", ColumnAlign::Left));
    let mut table = TextTable::new(&columns).indent(2).spare(&[5, 3, 4, 1]);
    for phase in phases {
        let indent = if is_part_of_kernel(&phase.name) { "  " } else { "" };
        let open = if phase.ended { "" } else { " (not ended)" };
        table.row(vec![
            units::seconds(phase.from_s),
            units::seconds(phase.to_s),
            units::seconds(phase.wall_s),
            units::seconds(phase.within_s),
            units::seconds(phase.guest_s),
            units::count(phase.samples),
            format!("{indent}{}{open}", phase.name),
        ]);
    }
    text.push_str(&table.render(page.width));
}

fn interval(time: &CpuEstimate) -> String {
    format!("{} - {}", units::seconds(time.low_s), units::seconds(time.high_s))
}

/// Returns the elements with the most CPU time, in the order of time.
fn most<T>(all: &[T], rows: usize, time: impl Fn(&T) -> u64) -> Vec<&T> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(all.get(place).map_or(0, &time)));
    order.truncate(rows);
    order.sort_unstable();
    order.into_iter().filter_map(|place| all.get(place)).collect()
}

/// TableHeading of a table.
struct TableHeading {
    title: &'static str,
    note: &'static str,
}

fn calls(
    text: &mut String,
    TableHeading { title, note }: TableHeading,
    calls: &[Call],
    rows: usize,
    page: PageLayout,
) {
    if calls.is_empty() {
        return;
    }
    heading(text, page, title, note);
    let columns = [
        ("from", ColumnAlign::Right),
        ("to", ColumnAlign::Right),
        ("CPU time", ColumnAlign::Right),
        ("95 % interval", ColumnAlign::Right),
        ("function", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(4);
    for call in most(calls, rows, |call| call.time.samples) {
        let module =
            call.module.as_deref().map_or_else(String::new, |module| format!(" [{}]", escaped(module)));
        table.row(vec![
            units::seconds(call.from_s),
            units::seconds(call.to_s),
            units::seconds(call.time.s),
            interval(&call.time),
            format!("{}{module}", escaped(&call.function)),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, calls.len(), rows);
}

fn unit_table(text: &mut String, title: &str, all: &[Unit], rows: usize, page: PageLayout) {
    if all.is_empty() {
        return;
    }
    heading(text, page, title, "");
    let columns = [
        ("from", ColumnAlign::Right),
        ("to", ColumnAlign::Right),
        ("CPU time", ColumnAlign::Right),
        ("95 % interval", ColumnAlign::Right),
        ("processes", ColumnAlign::Right),
        ("name", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(5);
    for unit in most(all, rows, |unit| unit.time.samples) {
        table.row(vec![
            units::seconds(unit.from_s),
            units::seconds(unit.to_s),
            units::seconds(unit.time.s),
            interval(&unit.time),
            units::count(unit.processes),
            escaped(&unit.name).into_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, all.len(), rows);
}

/// Adds a table of the spread between several runs.
pub fn spread(text: &mut String, all: &[ValueSpread], show: impl Fn(f64) -> String, page: PageLayout) {
    let columns = [
        ("median", ColumnAlign::Right),
        ("min", ColumnAlign::Right),
        ("max", ColumnAlign::Right),
        ("spread", ColumnAlign::Right),
        ("what", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(4);
    for one in all {
        let cv = one.cv.map_or_else(String::new, |cv| format!("{:.1} %", cv * 100.0));
        table.row(vec![show(one.median), show(one.min), show(one.max), cv, escaped(&one.name).into_owned()]);
    }
    text.push_str(&table.render(page.width));
}

/// Formats a line for each vCPU and each task that slept at the end, escaped.
pub fn last_seen(evidence: &profile::boot::Evidence) -> Vec<String> {
    let joined = |stack: &[String]| {
        stack.iter().map(|name| escaped(name).into_owned()).collect::<Vec<_>>().join(" < ")
    };
    let vcpus = evidence.vcpus.iter().map(|vcpu| {
        let who = vcpu.process.as_deref().unwrap_or("nothing");
        format!(
            "vCPU {}: {:.0} % busy, last with {}: {}",
            vcpu.vcpu,
            vcpu.busy * 100.0,
            escaped(who),
            joined(&vcpu.stack)
        )
    });
    let tasks = evidence.blocked.iter().map(|task| {
        format!(
            "{} {}/{} ({}) for {}: {}",
            escaped(&task.comm),
            task.pid,
            task.tid,
            escaped(&task.state),
            units::seconds(evidence.duration_s - task.since_s),
            joined(&task.stack)
        )
    });
    vcpus.chain(tasks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_the_most_time_are_shown_in_the_order_of_time() {
        let all = [(1, 5), (2, 9), (3, 1), (4, 7)];
        let shown: Vec<i32> = most(&all, 2, |row| row.1).into_iter().map(|row| row.0).collect();
        assert_eq!(shown, [2, 4]);
    }

    #[test]
    fn names_of_the_guest_are_harmless() {
        let call = Call { function: "a\x1b[2J".to_owned(), ..Call::default() };
        let boot = Boot { initcalls: vec![call], kernel: Some("6\x07".to_owned()), ..Boot::default() };
        let text = render(&boot, 10, PageLayout { width: 80, style: super::super::TextStyle::Plain });
        assert!(text.contains("a\\x1b[2J") && !text.contains('\x1b') && !text.contains('\x07'), "{text}");
    }
}
