//! Stops that give some of a vCPU's samples their stacks, where the kernel takes the others without.
//!
//! ```text
//!  due ──▶ drawn at random ──▶ a stop: all registers, stacks
//!                        └───▶ the kernel: instruction pointer and current task
//! ```
//!
//! The draw knows nothing of the guest, so both kinds are samples of the same time.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::ticker::VcpuStops;

/// Stops per second and vCPU, at most: as many samples have stacks.
pub(crate) const STACKS_HZ: f64 = 50.0;

/// Means by which the sample of a tick is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TickMeans {
    Stop,
    Kernel,
    /// Nothing: there would be too many stops.
    Nothing,
}

/// Stops of a vCPU, some of whose ticks the kernel serves.
pub(crate) struct MixedStops {
    pub stops: VcpuStops,
    draw: TickDraw,
}

/// Random choice of the means of each tick.
#[derive(Debug)]
struct TickDraw {
    random: ChaCha8Rng,
    /// Stops per second, at most, as long as all samples are taken by stops.
    limit_hz: f64,
}

impl MixedStops {
    /// Makes the stops of a vCPU, with at most `limit_hz` stops per second while the kernel serves no ticks.
    pub(crate) fn new(stops: VcpuStops, limit_hz: f64, seed: u64) -> Self {
        Self { stops, draw: TickDraw::new(seed, limit_hz) }
    }

    /// Draws the means of a tick of a clock with that mean rate, Hz. `serves` is true if the kernel can serve
    /// it. Without a rate, all ticks are stops.
    pub(crate) fn draw(&mut self, rate_hz: Option<f64>, serves: bool) -> TickMeans {
        self.draw.next(rate_hz, serves)
    }
}

impl TickDraw {
    fn new(seed: u64, limit_hz: f64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), limit_hz }
    }

    fn next(&mut self, rate_hz: Option<f64>, serves: bool) -> TickMeans {
        let (stops_hz, other) = match serves {
            true => (STACKS_HZ, TickMeans::Kernel),
            false => (self.limit_hz, TickMeans::Nothing),
        };
        // In [0, 1).
        let uniform: f64 = self.random.random();
        if uniform * rate_hz.unwrap_or(0.0) < stops_hz { TickMeans::Stop } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of stops and of other ticks among 100,000.
    fn counts(rate_hz: Option<f64>, serves: bool) -> (u32, u32, u32) {
        let mut draw = TickDraw::new(7, 1_000.0);
        let mut counts = (0, 0, 0);
        for _ in 0..100_000 {
            match draw.next(rate_hz, serves) {
                TickMeans::Stop => counts.0 += 1,
                TickMeans::Kernel => counts.1 += 1,
                TickMeans::Nothing => counts.2 += 1,
            }
        }
        counts
    }

    #[test]
    fn stops_are_as_many_as_they_may_be_at_every_rate() {
        let (stops, kernel, none) = counts(Some(1_000.0), true);
        assert!((4_800..5_200).contains(&stops) && kernel == 100_000 - stops && none == 0, "{stops}");
        assert_eq!(counts(Some(49.0), true), (100_000, 0, 0));
        assert_eq!(counts(None, true), (100_000, 0, 0));
        let (stops, kernel, none) = counts(Some(4_000.0), false);
        assert!((24_500..25_500).contains(&stops) && kernel == 0 && none == 100_000 - stops, "{stops}");
        assert_eq!(counts(Some(999.0), false), (100_000, 0, 0));
    }

    #[test]
    fn a_draw_does_not_depend_on_the_one_before() {
        let mut draw = TickDraw::new(3, 0.0);
        let stops: Vec<bool> =
            (0..100_000).map(|_| draw.next(Some(100.0), true) == TickMeans::Stop).collect();
        for lag in 1..4 {
            let pairs = stops.iter().zip(&stops[lag..]);
            let both = pairs.filter(|(one, other)| **one && **other).count();
            assert!((24_400..25_600).contains(&both), "{lag}: {both}");
        }
    }
}
