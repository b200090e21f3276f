//! `report --states`: the states of each task, exactly or by task-state sampling.

use display::clean::escaped;
use display::units;
use profile::report::{StateReport, StateSource, TaskStateTimes, TimeInState};

use super::PageLayout;
use super::exact::{more, name};
use super::paragraph::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};

/// Formats the report with at most `rows` rows per table.
pub fn render(report: &StateReport, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    facts(&mut text, report, page);
    tasks(&mut text, report, rows, page);
    waits(&mut text, report, rows, page);
    text
}

fn facts(text: &mut String, report: &StateReport, page: PageLayout) {
    let span = units::seconds(report.to_s - report.from_s);
    let from = units::seconds(report.from_s);
    let Some(scans) = &report.scans else {
        let title = format!("States of tasks, exactly: {span}, from {from} on");
        wrapped(text, &page.style.bold(&title), "", page.width);
        wrapped(
            text,
            "User and system time are estimated by samples; all other times are exact.",
            "  ",
            page.width,
        );
        return;
    };
    let title = format!("States of tasks, estimated by task-state sampling: {span}, from {from} on");
    wrapped(text, &page.style.bold(&title), "", page.width);
    let scanned = format!(
        "{} at random times, {} per second requested, {} missed, {} late on average; they took {} of a host CPU",
        units::counted(scans.scans, "scan"),
        scans.hz,
        units::count(scans.missed),
        units::seconds(scans.late_s),
        units::seconds(scans.cost_s)
    );
    wrapped(text, &scanned, "  ", page.width);
    if scans.inconsistent > 0 {
        let inconsistent = format!(
            "{} of {} readings met a task that was being switched: its state is unknown",
            units::count(scans.inconsistent),
            units::count(scans.tasks)
        );
        wrapped(text, &inconsistent, "  ", page.width);
    }
}

/// Formats a part of a task's life; `-` for 0.
fn part(share: f64) -> String {
    if share == 0.0 { "-".to_owned() } else { units::percent(share) }
}

fn tasks(text: &mut String, report: &StateReport, rows: usize, page: PageLayout) {
    heading(text, page, "Tasks", ": part of the life in each state, most time on a CPU first");
    let right = ["tid", "life", "on CPU", "user", "system", "irq", "runnable", "sleep", "disk", "other"];
    let mut columns: Vec<(&str, ColumnAlign)> = right.map(|name| (name, ColumnAlign::Right)).to_vec();
    columns.push(("task", ColumnAlign::Left));
    let mut table = TextTable::new(&columns).indent(2).flexible(10);
    for task in report.tasks.iter().take(rows) {
        let time = |names: &[&str]| {
            let fits = task.states.iter().filter(|state| names.contains(&state.state.as_str()));
            // The sum of nothing is -0.
            part(fits.fold(0.0, |sum, state| sum + state.share))
        };
        table.row(vec![
            task.task.tid.to_string(),
            units::seconds(task.life_s),
            part(task.running.share),
            time(&["user"]),
            time(&["system"]),
            time(&["interrupted"]),
            time(&["runnable"]),
            time(&["sleep"]),
            time(&["disk"]),
            time(&["sampler", "stopped", "zombie", "unknown"]),
            name(&task.task),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, report.tasks.len(), rows);
}

/// Formats the interval of an estimate; an exact time has none.
fn interval(state: &TimeInState) -> String {
    if state.low_s == state.high_s {
        return "exact".to_owned();
    }
    format!("{} - {}", units::seconds(state.low_s), units::seconds(state.high_s))
}

/// Time in one state, and its task.
type StateRow<'a> = (&'a TaskStateTimes, &'a TimeInState);

/// Adds the states and waits of tasks, most time first.
fn waits(text: &mut String, report: &StateReport, rows: usize, page: PageLayout) {
    let estimated = report.source == StateSource::Sampled;
    let note =
        if estimated { ": with 95 % intervals, without kernel threads" } else { ": without kernel threads" };
    heading(text, page, "States", note);
    let own = |task: &TaskStateTimes| !task.task.kernel_thread;
    let slept = |state: &TimeInState| matches!(state.state.as_str(), "sleep" | "disk" | "stopped");
    let mut list: Vec<StateRow<'_>> = Vec::new();
    for task in report.tasks.iter().filter(|task| own(task)) {
        let states = task.states.iter().filter(|state| !slept(state));
        list.extend(states.chain(&task.waits).filter(|state| state.s > 0.0).map(|state| (task, state)));
    }
    list.sort_by(|a, b| b.1.s.total_cmp(&a.1.s));
    let mut table = TextTable::new(&[
        ("time", ColumnAlign::Right),
        ("95 % interval", ColumnAlign::Right),
        ("of life", ColumnAlign::Right),
        ("state", ColumnAlign::Left),
        ("for", ColumnAlign::Left),
        ("task", ColumnAlign::Left),
    ])
    .indent(2)
    .flexible(5)
    .spare(&[1, 2, 4]);
    for (task, state) in list.iter().take(rows) {
        table.row(vec![
            units::seconds(state.s),
            interval(state),
            units::percent(state.share),
            escaped(&state.state).into_owned(),
            escaped(&state.wait_reason).into_owned(),
            name(&task.task),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, list.len(), rows);
}

#[cfg(test)]
mod tests {
    use profile::report::{ScanStatistics, Task};

    use super::*;
    use crate::TextStyle;

    fn time(state: &str, wait_reason: &str, share: f64) -> TimeInState {
        let (s, low_s, high_s) = (share * 10.0, share * 8.0, share * 12.0);
        let (state, wait_reason) = (state.to_owned(), wait_reason.to_owned());
        TimeInState {
            state,
            wait_reason,
            count: Some(9),
            s,
            low_s,
            high_s,
            share,
            share_low: share * 0.8,
            share_high: share,
        }
    }

    fn report(source: StateSource) -> StateReport {
        let scans = ScanStatistics {
            hz: 10.0,
            scans: 98,
            late_s: 0.001,
            missed: 1,
            tasks: 4_900,
            inconsistent: 3,
            cost_s: 0.025,
        };
        let task = Task { comm: "evil\x1b[2J".to_owned(), pid: 7, tid: 8, ..Task::default() };
        let spent = TaskStateTimes {
            task,
            life_s: 10.0,
            running: time("running", "", 0.25),
            states: vec![time("user", "", 0.2), time("system", "", 0.05), time("sleep", "", 0.75)],
            waits: vec![time("sleep", "pipe", 0.75)],
            samples: 40,
        };
        let scans = (source == StateSource::Sampled).then_some(scans);
        StateReport { source, from_s: 1.0, to_s: 11.0, scans, tasks: vec![spent] }
    }

    #[test]
    fn estimates_have_their_intervals() {
        let page = PageLayout { width: 100, style: TextStyle::Plain };
        let text = render(&report(StateSource::Sampled), 10, page);
        assert!(
            text.starts_with("States of tasks, estimated by task-state sampling: 10.00 s, from 1.00 s on\n"),
            "{text}"
        );
        assert!(
            text.contains("98 scans at random times, 10 per second requested, 1 missed, 1.0 ms late"),
            "{text}"
        );
        assert!(text.contains("3 of 4,900 readings"), "{text}");
        let row = text.lines().find(|line| line.contains("pipe")).expect("a row");
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[..9], ["7.50", "s", "6.00", "s", "-", "9.00", "s", "75.0", "%"], "{row}");
        assert!(text.contains("95 % interval") && !text.contains("from  "), "{text}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn exact_times_say_so() {
        let text =
            render(&report(StateSource::Exact), 10, PageLayout { width: 100, style: TextStyle::Plain });
        assert!(text.starts_with("States of tasks, exactly: 10.00 s"), "{text}");
        assert!(!text.contains("intervals") && !text.contains("scan"), "{text}");
    }
}
