use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};

use super::*;
use crate::clock::Intervals;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 5e-5
}

/// The examples of R. G. Newcombe, Statistics in Medicine 17, 1998, table I, method 3.
#[test]
fn known_intervals() {
    for (k, n, low, high) in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)] {
        let share = share(k, n);
        assert!(close(share.low, low) && close(share.high, high), "{k}/{n}: {share:?}");
    }
    // Newcombe's fourth; the lower end is that of a Poisson count of 1, which is below Wilson's 0.0061.
    let one = share(1, 29);
    assert!(close(one.low, 0.051_293 / 29.0) && close(one.high, 0.1718), "{one:?}");
}

#[test]
fn ends_stay_in_range_and_hold_the_share() {
    for n in [1, 2, 3, 7, 1_000, 1_000_000_007] {
        for k in [0, 1, 2, 3, n / 3, n / 2, n - 1, n, n + 5] {
            let s = share(k, n);
            assert!(0.0 <= s.low && s.low <= s.share && s.share <= s.high && s.high <= 1.0, "{k}/{n}: {s:?}");
            let mirrored = share(n - k.min(n), n);
            assert!((mirrored.low + s.high - 1.0).abs() < 1e-12, "{k}/{n}");
        }
    }
    assert_eq!(share(0, 0), Share { share: 0.0, low: 0.0, high: 1.0 });
}

/// Returns the part of intervals that contain `p`, summed over all counts of `n` independent samples.
fn coverage(p: f64, n: u64) -> f64 {
    let mut chance = (1.0 - p).powf(n as f64);
    let mut held = 0.0;
    for k in 0..=n {
        let s = share(k, n);
        held += if (s.low..=s.high).contains(&p) { chance } else { 0.0 };
        chance *= (n - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
    }
    held
}

/// Exact: no count of samples has an interval that contains the true share in less than 92.4 % of all runs,
/// and from 20 samples on it is 94 to 96 %. Without the correction for one to three samples it would be 84 %.
#[test]
fn coverage_of_independent_samples_is_known_exactly() {
    let n = 1_000;
    let mut least: f64 = 1.0;
    let mut sum = 0.0;
    for step in 1..=2_000_u32 {
        // Expected samples from 0.01 to 20.
        let held = coverage(f64::from(step) * 0.01 / n as f64, n);
        least = least.min(held);
        sum += held / 2_000.0;
    }
    assert!((0.924..0.94).contains(&least), "{least}");
    assert!((0.95..0.96).contains(&sum), "{sum}");
    for step in 1..=20_u32 {
        let held = coverage(f64::from(step) * 0.023_7, n);
        assert!((0.94..0.96).contains(&held), "{step}: {held}");
    }
}

/// Regular ticks of one vCPU, of which every `every`th hits.
fn regular(clock: ClockKind, count: u64, every: u64) -> (Ticks, Tallies) {
    let (mut ticks, mut tally) = (Ticks::new(clock, 1e6), Tallies::default());
    for n in 0..count {
        let tick = ticks.tick(0, n * 1_000_000, true);
        if n % every == 0 {
            tally.add(&ticks, tick);
        }
    }
    (ticks, tally)
}

#[test]
fn independent_samples_on_one_vcpu_have_the_plain_interval() {
    for clock in [ClockKind::Exponential, ClockKind::Fixed] {
        let (ticks, tally) = regular(clock, 900, 3);
        let estimate = ticks.estimate(&[(0, 900)], &tally);
        assert_eq!(estimate.share, share(300, 900));
        assert!((estimate.effective - 900.0).abs() < 1e-9);
        assert!((estimate.time.ns - 300.0).abs() < 1e-9 && estimate.time.low_ns < 300.0, "{estimate:?}");
    }
    assert!(trustworthy(ClockKind::Uniform) && !trustworthy(ClockKind::Fixed));
}

#[test]
fn a_vcpu_with_time_but_no_tick_may_be_anything() {
    let (ticks, tally) = regular(ClockKind::Exponential, 1_000, 2);
    let estimate = ticks.estimate(&[(0, 750), (1, 250), (2, 0)], &tally);
    let seen = share(500, 1_000);
    let expected = Share { share: 0.5, low: seen.low * 0.75, high: seen.high * 0.75 + 0.25 };
    assert!((estimate.share.low - expected.low).abs() < 1e-12, "{estimate:?}");
    assert!((estimate.share.high - expected.high).abs() < 1e-12, "{estimate:?}");
    let nothing = ticks.estimate(&[(1, 250)], &Tallies::default());
    assert_eq!((nothing.samples, nothing.share), (0, Share { share: 0.0, low: 0.0, high: 1.0 }));
    let never = ticks.estimate(&[], &Tallies::default());
    assert_eq!((never.share.high, never.time.high_ns), (1.0, 0.0));
}

#[test]
fn vcpus_count_by_their_time() {
    let mut ticks = Ticks::new(ClockKind::Exponential, 1e6);
    let mut tallies = Tallies::default();
    for n in 0..1_000 {
        let busy = ticks.tick(0, n * 1_000_000, true);
        tallies.add(&ticks, busy);
        // The other vCPU is halted for nine ticks of ten, and never in the state.
        let halted = ticks.tick(1, n * 1_000_000, n % 10 == 0);
        if n % 10 != 0 {
            tallies.add(&ticks, halted);
        }
    }
    let estimate = ticks.estimate(&[(0, 1_000), (1, 1_000)], &tallies);
    assert_eq!((estimate.samples, ticks.inside()), (1_000, 1_100));
    assert!((estimate.share.share - 0.5).abs() < 1e-12, "{estimate:?}");
    // Each is certain by itself, to the precision of 1,000 and 100 samples.
    assert!(estimate.share.distance() < 0.02, "{estimate:?}");
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]
fn share_of(p: f64, n: f64) -> Share {
    share((p * n) as u64, n as u64)
}

#[test]
fn half_the_interval_needs_four_times_the_run() {
    let wide = share(300, 1_000);
    let factor = needed(&wide).expect("a factor");
    assert!((3.85..4.0).contains(&factor), "{factor}");
    let samples = |n: f64| share_of(0.3, n).distance();
    assert!((samples(1_000.0 * factor) / wide.distance() - 0.5).abs() < 0.002);
    // A state without a sample is bounded by 1/n.
    let factor = needed(&share(0, 1_000)).expect("a factor");
    assert!((factor - 2.0).abs() < 0.01, "{factor}");
    assert_eq!(needed(&share(0, 0)), None);
}

#[test]
fn a_wanted_precision_is_reached_or_not() {
    let wide = share(300, 1_000);
    assert!(!reached(&wide, 0.01) && reached(&wide, 0.03));
    let factor = needed_for(&wide, 0.01).expect("a factor");
    let longer = share_of(0.3, 1_000.0 * factor);
    assert!((longer.distance() - 0.01).abs() < 1e-4, "{longer:?}");
    assert!(needed_for(&wide, 0.1).expect("a factor") < 1.0);
    assert_eq!(needed_for(&wide, 0.0), None);
}

#[test]
fn a_time_that_is_cut_or_estimated_is_less_certain() {
    let (mut ticks, tally) = regular(ClockKind::Exponential, 1_000, 2);
    let plain = ticks.estimate(&[(0, 1_000)], &tally).time;
    ticks.time_lies_within(0, 1_000, (900, 1_200));
    let cut = ticks.estimate(&[(0, 1_000)], &tally).time;
    assert!(
        (plain.low_ns - cut.low_ns - 50.0).abs() < 1e-9 && (cut.high_ns - plain.high_ns - 100.0).abs() < 1e-9
    );
    let (mut ticks, all) = regular(ClockKind::Exponential, 1_000, 1);
    ticks.time_is_estimated(0, 0.02);
    let estimate = ticks.estimate(&[(0, 1_000)], &all);
    // All of the guest's time, which is known to 2 %.
    assert!((estimate.time.high_ns - 1_039.2).abs() < 0.1 && estimate.share.high <= 1.0, "{estimate:?}");
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For all ticks and hits, estimates stay in range, and never claim more than the clock can give.
        #[test]
        fn estimates_stay_in_range(
            steps in prop::collection::vec((0..4_000_000_u64, any::<u8>()), 0..400),
            times in prop::collection::vec(0..u64::MAX / 4, 3),
        ) {
            let mut ticks = Ticks::new(ClockKind::Uniform, 1e6);
            let mut tallies = Tallies::default();
            let mut now = 0;
            for (interval, bits) in steps {
                now += interval;
                let tick = ticks.tick((bits & 3).into(), now, bits & 4 != 0);
                if bits & 8 != 0 {
                    tallies.add(&ticks, tick);
                }
            }
            let times: Vec<(u16, u64)> = (0..).zip(times).collect();
            let estimate = ticks.estimate(&times, &tallies);
            let s = estimate.share;
            prop_assert!(0.0 <= s.low && s.low <= s.high && s.high <= 1.0 + 1e-12, "{:?}", estimate);
            prop_assert!(s.low <= s.share + 1e-12 && s.share <= s.high + 1e-12, "{:?}", estimate);
            prop_assert!(estimate.effective.is_finite() && estimate.effective >= 0.0, "{:?}", estimate);
        }
    }
}

#[test]
fn a_vcpu_without_a_tick_in_the_part_widens_a_share_of_all_by_what_it_may_have_been() {
    let mut ticks = PartTicks::new(|| Ticks::new(ClockKind::Exponential, 1e6));
    let mut tallies = PartTallies::default();
    for n in 0..1_000 {
        let tick = ticks.tick(0, n * 10_000_000, true, true);
        tallies.add(&ticks, tick);
    }
    for n in 0..40 {
        ticks.tick(1, n * 250_000_000, true, false);
    }
    ticks.close();
    let found = ticks.estimate(&[(0, 10_000_000_000), (1, 10_000_000_000)], &tallies).share;
    // With 3.7 of 40 ticks on average, one has none in 2.5 % of all runs.
    let least = 10.0 / (10.0 + 10.0 * 3.7 / 40.0);
    assert!((least - 0.04..least + 0.02).contains(&found.low), "{found:?}, {least}");
    assert!(close(found.high, 1.0));
}

/// Times at which a state begins and ends, in turn, up to `length_ns`; runs and gaps are exponential.
fn course(random: &mut ChaCha8Rng, (run_ns, gap_ns): (f64, f64), length_ns: f64) -> Vec<f64> {
    let (mut now, mut switches) = (0.0, Vec::new());
    while now < length_ns {
        let mean = if switches.len().is_multiple_of(2) { gap_ns } else { run_ns };
        let length: f64 = Exp1.sample(random);
        now += mean * length;
        switches.push(now.min(length_ns));
    }
    switches
}

/// Returns the time in the state.
fn time_on(switches: &[f64], length_ns: f64) -> f64 {
    let pairs = switches.chunks(2).map(|pair| pair.get(1).copied().unwrap_or(length_ns) - pair[0]);
    pairs.sum()
}

/// Returns how often intervals of a share hold over two machines: one vCPU under the uniform clock at
/// 1,000 Hz for a second, and two that work in step, under one exponential clock at 200 Hz, for two seconds.
fn held_on_two_machines(rounds: u64, declare: bool) -> f64 {
    let clocks = [
        VcpuClock { kind: ClockKind::Uniform, mean_ns: 1e6, shared: None },
        VcpuClock { kind: ClockKind::Exponential, mean_ns: 5e6, shared: Some(2) },
    ];
    let times = [(0, 1_000_000_000), (1, 2_000_000_000), (2, 2_000_000_000)];
    let mut held = 0_u32;
    for round in 0..rounds {
        let mut random = ChaCha8Rng::seed_from_u64(round);
        let courses = [course(&mut random, (3e6, 7e6), 1e9), course(&mut random, (10e6, 10e6), 2e9)];
        let truth = (time_on(&courses[0], 1e9) + 2.0 * time_on(&courses[1], 2e9)) / 5e9;
        let mut ticks = Ticks::new(ClockKind::Uniform, 1e6);
        let mut tallies = Tallies::default();
        for (machine, vcpus) in [(0, 0..1_u16), (1, 1..3)] {
            let VcpuClock { kind, mean_ns, .. } = clocks[machine];
            for vcpu in vcpus {
                if declare {
                    ticks.tick_by(vcpu, clocks[machine]);
                }
                let number = u8::try_from(machine).expect("two");
                let mut intervals = Intervals::new(kind, 1e9 / mean_ns, round, number).expect("a rate");
                let mut now = intervals.first_ns();
                while now < times[usize::from(vcpu)].1 {
                    let tick = ticks.tick(vcpu, now, true);
                    if courses[machine].partition_point(|at| *at <= now as f64) % 2 == 1 {
                        tallies.add(&ticks, tick);
                    }
                    now += intervals.next_ns();
                }
            }
        }
        let share = ticks.estimate(&times, &tallies).share;
        held += u32::from(share.low <= truth && truth <= share.high);
    }
    f64::from(held) / rounds as f64
}

/// Returns how often intervals of a share hold for a state that takes 30 % of the time, in runs of this mean
/// length in intervals, and the mean error: of 2,000 ticks each is kept with this chance.
fn held_thinned(run: f64, kept: f64, clock: ClockKind, rounds: u64) -> (f64, f64) {
    const LENGTH_NS: f64 = 2e9;
    let (mut held, mut errors) = (0_u32, 0.0);
    for round in 0..rounds {
        let mut random = ChaCha8Rng::seed_from_u64(round);
        let course = course(&mut random, (run * 1e6, run * 7e6 / 3.0), LENGTH_NS);
        let truth = time_on(&course, LENGTH_NS) / LENGTH_NS;
        let mut ticks = Ticks::new(clock, 1e6);
        ticks.thin();
        let mut tallies = Tallies::default();
        let mut intervals = Intervals::new(clock, 1e3, round, 0).expect("a rate");
        let mut now = intervals.first_ns();
        while now < 2_000_000_000 {
            if random.random_bool(kept) {
                let tick = ticks.tick(0, now, true);
                if course.partition_point(|at| *at <= now as f64) % 2 == 1 {
                    tallies.add(&ticks, tick);
                }
            }
            now += intervals.next_ns();
        }
        let share = ticks.estimate(&[(0, 2_000_000_000)], &tallies).share;
        held += u32::from(share.low <= truth && truth <= share.high);
        errors += share.share - truth;
    }
    (f64::from(held) / rounds as f64, errors / rounds as f64)
}

#[test]
fn ticks_that_are_left_out_at_random_cost_precision_alone() {
    for clock in [ClockKind::Uniform, ClockKind::Exponential] {
        for (run, kept) in [(0.05, 0.05), (2.0, 0.05), (30.0, 0.05), (0.3, 0.5), (2.0, 0.5), (30.0, 0.9)] {
            let (held, error) = held_thinned(run, kept, clock, 500);
            // Three standard errors of 500 rounds below 95 %.
            assert!(held > 0.92, "{clock:?}, {run}, {kept}: {held}");
            let limit = 4.0 * (0.21 / (2_000.0 * kept * 500.0)).sqrt();
            assert!(error.abs() < limit, "{clock:?}, {run}, {kept}: {error}");
        }
    }
}

#[test]
fn two_machines() {
    let held = held_on_two_machines(2_000, true);
    assert!((0.93..0.99).contains(&held), "{held}");
    // As if one clock of independent errors ticked all.
    let wrong = held_on_two_machines(2_000, false);
    assert!(wrong < 0.9, "{wrong}");
}
