//! Scripts: their names, and the lines of positions in their sources.

use super::objects::{Characters, HeapObject, HeapReader, small_integer};
use crate::ProcessMemory;

/// Bytes of a source that are read, at most.
const MAX_SOURCE: u64 = 64 << 20;
/// Lines of a source, at most.
const MAX_LINES: usize = 1 << 22;
/// Bytes of a source that are read at once.
const CHUNK: u64 = 64 << 10;
/// Characters of a script's name, at most.
const MAX_NAME: usize = 4096;

/// A script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Script {
    /// Path or URL; `None` for code without one.
    pub name: Option<String>,
    /// Position after the end of each line but the last one, characters.
    line_ends: Option<Vec<u32>>,
    /// Line of the file in which the source begins, from 0.
    first_line: u32,
}

impl Script {
    /// Reads the script at `script`; its lines are not known where its source is larger than `left`, which is
    /// reduced by its bytes.
    pub(super) fn read(
        reader: &HeapReader<'_, impl ProcessMemory>,
        script: HeapObject,
        left: &mut u64,
    ) -> Option<Self> {
        let members = &reader.layout.members;
        let name = HeapObject::new(reader.word(script, members.script_name)?);
        let first_line = small_integer(reader.word(script, members.script_line)?)?;
        let source = HeapObject::new(reader.word(script, members.script_source)?);
        let characters = source.and_then(|source| reader.characters(source));
        Some(Self {
            name: name.filter(|&name| reader.is_string(name)).and_then(|name| reader.text(name, MAX_NAME)),
            line_ends: characters.and_then(|characters| line_ends(reader.memory, characters, left)),
            first_line: u32::try_from(first_line).unwrap_or(0),
        })
    }

    /// Returns the line of a character, from 1.
    pub(super) fn line(&self, character: u32) -> Option<u32> {
        let before = self.line_ends.as_ref()?.partition_point(|&end| end <= character);
        u32::try_from(before).ok()?.checked_add(self.first_line)?.checked_add(1)
    }

    /// Returns the number of lines that are kept.
    pub(super) fn size(&self) -> usize {
        self.line_ends.as_ref().map_or(0, Vec::len)
    }
}

/// Returns the position after the end of each line (ECMA-262, LineTerminatorSequence).
fn line_ends(memory: &impl ProcessMemory, source: Characters, left: &mut u64) -> Option<Vec<u32>> {
    let width = if source.is_one_byte { 1 } else { 2 };
    let size = source.count.checked_mul(width).filter(|&size| size <= MAX_SOURCE)?;
    *left = left.checked_sub(size)?;
    let (mut ends, mut position, mut after_return) = (Vec::new(), 0_u32, false);
    let mut take = |unit: u16| {
        // `\r\n` is one end.
        if after_return && unit != u16::from(b'\n') {
            ends.push(position);
        }
        position += 1;
        after_return = unit == u16::from(b'\r');
        if matches!(unit, 0x0a | 0x2028 | 0x2029) {
            ends.push(position);
        }
        ends.len() < MAX_LINES
    };
    let mut from = 0;
    while from < size {
        let bytes = memory.read_bytes(source.at.checked_add(from)?, CHUNK.min(size - from))?;
        let goes_on = match width {
            1 => bytes.iter().all(|&byte| take(byte.into())),
            _ => bytes.as_chunks::<2>().0.iter().all(|&unit| take(u16::from_le_bytes(unit))),
        };
        if !goes_on {
            return None;
        }
        from += bytes.len() as u64;
    }
    Some(ends)
}

#[cfg(test)]
mod tests {
    use symbols::VirtAddr;

    use super::*;
    use crate::fixture::{BASE, FlatMemory};

    #[test]
    fn lines_end_as_in_javascript() {
        let ends = |bytes: &[u8], is_one_byte: bool| {
            let count = bytes.len() as u64 / if is_one_byte { 1 } else { 2 };
            let memory = FlatMemory { bytes: bytes.to_vec() };
            line_ends(&memory, Characters { at: VirtAddr(BASE), count, is_one_byte }, &mut 1000)
        };
        assert_eq!(ends(b"a\nb\r\nc\rd", true), Some(vec![2, 5, 7]));
        assert_eq!(ends(b"", true), Some(vec![]));
        let wide: Vec<u8> =
            [0x61, 0x2028, 0x62, 0x0d, 0x0a, 0x2029].into_iter().flat_map(u16::to_le_bytes).collect();
        assert_eq!(ends(&wide, false), Some(vec![2, 5, 6]));
        // More than is there.
        let memory = FlatMemory { bytes: vec![b'\n'; 8] };
        for count in [9, u64::MAX] {
            let (source, mut left) = (Characters { at: VirtAddr(BASE), count, is_one_byte: true }, u64::MAX);
            assert_eq!(line_ends(&memory, source, &mut left), None, "{count}");
        }
        let source = Characters { at: VirtAddr(BASE), count: 4, is_one_byte: true };
        let mut left = 10;
        let mut next = || (line_ends(&memory, source, &mut left).is_some(), left);
        assert_eq!([next(), next(), next()], [(true, 6), (true, 2), (false, 2)], "no more is read");
        let script = Script { name: None, line_ends: Some(vec![2, 5, 7]), first_line: 10 };
        assert_eq!([0, 1, 2, 7, 99].map(|character| script.line(character)), [11, 11, 12, 14, 14].map(Some));
    }
}
