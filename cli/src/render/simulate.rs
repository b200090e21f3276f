//! `simulate`: results of many profilings of simulated machines, and a conclusion.

use statistics::clock::ClockKind;
use statistics::simulate::{Paper, Row, Section, Study, Unit};
use text::units;

use super::PageLayout;
use super::summary::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};

const CLOCKS: [ClockKind; 3] = [ClockKind::Uniform, ClockKind::Exponential, ClockKind::Fixed];

/// Longest name that leaves room for all three clocks side by side, columns.
const NARROW: usize = 6;

/// Formats the tables and the conclusion.
pub fn render(study: &Study, page: PageLayout) -> String {
    let mut text = String::new();
    let title = format!(
        "Profiles of simulated machines: {} of each, seed {}",
        units::counted(u64::from(study.runs), "profiling"),
        study.seed
    );
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    let legend = "Under each clock: the mean of the estimated shares, the variance of their error, and the coverage of \
                  the 95 % intervals, which is the part of them that contains the true value, in per cent.";
    wrapped(&mut text, legend, "", page.width);
    for section in Section::ALL {
        let rows: Vec<&Row> = study.rows.iter().filter(|row| row.section == section).collect();
        if !rows.is_empty() {
            let (title, note) = introduction(section);
            heading(&mut text, page, title, "");
            wrapped(&mut text, note, "  ", page.width);
            table(&mut text, &rows, page);
        }
    }
    unit_table(&mut text, study, page);
    text.push_str(&conclusion(study, page));
    text
}

/// Returns the title and note of a section.
fn introduction(section: Section) -> (&'static str, &'static str) {
    match section {
        Section::Single => (
            "One task",
            "Tables 2 and 3 of the unbiasedness study: a task with this share of the time, in blocks of so many \
             units; a sample about every 100 units, 10,000 in all.",
        ),
        Section::Mixed => {
            ("Four tasks", "Table 4: 30 % in blocks of 30 units, 20 % of 50, 20 % of 150, 10 % of 280.")
        }
        Section::Noise => (
            "Noise",
            "Tables 5 and 6: the same tasks; each of n samples represents 100 units and a normal number more.",
        ),
        Section::Granularity => (
            "Runs of all lengths",
            "A state that takes 30 % in runs of random length; their mean length, in intervals of the clock. 2,000 \
             samples.",
        ),
        Section::Adversary => {
            ("Against the clock", "Programs with a period near the clock's. 2,000 samples.")
        }
        Section::Estimator => (
            "Hard for an estimator",
            "Few samples, short and long runs (of so many intervals), mixtures, several vCPUs.",
        ),
        Section::Host => (
            "On a host that does other things, too",
            "Ticks that come late (by so many intervals) or while the vCPU's thread waits for a CPU, at random or for \
             its quota; states that begin right after a wait or a halt; ticks that take long to serve; attached virtual \
             machines.",
        ),
        Section::Printed => (
            "Every kind of interval",
            "Figures of reports, comparisons, boots and the guest's CPU accounting, in runs of so many intervals; 2,000 \
             ticks a vCPU, which is in the guest for 60 to 100 % of the time. Rare is 0.1 %: its intervals are too wide.",
        ),
    }
}

/// Adds the rows of a section: clocks side by side, or below one another where names need the room.
fn table(text: &mut String, rows: &[&Row], page: PageLayout) {
    let clocks: Vec<ClockKind> =
        CLOCKS.into_iter().filter(|clock| rows.iter().any(|row| row.clock == *clock)).collect();
    let longest = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let rendered = if clocks.len() == CLOCKS.len() && longest > NARROW {
        one_below_another(rows, page)
    } else {
        side_by_side(rows, &clocks, page)
    };
    text.push_str(&rendered);
    papers(text, rows, page);
}

/// Adds the number of ticks that one run of a state gets.
fn unit_table(text: &mut String, study: &Study, page: PageLayout) {
    let clocks: Vec<ClockKind> =
        CLOCKS.into_iter().filter(|clock| study.units.iter().any(|unit| unit.clock == *clock)).collect();
    if clocks.is_empty() {
        return;
    }
    heading(text, page, "One run", "");
    let note = "Ticks that a run of so many intervals gets: mean, variance, and how often the number is off by a unit or \
                more, in per cent. The study gives less than 2.28, twice the standard deviation of its worst case, on one side.";
    wrapped(text, note, "  ", page.width);
    let mut columns = vec![("intervals", ColumnAlign::Right)];
    for clock in &clocks {
        columns.extend([
            (short(*clock), ColumnAlign::Right),
            ("var", ColumnAlign::Right),
            ("off", ColumnAlign::Right),
        ]);
    }
    let mut table = TextTable::new(&columns).indent(1);
    let mut runs: Vec<f64> = study.units.iter().map(|unit| unit.run).collect();
    runs.sort_by(f64::total_cmp);
    runs.dedup();
    for run in runs {
        let unit =
            |clock: &ClockKind| study.units.iter().find(|unit| unit.run == run && unit.clock == *clock);
        let cells = |unit: &Unit| {
            [format!("{:.2}", unit.mean), format!("{:.2}", unit.variance), format!("{:.1}", unit.off * 100.0)]
        };
        let cells = clocks.iter().filter_map(unit).flat_map(cells);
        table.row(std::iter::once(run.to_string()).chain(cells).collect());
    }
    text.push_str(&table.render(page.width));
}

/// Returns the name of a clock for a narrow column.
fn short(clock: ClockKind) -> &'static str {
    if clock == ClockKind::Exponential { "expon." } else { clock.name() }
}

/// Adds the results of the unbiasedness study for the same machine.
fn papers(text: &mut String, rows: &[&Row], page: PageLayout) {
    let with: Vec<(&Row, Paper)> = rows.iter().filter_map(|row| Some((*row, row.paper?))).collect();
    let Some((first, paper)) = with.first() else { return };
    let range = |low: f64, high: f64| format!("{} to {}", share(low), share(high));
    let here: Vec<String> = with
        .iter()
        .map(|(row, _)| format!("{} ({})", range(row.result.lowest, row.result.highest), row.clock.name()))
        .collect();
    let line = format!(
        "{}: {} in the study's 1,000 profilings; here {}.",
        first.name,
        range(paper.lowest, paper.highest),
        here.join(", ")
    );
    wrapped(text, &line, "  ", page.width);
}

fn side_by_side(rows: &[&Row], clocks: &[ClockKind], page: PageLayout) -> String {
    let mut columns = vec![("", ColumnAlign::Left), ("true", ColumnAlign::Right)];
    for clock in clocks {
        columns.extend([
            (short(*clock), ColumnAlign::Right),
            ("var", ColumnAlign::Right),
            ("cov.", ColumnAlign::Right),
        ]);
    }
    let mut table = TextTable::new(&columns).indent(1).flexible(0).spare(&[]);
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    names.dedup();
    let mut seen = std::collections::HashSet::new();
    for name in names.into_iter().filter(|name| seen.insert(*name)) {
        let mut cells = vec![name.to_owned()];
        for clock in clocks {
            if let Some(row) = rows.iter().find(|row| row.name == name && row.clock == *clock) {
                if cells.len() == 1 {
                    cells.push(share(row.result.truth));
                }
                cells.extend(measured(row));
            }
        }
        table.row(cells);
    }
    table.render(page.width)
}

fn one_below_another(rows: &[&Row], page: PageLayout) -> String {
    let columns = ["true", "mean", "var", "cov."].map(|name| (name, ColumnAlign::Right));
    let columns = [&[("", ColumnAlign::Left), ("clock", ColumnAlign::Left)], columns.as_slice()].concat();
    let mut table = TextTable::new(&columns).indent(1).flexible(0).spare(&[]);
    let mut last = "";
    for row in rows {
        let name = if row.name == last { String::new() } else { row.name.clone() };
        last = &row.name;
        let mut cells = vec![name, row.clock.name().to_owned(), share(row.result.truth)];
        cells.extend(measured(row));
        table.row(cells);
    }
    table.render(page.width)
}

fn share(share: f64) -> String {
    format!("{share:.4}")
}

fn measured(row: &Row) -> [String; 3] {
    [share(row.result.mean), variance(row.result.variance), percent(row.result.coverage)]
}

fn variance(variance: f64) -> String {
    if variance == 0.0 { "0".to_owned() } else { format!("{variance:.1e}") }
}

fn percent(coverage: f64) -> String {
    if coverage >= 1.0 { "100".to_owned() } else { format!("{:.1}", coverage * 100.0) }
}

/// Formats the conclusion from the tables, clock by clock.
pub fn conclusion(study: &Study, page: PageLayout) -> String {
    let mut text = String::new();
    heading(&mut text, page, "Conclusion", "");
    for clock in CLOCKS {
        let rows: Vec<&Row> = study.rows.iter().filter(|row| row.clock == clock).collect();
        if rows.is_empty() {
            continue;
        }
        let off: Vec<&&Row> = rows.iter().filter(|row| row.fails).collect();
        let mean = rows.iter().map(|row| row.result.coverage).sum::<f64>() / rows.len() as f64;
        let least = rows.iter().map(|row| row.result.coverage).fold(1.0, f64::min);
        let failed = match off.len() {
            0 => "none has".to_owned(),
            1 => "1 has".to_owned(),
            many => format!("{many} have"),
        };
        let line = format!(
            "{}: {}, of which {failed} less coverage than chance explains. {} % of all intervals contain the true value, \
             {} % in the worst row.",
            clock.name(),
            units::counted(rows.len() as u64, "row"),
            percent(mean),
            percent(least)
        );
        wrapped(&mut text, &line, "  ", page.width);
        for row in off {
            let result = row.result;
            let (mean, truth) = (share(result.mean), share(result.truth));
            let runs = if row.section == Section::Granularity { "runs of " } else { "" };
            let line =
                format!("{runs}{}: {mean} for {truth}, coverage {} %", row.name, percent(result.coverage));
            wrapped(&mut text, &line, "    ", page.width);
        }
        if clock == ClockKind::Fixed {
            let note = "A program may be in step with a fixed clock, so its intervals are not valid.";
            wrapped(&mut text, note, "  ", page.width);
        }
    }
    text
}
