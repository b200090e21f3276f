//! Tables of source positions, and of bytecode offsets in baseline code.

use super::recognise::V8Binary;

/// Position in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SourcePosition {
    /// Characters from the start of the source.
    pub character: u32,
    /// Number of the inlining that the code is from; `None` for the function's own code.
    pub inlining: Option<u16>,
}

/// Entry of a table: code from this offset on has this position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PositionEntry {
    /// Bytes from the start of the code; -1 for the function's entry.
    pub offset: i32,
    pub position: Option<SourcePosition>,
}

impl SourcePosition {
    /// Returns the position in `bits`; `None` for an unknown one, and for one that is not in a script
    /// (src/codegen/source-position.h: external 1 bit, script offset + 1 in 30 bits, inlining + 1 in 16).
    pub(super) fn new(bits: u64) -> Option<Self> {
        let is_external = bits & 1 != 0;
        let character = u32::try_from(bits >> 1 & 0x3fff_ffff).ok()?.checked_sub(1)?;
        let inlining = u16::try_from(bits >> 31 & 0xffff).ok()?.checked_sub(1);
        (!is_external).then_some(Self { character, inlining })
    }
}

/// Reads a number of 7 bits a byte, the lowest ones first (src/codegen/source-position-table.cc,
/// src/base/vlq.h).
fn number<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> Option<u64> {
    let (mut value, mut shift) = (0_u64, 0_u32);
    loop {
        let byte = *bytes.next()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 64)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
}

/// Returns the signed number whose lowest bit is its sign.
fn signed(value: u64) -> i64 {
    let half = (value >> 1).cast_signed();
    if value & 1 == 0 { half } else { !half }
}

/// Offset that the first entry is counted from (src/common/globals.h: `kFunctionEntryBytecodeOffset`).
const FUNCTION_ENTRY: i32 = -1;

/// Returns the entries of a table of source positions, by offset: pairs of differences to the entry before. A
/// negative difference of offsets marks an expression.
pub(super) fn parse_positions(table: &[u8]) -> Option<Vec<PositionEntry>> {
    let (mut bytes, mut entries) = (table.iter().peekable(), Vec::new());
    let (mut offset, mut bits) = (FUNCTION_ENTRY, 0_i64);
    while bytes.peek().is_some() {
        let difference = signed(number(&mut bytes)?);
        let difference = if difference < 0 { !difference } else { difference };
        offset = offset.checked_add(i32::try_from(difference).ok()?)?;
        bits = bits.checked_add(signed(number(&mut bytes)?))?;
        entries.push(PositionEntry { offset, position: SourcePosition::new(bits.cast_unsigned()) });
    }
    Some(entries)
}

/// Returns the position of the code at `offset`.
pub(super) fn position_at(entries: &[PositionEntry], offset: u32) -> Option<SourcePosition> {
    let after = entries.partition_point(|entry| i64::from(entry.offset) <= i64::from(offset));
    entries.get(after.checked_sub(1)?)?.position
}

/// Ends of the pieces of baseline code, bytes from its start, and the offset of the bytecode of each; `None`
/// for the function's entry.
pub(super) type BaselineMap = Vec<(u32, Option<u32>)>;

/// Returns the map of baseline code whose table is `table` and whose bytecode is `code`: the lengths of the
/// code of the entry and of each bytecode (src/baseline/bytecode-offset-iterator.h).
pub(super) fn parse_baseline(table: &[u8], code: &[u8], binary: &V8Binary) -> Option<BaselineMap> {
    let (mut bytes, mut map) = (table.iter().peekable(), Vec::new());
    let mut end = u32::try_from(number(&mut bytes)?).ok()?;
    map.push((end, None));
    let mut bytecode = 0_usize;
    while bytes.peek().is_some() {
        let Some(rest) = code.get(bytecode..).filter(|rest| !rest.is_empty()) else { break };
        end = end.checked_add(u32::try_from(number(&mut bytes)?).ok()?)?;
        map.push((end, u32::try_from(bytecode).ok()));
        bytecode = bytecode.checked_add(binary.bytecode_length(rest)?)?;
    }
    Some(map)
}

/// Returns the offset of the bytecode that baseline code before `end`, bytes from its start, is from.
pub(super) fn bytecode_before(map: &[(u32, Option<u32>)], end: u32) -> Option<u32> {
    map.get(map.partition_point(|&(piece_end, _)| piece_end < end))?.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(offset: i32, character: u32, inlining: Option<u16>) -> PositionEntry {
        PositionEntry { offset, position: Some(SourcePosition { character, inlining }) }
    }

    #[test]
    fn positions_are_differences_to_the_one_before() {
        // The function's entry, an expression (~0), position 9: (9 + 1) << 1 = 20, whose sign is a bit below.
        let table = [0x01, 0x28, 0x0a, 0x0b];
        // Then 5 further, 6 lower in bits: 3 characters back.
        assert_eq!(parse_positions(&table), Some(vec![entry(-1, 9, None), entry(4, 6, None)]));
        // Inlining 0: bit 31.
        let bits = (1_u64 << 31 | 20) << 1;
        let mut table = vec![0x00];
        let mut rest = bits;
        while rest >= 0x80 {
            table.push(u8::try_from(rest & 0x7f).expect("7 bits") | 0x80);
            rest >>= 7;
        }
        table.push(u8::try_from(rest).expect("7 bits"));
        assert_eq!(parse_positions(&table), Some(vec![entry(-1, 9, Some(0))]));
        for length in 1..table.len() {
            assert_eq!(parse_positions(&table[..length]), None, "{length}: cut");
        }
        assert_eq!(parse_positions(&[0x80; 40]), None);
    }

    #[test]
    fn a_position_is_that_of_the_entry_before() {
        let entries =
            [entry(2, 10, None), PositionEntry { offset: 6, position: None }, entry(9, 30, Some(2))];
        let found = |offset| position_at(&entries, offset).map(|position| position.character);
        assert_eq!(
            [1, 2, 5, 6, 8, 9, 99].map(found),
            [None, Some(10), Some(10), None, None, Some(30), Some(30)]
        );
    }

    #[test]
    fn code_before_the_end_of_a_piece_is_from_its_bytecode() {
        let map = [(10, None), (14, Some(0)), (14, Some(2)), (20, Some(3))];
        let found = |end| bytecode_before(&map, end);
        assert_eq!([10, 11, 14, 15, 20, 21].map(found), [None, Some(0), Some(0), Some(3), Some(3), None]);
    }
}
