//! Work that runs in user space alone and touches no memory.

use std::hint::black_box;
use std::time::Duration;

use crate::{process_cpu, since_boot, thread_cpu};

/// Rounds of [`burn`] between two readings of a clock: about 20 us on a 3 GHz CPU, under 1 ms on an emulated
/// one.
const ROUNDS: u32 = 20_000;

/// Computes some rounds of a xorshift generator, all in registers. Never inlined, because it is the only hot
/// function of its process.
#[inline(never)]
pub fn burn(rounds: u32, seed: u64) -> u64 {
    burn_here(rounds, seed)
}

/// Does the work of [`burn`] inlined, so that its time is own time of the calling function.
#[inline(always)]
pub fn burn_here(rounds: u32, seed: u64) -> u64 {
    let mut state = seed | 1;
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state = black_box(state);
    }
    state
}

/// Works until the clock of [`since_boot`] shows `deadline`.
pub fn burn_until_deadline(deadline: Duration) {
    let mut state = 1;
    while since_boot() < deadline {
        state = burn(ROUNDS, state);
    }
    black_box(state);
}

/// Work of a function in turns. Each turn lasts until all turns together have taken a multiple of a slice of
/// CPU time, so that the next turn makes up for one that was too long.
#[derive(Debug, Clone, Copy)]
pub struct WorkTurns {
    slice: Duration,
    due: Duration,
    /// CPU time of all turns so far.
    pub used: Duration,
}

impl WorkTurns {
    /// Returns work in turns of `slice` each.
    pub fn new(slice: Duration) -> Self {
        Self { slice, due: Duration::ZERO, used: Duration::ZERO }
    }

    /// Works for one turn by the clock of the calling thread. The loop is inlined into the calling function.
    #[inline(always)]
    pub fn take(&mut self) {
        self.due += self.slice;
        let start = thread_cpu();
        let mut state = 1;
        let mut used = Duration::ZERO;
        while self.used + used < self.due {
            state = burn_here(ROUNDS, state);
            used = thread_cpu().saturating_sub(start);
        }
        black_box(state);
        self.used += used;
    }
}

/// Works until this process has used `cpu_time` since its start.
///
/// Each reading of that clock is a system call, which costs less than 2 % of the work between two readings.
pub fn burn_until_cpu(cpu_time: Duration) {
    let mut state = 1;
    while process_cpu() < cpu_time {
        state = burn(ROUNDS, state);
    }
    black_box(state);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_uses_the_cpu_time_asked_for() {
        // Tests share their process with other threads, so only the lower bound can be relied on.
        let before = process_cpu();
        burn_until_cpu(before + Duration::from_millis(5));
        assert!(process_cpu() >= before + Duration::from_millis(5));
    }

    #[test]
    fn turns_keep_to_their_sum() {
        let mut turns = WorkTurns::new(Duration::from_millis(2));
        for n in 1..=3u32 {
            turns.take();
            assert!(turns.used >= n * Duration::from_millis(2), "{turns:?}");
        }
    }

    #[test]
    fn work_ends_at_its_deadline() {
        let deadline = since_boot() + Duration::from_millis(5);
        burn_until_deadline(deadline);
        assert!(since_boot() >= deadline);
    }

    #[test]
    fn work_is_not_optimised_away() {
        assert_ne!(burn(1_000, 7), burn(1_001, 7));
    }
}
