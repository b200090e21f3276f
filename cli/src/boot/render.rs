//! The end of `vprof boot`, for people.

use text::clean::escaped;
use text::units;

use super::Outcome;
use crate::render::Page;
use crate::render::boot::{last_seen, render, spread};
use crate::render::summary::{heading, wrapped};

/// Rows per table after a boot.
const ROWS: usize = 10;

/// All boots and what was expected of them.
pub fn outcome(outcome: &Outcome, page: Page) -> String {
    let mut text = String::new();
    if let Some(last) = outcome.boots.last() {
        text = render(&last.boot, ROWS, page);
    }
    if outcome.boots.len() > 1 {
        heading(
            &mut text,
            page.style,
            "Spread",
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
    heading(&mut text, page.style, "Expectations", "");
    for check in &outcome.checks {
        let mark = match () {
            () if check.skipped => "skipped",
            () if check.passed => "met",
            () => "NOT MET",
        };
        wrapped(&mut text, &format!("{mark}: {}", escaped(&check.message)), "  ", page.width);
    }
    text
}

/// What vCPUs and sleeping tasks were at in the end.
fn stacks(text: &mut String, evidence: &profile::boot::Evidence, page: Page) {
    heading(
        text,
        page.style,
        "In the end",
        ": vCPUs, and tasks that slept, with the time since then; innermost function first",
    );
    for line in last_seen(evidence) {
        wrapped(text, &line, "  ", page.width);
    }
}
