//! Design effect of the clock that is uniform in [0.5, 1.5] of its mean: the variance of a count, as a
//! multiple of that of independent samples.
//!
//! For a state whose autocovariance decays as `e^(-s t)`, times in mean intervals, and intervals with the
//! Laplace transform `f(s)`:
//!
//! ```text
//!   phi(s) = 1 + 2 [ f(s) / (1 - f(s)) - 1 / s ]       f(s) = e^(-s) sinh(s/2) / (s/2)
//! ```
//!
//! `f(s)` is at the same time the correlation of two neighbouring samples. docs/statistics.md derives this.

/// Variance of an interval as a part of its squared mean: the design effect of states that hardly ever
/// change.
pub(super) const LEAST: f64 = 1.0 / 12.0;

/// The largest correlation of neighbouring samples, and of next but one, of a state that swings too fast for
/// the clock (its period is below 1.2 mean intervals): `|f(i w)|` is at most 0.2172 for w > 5.2, its square
/// 0.048.
pub(super) const SWING: (f64, f64) = (0.22, 0.05);

/// Returns `f(s)`: the correlation of neighbouring samples of a state that decays at `s` per mean interval.
pub(super) fn transform(s: f64) -> f64 {
    if s < 1e-6 {
        return 1.0 - s;
    }
    // (e^(-s/2) - e^(-3s/2)) / s: does not overflow.
    ((-s / 2.0).exp() - (-1.5 * s).exp()) / s
}

/// Returns the decay at which neighbouring samples are correlated by `r`, the inverse of [`transform`]; `r`
/// in (0, 1).
fn decay(r: f64) -> f64 {
    let target = r.ln();
    // f(s) > e^(-s), so this is below the answer. ln f is convex and falls: Newton's steps from there stay
    // below.
    let mut s = -target;
    for _ in 0..20 {
        let slope = -1.0 + 0.5 / (s / 2.0).tanh() - 1.0 / s;
        let step = (transform(s).ln() - target) / slope;
        s -= step;
        if step.abs() < 1e-9 * s {
            break;
        }
    }
    s
}

/// Returns `phi` of a state whose neighbouring samples are correlated by `r`: 1 for independent ones,
/// [`LEAST`] for a state that hardly ever changes.
pub(super) fn effect(r: f64) -> f64 {
    if r <= 1e-12 {
        1.0
    } else if r >= 0.999 {
        // phi = 1/12 + s/6 + ...; the formula subtracts large numbers there.
        LEAST + (1.0 - r) / 6.0
    } else {
        1.0 + 2.0 * (r / (1.0 - r) - 1.0 / decay(r))
    }
}

/// Returns the largest `phi` of a swing whose neighbouring samples are correlated by `r`.
pub(super) fn swing(r: f64) -> f64 {
    let r = r.clamp(0.0, SWING.0);
    (1.0 + r) / (1.0 - r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transform_and_decay_are_inverse() {
        for s in [1e-3, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 25.0] {
            let back = decay(transform(s));
            assert!((back / s - 1.0).abs() < 1e-6, "{s}: {back}");
        }
    }

    #[test]
    fn the_effect_has_its_known_values() {
        // Calculated by hand: f(1) = 0.383401, f(3) = 0.070674.
        for (s, phi) in [(1.0, 0.243_6), (3.0, 0.485_4)] {
            assert!((effect(transform(s)) - phi).abs() < 2e-4, "{s}: {}", effect(transform(s)));
        }
        assert!((effect(1.0) - LEAST).abs() < 1e-12 && (effect(0.0) - 1.0).abs() < 1e-12);
        assert!((effect(0.998_999) - effect(0.999_001)).abs() < 1e-4);
    }

    /// The bound from two correlations (docs/statistics.md) needs phi to fall, to be convex, and to have a
    /// third derivative below 0, all as a function of r.
    #[test]
    fn the_effect_is_convex_and_its_bend_falls() {
        let at = |i: u32| effect(f64::from(i) * 0.01);
        for i in 1..97 {
            let d = [at(i), at(i + 1), at(i + 2), at(i + 3)];
            assert!(d[1] < d[0], "falls at {i}");
            assert!(d[0] - 2.0 * d[1] + d[2] > 0.0, "convex at {i}");
            assert!(d[3] - 3.0 * d[2] + 3.0 * d[1] - d[0] < 0.0, "third difference at {i}");
        }
    }

    /// The effect of a pure swing of frequency w is (1 - |f|^2) / |1 - f|^2 with f = e^(-iw) sin(w/2) /
    /// (w/2).
    #[test]
    fn swings_stay_below_their_bound() {
        let mut most: f64 = 0.0;
        for i in 0..20_000 {
            let w = 5.2 + f64::from(i) * 0.005;
            let size = (w / 2.0).sin() / (w / 2.0);
            let (r, square) = (size * w.cos(), size * size);
            let phi = (1.0 - square) / (1.0 - 2.0 * r + square);
            assert!(size.abs() <= SWING.0 && square <= SWING.1, "{w}");
            assert!(phi <= swing(r.max(0.0)) + 1e-9, "{w}: {phi}");
            most = most.max(phi);
        }
        // Near w = 3 pi: a period of two thirds of the mean interval.
        assert!((most - 1.541).abs() < 1e-3, "{most}");
    }
}
