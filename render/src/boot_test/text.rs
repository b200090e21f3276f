//! The end of `vprof boot`, for people.

use display::clean::escaped;
use display::units;

use super::BootOutcome;
use crate::PageLayout;
use crate::boot::{self, last_seen, spread};
use crate::paragraph::{heading, wrapped};

/// Rows per table after a boot.
const ROWS: usize = 10;

/// Formats all boots and their expectations.
pub fn render(outcome: &BootOutcome, page: PageLayout) -> String {
    let mut text = String::new();
    if let Some(last) = outcome.boots.last() {
        text = boot::render(&last.boot, ROWS, page);
    }
    if outcome.boots.len() > 1 {
        heading(
            &mut text,
            page,
            "ValueSpread",
            &format!(
                ": wall time over {} boots; spread is standard deviation over mean",
                outcome.boots.len()
            ),
        );
        spread(&mut text, &outcome.spread, units::seconds, page);
    }
    if let Some(evidence) = outcome.boots.iter().find_map(|attempt| attempt.evidence.as_ref()) {
        stacks(&mut text, evidence, page);
    }
    heading(&mut text, page, "Expectations", "");
    for check in &outcome.checks {
        let mark = if check.skipped {
            "skipped"
        } else if check.passed {
            "met"
        } else {
            "NOT MET"
        };
        wrapped(&mut text, &format!("{mark}: {}", escaped(&check.message)), "  ", page.width);
    }
    text
}

/// Adds the stacks of vCPUs and sleeping tasks at the end.
fn stacks(text: &mut String, evidence: &profile::boot::Evidence, page: PageLayout) {
    heading(
        text,
        page,
        "At the end",
        ": vCPUs, and sleeping tasks with the time that they have slept; innermost function first",
    );
    for line in last_seen(evidence) {
        wrapped(text, &line, "  ", page.width);
    }
}
