//! Stacks that a lake has, so that each is written once a day.

use std::collections::HashSet;
use std::io::{self, BufRead, Write};

/// Stacks that are known, at most: 32 MiB of memory. What is beyond them is written in each window.
const MOST_STACKS: usize = 1 << 21;

/// Numbers of the stacks of a host and day that a lake has, and those that a window adds.
#[derive(Debug, Clone, Default)]
pub struct KnownStacks {
    numbers: HashSet<i64>,
    new: Vec<i64>,
}

impl KnownStacks {
    /// Longest list that [`Self::write_new`] writes, bytes.
    pub const LONGEST_LIST: u64 = 8 * MOST_STACKS as u64;

    /// Adds what [`Self::write_new`] has written; the number of bytes of a last number that is cut off does
    /// not matter.
    ///
    /// # Errors
    /// Of the input.
    pub fn read(&mut self, mut from: impl BufRead) -> io::Result<()> {
        while self.numbers.len() < MOST_STACKS {
            let mut number = [0; 8];
            match from.read_exact(&mut number) {
                Ok(()) => self.numbers.insert(i64::from_le_bytes(number)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// Returns true if the lake does not have a stack; it has it from now on.
    pub(super) fn add(&mut self, number: i64) -> bool {
        if self.numbers.contains(&number) {
            return false;
        }
        if self.numbers.len() < MOST_STACKS {
            self.numbers.insert(number);
            self.new.push(number);
        }
        true
    }

    /// Writes the numbers of stacks that were added since the last call: 8 bytes each, little-endian.
    ///
    /// # Errors
    /// Of the output.
    pub fn write_new(&mut self, mut to: impl Write) -> io::Result<()> {
        std::mem::take(&mut self.new).iter().try_for_each(|number| to.write_all(&number.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_new_once() {
        let mut first = KnownStacks::default();
        assert_eq!([7, -1, 7].map(|number| first.add(number)), [true, true, false]);
        let mut bytes = Vec::new();
        first.write_new(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 16);
        // A list that was cut off.
        bytes.extend([1, 2, 3]);
        let mut second = KnownStacks::default();
        second.read(bytes.as_slice()).unwrap();
        assert_eq!([7, 8, -1].map(|number| second.add(number)), [false, true, false]);
        let mut added = Vec::new();
        second.write_new(&mut added).unwrap();
        assert_eq!(added, 8_i64.to_le_bytes(), "only what is new");
    }

    #[test]
    fn memory_is_bounded_and_no_stack_is_left_out_beyond_the_bound() {
        let mut known = KnownStacks::default();
        assert!((0..1 << 21).all(|number| known.add(number)));
        assert_eq!([-1, -1, 5].map(|number| known.add(number)), [true, true, false]);
        let mut bytes = Vec::new();
        known.write_new(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 8 * MOST_STACKS);
        known.read((-9_i64).to_le_bytes().as_slice()).unwrap();
        assert!(known.add(-9));
    }
}
