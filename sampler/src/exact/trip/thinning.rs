//! Choice of the calls whose stacks are copied.

use rand::{RngExt, rngs::ChaCha8Rng};

/// Length of a window, ns.
const WINDOW_NS: u64 = 100_000_000;
/// Stacks of one function that a vCPU copies in a window: 1,000 a second.
const STACKS: u32 = 100;
/// Largest weight.
const MAX_WEIGHT: u32 = 1 << 20;

/// Chooser of stacks of one function on one vCPU: all of them, or a random part of them where there are many.
/// A stack that is chosen with probability 1/w has the weight w, and w depends on earlier calls only. So sums
/// of weights estimate numbers of calls without bias (Horvitz and Thompson).
#[derive(Debug, Clone, Copy)]
pub(super) struct StackThinning {
    window_from_ns: u64,
    calls: u32,
    /// Stacks since the window's begin, or since the weight was last doubled.
    taken: u32,
    weight: u32,
}

impl Default for StackThinning {
    fn default() -> Self {
        Self { window_from_ns: 0, calls: 0, taken: 0, weight: 1 }
    }
}

impl StackThinning {
    /// Notes a call. Returns the weight of its stack if that is to be copied.
    pub(super) fn choose(&mut self, now_ns: u64, random: &mut ChaCha8Rng) -> Option<u32> {
        let elapsed_ns = now_ns.saturating_sub(self.window_from_ns);
        if elapsed_ns >= WINDOW_NS {
            let windows = elapsed_ns / WINDOW_NS;
            let calls = u64::from(self.calls) / windows;
            let weight = u32::try_from(calls).unwrap_or(u32::MAX) / STACKS;
            *self = Self { window_from_ns: now_ns, weight: weight.clamp(1, MAX_WEIGHT), calls: 0, taken: 0 };
        }
        self.calls = self.calls.saturating_add(1);
        if self.taken >= STACKS {
            (self.weight, self.taken) = (self.weight.saturating_mul(2).min(MAX_WEIGHT), 0);
        }
        let chosen = self.weight == 1 || random.random_range(0..self.weight) == 0;
        self.taken += u32::from(chosen);
        chosen.then_some(self.weight)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn all_stacks_of_a_rare_call_are_copied() {
        let (mut thinning, mut random) = (StackThinning::default(), ChaCha8Rng::seed_from_u64(1));
        for n in 0..3_000 {
            assert_eq!(thinning.choose(n * 1_100_000, &mut random), Some(1));
        }
    }

    #[test]
    fn weights_add_up_to_the_calls_of_each_caller() {
        let (mut thinning, mut random) = (StackThinning::default(), ChaCha8Rng::seed_from_u64(2));
        let (mut taken, mut weights, mut of_third) = (0_u32, 0_u64, 0_u64);
        // 100,000 calls a second for four seconds, with a second of silence in between.
        for n in 0..400_000_u64 {
            let pause = if n >= 200_000 { 1_000_000_000 } else { 0 };
            if let Some(weight) = thinning.choose(pause + n * 10_000, &mut random) {
                taken += 1;
                weights += u64::from(weight);
                of_third += if n % 3 == 0 { u64::from(weight) } else { 0 };
            }
        }
        assert!((3_000..6_500).contains(&taken), "{taken} stacks");
        assert!(weights.abs_diff(400_000) < 30_000, "{weights}");
        assert!(of_third.abs_diff(133_333) < 20_000, "{of_third}");
    }
}
