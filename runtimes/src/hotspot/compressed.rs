//! Compressed numbers: UNSIGNED5, of debug information and line tables.

/// Reader of compressed numbers (src/hotspot/share/code/compressedStream.cpp, JDK 11;
/// src/hotspot/share/utilities/unsigned5.hpp, JDK 20).
#[derive(Debug, Clone)]
pub(super) struct CompressedReader<'a> {
    bytes: &'a [u8],
    /// 1 if no byte of a number is zero, otherwise 0.
    excluded: u32,
}

/// Bits that each byte after the first adds.
const BITS: u32 = 6;
/// A byte of at least this, without the excluded ones, is followed by another.
const HIGH: u32 = 64;
/// Bytes of a number, at most.
const LONGEST: u32 = 5;

impl<'a> CompressedReader<'a> {
    pub(super) fn new(bytes: &'a [u8], no_zero_bytes: bool) -> Self {
        Self { bytes, excluded: no_zero_bytes.into() }
    }

    /// Returns the next byte.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// Returns the next unsigned number, modulo 2^32.
    pub(super) fn unsigned(&mut self) -> Option<u32> {
        let mut sum = 0_u32;
        // 192 or more continue: 256 - 64, with and without zero bytes.
        let continues = 256 - HIGH;
        for position in 0..LONGEST {
            let byte = u32::from(self.byte()?);
            let value = byte.checked_sub(self.excluded)?;
            sum = sum.wrapping_add(value.wrapping_shl(position * BITS));
            if byte < continues {
                break;
            }
        }
        Some(sum)
    }

    /// Returns the next signed number: its sign is the lowest bit.
    pub(super) fn signed(&mut self) -> Option<i32> {
        let value = self.unsigned()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
}

/// End of a line table.
const END: u8 = 0;
/// An entry whose two steps are numbers.
const ESCAPE: u8 = 0xff;
/// Bits of an entry's byte for the step of the line.
const LINE_BITS: u32 = 3;
/// Entries of one table, at most: bytecode has 65,535 bytes.
const MAX_LINES: usize = 65_536;

/// Parses a line table (`CompressedLineNumberReadStream`, src/hotspot/share/oops/method.cpp): bytecode
/// indices and lines, by index. `None` if its end is not among the bytes.
pub(super) fn parse_lines(mut reader: CompressedReader<'_>) -> Option<Vec<(u32, u32)>> {
    let (mut lines, mut index, mut line) = (Vec::new(), 0_u32, 0_u32);
    while lines.len() < MAX_LINES {
        let entry = reader.byte()?;
        if entry == END {
            break;
        }
        if entry == ESCAPE {
            let steps = (reader.signed()?, reader.signed()?);
            index = index.wrapping_add_signed(steps.0);
            line = line.wrapping_add_signed(steps.1);
        } else {
            index = index.wrapping_add(u32::from(entry) >> LINE_BITS);
            line = line.wrapping_add(u32::from(entry) & ((1 << LINE_BITS) - 1));
        }
        lines.push((index, line));
    }
    lines.sort_by_key(|&(index, _)| index);
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes a number as `UNSIGNED5::write_uint` does.
    fn written(mut value: u32, excluded: u32, into: &mut Vec<u8>) {
        let low = 192 - excluded;
        for position in 0..LONGEST {
            if value < low || position == LONGEST - 1 {
                into.push(u8::try_from(value + excluded).expect("a byte"));
                return;
            }
            value -= low;
            into.push(u8::try_from(excluded + low + value % 64).expect("a byte"));
            value /= 64;
        }
    }

    #[test]
    fn known_numbers_are_read() {
        for (bytes, no_zero, wanted) in [
            (&[0][..], false, Some(0)),
            (&[191], false, Some(191)),
            (&[192, 0], false, Some(192)),
            (&[1], true, Some(0)),
            (&[191], true, Some(190)),
            (&[192, 1], true, Some(191)),
            (&[0], true, None),
            (&[192], true, None),
            (&[], false, None),
        ] {
            assert_eq!(CompressedReader::new(bytes, no_zero).unsigned(), wanted, "{bytes:?} {no_zero}");
        }
    }

    #[test]
    fn lines_have_short_and_long_steps() {
        // Index 0 of line 10 (long), index 3 of line 12 (short), index 100 of line 5 (long).
        let mut bytes = vec![ESCAPE];
        written(0, 1, &mut bytes);
        written(20, 1, &mut bytes);
        bytes.push(3 << 3 | 2);
        bytes.push(ESCAPE);
        written(97 * 2, 1, &mut bytes);
        written(7 * 2 - 1, 1, &mut bytes);
        bytes.push(END);
        bytes.push(8);
        let wanted = vec![(0, 10), (3, 12), (100, 5)];
        assert_eq!(parse_lines(CompressedReader::new(&bytes, true)), Some(wanted));
        let cut = &bytes[..bytes.len() - 2];
        assert_eq!(parse_lines(CompressedReader::new(cut, true)), None, "without its end");
    }

    proptest! {
        #[test]
        fn numbers_come_back(values in prop::collection::vec(0..(1_u32 << 29), 0..20), no_zero: bool) {
            let mut bytes = Vec::new();
            for &value in &values {
                written(value, no_zero.into(), &mut bytes);
            }
            let mut reader = CompressedReader::new(&bytes, no_zero);
            for value in values {
                prop_assert_eq!(reader.unsigned(), Some(value));
            }
            prop_assert_eq!(reader.unsigned(), None);
            prop_assert!(!no_zero || !bytes.contains(&0));
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300), no_zero: bool) {
            let lines = parse_lines(CompressedReader::new(&bytes, no_zero)).unwrap_or_default();
            prop_assert!(lines.len() <= bytes.len());
        }
    }
}
