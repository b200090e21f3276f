//! What was expected, and whether it was so.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Attempt, expected};
use crate::args::BootArgs;
use crate::boot::verdict::Verdict;
use crate::spread::Spread;

/// One expectation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Like `boot 1`, `budget total`, `baseline kernel`.
    pub name: String,
    /// It was met, or could not be looked at.
    pub passed: bool,
    /// It could not be looked at: why stands in the message.
    pub skipped: bool,
    /// What was found.
    pub message: String,
    /// How long it took, s.
    pub time_s: f64,
}

/// Whether each boot came up.
pub fn of_boots(args: &BootArgs, boots: &[Attempt]) -> Vec<Check> {
    let until = expected(args.until().as_ref(), args.waited().as_ref());
    let check = |(n, attempt): (usize, &Attempt)| Check {
        name: format!("boot {n}: {until}"),
        passed: attempt.verdict == Verdict::Up,
        skipped: false,
        message: attempt.sentence.clone(),
        time_s: attempt.boot.phase("total").map_or(0.0, |phase| phase.wall_s),
    };
    (1..).zip(boots).map(check).collect()
}

/// Whether budgets were kept, by the median.
pub fn of_budgets(budgets: &[(String, Duration)], spread: &[Spread]) -> Vec<Check> {
    let check = |(phase, budget): &(String, Duration)| {
        let name = format!("budget {phase}");
        let budget = budget.as_secs_f64();
        let Some(found) = spread.iter().find(|spread| spread.name == *phase) else {
            let message = format!("there was no {phase} to compare with its budget of {budget:.3} s");
            return Check { name, passed: true, skipped: true, message, time_s: 0.0 };
        };
        let of = match found.count {
            1 => String::new(),
            count => format!(" (the median of {count} boots counts)"),
        };
        let passed = found.median <= budget;
        let message = if passed {
            format!("{phase} took {:.3} s of its budget of {budget:.3} s", found.median)
        } else {
            format!(
                "{phase} took {:.3} s, {:.3} s more than its budget of {budget:.3} s{of}",
                found.median,
                found.median - budget
            )
        };
        Check { name, passed, skipped: false, message, time_s: found.median }
    };
    budgets.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_kept_by_the_median() {
        let spread = [Spread::of("total", &[1.0, 2.0, 9.0]).unwrap()];
        let budget = |ms| {
            vec![
                ("total".to_owned(), Duration::from_millis(ms)),
                ("initrd".to_owned(), Duration::from_secs(1)),
            ]
        };
        let kept = of_budgets(&budget(2_000), &spread);
        assert!(kept[0].passed && !kept[0].skipped && kept[1].passed && kept[1].skipped);
        let broken = of_budgets(&budget(1_500), &spread);
        assert_eq!(
            broken[0].message,
            "total took 2.000 s, 0.500 s more than its budget of 1.500 s (the median of 3 boots counts)"
        );
        assert!(!broken[0].passed);
    }
}
