//! Expectations of a boot, and whether they were met.

use std::time::Duration;

use render::boot_test::{BootAttempt, BootCheck, BootVerdict};
use statistics::spread::ValueSpread;

use super::expected;
use crate::args::BootArgs;

/// Checks that each boot came up.
pub fn check_boots(args: &BootArgs, boots: &[BootAttempt]) -> Vec<BootCheck> {
    let until = expected(args.until().as_ref(), args.end_condition().as_ref());
    let check = |(n, attempt): (usize, &BootAttempt)| BootCheck {
        name: format!("boot {n}: {until}"),
        passed: attempt.verdict == BootVerdict::Up,
        skipped: false,
        message: attempt.sentence.clone(),
        time_s: attempt.boot.phase("total").map_or(0.0, |phase| phase.wall_s),
    };
    (1..).zip(boots).map(check).collect()
}

/// Checks the budgets, by the median.
pub fn check_budgets(budgets: &[(String, Duration)], spread: &[ValueSpread]) -> Vec<BootCheck> {
    let check = |(phase, budget): &(String, Duration)| {
        let name = format!("budget {phase}");
        let budget = budget.as_secs_f64();
        let Some(found) = spread.iter().find(|spread| spread.name == *phase) else {
            let message = format!("no {phase} to compare with its budget of {budget:.3} s");
            return BootCheck { name, passed: true, skipped: true, message, time_s: 0.0 };
        };
        let boots = match found.count {
            1 => String::new(),
            count => format!(" (the median of {count} boots counts)"),
        };
        let passed = found.median <= budget;
        let message = if passed {
            format!("{phase} took {:.3} s of its budget of {budget:.3} s", found.median)
        } else {
            format!(
                "{phase} took {:.3} s, {:.3} s more than its budget of {budget:.3} s{boots}",
                found.median,
                found.median - budget
            )
        };
        BootCheck { name, passed, skipped: false, message, time_s: found.median }
    };
    budgets.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_kept_by_the_median() {
        let spread = [ValueSpread::from_values("total", &[1.0, 2.0, 9.0]).unwrap()];
        let budget = |ms| {
            vec![
                ("total".to_owned(), Duration::from_millis(ms)),
                ("initrd".to_owned(), Duration::from_secs(1)),
            ]
        };
        let kept = check_budgets(&budget(2_000), &spread);
        assert!(kept[0].passed && !kept[0].skipped && kept[1].passed && kept[1].skipped);
        let broken = check_budgets(&budget(1_500), &spread);
        assert_eq!(
            broken[0].message,
            "total took 2.000 s, 0.500 s more than its budget of 1.500 s (the median of 3 boots counts)"
        );
        assert!(!broken[0].passed);
    }
}
