//! Shares and times over several vCPUs: each is a stratum with its own exact time.

use serde::{Deserialize, Serialize};

use super::correlation::design_effect;
use super::interval::{Share, Z_95, around};
use super::segments::Weights;
use super::tally::{Tallies, Tally, Ticks, Track};
use crate::clock::ClockKind;

/// A time with its 95 % interval, ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// The estimate.
    pub ns: f64,
    /// Lower end of the interval.
    pub low_ns: f64,
    /// Upper end of the interval.
    pub high_ns: f64,
}

/// Estimate of one state from samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Samples of it.
    pub samples: u64,
    /// Its share of the exact time of all vCPUs.
    pub share: Share,
    /// The time itself.
    pub time: Time,
    /// Number of independent samples with as much information as the samples inside. Between half as many and
    /// twelve times as many on one vCPU.
    pub effective: f64,
}

/// Part of one vCPU in an estimate.
struct Stratum {
    vcpu: u16,
    /// Its part of the exact time.
    weight: f64,
    /// The state's share of it.
    share: f64,
    /// Ticks inside.
    inside: f64,
    effect: f64,
    /// Relative variance of the time.
    time_error: f64,
    /// Parts by which the time may be shorter and longer.
    time_bounds: [f64; 2],
}

impl Stratum {
    fn new((vcpu, weight): (u16, f64), ticks: &Ticks, track: &Track, tally: Option<&Tally>) -> Self {
        let (count, inside) = (tally.map_or(0, Tally::count), track.inside);
        let runs = match tally {
            Some(tally) if track.clock.kind == ClockKind::Uniform => design_effect(track, tally),
            _ => 1.0,
        };
        let (share, uneven) = match track.segments.inside() {
            Some(all) => {
                let hit = tally.map_or_else(Weights::default, |tally| tally.weights(track));
                let share = (hit.sum / all.sum).clamp(0.0, 1.0);
                (share, uneven(share, (count, inside), hit, all))
            }
            None => (count as f64 / inside as f64, 1.0),
        };
        let (time_error, time_bounds) = (ticks.time_error(vcpu), ticks.time_bounds(vcpu));
        Self { vcpu, weight, share, inside: inside as f64, effect: runs * uneven, time_error, time_bounds }
    }
}

/// Least number of samples, of a state and of all others, for a statement about their weights.
const FEW: u64 = 4;

/// Returns the factor by which unequal weights of ticks raise the variance of a share over that of equal
/// ones: the variance of a mean of weighted values.
fn uneven(share: f64, (count, inside): (u64, u64), hit: Weights, all: Weights) -> f64 {
    let scale = inside as f64 / (all.sum * all.sum);
    let variance = share * (1.0 - share);
    if count.min(inside.saturating_sub(count)) < FEW || variance <= 0.0 {
        return all.squares * scale;
    }
    let squares = hit.squares * (1.0 - share).powi(2) + (all.squares - hit.squares).max(0.0) * share * share;
    squares * scale / variance
}

impl Ticks {
    /// Estimates the share and the time of a state. `times` are the exact times of the vCPUs, ns; other vCPUs
    /// are left out.
    ///
    /// Each vCPU's share is weighted with its time, and their variances add. A vCPU with time but without a
    /// tick may be all of the state or nothing, and the interval covers both.
    pub fn estimate(&self, times: &[(u16, u64)], tallies: &Tallies) -> Estimate {
        let total: f64 = times.iter().map(|(_, ns)| *ns as f64).sum();
        let (mut strata, mut unseen) = (Vec::with_capacity(times.len()), 0.0);
        let (mut k, mut n) = (0, 0);
        for (vcpu, ns) in times.iter().filter(|(_, ns)| *ns > 0) {
            let weight = *ns as f64 / total;
            let track = self.track(*vcpu).filter(|track| track.inside > 0);
            // Without a tick the state may have none or all of this vCPU's time, so the interval is widened
            // below.
            let Some(track) = track else {
                unseen += weight;
                continue;
            };
            let tally = tallies.tally(*vcpu);
            (k, n) = (k + tally.map_or(0, Tally::count), n + track.inside);
            strata.push(Stratum::new((*vcpu, weight), self, track, tally));
        }
        let known = 1.0 - unseen;
        if n == 0 || known <= 0.0 {
            return Estimate {
                samples: k,
                share: Share::UNKNOWN,
                time: time(Share::UNKNOWN, total, 0.0, [0.0; 2]),
                effective: 0.0,
            };
        }
        let share: f64 = strata.iter().map(|s| s.weight / known * s.share).sum();
        let interval = |effective| {
            let seen = around(share.min(1.0), effective, k, n);
            Share { share: seen.share, low: seen.low * known, high: seen.high * known + unseen }
        };
        // The time's error is added separately, by distances; a share has it in its effective number of
        // samples.
        let effective = |of_share| self.effective(&strata, known, (k as f64, n as f64), of_share);
        let of_time = interval(effective(false));
        let (share, effective) = match self.times_are_exact() {
            true => (of_time, effective(false)),
            false => (interval(effective(true)), effective(true)),
        };
        let errors = strata.iter().map(|s| (s.vcpu, s.weight * s.share * s.time_error.sqrt()));
        let error = self.variance_of_sum(errors).sqrt();
        let bounds = [0, 1].map(|end| strata.iter().map(|s| s.weight * s.share * s.time_bounds[end]).sum());
        Estimate { samples: k, share, time: time(of_time, total, error, bounds), effective }
    }

    /// Returns the number of independent samples with the same variance. Variances use shares that are drawn
    /// towards the common one by one sample per vCPU, so that a vCPU whose few samples all missed the state
    /// does not count as certain. With `of_share`, the variance includes that of estimated times, by which
    /// vCPUs weigh more or less.
    fn effective(&self, strata: &[Stratum], known: f64, (k, n): (f64, f64), of_share: bool) -> f64 {
        if let [one] = strata {
            return one.inside / one.effect;
        }
        let common = (k + 0.5) / (n + 1.0);
        let drawn = |s: &Stratum| (s.share * s.inside + common) / (s.inside + 1.0);
        let p: f64 = strata.iter().map(|s| s.weight / known * drawn(s)).sum();
        let error = |s: &Stratum| {
            let drawn = drawn(s);
            let of_time = if of_share { (drawn - p).powi(2) * s.time_error } else { 0.0 };
            (s.vcpu, s.weight / known * (s.effect * drawn * (1.0 - drawn) / s.inside + of_time).sqrt())
        };
        p * (1.0 - p) / self.variance_of_sum(strata.iter().map(error))
    }
}

/// Returns a share's time. `error` is the relative standard error of the whole time; distances of independent
/// errors add as squares (G. Zou, A. Donner, Construction of confidence limits about effect measures,
/// Statistics in Medicine 27, 2008). `bounds` are parts of the whole time by which it may also be shorter and
/// longer, without a known distribution.
fn time(share: Share, total_ns: f64, error: f64, bounds: [f64; 2]) -> Time {
    let [at, low, high] = [share.share, share.low, share.high];
    let [low, high] = match error > 0.0 {
        true => [(at - (at - low).hypot(Z_95 * error)).max(0.0), at + (high - at).hypot(Z_95 * error)],
        false => [low, high],
    };
    let [low, high] = [(low - bounds[0]).max(0.0), high + bounds[1]];
    Time { ns: at * total_ns, low_ns: low * total_ns, high_ns: high * total_ns }
}
