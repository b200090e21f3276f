//! Table of the targets' figures, as it is printed and as docs/testing.md has it.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::output::FuzzOutcome;

/// First lines of the table.
const HEAD: &str = "| target | time, s | executions | per second | edges | features | corpus | result |\n\
                    |---|---|---|---|---|---|---|---|\n";

/// Figures of a target that ran for some time.
#[derive(Debug)]
pub struct TargetFigures {
    /// Its name.
    pub target: String,
    /// Time that it ran for, s.
    pub seconds: u32,
    /// Its figures.
    pub outcome: FuzzOutcome,
}

impl TargetFigures {
    fn row(&self) -> String {
        let Self { target, seconds, outcome } = self;
        let FuzzOutcome { executions, rate, edges, features, corpus, .. } = outcome;
        let numbers = [u64::from(*seconds), *executions, *rate, *edges, *features, *corpus].map(grouped);
        let result = if outcome.found.is_some() { "FOUND" } else { "clean" };
        format!("| `{target}` | {} | {result} |\n", numbers.join(" | "))
    }
}

/// Returns the table, with one row for each target.
pub fn table(figures: &[TargetFigures]) -> String {
    HEAD.to_owned() + &figures.iter().map(TargetFigures::row).collect::<String>()
}

/// Returns a document whose table has these figures in place of older ones of the same targets.
///
/// # Errors
/// The document has no table.
pub fn with_figures(document: &str, figures: &[TargetFigures]) -> Result<String> {
    let Some((before, rest)) = document.split_once(HEAD) else {
        anyhow::bail!("there is no table of targets")
    };
    let length: usize =
        rest.split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    let (old, after) = rest.split_at(length);
    let named = |row: &str| Some((row.split('`').nth(1)?.to_owned(), row.to_owned()));
    let mut rows: BTreeMap<String, String> = old.split_inclusive('\n').filter_map(named).collect();
    ensure!(rows.len() == old.lines().count(), "a row of the table of targets has no target, or one twice");
    rows.extend(figures.iter().map(|figures| (figures.target.clone(), figures.row())));
    Ok(format!("{before}{HEAD}{}{after}", rows.into_values().collect::<String>()))
}

/// Formats a number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(target: &str, executions: u64) -> TargetFigures {
        let mut outcome = FuzzOutcome::default();
        (outcome.executions, outcome.corpus) = (executions, 7);
        TargetFigures { target: target.to_owned(), seconds: 600, outcome }
    }

    #[test]
    fn figures_replace_those_of_the_same_target() {
        let old = table(&[figures("elf", 12), figures("go", 1_234_567)]);
        assert!(old.ends_with("| `go` | 600 | 1,234,567 | 0 | 0 | 0 | 7 | clean |\n"), "{old}");
        let document = format!("# Fuzzing\n\n{old}\nAfter.\n");
        let mut found = figures("boot", 999);
        found.outcome.found = Some("panicked".to_owned());
        let new = with_figures(&document, &[figures("go", 1_000), found]).unwrap();
        let rows = "| `boot` | 600 | 999 | 0 | 0 | 0 | 7 | FOUND |\n| `elf` | 600 | 12 | 0 | 0 | 0 | 7 | clean |\n\
                    | `go` | 600 | 1,000 | 0 | 0 | 0 | 7 | clean |\n";
        assert_eq!(new, format!("# Fuzzing\n\n{HEAD}{rows}\nAfter.\n"));
        assert!(with_figures("no table", &[]).is_err());
    }
}
