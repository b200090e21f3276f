//! Shares and times over several vCPUs: each is a stratum with its own exact time.

use serde::{Deserialize, Serialize};

use super::correlation::design_effect;
use super::interval::{Share, around};
use super::stretches::Weights;
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

/// What the samples say of one state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Samples of it.
    pub samples: u64,
    /// Its share of the exact time of all vCPUs.
    pub share: Share,
    /// The time itself.
    pub time: Time,
    /// The number of independent samples that would tell as much as the samples inside did. Between half as many and
    /// twelve times as many on one vCPU.
    pub effective: f64,
}

/// One vCPU's part in an estimate.
struct Stratum {
    /// Its part of the exact time.
    weight: f64,
    /// The state's share of it.
    share: f64,
    /// Ticks inside.
    inside: f64,
    effect: f64,
}

impl Stratum {
    fn new(weight: f64, ticks: &Ticks, track: &Track, tally: Option<&Tally>) -> Self {
        let (count, inside) = (tally.map_or(0, Tally::count), track.inside);
        let runs = match tally {
            Some(tally) if ticks.clock == ClockKind::Uniform => design_effect(track, tally, track.kept()),
            _ => 1.0,
        };
        let (share, uneven) = match track.stretches.inside() {
            Some(all) => {
                let hit = tally.map_or_else(Weights::default, |tally| tally.weights(track));
                let share = (hit.sum / all.sum).clamp(0.0, 1.0);
                (share, uneven(share, (count, inside), hit, all))
            }
            None => (count as f64 / inside as f64, 1.0),
        };
        Self { weight, share, inside: inside as f64, effect: runs * uneven }
    }
}

/// Fewer samples than this, of a state or of all others, say nothing of how their weights differ from all.
const FEW: u64 = 4;

/// By how much unequal weights of ticks raise the variance of a share over that of equal ones: the variance of a mean of
/// values each of which has its weight.
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
    /// The share and the time of a state. `times` are the exact times of the vCPUs, ns; vCPUs that are not among them
    /// are left out.
    ///
    /// Each vCPU's share is weighted with its time, and their variances add. Where a vCPU has time but no tick in it,
    /// nothing is known of it: it may be all of the state or nothing, and the interval holds both.
    pub fn estimate(&self, times: &[(u8, u64)], tallies: &Tallies) -> Estimate {
        let total: f64 = times.iter().map(|(_, ns)| *ns as f64).sum();
        let (mut strata, mut unseen) = (Vec::with_capacity(times.len()), 0.0);
        let (mut k, mut n) = (0, 0);
        for (vcpu, ns) in times.iter().filter(|(_, ns)| *ns > 0) {
            let weight = *ns as f64 / total;
            let track = self.track(*vcpu).filter(|track| track.inside > 0);
            let Some(track) = track else {
                unseen += weight;
                continue;
            };
            let tally = tallies.of(*vcpu);
            (k, n) = (k + tally.map_or(0, Tally::count), n + track.inside);
            strata.push(Stratum::new(weight, self, track, tally));
        }
        let known = 1.0 - unseen;
        if n == 0 || known <= 0.0 {
            return Estimate {
                samples: k,
                share: Share::UNKNOWN,
                time: time(Share::UNKNOWN, total),
                effective: 0.0,
            };
        }
        let share: f64 = strata.iter().map(|s| s.weight / known * s.share).sum();
        let effective = effective(&strata, known, k as f64, n as f64);
        let seen = around(share.min(1.0), effective, k, n);
        let share = Share { share: seen.share, low: seen.low * known, high: seen.high * known + unseen };
        Estimate { samples: k, share, time: time(share, total), effective }
    }
}

/// The number of independent samples with the same variance. Variances are taken at shares that are drawn towards the
/// common one by one sample per vCPU, so that a vCPU whose few samples all missed the state does not count as certain.
fn effective(strata: &[Stratum], known: f64, k: f64, n: f64) -> f64 {
    if let [one] = strata {
        return one.inside / one.effect;
    }
    let common = (k + 0.5) / (n + 1.0);
    let (mut p, mut variance) = (0.0, 0.0);
    for stratum in strata {
        let weight = stratum.weight / known;
        let drawn = (stratum.share * stratum.inside + common) / (stratum.inside + 1.0);
        p += weight * drawn;
        variance += weight * weight * stratum.effect * drawn * (1.0 - drawn) / stratum.inside;
    }
    p * (1.0 - p) / variance
}

fn time(share: Share, total_ns: f64) -> Time {
    Time { ns: share.share * total_ns, low_ns: share.low * total_ns, high_ns: share.high * total_ns }
}
