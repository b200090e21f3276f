//! Line tables of code objects, in their three formats.

use super::layout::LineFormat;
use crate::code::LineTable;

/// Parses a table. Whatever follows an entry that is cut is left out.
pub(super) fn parse(format: LineFormat, table: &[u8], first_line: u32) -> LineTable {
    let mut parser = LineParser { table: LineTable::default(), at: 0, line: first_line.into() };
    match format {
        LineFormat::Lnotab => parser.lnotab(table),
        LineFormat::Ranges => parser.ranges(table),
        LineFormat::Locations => {
            // Ends without a value where an entry is cut.
            let _ = parser.locations(table);
        }
    }
    parser.table
}

/// Parser of a table: the position in the bytecode and the line up to now.
struct LineParser {
    table: LineTable,
    at: u32,
    line: i64,
}

impl LineParser {
    fn push(&mut self, line: Option<i64>) {
        self.table.push(self.at, line.and_then(|line| u32::try_from(line).ok()));
    }

    /// Pairs: bytes of the code before the line changes, signed change of the line.
    fn lnotab(&mut self, table: &[u8]) {
        self.push(Some(self.line));
        for pair in table.as_chunks::<2>().0 {
            self.at = self.at.saturating_add(pair[0].into());
            self.line = self.line.saturating_add(pair[1].cast_signed().into());
            self.push(Some(self.line));
        }
    }

    /// Pairs: bytes of the code with the line after a signed change; -128 for no line.
    fn ranges(&mut self, table: &[u8]) {
        for pair in table.as_chunks::<2>().0 {
            let change = pair[1].cast_signed();
            let line = if change == i8::MIN {
                None
            } else {
                self.line = self.line.saturating_add(change.into());
                Some(self.line)
            };
            self.push(line);
            self.at = self.at.saturating_add(pair[0].into());
        }
    }

    /// Entries of a head, `1cccclll` (code, length in units of two bytes less one), and bytes below 128.
    fn locations(&mut self, table: &[u8]) -> Option<()> {
        let mut rest = table.iter().copied();
        while let Some(head) = rest.next() {
            let (code, length) = (head >> 3 & 15, u32::from(head & 7) + 1);
            let line = match code {
                // Short form: columns only.
                0..=9 => {
                    rest.next()?;
                    Some(0)
                }
                // One line, with two columns.
                10..=12 => {
                    rest.nth(1)?;
                    Some(i64::from(code) - 10)
                }
                // No columns.
                13 => Some(signed(&mut rest)?),
                // End line and columns.
                14 => {
                    let change = signed(&mut rest)?;
                    for _ in 0..3 {
                        number(&mut rest)?;
                    }
                    Some(change)
                }
                // No location.
                _ => None,
            };
            if let Some(change) = line {
                self.line = self.line.saturating_add(change);
            }
            self.push(line.map(|_| self.line));
            self.at = self.at.saturating_add(length * 2);
        }
        Some(())
    }
}

/// Reads a number: six bits of each byte, the lowest first; bit 6 shows that another one follows.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a signed number, whose lowest bit is the sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = number(bytes)?;
    let amount = i64::try_from(value >> 1).ok()?;
    Some(if value & 1 == 1 { -amount } else { amount })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(format: LineFormat, table: &[u8], offsets: &[u32]) -> Vec<Option<u32>> {
        let table = parse(format, table, 10);
        offsets.iter().map(|&offset| table.find(offset)).collect()
    }

    #[test]
    fn the_example_of_lnotab_notes() {
        // Objects/lnotab_notes.txt of 3.9: offsets 0, 6, 50, 350, 361 for lines 1, 2, 7, 207, 208; here the
        // first line is 10.
        let table = [6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1];
        let found = lines(LineFormat::Lnotab, &table, &[0, 5, 6, 50, 349, 350, 361, 9_999]);
        assert_eq!(found, [10, 10, 11, 16, 16, 216, 217, 217].map(Some));
    }

    #[test]
    fn ranges_may_have_no_line() {
        let table = [4, 1, 6, 0x80, 2, 0xff];
        let found = lines(LineFormat::Ranges, &table, &[0, 3, 4, 9, 10, 50]);
        assert_eq!(found, [Some(11), Some(11), None, None, Some(10), Some(10)]);
    }

    #[test]
    fn locations_have_five_forms() {
        let table = [
            0x80 | 14 << 3 | 3,
            0x04,
            0x00,
            0x00,
            0x00, // long, 4 units, line + 2
            0x80 | 11 << 3,
            1,
            2,                  // one line, 1 unit, line + 1
            0x80 | 15 << 3 | 1, // none, 2 units
            0x80 | 2 << 3,
            0x12, // short, same line
            0x80 | 13 << 3,
            0x03, // no columns, line - 1
            0x80 | 13 << 3 | 7,
            0x40 | 0x20,
            0x03, // a number of two bytes: 224 / 2 lines down
        ];
        let found = lines(LineFormat::Locations, &table, &[0, 6, 8, 10, 13, 14, 16, 18, 40]);
        assert_eq!(
            found,
            [Some(12), Some(12), Some(13), None, None, Some(13), Some(12), Some(124), Some(124)]
        );
        assert_eq!(lines(LineFormat::Locations, &table[..2], &[0]), [None], "a cut entry");
    }

    proptest! {
        #[test]
        fn any_bytes_give_ranges_in_order(table in prop::collection::vec(any::<u8>(), 0..400), line: u32) {
            for format in [LineFormat::Lnotab, LineFormat::Ranges, LineFormat::Locations] {
                let table = parse(format, &table, line);
                prop_assert!(table.ranges().windows(2).all(|pair| pair[0].0 < pair[1].0));
                prop_assert!(table.ranges().iter().all(|range| range.1 != Some(0)));
            }
        }
    }
}
