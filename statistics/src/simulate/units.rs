//! Number of ticks that one run of a state gets: sections 3.3 to 3.5 of the unbiasedness study. It says of a
//! fixed clock that a run of R intervals gets `[R]` or `[R]` + 1 of them, and of the worst such R that "the
//! probability of misestimating the mean value by one more unit event is less than 0.0228".

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::host::Host;
use super::measure::Machine;
use super::program::{MEAN_NS, ns};
use super::timeline::{REST, Timeline};
use crate::clock::ClockKind;

/// Lengths of the run, intervals.
const RUNS: [f64; 7] = [0.3, 0.5, 1.0, 1.5, 2.8, 10.0, 30.0];
/// Time before and after it, intervals.
const AROUND: u64 = 3;
/// The state of the run.
const STATE: u8 = 1;
/// Differences from a unit below this are rounding.
const ROUNDING: f64 = 1e-9;

/// One run of a state, sampled by many independent clocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Length of the run, intervals: the expected mean.
    pub run: f64,
    /// The sampling clock.
    pub clock: ClockKind,
    /// Mean number of ticks in the run.
    pub mean: f64,
    /// Variance of that number.
    pub variance: f64,
    /// Part of the profilings in which the number differed by one unit or more.
    pub off: f64,
}

/// Returns all lengths under all clocks.
pub(super) fn units(profilings: u32, seed: impl Fn(u64, u64) -> u64) -> Vec<Unit> {
    let clocks = [ClockKind::Uniform, ClockKind::Exponential, ClockKind::Fixed];
    let cases = clocks.into_iter().flat_map(|clock| RUNS.map(|run| (clock, run)));
    (0..).zip(cases).map(|(number, (clock, run))| unit(run, clock, profilings, |n| seed(number, n))).collect()
}

fn unit(run: f64, clock: ClockKind, profilings: u32, seed: impl Fn(u64) -> u64) -> Unit {
    let mut line = Timeline::default();
    line.push(REST, AROUND * MEAN_NS);
    line.push(STATE, ns(run));
    line.push(REST, AROUND * MEAN_NS);
    let machine = Machine { vcpus: vec![line], lost: 0.0, at_once: false, host: Host::default() };
    let (mut sum, mut squares, mut off) = (0.0, 0.0, 0_u32);
    for n in 0..u64::from(profilings) {
        let seed = seed(n);
        let start = match clock {
            ClockKind::Fixed => ChaCha8Rng::seed_from_u64(!seed).random_range(0..MEAN_NS),
            _ => 0,
        };
        let ticks =
            machine.ticks(clock, seed, start).iter().filter(|tick| tick.state == STATE).count() as f64;
        sum += ticks;
        squares += (ticks - run).powi(2);
        off += u32::from((ticks - run).abs() > 1.0 - ROUNDING);
    }
    let count = f64::from(profilings.max(1));
    let mean = sum / count;
    Unit { run, clock, mean, variance: squares / count - (mean - run).powi(2), off: f64::from(off) / count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::mixed;

    fn checked_unit(run: f64, clock: ClockKind) -> Unit {
        let unit = unit(run, clock, 4_000, |n| mixed(mixed(n) ^ 7));
        let error = (unit.variance / 4_000.0).sqrt();
        assert!((unit.mean - run).abs() <= 4.0 * error + 1e-9, "unbiased: {unit:?}");
        unit
    }

    #[test]
    fn a_fixed_clock_is_never_off_by_a_unit() {
        for (run, variance) in [(0.3, 0.21), (0.5, 0.25), (1.0, 0.0), (2.8, 0.16)] {
            let unit = checked_unit(run, ClockKind::Fixed);
            assert!((unit.variance - variance).abs() < 0.02, "[R] or [R] + 1: {unit:?}");
            assert_eq!(unit.off, 0.0, "{unit:?}");
        }
    }

    #[test]
    fn random_clocks_are_by_their_variance() {
        // Poisson: of a mean of one, all numbers but one.
        let unit = checked_unit(1.0, ClockKind::Exponential);
        assert!((unit.off - (1.0 - (-1.0_f64).exp())).abs() < 0.03 && (unit.variance - 1.0).abs() < 0.1);
        let unit = checked_unit(0.5, ClockKind::Uniform);
        assert_eq!(unit.off, 0.0, "no two intervals are as short as that: {unit:?}");
        // A renewal process: one twelfth of the length, and a sixth for its two ends (Cox 1962, 4.5).
        let unit = checked_unit(30.0, ClockKind::Uniform);
        assert!((2.0..3.2).contains(&unit.variance) && unit.off > 0.4, "{unit:?}");
    }
}
