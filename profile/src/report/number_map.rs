//! Maps keyed by a few small numbers; a report over a million samples does several million look-ups.
//!
//! The keys are row ids, which no guest chooses, so that a hash without a secret is enough: for each number
//! rotate, add and multiply by an odd constant (2^64 divided by the golden ratio; Knuth, The Art of Computer
//! Programming 3, 6.4).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map keyed by small numbers.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Hashes numbers.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct NumberHasher(u64);

impl NumberHasher {
    fn take(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..chunk.len()].copy_from_slice(chunk);
            self.take(u64::from_le_bytes(number));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.take(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.take(number.into());
    }

    fn write_i32(&mut self, number: i32) {
        self.take(number.cast_unsigned().into());
    }

    fn write_isize(&mut self, number: isize) {
        // Discriminant of an enum.
        self.take(number.cast_unsigned() as u64);
    }

    /// A map takes its slot from the low bits, and the product is best in the high ones.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    #[test]
    fn neighbours_spread() {
        let build = BuildHasherDefault::<NumberHasher>::default();
        let low: HashSet<u64> = (0..4_096_u32).map(|n| build.hash_one((n % 64, n / 64)) & 0xfff).collect();
        assert!(low.len() > 2_000, "{} of 4,096 places", low.len());
        let high: HashSet<u64> = (0..4_096_u32).map(|n| build.hash_one(n) >> 57).collect();
        assert_eq!(high.len(), 128);
    }
}
