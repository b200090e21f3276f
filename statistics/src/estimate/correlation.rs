//! Runs of a state, from pairs of samples, and the design effect that follows.

use super::design::{LEAST, SWING, effect, swing};
use super::tally::{Tally, Track};

/// Numbers of pairs: of neighbours by the class of the interval between them, and of next but one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pairs {
    pub first: [u32; 4],
    pub second: u32,
}

/// A measured correlation with its standard error.
#[derive(Debug, Clone, Copy)]
struct Correlation {
    value: f64,
    error: f64,
}

impl Correlation {
    /// True if it is larger than `other`, and not by chance.
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

/// Number of standard errors above which a difference is not chance.
const CLEAR: f64 = 2.0;
/// Least number of samples, of a state and of all others, for a statement about runs.
const FEWEST: u64 = 4;

/// Correlations between ticks of the deviation `e = y - p g` (y: the tick is in the state, g: it is inside).
#[derive(Debug, Clone, Copy)]
struct Correlations {
    /// Correlations of neighbours, by class of interval.
    classes: [Correlation; 4],
    /// Correlation of neighbours.
    first: Correlation,
    /// Correlation of next but one.
    second: Correlation,
}

impl Correlations {
    fn from_tally(track: &Track, tally: &Tally, p: f64) -> Option<Self> {
        let (same, near) = tally.pairs(track);
        // The sum of e^2 over all ticks.
        let square = track.inside as f64 * p * (1.0 - p);
        Self::new(track, square, |count| {
            let same = count(&same);
            (same - p * count(&near) + p * p * count(&track.both), same * (1.0 - p))
        })
    }

    /// Creates the correlations of any deviation with mean 0 whose squares add up to `square` over all ticks.
    /// `products` takes a class of pairs, as a function that counts the pairs of any kind in it; it returns
    /// the sum of their products and about that of the squares of these.
    fn new(
        track: &Track,
        square: f64,
        products: impl Fn(&dyn Fn(&Pairs) -> f64) -> (f64, f64),
    ) -> Option<Self> {
        let ticks = track.len() as f64;
        let correlation = |count: &dyn Fn(&Pairs) -> f64| {
            let all = count(&track.all);
            if all < 1.0 {
                return Correlation { value: 0.0, error: f64::INFINITY };
            }
            let (sum, squares) = products(count);
            let scale = ticks / (square * all);
            // Independent samples give 1/all; runs add the chance that each of their pairs fell into this
            // class.
            Correlation { value: sum * scale, error: (1.0 / all + squares * scale * scale).sqrt() }
        };
        let first = |pairs: &Pairs| pairs.first.iter().map(|&n| f64::from(n)).sum();
        let second = |pairs: &Pairs| f64::from(pairs.second);
        if ticks < 2.0 || square <= 0.0 || first(&track.all) < 1.0 {
            return None;
        }
        let plain = |count: &dyn Fn(&Pairs) -> f64| {
            let error = count(&track.all).max(1.0).sqrt().recip();
            Correlation { error, ..correlation(count) }
        };
        Some(Self {
            classes: [0, 1, 2, 3].map(|class| correlation(&|pairs| f64::from(pairs.first[class]))),
            first: plain(&first),
            second: plain(&second),
        })
    }

    /// Returns the correlations at short and at long intervals between neighbours.
    fn halves(&self) -> (Correlation, Correlation) {
        let [a, b, c, d] = self.classes;
        (a.mean(b), c.mean(d))
    }

    /// True for a pattern that no decaying state has: a correlation that rises with the interval, that bends
    /// down, or is negative.
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
        // A part a of the state decays so that neighbours are correlated by r, the rest immediately: r1 = a
        // r, r2 = a r^2.
        let mut r = r2 / r1;
        if may_swing {
            // Then the two halves give more information: their correlations are e^(-s/2) apart.
            let apart = (long.value / short.value).clamp(0.0, 1.0);
            r = r.max(super::design::transform(-2.0 * apart.max(1e-9).ln()));
        }
        let r1 = r1.min(1.0);
        let r = r.clamp(r1, 1.0);
        let part = r1 / r;
        (1.0 - part + part * effect(r)).clamp(LEAST, 1.0)
    }
}

/// Returns the design effect for one state on one vCPU under the uniform clock.
pub(super) fn design_effect(track: &Track, tally: &Tally) -> f64 {
    let (k, n) = (tally.count(), track.inside);
    if k < FEWEST || n.saturating_sub(k) < FEWEST {
        return 1.0;
    }
    let p = k as f64 / n as f64;
    kept_effect(
        track,
        Correlations::from_tally(track, tally, p).map_or(1.0, |correlations| correlations.effect()),
    )
}

/// A deviation with one value for ticks of a state, one for others of the part that the state belongs to, and
/// one for the rest of the ticks inside; its mean over these is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contrast {
    pub hit: f64,
    pub part: f64,
    pub rest: f64,
}

impl Contrast {
    /// Returns the sum of its squares over these numbers of ticks.
    pub fn squares(&self, [hit, part, rest]: [f64; 3]) -> f64 {
        hit * self.hit.powi(2) + part * self.part.powi(2) + rest * self.rest.powi(2)
    }

    /// Returns its square, as a deviation of the same kind.
    fn squared(&self) -> Self {
        Self { hit: self.hit.powi(2), part: self.part.powi(2), rest: self.rest.powi(2) }
    }

    /// Returns the sum of its products over pairs of ticks: `rest` for all inside, increased by one step for
    /// those in the part, and by another for those of the state.
    fn products(&self, track: &Track, pairs: &PartPairs, count: &dyn Fn(&Pairs) -> f64) -> f64 {
        let (rest, part, hit) = (self.rest, self.part - self.rest, self.hit - self.part);
        rest * rest * count(&track.both)
            + rest * part * count(&pairs.part_near_whole)
            + part * part * count(&pairs.part)
            + rest * hit * count(&pairs.near_whole)
            + part * hit * count(&pairs.near_part)
            + hit * hit * count(&pairs.same)
    }
}

/// Pairs of ticks of a state, of the part that it belongs to, and of all inside. Neighbours count on each
/// side.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartPairs {
    /// Both in the state.
    pub same: Pairs,
    /// One in the state, the other in the part; the other inside.
    pub near_part: Pairs,
    pub near_whole: Pairs,
    /// Both in the part.
    pub part: Pairs,
    /// One in the part, the other inside.
    pub part_near_whole: Pairs,
}

/// Returns the design effect of a contrast on one vCPU under the uniform clock, with these numbers of ticks.
pub(super) fn contrast_effect(
    track: &Track,
    pairs: &PartPairs,
    contrast: &Contrast,
    counts: [f64; 3],
) -> f64 {
    let (square, fourth) = (contrast.squares(counts), contrast.squared().squares(counts));
    // Number of ticks of one size that would carry the variance. A state of `k` of many samples has this
    // number of them.
    if square * square < (FEWEST as f64 - 0.1) * fourth {
        return 1.0;
    }
    let squared = contrast.squared();
    let correlations = Correlations::new(track, square, |count| {
        (contrast.products(track, pairs, count), squared.products(track, pairs, count))
    });
    let effect = correlations.map_or(1.0, |correlations| correlations.effect());
    kept_effect(track, effect)
}

/// Corrects an effect for missing ticks. Ticks that are missing at random take the same part of the benefit
/// of the clock's evenness: `u(t)` and `1/m` of docs/statistics.md both shrink by it.
fn kept_effect(track: &Track, effect: f64) -> f64 {
    if effect < 1.0 { 1.0 - track.kept() * (1.0 - effect) } else { effect }
}
