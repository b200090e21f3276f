//! `vprof diff` as text, and as a table for a pull request.

use std::fmt::Write as _;

use display::clean::escaped;
use display::units;
use profile::diff::{Change, Diff, DiffRow, IntervalMethod, Side};
use profile::report::{ShareKey, SharesBy};

use super::paragraph::wrapped;
use super::table::{ColumnAlign, TextTable};
use super::{PageLayout, with_module};

/// Columns from which the time has its interval.
const WIDE: usize = 120;

/// Formats the comparison with at most `rows` rows.
pub fn render(diff: &Diff, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    wrapped(&mut text, &page.style.bold(&verdict(diff)), "", page.width);
    for line in heading(diff) {
        wrapped(&mut text, &line, "  ", page.width);
    }
    text.push('\n');
    if diff.rows.is_empty() {
        text.push_str("Nothing was hit in the chosen part.\n");
        return text;
    }
    let title = page.style.bold(&format!("{} by change of share", plural(diff.by)));
    let line = format!(
        "{title}: points of CPU time with their 95 % interval; ratio of the time after to that before; * {}",
        mark(diff)
    );
    wrapped(&mut text, &line, "", page.width);
    text.push_str(&table(diff, rows, page.width >= WIDE).render(page.width));
    let left = diff.rows.len().saturating_sub(rows);
    if left > 0 {
        let _ = writeln!(text, "  and {} more (-n 0 shows all)", units::count(left as u64));
    }
    for note in notes(diff) {
        wrapped(&mut text, &format!("Note: {note}"), "", page.width);
    }
    text
}

/// Formats the comparison as Markdown.
pub fn markdown(diff: &Diff, rows: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "**{}**\n\n{}\n", verdict(diff), heading(diff).join("; "));
    let _ = writeln!(
        text,
        "| | change, points | 95 % interval | before | after | time | ratio | {} |",
        single(diff.by)
    );
    text.push_str("|---|---:|---:|---:|---:|---:|---:|---|\n");
    for row in diff.rows.iter().take(rows) {
        let share = &row.share;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {}{} | {} | {} |",
            star(share),
            points(share.change),
            interval(share, points),
            units::percent(share.before),
            units::percent(share.after),
            seconds(row.time_s.change),
            star(&row.time_s),
            ratio(&row.time_s),
            code(&name(&row.key))
        );
    }
    let left = diff.rows.len().saturating_sub(rows);
    let more = if left > 0 {
        format!(" {} more rows are not shown.", units::count(left as u64))
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "\n\\* {}, over all {} rows that were tested (Holm, 5 %).{more}",
        mark(diff),
        diff.tested
    );
    for note in notes(diff) {
        let _ = writeln!(text, "\nNote: {note}");
    }
    text
}

/// Returns the answer: how the time of everything that is compared has changed.
fn verdict(diff: &Diff) -> String {
    let time = &diff.whole.time_s;
    let (what, of) = if diff.whole.command { ("command", " of CPU time") } else { ("CPU time", "") };
    let times = format!("{what}: {:.3} s -> {:.3} s{of}", time.before, time.after);
    let change = match time.marked {
        false => "no change beyond chance".to_owned(),
        true if time.after > time.before => factor(time.after / time.before, "more"),
        true => factor(time.before / time.after, "less"),
    };
    match percents(time) {
        Some(percents) => format!("{times}, {change} ({percents})"),
        None => format!("{times}, {change}"),
    }
}

/// Formats a factor of change: `5.9 times less`.
fn factor(factor: f64, what: &str) -> String {
    match factor {
        f if !f.is_finite() => what.to_owned(),
        f if f >= 1.95 => format!("{f:.1} times {what}"),
        f => format!("{f:.2} times {what}"),
    }
}

/// Formats the time after as a multiple of that before.
fn ratio(time: &Change) -> String {
    let ratio = time.after / time.before;
    match ratio {
        r if !r.is_finite() => "-".to_owned(),
        r if r >= 9.95 => format!("{r:.0}"),
        r => format!("{r:.2}"),
    }
}

fn heading(diff: &Diff) -> Vec<String> {
    let side = |name: &str, side: &Side| {
        let runs = if side.runs > 1 { format!("{} runs, each ", side.runs) } else { String::new() };
        let samples = units::counted(side.busy_samples, "sample");
        format!("{name}: {runs}{:.3} s of CPU time, {samples}", side.busy_s)
    };
    let share = diff.rows.iter().filter(|row| row.share.marked).count();
    let time = diff.rows.iter().filter(|row| row.time_s.marked).count();
    vec![
        side("before", &diff.before),
        side("after", &diff.after),
        format!("{}: {share} of {} changes of share, {time} of time", mark(diff), diff.tested),
    ]
}

/// Returns the meaning of a mark.
fn mark(diff: &Diff) -> &'static str {
    match diff.method {
        IntervalMethod::TwoRuns => "more than the chance of sampling",
        IntervalMethod::Welch => "more than chance",
    }
}

/// Formats a growth, like `from 1.000 s to 1.200 s, by +20.0 %, 95 % interval +10.0 to +30.0 %`.
pub fn growth(time: &Change) -> String {
    let by = percents(time).map_or_else(String::new, |percents| format!(", by {percents}"));
    format!("from {:.3} s to {:.3} s{by}", time.before, time.after)
}

/// Formats a change in per cent of the value before: `+20.0 %, 95 % interval +10.0 to +30.0 %`.
fn percents(time: &Change) -> Option<String> {
    let part = |s: f64| format!("{:+.1}", s / time.before * 100.0);
    let interval = || format!("{} to {} %", part(time.low), part(time.high));
    (time.before > 0.0).then(|| format!("{} %, 95 % interval {}", part(time.change), interval()))
}

fn notes(diff: &Diff) -> Vec<String> {
    let mut notes = Vec::new();
    if diff.method == IntervalMethod::TwoRuns {
        notes.push(
                        "one run of each side: the comparison is of these two runs only, and a re-run of the same program may be \
                         marked as well. Make several of each (`vprof run --repeat 3`), and give them with --before and --after"
                .to_owned(),
        );
    }
    if !diff.intervals_valid {
        notes.push("a run had a fixed clock: intervals and marks are not valid".to_owned());
    }
    if diff.before.hosts != diff.after.hosts {
        notes.push(format!(
            "the runs were made on different hosts ({} and {}): times do not compare",
            escaped(&diff.before.hosts.join(", ")),
            escaped(&diff.after.hosts.join(", "))
        ));
    }
    if !(diff.before.complete && diff.after.complete) {
        notes.push("a run is in progress or was cut short".to_owned());
    }
    notes
}

fn table(diff: &Diff, rows: usize, wide: bool) -> TextTable {
    let right = ColumnAlign::Right;
    let mut columns = vec![("", ColumnAlign::Left), ("change", right), ("interval", right)];
    if wide {
        columns.push(("before", right));
    }
    columns.extend([("after", right), ("ratio", right), ("time", right), ("", ColumnAlign::Left)]);
    if wide {
        columns.push(("interval", right));
    }
    columns.push((single(diff.by), ColumnAlign::Left));
    let mut table = TextTable::new(&columns).flexible(columns.len() - 1).spare(if wide {
        &[8, 2]
    } else {
        &[2, 3, 6, 5]
    });
    for row in diff.rows.iter().take(rows) {
        table.row(cells(row, wide));
    }
    table
}

fn cells(row: &DiffRow, wide: bool) -> Vec<String> {
    let DiffRow { share, time_s, .. } = row;
    let mut cells = vec![star(share).to_owned(), points(share.change), interval(share, points)];
    if wide {
        cells.push(units::percent(share.before));
    }
    cells.extend([
        units::percent(share.after),
        ratio(time_s),
        seconds(time_s.change),
        star(time_s).to_owned(),
    ]);
    if wide {
        cells.push(interval(time_s, seconds));
    }
    cells.push(name(&row.key));
    cells
}

/// Returns the name of a row, escaped.
pub fn name(key: &ShareKey) -> String {
    // A process may have the name of a kernel thread.
    if key.kind.as_deref() == Some("kernel_thread") {
        return format!("[{}]", escaped(&key.name));
    }
    with_module(&key.name, key.module.as_deref())
}

fn star(change: &Change) -> &'static str {
    if change.marked { "*" } else { "" }
}

fn interval(change: &Change, format: fn(f64) -> String) -> String {
    format!("{} to {}", format(change.low), format(change.high))
}

/// Formats a difference of shares in points: `+3.08`.
pub fn points(share: f64) -> String {
    format!("{:+.2}", share * 100.0)
}

/// Formats a difference of times: `+12.3 ms`.
pub fn seconds(s: f64) -> String {
    if s.abs() < 0.999_5 { format!("{:+.1} ms", s * 1e3) } else { format!("{s:+.2} s") }
}

fn single(by: SharesBy) -> &'static str {
    match by {
        SharesBy::Function | SharesBy::Total => "function",
        SharesBy::Process => "program",
        SharesBy::Stack => "stack",
    }
}

fn plural(by: SharesBy) -> &'static str {
    match by {
        SharesBy::Function => "Functions",
        SharesBy::Total => "Functions with their callees",
        SharesBy::Process => "Programs",
        SharesBy::Stack => "Stacks",
    }
}

/// Formats text as a code span of Markdown, in which only the characters that end the span or the cell have a
/// meaning.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'").replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign_and_a_unit() {
        assert_eq!((points(0.030_8), points(-0.5)), ("+3.08".to_owned(), "-50.00".to_owned()));
        assert_eq!((seconds(0.012_34), seconds(-2.5)), ("+12.3 ms".to_owned(), "-2.50 s".to_owned()));
    }

    #[test]
    fn a_time_has_a_ratio_and_a_factor() {
        let time = |before, after| Change { before, after, ..Change::default() };
        assert_eq!((ratio(&time(5.56, 0.94)), ratio(&time(1.0, 12.3))), ("0.17".to_owned(), "12".to_owned()));
        assert_eq!(ratio(&time(0.0, 1.0)), "-");
        assert_eq!(factor(5.56 / 0.94, "less"), "5.9 times less");
        assert_eq!(
            (factor(1.2, "more"), factor(f64::INFINITY, "more")),
            ("1.20 times more".into(), "more".into())
        );
    }

    #[test]
    fn a_kernel_thread_is_not_a_process_of_its_name() {
        let key = |kind: &str| ShareKey {
            name: "kworker/u2:1".into(),
            kind: Some(kind.into()),
            ..ShareKey::default()
        };
        assert_eq!(name(&key("kernel_thread")), "[kworker/u2:1]");
        assert_eq!(name(&key("process")), "kworker/u2:1");
    }

    #[test]
    fn names_end_no_cell() {
        assert_eq!(code("a|b`c<br>"), "`a\\|b'c<br>`");
    }
}
