//! Capacity of the queues between a vCPU's thread and the collector: by the sampling rate, within bounds of
//! memory.

use std::mem::size_of;

use guest_linux::StackCopy;

use crate::record::SampleMessage;

/// Seconds of samples that a ring holds at least, as far as memory allows: longer than a disk stalls.
const RING_SECONDS: f64 = 4.0;
/// Bytes of all rings together, at most.
const RINGS_BYTES: usize = 16 << 20;
/// Seconds of stacks that a pool holds, as far as memory allows: some rounds of the collector. The buffers
/// are used in turn, so all of them take memory.
const POOL_SECONDS: f64 = 0.03;
/// Bytes of all pools together, at most.
const POOLS_BYTES: usize = 16 << 20;
/// Bytes of all reserves together, at most: buffers for a collector that is late. A reserve takes memory only
/// while it holds stacks.
const RESERVES_BYTES: usize = 128 << 20;
/// Seconds of stacks that a pool and its reserve hold, as far as memory allows.
const RESERVE_SECONDS: f64 = 2.0;
/// The smallest pool, stacks: at low rates the collector takes each one at once.
const POOL_LEAST: usize = 1;
/// The smallest reserve, stacks.
const RESERVE_LEAST: usize = 2;
/// The smallest ring, records: some rounds of the collector at a rate that was raised meanwhile.
const RING_LEAST: usize = 64;

/// Sizes of the queues of one vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueCapacity {
    /// Records in the ring.
    pub ring: usize,
    /// Stacks in the pool.
    pub pool: usize,
    /// Stacks in the reserve of the pool.
    pub reserve: usize,
}

impl QueueCapacity {
    /// Returns the sizes for a mean rate in Hz and stacks of at most `depth` frames.
    pub fn new(rate_hz: f64, vcpus: u8, depth: usize) -> Self {
        let share = |bytes: usize, each: usize| bytes / each / usize::from(vcpus.max(1));
        let ring =
            samples(rate_hz, RING_SECONDS).clamp(RING_LEAST, share(RINGS_BYTES, size_of::<SampleMessage>()));
        if depth == 0 {
            return Self { ring, pool: 1, reserve: 0 };
        }
        let most = share(POOLS_BYTES, StackCopy::BYTES).max(POOL_LEAST);
        let pool = samples(rate_hz, POOL_SECONDS).clamp(POOL_LEAST, most);
        let most = share(RESERVES_BYTES, StackCopy::BYTES).max(RESERVE_LEAST);
        let reserve = samples(rate_hz, RESERVE_SECONDS).clamp(RESERVE_LEAST, most);
        Self { ring, pool, reserve }
    }
}

/// Returns the number of samples in this many seconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float to integer casts saturate"
)]
fn samples(rate_hz: f64, seconds: f64) -> usize {
    (rate_hz * seconds) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_at_the_rate_of_an_agent_are_small() {
        let capacity = QueueCapacity::new(19.0, 1, 127);
        assert_eq!(capacity, QueueCapacity { ring: 76, pool: 1, reserve: 38 });
        assert_eq!(QueueCapacity::new(0.1, 1, 127).reserve, RESERVE_LEAST);
    }

    #[test]
    fn rings_hold_seconds_and_stay_within_memory() {
        assert_eq!(QueueCapacity::new(1_000.0, 2, 0).ring, 4_000);
        for rate in [f64::NAN, -1.0, 0.0, 1.0] {
            assert_eq!(QueueCapacity::new(rate, 1, 127).ring, RING_LEAST);
        }
        for vcpus in [0, 1, 64, 255] {
            let QueueCapacity { ring, pool, reserve } = QueueCapacity::new(f64::INFINITY, vcpus, 127);
            assert!(pool >= POOL_LEAST);
            assert!(vcpus > 32 || pool * StackCopy::BYTES * usize::from(vcpus) <= POOLS_BYTES);
            assert!(reserve >= RESERVE_LEAST);
            assert!(reserve * StackCopy::BYTES * usize::from(vcpus) <= RESERVES_BYTES);
            assert!(
                ring >= RING_LEAST && ring * size_of::<SampleMessage>() * usize::from(vcpus) <= RINGS_BYTES
            );
        }
    }
}
