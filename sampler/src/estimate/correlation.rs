//! What the pairs of samples say about runs, and the design effect that follows.

use super::design::{LEAST, SWING, effect, swing};
use super::tally::{Tally, Track};

/// Numbers of pairs: of neighbours by the class of the interval between them, and of next but one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pairs {
    pub first: [u32; 4],
    pub second: u32,
}

/// A correlation and its standard error.
#[derive(Debug, Clone, Copy)]
struct Measured {
    value: f64,
    error: f64,
}

impl Measured {
    /// Larger than `other`, and not by chance.
    fn clearly_above(self, other: f64) -> bool {
        self.value - other > CLEAR * self.error
    }

    fn minus(self, other: Self) -> Self {
        Self { value: self.value - other.value, error: self.error.hypot(other.error) }
    }

    fn mean(self, other: Self) -> Self {
        Self { value: f64::midpoint(self.value, other.value), error: self.error.hypot(other.error) / 2.0 }
    }
}

/// Standard errors that are not taken for chance.
const CLEAR: f64 = 2.0;
/// Fewer samples than this, of a state or of all others, say nothing about runs.
const FEWEST: u64 = 4;

/// Correlations of the deviation `e = y - p g` (y: the tick hit the state, g: it was inside) between ticks.
#[derive(Debug, Clone, Copy)]
struct Correlations {
    /// Of neighbours, by class of interval.
    classes: [Measured; 4],
    /// Of neighbours.
    first: Measured,
    /// Of next but one.
    second: Measured,
}

impl Correlations {
    fn of(track: &Track, tally: &Tally, p: f64) -> Option<Self> {
        let (same, near) = tally.pairs(track);
        let ticks = track.len() as f64;
        // The sum of e^2 over all ticks.
        let square = track.inside as f64 * p * (1.0 - p);
        let correlation = |same: f64, near: f64, both: f64, all: f64| {
            if all < 1.0 {
                return Measured { value: 0.0, error: f64::INFINITY };
            }
            let sum = same - p * near + p * p * both;
            let scale = ticks / (square * all);
            // Independent samples give 1/all; runs add the chance by which each of their pairs fell into this class.
            Measured { value: sum * scale, error: (1.0 / all + same * (1.0 - p) * scale * scale).sqrt() }
        };
        let class = |i: usize| {
            let [same, near, both, all] =
                [same.first[i], near.first[i], track.both.first[i], track.all.first[i]];
            correlation(same.into(), near.into(), both.into(), all.into())
        };
        let sum = |pairs: Pairs| pairs.first.iter().map(|&n| f64::from(n)).sum();
        let all: f64 = sum(track.all);
        if ticks < 2.0 || square <= 0.0 || all < 1.0 {
            return None;
        }
        let first = correlation(sum(same), sum(near), sum(track.both), all);
        let second = correlation(
            same.second.into(),
            near.second.into(),
            track.both.second.into(),
            track.all.second.into(),
        );
        let plain =
            |measured: Measured, all: f64| Measured { error: all.max(1.0).sqrt().recip(), ..measured };
        Some(Self {
            classes: [0, 1, 2, 3].map(class),
            first: plain(first, all),
            second: plain(second, track.all.second.into()),
        })
    }

    /// The correlation at short and at long intervals between neighbours.
    fn halves(&self) -> (Measured, Measured) {
        let [a, b, c, d] = self.classes;
        (a.mean(b), c.mean(d))
    }

    /// What a state that decays in any way can not show: a correlation that rises with the interval, that bends down, or
    /// is negative.
    fn swings(&self) -> bool {
        let [a, b, c, d] = self.classes;
        let rises = [(a, b), (b, c), (c, d)].iter().any(|(x, y)| y.minus(*x).clearly_above(0.0));
        let bends = b.minus(a.mean(c)).clearly_above(0.0) || c.minus(b.mean(d)).clearly_above(0.0);
        rises || bends || self.classes.iter().any(|x| x.value < -CLEAR * x.error)
    }

    fn effect(&self) -> f64 {
        let (r1, r2) = (self.first.value, self.second.value);
        if !self.first.clearly_above(0.0) {
            return 1.0;
        }
        let (short, long) = self.halves();
        let may_swing =
            r1 < SWING.0 + CLEAR * self.first.error && r2.abs() < SWING.1 + CLEAR * self.second.error;
        if may_swing && self.swings() {
            return swing(r1);
        }
        if may_swing && !short.minus(long).clearly_above(0.0) {
            return 1.0;
        }
        // A part a of the state decays so that neighbours are correlated by r, the rest at once: r1 = a r, r2 = a r^2.
        let mut r = r2 / r1;
        if may_swing {
            // Then the two halves tell more: their correlations are e^(-s/2) apart.
            let apart = (long.value / short.value).clamp(0.0, 1.0);
            r = r.max(super::design::transform(-2.0 * apart.max(1e-9).ln()));
        }
        let r1 = r1.min(1.0);
        let r = r.clamp(r1, 1.0);
        let part = r1 / r;
        (1.0 - part + part * effect(r)).clamp(LEAST, 1.0)
    }
}

/// The design effect for one state on one vCPU under the uniform clock, of which this part of the ticks is there. What is
/// missing at random takes the same part of what the clock's evenness is worth: `u(t)` and `1/m` of docs/statistics.md
/// both shrink by it.
pub(super) fn design_effect(track: &Track, tally: &Tally, kept: f64) -> f64 {
    let (k, n) = (tally.count(), track.inside);
    if k < FEWEST || n.saturating_sub(k) < FEWEST {
        return 1.0;
    }
    let p = k as f64 / n as f64;
    let effect = Correlations::of(track, tally, p).map_or(1.0, |correlations| correlations.effect());
    if effect < 1.0 { 1.0 - kept * (1.0 - effect) } else { effect }
}
