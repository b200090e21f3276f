//! Necessary length of a run.

use super::interval::{Share, wilson};

/// Returns the factor by which a run has to be longer for an interval half as wide: about 4 for a share that
/// is known well, down to 2 for one with hardly a sample. `None` without information, or if more of it is
/// impossible.
pub fn needed(share: &Share) -> Option<f64> {
    needed_for(share, share.distance() / 2.0)
}

/// Returns the factor by which a run, if it continues in the same way, has to be longer for an interval that
/// ends at most `precision` from the share; less than 1 if a shorter run had been enough. `None` without
/// information, or if more of it is impossible.
pub fn needed_for(share: &Share, precision: f64) -> Option<f64> {
    let unknown = share.low <= 0.0 && share.high >= 1.0;
    if unknown || precision <= 0.0 || share.distance() <= 0.0 {
        return None;
    }
    Some(samples_for(share.share, precision) / samples_for(share.share, share.distance()))
}

/// True if the share is known to within `precision` (0.01 for one per cent of the whole) on either side.
pub fn reached(share: &Share, precision: f64) -> bool {
    share.distance() <= precision
}

/// Returns the number of independent samples for which the interval ends at this distance from the share.
fn samples_for(p: f64, distance: f64) -> f64 {
    let far = |n: f64| {
        let (centre, half) = wilson(p, n);
        (centre - p).abs() + half
    };
    // The distance falls with n. 2^-20 to 2^80 samples cover every distance between 1 and 1e-12.
    let (mut low, mut high) = (-20.0_f64, 80.0_f64);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if far(middle.exp2()) > distance {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high).exp2()
}
