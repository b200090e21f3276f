//! `simulate`: what many profilings of made-up machines gave, and what it says.

use profile::ClockKind;
use profile::simulate::{Paper, Row, Section, Study, Unit};
use text::units;

use super::Page;
use super::summary::{heading, wrapped};
use super::table::{Align, Table};

const CLOCKS: [ClockKind; 3] = [ClockKind::Uniform, ClockKind::Exponential, ClockKind::Fixed];

/// Columns that a table with all three clocks side by side leaves for names.
const NARROW: usize = 6;

/// The tables, and what they say.
pub fn render(study: &Study, page: Page) -> String {
    let mut text = String::new();
    let title = format!(
        "Profiles of made-up machines: {} of each, seed {}",
        units::counted(u64::from(study.runs), "profiling"),
        study.seed
    );
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    let legend = "Under each clock: the mean of the estimated shares, the variance of their error, and how many of the \
                  95 % intervals held the truth, in per cent.";
    wrapped(&mut text, legend, "", page.width);
    for section in Section::ALL {
        let rows: Vec<&Row> = study.rows.iter().filter(|row| row.section == section).collect();
        if !rows.is_empty() {
            let (title, note) = about(section);
            heading(&mut text, page.style, title, "");
            wrapped(&mut text, note, "  ", page.width);
            table(&mut text, &rows, page);
        }
    }
    units_of(&mut text, study, page);
    text.push_str(&conclusion(study, page));
    text
}

/// Title and note of a section.
fn about(section: Section) -> (&'static str, &'static str) {
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
            "Tables 5 and 6: the same tasks; each of n samples stands for 100 units and a normal number more.",
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
             its quota; what runs right after a wait or a halt; ticks that take long to serve; attached virtual machines.",
        ),
        Section::Printed => (
            "Every kind of interval",
            "What reports, comparisons, boots and the guest's books print, in runs of so many intervals; 2,000 ticks \
             a vCPU, which is in the guest for 60 to 100 % of the time. Rare is 0.1 %: its intervals are too wide.",
        ),
    }
}

/// The rows of a section: clocks side by side, or below one another where names need the room.
fn table(text: &mut String, rows: &[&Row], page: Page) {
    let clocks: Vec<ClockKind> =
        CLOCKS.into_iter().filter(|clock| rows.iter().any(|row| row.clock == *clock)).collect();
    let longest = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let rendered = if clocks.len() == CLOCKS.len() && longest > NARROW {
        below(rows, page)
    } else {
        beside(rows, &clocks, page)
    };
    text.push_str(&rendered);
    papers(text, rows, page);
}

/// How many ticks one run of a state gets.
fn units_of(text: &mut String, study: &Study, page: Page) {
    let clocks: Vec<ClockKind> =
        CLOCKS.into_iter().filter(|clock| study.units.iter().any(|unit| unit.clock == *clock)).collect();
    if clocks.is_empty() {
        return;
    }
    heading(text, page.style, "One run", "");
    let note = "How many ticks a run of so many intervals gets: the mean, the variance, and how often the number is off by a \
                unit or more, in per cent. The study gives less than 2.28, twice the standard deviation of its worst case, on one side.";
    wrapped(text, note, "  ", page.width);
    let mut columns = vec![("intervals", Align::Right)];
    for clock in &clocks {
        columns.extend([(short(*clock), Align::Right), ("var", Align::Right), ("off", Align::Right)]);
    }
    let mut table = Table::new(&columns).indent(1);
    let mut runs: Vec<f64> = study.units.iter().map(|unit| unit.run).collect();
    runs.sort_by(f64::total_cmp);
    runs.dedup();
    for run in runs {
        let of = |clock: &ClockKind| study.units.iter().find(|unit| unit.run == run && unit.clock == *clock);
        let cells = |unit: &Unit| {
            [format!("{:.2}", unit.mean), format!("{:.2}", unit.variance), format!("{:.1}", unit.off * 100.0)]
        };
        let cells = clocks.iter().filter_map(of).flat_map(cells);
        table.row(std::iter::once(run.to_string()).chain(cells).collect());
    }
    text.push_str(&table.render(page.width));
}

/// The name of a clock above a narrow column.
fn short(clock: ClockKind) -> &'static str {
    if clock == ClockKind::Exponential { "expon." } else { clock.name() }
}

/// What the unbiasedness study says of the same machine.
fn papers(text: &mut String, rows: &[&Row], page: Page) {
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

fn beside(rows: &[&Row], clocks: &[ClockKind], page: Page) -> String {
    let mut columns = vec![("", Align::Left), ("truth", Align::Right)];
    for clock in clocks {
        columns.extend([(short(*clock), Align::Right), ("var", Align::Right), ("held", Align::Right)]);
    }
    let mut table = Table::new(&columns).indent(1).flexible(0);
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

fn below(rows: &[&Row], page: Page) -> String {
    let columns = ["truth", "mean", "var", "held"].map(|name| (name, Align::Right));
    let columns = [&[("", Align::Left), ("clock", Align::Left)], columns.as_slice()].concat();
    let mut table = Table::new(&columns).indent(1).flexible(0);
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
    [share(row.result.mean), variance(row.result.variance), held(row.result.coverage)]
}

fn variance(variance: f64) -> String {
    if variance == 0.0 { "0".to_owned() } else { format!("{variance:.1e}") }
}

fn held(coverage: f64) -> String {
    if coverage >= 1.0 { "100".to_owned() } else { format!("{:.1}", coverage * 100.0) }
}

/// What the tables say together, clock by clock.
pub fn conclusion(study: &Study, page: Page) -> String {
    let mut text = String::new();
    heading(&mut text, page.style, "What this says", "");
    for clock in CLOCKS {
        let rows: Vec<&Row> = study.rows.iter().filter(|row| row.clock == clock).collect();
        if rows.is_empty() {
            continue;
        }
        let off: Vec<&&Row> = rows.iter().filter(|row| row.fails).collect();
        let mean = rows.iter().map(|row| row.result.coverage).sum::<f64>() / rows.len() as f64;
        let least = rows.iter().map(|row| row.result.coverage).fold(1.0, f64::min);
        let found = match off.len() {
            0 => "none holds",
            1 => "1 holds",
            _ => &format!("{} hold", off.len()),
        };
        let line = format!(
            "{}: {}, of which {found} the truth less often than chance allows. Intervals held it in {} % of all \
             profilings, {} % where least often.",
            clock.name(),
            units::counted(rows.len() as u64, "row"),
            held(mean),
            held(least)
        );
        wrapped(&mut text, &line, "  ", page.width);
        for row in off {
            let result = row.result;
            let (mean, truth) = (share(result.mean), share(result.truth));
            let runs = if row.section == Section::Granularity { "runs of " } else { "" };
            let line = format!("{runs}{}: {mean} for {truth}, {} % held", row.name, held(result.coverage));
            wrapped(&mut text, &line, "    ", page.width);
        }
        if clock == ClockKind::Fixed {
            let note = "A program may be in step with a fixed clock, so no interval under it can be trusted.";
            wrapped(&mut text, note, "  ", page.width);
        }
    }
    text
}
