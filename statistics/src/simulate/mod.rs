//! Profiles made-up machines with known times: shows whether estimates are unbiased and intervals are right.
//!
//! It reproduces the simulation of Y. Wen, G. Cheng, B. Lin and J. Yin, *Probability Analysis to Improve the
//! Confidence in Profiling Accuracy* (2021), tables 2 to 6. It adds runs of all lengths, programs that work
//! against the clock, cases that are difficult for an estimator, and effects of a host on ticks. Ticks come
//! from the product's [`crate::clock::Intervals`] and go through the product's [`crate::estimate`]. A result
//! is a function of the options alone.

mod cases;
mod host;
mod measure;
mod program;
mod quantities;
mod timeline;
mod units;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use crate::clock::ClockKind;
use cases::{Case, Start};
use measure::{Machine, Spread};
use program::MEAN_NS;

pub use measure::Summary;
pub use units::Unit;

/// Options of a study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Seed of everything.
    pub seed: u64,
    /// Profilings per row; at least 2 for a variance.
    pub runs: u32,
}

/// A part of the study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// One task, tables 2 and 3.
    Single,
    /// Four tasks, table 4.
    Mixed,
    /// Noise in the units that a sample represents, tables 5 and 6.
    Noise,
    /// Runs of all lengths.
    Granularity,
    /// Programs that work against the clock.
    Adversary,
    /// Few samples, short runs, mixtures, several vCPUs.
    Estimator,
    /// Late ticks, waits, quotas, service time, halts, attached virtual machines.
    Host,
    /// Every kind of interval that vprof prints.
    Printed,
}

/// All results.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// Rows of a section are adjacent, those of a case too.
    pub rows: Vec<Row>,
    /// Numbers of ticks that one run of a state gets.
    pub units: Vec<Unit>,
}

/// Many profilings of one state under one clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The part of the study.
    pub section: Section,
    /// Name of the case.
    pub name: String,
    /// Approximate ticks of each vCPU in one profiling.
    pub ticks: f64,
    /// The sampling clock.
    pub clock: ClockKind,
    /// Statistics of the profilings.
    pub result: Summary,
    /// True if fewer intervals contained the true share than chance explains: so few of 95 % intervals do in
    /// less than one of 740 rows (three standard deviations).
    pub fails: bool,
}

/// Runs the whole study.
pub fn study(options: &Options) -> Study {
    let rows = (0..).zip(cases::all()).flat_map(|(n, case)| run(&case, n, options)).collect();
    let units = units::units(options.runs, |case, n| mixed(mixed(mixed(options.seed ^ 5) ^ case) ^ n));
    Study { rows, units }
}

/// Runs the case with this number and returns its rows.
fn run(case: &Case, number: u64, options: &Options) -> Vec<Row> {
    let seed = |kind: u64, n: u64| mixed(mixed(mixed(options.seed ^ kind) ^ number) ^ n);
    let machines: Vec<Machine> = (0..u64::from(case.courses.min(options.runs)))
        .map(|n| {
            let mut random = ChaCha8Rng::seed_from_u64(seed(1, n));
            let vcpus = case.vcpus.iter().map(|vcpu| vcpu.course(&mut random, case.ticks)).collect();
            Machine { vcpus, lost: case.lost, at_once: case.at_once, host: case.host }
        })
        .collect();
    let truths: Vec<Vec<f64>> = machines
        .iter()
        .map(|machine| (1..=case.states()).map(|state| machine.truth(state)).collect())
        .collect();
    if case.section == Section::Printed {
        return printed(case, &machines, seed, options);
    }
    let mut rows = Vec::new();
    for &clock in case.clocks {
        let mut spreads = vec![Spread::default(); usize::from(case.states())];
        for (n, (machine, truth)) in (0..u64::from(options.runs)).zip(machines.iter().zip(&truths).cycle()) {
            let mut random = ChaCha8Rng::seed_from_u64(seed(2, n));
            // Random intervals forget the phase of the start by themselves; a fixed clock starts anywhere,
            // unless the program knows its phase.
            let start = match (clock, case.start) {
                (ClockKind::Fixed, Start::Anywhere) => random.random_range(0..MEAN_NS),
                _ => 0,
            };
            let estimates = machine.profile(clock, seed(3, n), start, case.states());
            for ((spread, estimate), truth) in spreads.iter_mut().zip(&estimates).zip(truth) {
                let shift = noise(case, estimate.samples, &mut random);
                spread.add(estimate.share, *truth, shift);
            }
        }
        let rows_of =
            spreads.iter().enumerate().map(|(state, spread)| row(case, state, clock, spread, options));
        rows.extend(rows_of);
    }
    rows
}

/// Returns the rows of one kind of interval.
fn printed(case: &Case, machines: &[Machine], seed: impl Fn(u64, u64) -> u64, options: &Options) -> Vec<Row> {
    let row_of = |&clock: &ClockKind| {
        let mut spread = Spread::default();
        for n in 0..u64::from(options.runs) {
            let mut random = ChaCha8Rng::seed_from_u64(seed(4, n));
            let of = case.quantity.machines();
            let chosen: Vec<&Machine> =
                (0..of).filter_map(|_| machines.get(random.random_range(0..machines.len()))).collect();
            let seeds: Vec<u64> = (0..of).map(|_| random.random()).collect();
            let found = case.quantity.measure(&chosen, clock, &seeds);
            spread.add(found.share, found.truth, 0.0);
        }
        row(case, 0, clock, &spread, options)
    };
    case.clocks.iter().map(row_of).collect()
}

/// Returns the error that noise in the units of events adds to a share: each sample represents 100 units and
/// its own normal number, so `k` of them represent 100 k and a normal number with k times the variance.
fn noise(case: &Case, samples: u64, random: &mut ChaCha8Rng) -> f64 {
    let normal: f64 = StandardNormal.sample(random);
    normal * (case.noise * samples as f64).sqrt() / 100.0 / case.ticks
}

fn row(case: &Case, state: usize, clock: ClockKind, spread: &Spread, options: &Options) -> Row {
    let result = spread.summary();
    let name = match case.states() {
        1 => case.name.clone(),
        _ => format!("{}task {}", case.name, state + 1),
    };
    Row {
        section: case.section,
        name,
        ticks: case.ticks,
        clock,
        result,
        fails: chance_of(spread.missed(), options.runs) < 0.001_35,
    }
}

/// Returns the probability that at least `missed` of `runs` 95 % intervals miss the true share.
fn chance_of(missed: u32, runs: u32) -> f64 {
    let (mut sum, mut log) = (0.0, f64::from(runs) * 0.95_f64.ln());
    for n in 0..missed {
        sum += log.exp();
        // From the probability of n misses to that of n + 1.
        log += (f64::from(runs - n) / f64::from(n + 1) * (0.05 / 0.95)).ln();
    }
    1.0 - sum
}

/// Returns a seed from a number: SplitMix64's output function (Steele, Lea, Flood, Fast splittable
/// pseudorandom number generators, OOPSLA 2014).
fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
