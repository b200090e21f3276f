//! Made-up runs with known times.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use statistics::estimate::{Tallies, Ticks};

use super::*;
use crate::report::Estimate;
use statistics::clock::ClockKind;

/// A run of `samples` ticks whose things have these weights, in the time that each takes.
fn run(random: &mut ChaCha8Rng, weights: &[f64], samples: u64, busy_s: f64) -> Shares {
    let sum: f64 = weights.iter().sum();
    let mut ticks = Ticks::new(ClockKind::Exponential, 1e6);
    let mut tallies = vec![Tallies::default(); weights.len()];
    let mut all = Tallies::default();
    for n in 0..samples {
        let tick = ticks.tick(0, n * 1_000_000, true);
        let mut at = random.random::<f64>() * sum;
        let hit = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        tallies[hit.unwrap_or(0)].add(&ticks, tick);
        all.add(&ticks, tick);
    }
    let ns = vec![(0, Duration::from_secs_f64(busy_s).as_nanos().try_into().expect("a short run"))];
    let estimate = |tallies: &Tallies| {
        let found = ticks.estimate(&ns, tallies);
        Estimate::new(found.samples, found.share, found.time)
    };
    let key = |n: usize| ShareKey { name: format!("f{n}"), ..ShareKey::default() };
    let hit = tallies.iter().enumerate().filter(|(_, tallies)| tallies.count() > 0);
    Shares {
        rows: hit.map(|(n, tallies)| (key(n), estimate(tallies))).collect(),
        absent: estimate(&Tallies::default()),
        whole: estimate(&all),
        busy_samples: samples,
        busy_s,
        duration_s: busy_s,
        host: "kvm".to_owned(),
        complete: true,
        intervals_valid: true,
    }
}

/// Thirty functions from a twentieth of a percent to a third of the time.
fn weights() -> Vec<f64> {
    (0..30).map(|n| 0.8_f64.powi(n)).collect()
}

fn diff(before: &[Shares], after: &[Shares]) -> Diff {
    Diff::new(before, after, &Filter::default(), SharesBy::Function).expect("a comparison")
}

fn marked(diff: &Diff, of: fn(&DiffRow) -> &Change) -> Vec<&str> {
    diff.rows.iter().filter(|row| of(row).marked).map(|row| row.key.name.as_str()).collect()
}

#[test]
fn where_nothing_has_changed_marks_are_as_rare_as_is_said() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (pairs, weights) = (300, weights());
    let (mut with_marks, mut covered, mut rows) = (0, 0, 0);
    for _ in 0..pairs {
        let diff = diff(&[run(&mut random, &weights, 3_000, 3.0)], &[run(&mut random, &weights, 3_000, 3.0)]);
        with_marks += u32::from(diff.rows.iter().any(|row| row.share.marked));
        rows += diff.rows.len();
        covered += diff.rows.iter().filter(|row| row.share.low <= 0.0 && 0.0 <= row.share.high).count();
    }
    // Three standard deviations above the 15 that are expected of 300 at most.
    assert!(with_marks <= 26, "{with_marks} of {pairs}");
    assert!(covered as f64 > 0.94 * rows as f64, "{covered} of {rows} intervals have the true value");
}

#[test]
fn a_function_that_is_a_fifth_slower_is_found_and_no_other() {
    let mut random = ChaCha8Rng::seed_from_u64(8);
    let before = vec![1.0; 5];
    let mut after = before.clone();
    after[2] *= 1.2;
    // The same work: the run takes as much longer as the function does.
    let diff = diff(&[run(&mut random, &before, 20_000, 20.0)], &[run(&mut random, &after, 20_800, 20.8)]);
    assert_eq!(marked(&diff, |row| &row.time_s), ["f2"]);
    let row = diff.rows.iter().find(|row| row.key.name == "f2").expect("a row");
    assert!(row.share.marked && row.share.low > 0.0);
    let (truth, truth_s) = (1.2 / 5.2 - 0.2, 0.8);
    assert!(row.share.low < truth && truth < row.share.high, "{row:?}");
    assert!(row.time_s.low < truth_s && truth_s < row.time_s.high, "{row:?}");
    assert_eq!(diff.grown(0.02).map(|row| row.key.name.as_str()).collect::<Vec<_>>(), ["f2"]);
    let whole = &diff.whole;
    assert!(!whole.command && (whole.time_s.change - 0.8).abs() < 1e-3, "{whole:?}");
    assert!((whole.growth() - 0.04).abs() < 1e-3, "{whole:?}");
}

/// Runs whose functions differ from run to run by a few percent.
fn jittered(random: &mut ChaCha8Rng, weights: &[f64], runs: usize) -> Vec<Shares> {
    let run_of = |_| {
        let jitter = |weight: &f64| weight * (0.95 + 0.1 * random.random::<f64>());
        let weights: Vec<f64> = weights.iter().map(jitter).collect();
        run(random, &weights, 20_000, 20.0)
    };
    (0..runs).map(run_of).collect()
}

#[test]
fn several_runs_tell_change_from_differences_between_runs() {
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let before = vec![1.0; 5];
    let (pairs, mut with_marks, mut alone) = (60, 0, 0);
    for _ in 0..pairs {
        let (a, b) = (jittered(&mut random, &before, 4), jittered(&mut random, &before, 4));
        with_marks += u32::from(diff(&a, &b).rows.iter().any(|row| row.share.marked));
        alone += u32::from(diff(&a[..1], &b[..1]).rows.iter().any(|row| row.share.marked));
    }
    // Of 60, 3 are expected at most; two runs alone would show the differences between runs as changes.
    assert!(with_marks <= 8, "{with_marks} of {pairs}");
    assert!(alone > with_marks, "{alone} of {pairs}");
    let mut after = before.clone();
    after[2] *= 1.4;
    let found = diff(&jittered(&mut random, &before, 5), &jittered(&mut random, &after, 5));
    assert_eq!(found.method, IntervalMethod::Welch);
    assert!(marked(&found, |row| &row.share).contains(&"f2"), "{:#?}", found.rows);
    assert_eq!(found.rows[0].key.name, "f2", "the largest change comes first");
}

#[test]
fn what_is_new_or_gone_is_told() {
    let mut random = ChaCha8Rng::seed_from_u64(10);
    let diff = diff(
        &[run(&mut random, &[1.0, 1.0, 0.0, 0.0005], 10_000, 10.0)],
        &[run(&mut random, &[0.0, 1.0, 1.0, 0.0005], 10_000, 10.0)],
    );
    let of = |name: &str| diff.rows.iter().find(|row| row.key.name == name).expect("a row");
    assert!(of("f0").share.marked && of("f0").share.after == 0.0);
    assert!(of("f2").share.marked && of("f2").share.before == 0.0 && of("f2").share.low > 0.4);
    assert!(!of("f1").share.marked);
    let few = of("f3");
    assert!(few.samples_before + few.samples_after < FEWEST && few.share.p.is_none(), "{few:?}");
    assert_eq!(diff.tested, 3);
}

#[test]
fn runs_that_can_not_be_compared_say_why() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let some = run(&mut random, &[1.0], 100, 1.0);
    let of = |a: &[Shares], b: &[Shares]| Diff::new(a, b, &Filter::default(), SharesBy::Function);
    let two = [some.clone(), some.clone()];
    assert!(matches!(of(std::slice::from_ref(&some), &two), Err(DiffError::Uneven { before: 1, after: 2 })));
    let none = Shares { busy_samples: 0, rows: Vec::new(), ..some.clone() };
    assert!(matches!(of(&[some], &[none]), Err(DiffError::NoSamples(2))));
}

#[test]
fn measurements_are_compared_group_by_group() {
    let changes = compare(&[
        (&[1.00, 1.01, 0.99, 1.0], &[1.50, 1.51, 1.49, 1.5]),
        (&[1.0, 1.2, 0.8, 1.1], &[1.1, 1.0, 0.9, 1.2]),
        (&[2.0, 2.0], &[2.0, 2.0]),
    ]);
    let marked: Vec<bool> = changes.iter().map(|change| change.marked).collect();
    assert_eq!(marked, [true, false, false]);
    assert!((changes[0].change - 0.5).abs() < 1e-9 && changes[0].low > 0.4);
}

/// If one thing is faster, the shares of all others grow; no time does.
#[test]
fn an_improvement_is_no_growth_of_time() {
    let mut random = ChaCha8Rng::seed_from_u64(12);
    let diff = diff(
        &[run(&mut random, &[1.0, 3.0], 4_000, 4.0), run(&mut random, &[1.0, 3.0], 4_000, 4.0)],
        &[run(&mut random, &[1.0, 1.0], 2_000, 2.0), run(&mut random, &[1.0, 1.0], 2_000, 2.0)],
    );
    assert_eq!(diff.grown(0.05).map(|row| row.key.name.as_str()).collect::<Vec<_>>(), ["f0"]);
    assert!(diff.whole.time_s.marked && diff.whole.growth() < -0.49, "{:?}", diff.whole);
}
