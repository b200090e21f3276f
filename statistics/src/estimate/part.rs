//! Shares of a part of the exact time that is itself estimated: of the time in the guest that is not idle.
//!
//! The clock of states measures the time `T_v` in the guest exactly; its busy part is known only from ticks.
//! So a share is the ratio of two estimates, and a vCPU's weight in it, its busy time, is not exact:
//!
//! ```text
//!   S = sum of T_v x_v / sum of T_v b_v       x_v, b_v: parts of its ticks in the state, and busy
//!   Var(S) = sum of T_v^2 Var(mean of d_v) / (sum of T_v b_v)^2        d = x - S b, tick by tick
//! ```
//!
//! This is the delta method. `d` has a value for ticks of the state, one for other busy ones, and one for
//! idle ones, so its variance contains the chance in `b_v` and the covariance of `x_v` with it.
//! docs/statistics.md has the details.

use display::units::rounded;

use super::correlation::{Contrast, PartPairs, contrast_effect};
use super::interval::{Z_95, around};
use super::segments::Weights;
use super::strata::Estimate;
use super::tally::{Tallies, Tick, Ticks};
use crate::clock::ClockKind;

/// Ticks of all vCPUs, for the division of a part of the exact time.
#[derive(Debug)]
pub struct PartTicks {
    /// Ticks with those in the exact time inside.
    whole: Ticks,
    /// Ticks with those in the part inside.
    part: Ticks,
    /// The ticks of `part`, tallied among those of `whole`.
    inside: Tallies,
    /// True if some tick was in the exact time, but not in the part.
    divides: bool,
    /// True if all ticks are added.
    closed: bool,
}

/// The samples of one thing on all vCPUs, for [`PartTicks`].
#[derive(Debug, Clone, Default)]
pub struct PartTallies {
    part: Tallies,
    /// The same samples among the ticks in the exact time; left empty if the part is known to be all of it.
    whole: Tallies,
}

impl PartTallies {
    /// Counts the latest tick of its vCPU, or after [`PartTicks::close`] any, each vCPU's in the order of
    /// time.
    pub fn add(&mut self, ticks: &PartTicks, tick: Tick) {
        self.part.add(&ticks.part, tick);
        if ticks.divides || !ticks.closed {
            self.whole.add(&ticks.whole, tick);
        }
    }
}

impl PartTicks {
    /// Creates an empty sequence. `ticks` returns one with the clock, its mean interval, and its segments.
    pub fn new(ticks: impl Fn() -> Ticks) -> Self {
        let (whole, part) = (ticks(), ticks());
        Self { whole, part, inside: Tallies::default(), divides: false, closed: false }
    }

    /// Adds segments, see [`Ticks::divide`].
    pub fn divide(&mut self, vcpu: u16, segments: impl IntoIterator<Item = (u64, u64)> + Clone) {
        self.whole.divide(vcpu, segments.clone());
        self.part.divide(vcpu, segments);
    }

    /// Adds changes, see [`Ticks::change_mean`].
    pub fn change_mean(&mut self, vcpu: u16, changes: impl IntoIterator<Item = (u64, f64)> + Clone) {
        self.whole.change_mean(vcpu, changes.clone());
        self.part.change_mean(vcpu, changes);
    }

    /// Adds the next tick of a vCPU: `timed` if it was in the exact time, `inside` if in the part.
    pub fn tick(&mut self, vcpu: u16, time_ns: u64, timed: bool, inside: bool) -> Tick {
        let inside = timed && inside;
        self.divides |= timed && !inside;
        // Both sequences have the tick at the same index.
        self.part.tick_of_part(vcpu, time_ns, timed, inside);
        let tick = self.whole.tick(vcpu, time_ns, timed);
        if inside {
            self.inside.add(&self.whole, tick);
        }
        tick
    }

    /// Ends the sequence: all ticks are added.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Returns the ticks in the exact time.
    pub fn whole(&self) -> &Ticks {
        &self.whole
    }

    /// Returns the ticks in the part.
    pub fn part(&self) -> &Ticks {
        &self.part
    }

    /// Estimates the share of the part, and the time, of a state. `times` are the exact times of the vCPUs,
    /// ns.
    pub fn estimate(&self, times: &[(u16, u64)], tallies: &PartTallies) -> Estimate {
        let parts = self.part_times(times);
        let mut estimate = self.part.estimate(&parts, &tallies.part);
        if !self.divides {
            return estimate;
        }
        estimate.time = self.whole.estimate(times, &tallies.whole).time;
        let strata: Option<Vec<Stratum>> =
            times.iter().filter(|(_, ns)| *ns > 0).map(|time| Stratum::new(self, *time, tallies)).collect();
        // A vCPU without a tick widens an interval by far more than the following correction.
        if let Some(strata) = strata.filter(|strata| strata.len() > 1) {
            self.weigh(&strata, &mut estimate);
        }
        estimate
    }

    /// Returns the times of the part according to the ticks, ns.
    pub fn part_times(&self, times: &[(u16, u64)]) -> Vec<(u16, u64)> {
        let part = |(vcpu, ns): &(u16, u64)| {
            let at_least = u64::from(self.part.inside_of(*vcpu) > 0);
            (*vcpu, rounded(*ns as f64 * self.part.part_inside(*vcpu)).max(at_least))
        };
        times.iter().map(part).collect()
    }

    /// Makes the interval of the share that of a ratio of estimates.
    fn weigh(&self, strata: &[Stratum], estimate: &mut Estimate) {
        let sum = |of: fn(&Stratum) -> f64| strata.iter().map(|s| s.ns * of(s)).sum::<f64>();
        let part_ns = sum(|s| s.part);
        let (k, n) = (estimate.samples, self.part.inside());
        if part_ns <= 0.0 || n == 0 {
            return;
        }
        let share = (sum(|s| s.hit) / part_ns).min(1.0);
        // Shares are drawn towards the common share by one sample per vCPU, as for strata of exact times.
        let common = (k as f64 + 0.5) / (n as f64 + 1.0);
        let drawn = strata.iter().map(|s| s.ns * s.part * s.drawn(common)).sum::<f64>() / part_ns;
        let error = |s: &Stratum<'_>| s.ns * s.variance((share, drawn, common), self).sqrt() / part_ns;
        let errors = strata.iter().map(|s| (s.vcpu, error(s)));
        let variance = self.part.variance_of_sum(errors);
        if variance > 0.0 {
            // Near 0 and 1 a share of one vCPU varies little, but the weights of the vCPUs may vary much.
            // What one without a tick in the part may have been busy for is then the interval: 3.7 ticks,
            // where `variance` has 0.7 for a standard deviation.
            let by_weights = Z_95 / (3.0 * variance.sqrt()) - Z_95 * Z_95;
            estimate.effective = (drawn * (1.0 - drawn) / variance).max(by_weights.min(n as f64));
            estimate.share = around(share, estimate.effective, k, n);
        }
    }
}

/// One vCPU in an estimate.
struct Stratum<'a> {
    vcpu: u16,
    /// Exact time, ns.
    ns: f64,
    /// Its time in the part, and its time in the state.
    part: f64,
    hit: f64,
    /// Ticks in the time, and in the part.
    ticks: f64,
    inside: f64,
    /// Weights of the ticks of the state, of the part, and of all, if they are unequal.
    weights: Option<[Weights; 3]>,
    tallies: &'a PartTallies,
}

impl<'a> Stratum<'a> {
    /// Returns `None` if no tick was in the time.
    fn new(all: &PartTicks, (vcpu, ns): (u16, u64), tallies: &'a PartTallies) -> Option<Self> {
        let (whole, part) = (all.whole.track(vcpu)?, all.part.track(vcpu)?);
        let (ticks, inside) = (whole.inside, part.inside);
        if ticks == 0 {
            return None;
        }
        let tally = tallies.whole.tally(vcpu);
        let weights = whole.segments.inside().map(|total| {
            let hit = tally.map_or_else(Weights::default, |tally| tally.weights(whole));
            [hit, part.segments.inside().unwrap_or_default(), total]
        });
        let counts = [tally.map_or(0, |tally| tally.count()), inside, ticks].map(|count| count as f64);
        let [hit, in_part, total] = weights.map_or(counts, |weights| weights.map(|weight| weight.sum));
        Some(Self {
            vcpu,
            ns: ns as f64,
            part: (in_part / total).min(1.0),
            hit: (hit / total).min(1.0),
            ticks: ticks as f64,
            inside: inside as f64,
            weights,
            tallies,
        })
    }

    /// Returns the state's share of the part, drawn towards the common one.
    fn drawn(&self, common: f64) -> f64 {
        let share = if self.part > 0.0 { (self.hit / self.part).min(1.0) } else { common };
        (share * self.inside + common) / (self.inside + 1.0)
    }

    /// Returns the variance of the mean of `d`: that of independent ticks, times the effects of runs and of
    /// unequal weights.
    fn variance(&self, (share, drawn_all, common): (f64, f64, f64), all: &PartTicks) -> f64 {
        let drawn = self.drawn(common);
        let idle = self.ticks - self.inside;
        // A vCPU that was always in the part is assumed to be in it all the time.
        let part = if idle > 0.0 { (self.inside + 0.5) / (self.ticks + 1.0) } else { 1.0 };
        let apart = if self.inside > 0.0 { drawn - drawn_all } else { drawn_all.max(1.0 - drawn_all) };
        // The variance of the state within the part, and that of the part, which are not correlated tick by
        // tick.
        let plain = part * drawn * (1.0 - drawn) + apart * apart * part * (1.0 - part);
        let rest = self.hit - share * self.part;
        let contrast = Contrast { hit: 1.0 - share - rest, part: -share - rest, rest: -rest };
        let known_ns = all.whole.time_error(self.vcpu) * rest * rest;
        plain / self.ticks * self.effect(&contrast, all) * self.uneven(&contrast) + known_ns
    }

    fn effect(&self, contrast: &Contrast, all: &PartTicks) -> f64 {
        let pairs = || {
            let whole = all.whole.track(self.vcpu)?;
            let part = all.inside.tally(self.vcpu)?.pairs(whole);
            // A vCPU may have no tick of the state.
            let pairs = |tallies: &Tallies, track| {
                tallies.tally(self.vcpu).map_or_else(Default::default, |tally| tally.pairs(track))
            };
            let (same, near_whole) = pairs(&self.tallies.whole, whole);
            let near_part = pairs(&self.tallies.part, all.part.track(self.vcpu)?).1;
            Some((whole, PartPairs { same, near_part, near_whole, part: part.0, part_near_whole: part.1 }))
        };
        if all.whole.track(self.vcpu).is_none_or(|track| track.clock.kind != ClockKind::Uniform) {
            return 1.0;
        }
        let hits = self.tallies.whole.tally(self.vcpu).map_or(0, |tally| tally.count()) as f64;
        let counts = [hits, self.inside - hits, self.ticks - self.inside];
        pairs().map_or(1.0, |(whole, pairs)| contrast_effect(whole, &pairs, contrast, counts))
    }

    /// Returns the factor by which unequal weights of ticks raise the variance over that of equal ones.
    fn uneven(&self, contrast: &Contrast) -> f64 {
        let Some([hit, part, total]) = self.weights else { return 1.0 };
        let hits = self.tallies.whole.tally(self.vcpu).map_or(0, |tally| tally.count()) as f64;
        let plain = contrast.squares([hits, self.inside - hits, self.ticks - self.inside]);
        let rest = |more: f64, less: f64| (more - less).max(0.0);
        let weighted = contrast.squares([
            hit.squares,
            rest(part.squares, hit.squares),
            rest(total.squares, part.squares),
        ]);
        let scale = self.ticks * self.ticks / (total.sum * total.sum);
        // Without information on the weights of the state, all ticks represent it.
        if plain <= 0.0 { total.squares * scale / self.ticks } else { weighted * scale / plain }
    }
}
