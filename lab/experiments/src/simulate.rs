//! Profilings of made-up machines whose shares are known: the tables behind docs/statistics.md, without a
//! guest.

use anyhow::{Context, Result, bail};
use statistics::clock::ClockKind;
use statistics::simulate::{Options, Row, Section, Study, Unit, study};

use crate::table::MarkdownTable;

/// Standard deviations from the middle of a normal 95 % interval to its end.
const NORMAL_95: f64 = 1.96;

/// Runs the simulation and prints its tables. The arguments are the profilings of each machine under each
/// clock, and the seed.
pub fn print(arguments: &[String]) -> Result<()> {
    let [runs, seed] = arguments else { bail!("usage: experiments simulate RUNS SEED") };
    let runs = runs.parse().ok().filter(|runs| *runs > 1).context("the number of runs is not above 1")?;
    let seed = seed.parse().context("the seed is not a number")?;
    print!("{}", tables(&study(&Options { seed, runs }), runs));
    Ok(())
}

fn tables(study: &Study, runs: u32) -> String {
    let mut text = String::new();
    for rows in study.rows.chunk_by(|one, next| one.section == next.section) {
        let headings =
            ["what", "clock", "true", "mean", "variance", "least", "most", "spread", "width", "held, %"];
        let mut table = MarkdownTable::new(&headings);
        rows.iter().for_each(|row| table.row(cells(row, runs)));
        text.push_str(&format!("## {}\n\n{}\n", heading(rows[0].section), table.markdown()));
    }
    let mut table = MarkdownTable::new(&["intervals", "clock", "mean", "variance", "off, %"]);
    study.units.iter().for_each(|unit| table.row(cells_of_unit(unit)));
    text.push_str(&format!("## Ticks in one run of a state\n\n{}\n## Coverage\n\n", table.markdown()));
    for clock in [ClockKind::Uniform, ClockKind::Exponential, ClockKind::Fixed] {
        let rows = || study.rows.iter().filter(|row| row.clock == clock);
        text.push_str(&format!(
            "- {}: {} rows, the least coverage is {:.1} %, {} have less than chance explains\n",
            clock.name(),
            rows().count(),
            rows().map(|row| row.result.coverage).fold(1.0, f64::min) * 100.0,
            rows().filter(|row| row.fails).count()
        ));
    }
    text
}

fn heading(section: Section) -> &'static str {
    match section {
        Section::Single => "The unbiasedness study: one task",
        Section::Mixed => "The unbiasedness study: four tasks",
        Section::Noise => "The unbiasedness study: noise",
        Section::Granularity => "Runs of all lengths",
        Section::Adversary => "Against the clock",
        Section::Estimator => "Hard cases for an estimator",
        Section::Host => "On a host that does other things, too",
        Section::Printed => "Every kind of interval",
    }
}

fn cells(row: &Row, runs: u32) -> [String; 10] {
    let result = &row.result;
    let deviation = result.variance.sqrt();
    // Of as many independent samples as a vCPU has ticks. Not every kind of interval is that of a share.
    let independent = result.truth * (1.0 - result.truth) / row.ticks;
    let is_share = row.section != Section::Printed;
    [
        row.name.clone(),
        row.clock.name().to_owned(),
        format!("{:.4}", result.truth),
        format!("{:.4} ± {:.4}", result.mean, deviation / f64::from(runs).sqrt()),
        format!("{:.2e}", result.variance),
        format!("{:.4}", result.lowest),
        format!("{:.4}", result.highest),
        if is_share { format!("{:.2}", result.variance / independent) } else { "-".to_owned() },
        format!("{:.2}", result.half_width / (NORMAL_95 * deviation)),
        format!("{:.1}", result.coverage * 100.0),
    ]
}

fn cells_of_unit(unit: &Unit) -> [String; 5] {
    [
        unit.run.to_string(),
        unit.clock.name().to_owned(),
        format!("{:.2}", unit.mean),
        format!("{:.2}", unit.variance),
        format!("{:.1}", unit.off * 100.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_study_has_all_tables() {
        let text = tables(&study(&Options { seed: 1, runs: 2 }), 2);
        assert_eq!(text.matches("## ").count(), 10, "{text}");
        assert!(
            text.contains("\n| dodges the tick, 90 % | fixed | 0.9000 | 0.0000 ± 0.0000 | 0.00e0 |"),
            "{text}"
        );
        assert!(text.contains("\n- uniform: "), "{text}");
    }
}
