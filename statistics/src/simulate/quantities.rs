//! Every kind of interval that vprof prints, computed by the code that prints it, for a machine with known
//! times.

use std::collections::BTreeMap;

use super::measure::{Machine, SEGMENT_NS, Tick};
use super::program::MEAN_NS;
use super::timeline::in_guest;
use crate::RateHistory;
use crate::clock::ClockKind;
use crate::estimate::{Share, Tallies, Ticks};
use crate::run_part::{ClockTick, GuestSegment, RunClocks};
use crate::significance::{TestedChange, Value, one_run, welch};
use crate::task_scan::{StateSpan, TaskScan, TaskScans};

/// Estimated quantity of state 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Its share of the time in the guest that is not idle: rows of reports, functions within a process too.
    Share,
    /// Its time, as a part of the time in the guest.
    Time,
    /// The combined share of states 1 and 2, as of callers.
    Callers,
    /// The difference of its shares in two runs.
    TwoRuns,
    /// The difference of its shares in three runs and three more.
    SixRuns,
    /// Its time in a part of the run, of a boot's units and calls.
    Boot,
    /// Its time between two readings of the guest's CPU accounting.
    Rusage,
    /// Time of a task in a state, by scans at the ticks.
    TaskState,
    /// Its part of a task's exact time on a CPU.
    ExactPart,
}

/// An estimate with its interval, and the true value.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredValue {
    pub share: Share,
    pub truth: f64,
}

/// The part of the run for [`Quantity::Boot`] and [`Quantity::Rusage`], in thousandths of it.
const PART: (u64, u64) = (301, 703);
/// Runs on a side of [`Quantity::SixRuns`].
pub(super) const RUNS: usize = 3;

impl Quantity {
    /// Returns the number of machines of one profiling.
    pub fn machines(self) -> usize {
        match self {
            Self::TwoRuns => 2,
            Self::SixRuns => 2 * RUNS,
            _ => 1,
        }
    }

    /// Profiles machines, each from its own seed.
    pub fn measure(self, machines: &[&Machine], clock: ClockKind, seeds: &[u64]) -> MeasuredValue {
        let Some((machine, seed)) = machines.first().zip(seeds.first()) else {
            return none();
        };
        let all = || machines.iter().zip(seeds).map(|(machine, seed)| share(machine, clock, *seed)).collect();
        match self {
            Self::Share => share(machine, clock, *seed),
            Self::Time | Self::Callers => whole(machine, clock, *seed, self),
            Self::TwoRuns => two_runs(all()),
            Self::SixRuns => six_runs(all()),
            Self::Boot | Self::Rusage => in_part(machine, clock, *seed, self == Self::Boot),
            Self::TaskState => task_state(machine, clock, *seed),
            Self::ExactPart => exact_part(machine, clock, *seed),
        }
    }
}

fn share(machine: &Machine, clock: ClockKind, seed: u64) -> MeasuredValue {
    let estimate = machine.profile(clock, seed, 0, 1).pop();
    estimate.map_or_else(none, |found| MeasuredValue { share: found.share, truth: machine.truth(1) })
}

fn none() -> MeasuredValue {
    MeasuredValue { share: Share { share: 0.0, low: 0.0, high: 1.0 }, truth: 0.0 }
}

fn whole(machine: &Machine, clock: ClockKind, seed: u64, quantity: Quantity) -> MeasuredValue {
    let callers = quantity == Quantity::Callers;
    let Some(found) = machine.profile_rows(clock, seed, 0, &[&[1], &[1, 2]]).into_iter().nth(callers.into())
    else {
        return none();
    };
    match callers {
        true => MeasuredValue { share: found.share, truth: machine.truth(1) + machine.truth(2) },
        false => MeasuredValue { share: machine.as_share(&found), truth: machine.true_time(1) },
    }
}

fn value(found: &MeasuredValue) -> Value {
    Value { at: found.share.share, low: found.share.low, high: found.share.high }
}

fn changed(TestedChange { low, high, .. }: TestedChange, change: f64, truth: f64) -> MeasuredValue {
    MeasuredValue { share: Share { share: change, low, high }, truth }
}

fn two_runs(found: Vec<MeasuredValue>) -> MeasuredValue {
    let [before, after] = found.as_slice() else { return none() };
    let change = after.share.share - before.share.share;
    changed(one_run(value(before), value(after)), change, after.truth - before.truth)
}

/// Compares six runs. The true value is that of the program, which is the same on both sides.
fn six_runs(found: Vec<MeasuredValue>) -> MeasuredValue {
    let values: Vec<Value> = found.iter().map(value).collect();
    let (before, after) = values.split_at(RUNS.min(values.len()));
    let mean = |side: &[Value]| side.iter().map(|value| value.at).sum::<f64>() / side.len().max(1) as f64;
    changed(welch(before, after), mean(after) - mean(before), 0.0)
}

/// Returns the ends of [`PART`], and the time in state 1 and in the guest between them, ns.
fn part(machine: &Machine) -> ((u64, u64), f64, f64) {
    let length = machine.vcpus.iter().map(super::timeline::Timeline::length).max().unwrap_or(0);
    let ends = (length / 1_000 * PART.0, length / 1_000 * PART.1);
    let time = |wanted: &dyn Fn(u8) -> bool| -> f64 {
        machine
            .vcpus
            .iter()
            .map(|line| (line.time_until(ends.1, wanted) - line.time_until(ends.0, wanted)) as f64)
            .sum()
    };
    (ends, time(&|state| state == 1), time(&in_guest))
}

fn in_part(machine: &Machine, clock: ClockKind, seed: u64, boot: bool) -> MeasuredValue {
    let (ends, true_ns, guest_ns) = part(machine);
    let ticks = machine.ticks(clock, seed, 0);
    let hits = (0_i64..).zip(&ticks).filter(|(_, tick)| tick.state == 1);
    let hits = hits.filter(|(_, tick)| (ends.0..ends.1).contains(&tick.time_ns));
    let mut tallies = Tallies::default();
    let [ns, low, high] = if boot {
        let clocks = clocks(machine, clock, &ticks);
        let clocked = clocks.within(ends);
        hits.for_each(|(id, _)| clocked.count(id, &mut tallies));
        let found = clocked.estimate(&tallies).time;
        [found.ns, found.low_ns, found.high_ns]
    } else {
        let mut all = Ticks::new(clock, MEAN_NS as f64);
        for (vcpu, line) in (0_u16..).zip(&machine.vcpus) {
            all.divide(vcpu, line.segments(SEGMENT_NS, in_guest));
        }
        for tick in &ticks {
            let ticked = all.tick(tick.vcpu, tick.time_ns, in_guest(tick.state));
            if tick.state == 1 && (ends.0..ends.1).contains(&tick.time_ns) {
                tallies.add(&all, ticked);
            }
        }
        let found = all.estimate(&machine.times(), &tallies).time;
        [found.ns, found.low_ns, found.high_ns]
    };
    let [share, low, high] = [ns, low, high].map(|ns| ns / guest_ns.max(1.0));
    MeasuredValue { share: Share { share, low, high }, truth: true_ns / guest_ns.max(1.0) }
}

/// Returns the clocks that a boot reads from a profile.
fn clocks(machine: &Machine, clock: ClockKind, ticks: &[Tick]) -> RunClocks {
    let meta = [("clock", clock.name().to_owned()), ("rate_hz", (1_000_000_000 / MEAN_NS).to_string())];
    let tick = |(id, tick): (i64, &Tick)| {
        let Tick { vcpu, time_ns, state } = *tick;
        ClockTick { id, vcpu, time_ns, guest: in_guest(state) }
    };
    let segments = |line: &super::timeline::Timeline| {
        let mut begin = 0;
        let ends = line.segments(SEGMENT_NS, in_guest);
        let segment =
            |(end, guest): (u64, u64)| GuestSegment { begin: std::mem::replace(&mut begin, end), end, guest };
        ends.into_iter().map(segment).collect::<Vec<_>>()
    };
    RunClocks {
        meta: BTreeMap::from(meta.map(|(key, value)| (key.to_owned(), value))),
        ticks: (0..).zip(ticks).map(tick).collect(),
        segments: (0..).zip(machine.vcpus.iter().map(segments)).collect(),
        rates: RateHistory::default(),
        thinned: false,
    }
}

/// Uses ticks as scans, and the course of the first vCPU as the states of a task.
fn task_state(machine: &Machine, clock: ClockKind, seed: u64) -> MeasuredValue {
    let ticks = machine.ticks(clock, seed, 0);
    let scan = |(id, tick): (u64, &Tick)| TaskScan { id, time_ns: tick.time_ns, backoff: 0, late_ns: 0 };
    let scans: Vec<TaskScan> = (0..).zip(&ticks).map(scan).collect();
    let end = ticks.last().map_or(0, |tick| tick.time_ns);
    let mut spans: Vec<StateSpan<bool>> = Vec::new();
    for (place, tick) in ticks.iter().enumerate() {
        let asleep = tick.state == 1;
        match spans.last_mut().filter(|span| span.state == asleep) {
            Some(span) => span.to = place + 1,
            None => spans.push(StateSpan { from: place, to: place + 1, state: asleep }),
        }
    }
    let scans = TaskScans::new(scans, 0, 1e9 / MEAN_NS as f64);
    let (_, times) = scans.times(&spans, &[&|&asleep| asleep]);
    let Some((found, line)) = times.first().zip(machine.vcpus.first()) else { return none() };
    let (time, whole) = (found.time.time, end.max(1) as f64);
    let share = Share { share: time.ns / whole, low: time.low_ns / whole, high: time.high_ns / whole };
    let truth = line.time_until(end, |state| state == 1) as f64 / whole;
    MeasuredValue { share, truth }
}

/// Uses the time in the guest as a task's exact time on a CPU.
fn exact_part(machine: &Machine, clock: ClockKind, seed: u64) -> MeasuredValue {
    let ticks = machine.ticks(clock, seed, 0);
    let count = |wanted: &dyn Fn(u8) -> bool| ticks.iter().filter(|tick| wanted(tick.state)).count() as u64;
    let (hits, all) = (count(&|state| state == 1), count(&in_guest));
    MeasuredValue { share: crate::estimate::share(hits, all), truth: machine.true_time(1) }
}
