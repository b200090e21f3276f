//! Code that V8 has generated: from an address to its `Code`.

use std::collections::HashMap;

use symbols::VirtAddr;

use super::objects::{HeapObject, HeapReader, small_integer};
use crate::ProcessMemory;

/// Addresses with and without code that are remembered, at most.
const REMEMBERED: usize = 65_536;
/// Distance of the farthest start of code that is searched, bytes. V8 puts larger code alone into memory.
const FARTHEST: u64 = 512 << 10;
/// Places that may be starts of code that are read in one search, at most: few words of code look like one.
const MAX_CANDIDATES: usize = 1024;
/// Searches for code at an address that are left out after one that found none.
const FRUITLESS: u32 = 64;
/// Bytes that are read at once.
const CHUNK: usize = 4096;
/// Distance of places where an object with instructions may begin, bytes (V8 11: code begins at multiples of
/// 64, after a header of 16).
const STEP: usize = 16;
/// Maps of objects with instructions that are remembered: one for each heap.
const MAX_MAPS: usize = 16;
/// `InstructionStream::code`, and `Code::instruction_stream` (src/objects/instruction-stream.h and
/// src/objects/code.h, V8 11.3 to 13.6).
const STREAM_CODE: u16 = 8;
const CODE_STREAM: u16 = 32;
/// `SharedFunctionInfoWrapper::shared_info` (src/objects/shared-function-info.tq).
const WRAPPER_SHARED: u16 = 8;
/// Bytes of an `InliningPosition`: position, number of the function (src/codegen/source-position.h).
const INLINING: u64 = 16;
/// Functions inlined into one another, at most.
pub(super) const MAX_INLINED: usize = 64;

/// Kind of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeKind {
    /// Sparkplug's.
    Baseline,
    /// Maglev's or TurboFan's.
    Optimized,
    /// Copy of the interpreter's entry for one function (`--interpreted-frames-native-stack`).
    Interpreter,
    /// Code of no function, such as regular expressions.
    Other,
}

/// Generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GeneratedCode {
    pub code: HeapObject,
    pub start: VirtAddr,
    pub kind: CodeKind,
}

/// Finder of generated code.
#[derive(Debug, Default)]
pub(super) struct CodeFinder {
    /// Objects with instructions, by address of an instruction.
    known: HashMap<VirtAddr, HeapObject>,
    /// Searches to leave out, by address.
    fruitless: HashMap<VirtAddr, u32>,
    /// First words of such objects.
    maps: Vec<u64>,
}

impl CodeFinder {
    /// Returns the code that has the instruction at `at`.
    pub(super) fn find(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        at: VirtAddr,
    ) -> Option<GeneratedCode> {
        if let Some(&stream) = self.known.get(&at)
            && let Some(code) = read_code(reader, stream, at)
        {
            return Some(code);
        }
        if let Some(left) = self.fruitless.get_mut(&at).filter(|left| **left > 0) {
            *left -= 1;
            return None;
        }
        if self.known.len() + self.fruitless.len() >= REMEMBERED {
            self.known.clear();
            self.fruitless.clear();
        }
        let Some((stream, code)) = self.search(reader, at) else {
            self.fruitless.insert(at, FRUITLESS);
            return None;
        };
        self.known.insert(at, stream);
        Some(code)
    }

    /// Searches for the start of the object with the instruction at `at`: the last one before it that has
    /// such an object's map and leads to code with the instruction.
    fn search(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        at: VirtAddr,
    ) -> Option<(HeapObject, GeneratedCode)> {
        let lowest = at.0.saturating_sub(FARTHEST);
        let mut end = at.0 & !(STEP as u64 - 1);
        let (mut chunk, mut candidates) = ([0; CHUNK], 0);
        while end > lowest {
            let start = (end - 1) & !(CHUNK as u64 - 1);
            let bytes = chunk.get_mut(..usize::try_from(end - start).ok()?)?;
            reader.memory.read(VirtAddr(start), bytes)?;
            for (number, place) in bytes.chunks_exact(STEP).enumerate().rev() {
                let Some((&word, _)) = place.split_first_chunk() else { continue };
                // Most words are instructions, and no addresses of programs.
                let word = u64::from_le_bytes(word);
                if word >> 47 != 0 || HeapObject::new(word).is_none() {
                    continue;
                }
                candidates += 1;
                if candidates > MAX_CANDIDATES {
                    return None;
                }
                if !self.is_map(reader, word) {
                    continue;
                }
                let stream = HeapObject(VirtAddr(start + (number * STEP) as u64));
                if let Some(code) = read_code(reader, stream, at) {
                    return Some((stream, code));
                }
            }
            end = start;
        }
        None
    }

    /// Returns true if `word` is the map of objects with instructions.
    fn is_map(&mut self, reader: &HeapReader<'_, impl ProcessMemory>, word: u64) -> bool {
        if self.maps.contains(&word) {
            return true;
        }
        let types = &reader.layout.types;
        let is_one = reader.kind_by(word) == Some(types.instructions.unwrap_or(types.code));
        if is_one && self.maps.len() < MAX_MAPS {
            self.maps.push(word);
        }
        is_one
    }
}

/// Reads the code whose instructions are in `stream`; `None` if it contradicts itself, or has no instruction
/// at `at`.
fn read_code(
    reader: &HeapReader<'_, impl ProcessMemory>,
    stream: HeapObject,
    at: VirtAddr,
) -> Option<GeneratedCode> {
    let (types, layout) = (&reader.layout.types, &reader.layout.code);
    let (code, start) = match types.instructions {
        Some(kind) => {
            if reader.kind(stream)? != kind {
                return None;
            }
            let code = reader.typed(stream, STREAM_CODE, types.code)?;
            if reader.word(code, CODE_STREAM)? != stream.word() {
                return None;
            }
            (code, VirtAddr(reader.word(code, layout.start)?))
        }
        None if reader.kind(stream)? == types.code => (stream, stream.member(layout.start)?),
        None => return None,
    };
    let size = u64::from(reader.u32(code, layout.size)?);
    if at.offset_from(start)? >= size {
        return None;
    }
    let kind = reader.u32(code, layout.flags)? & layout.kind_mask;
    let kind = match kind {
        kind if kind == layout.interpreter => CodeKind::Interpreter,
        kind if kind == layout.baseline => CodeKind::Baseline,
        kind if kind > layout.baseline => CodeKind::Optimized,
        _ => CodeKind::Other,
    };
    Some(GeneratedCode { code, start, kind })
}

/// Deoptimization data of optimised code: its function, and those that are inlined into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OptimizedData {
    data: HeapObject,
    /// The function.
    pub shared: HeapObject,
}

impl OptimizedData {
    /// Reads the data of `code`.
    pub(super) fn read(reader: &HeapReader<'_, impl ProcessMemory>, code: &GeneratedCode) -> Option<Self> {
        let layout = &reader.layout.code;
        let data = HeapObject::new(reader.word(code.code, layout.data)?)?;
        let mut shared = HeapObject::new(reader.element(data, layout.deopt_shared.into())?)?;
        if layout.is_shared_wrapped {
            shared = HeapObject::new(reader.word(shared, WRAPPER_SHARED)?)?;
        }
        Some(Self { data, shared })
    }

    /// Returns the number of functions that are inlined.
    pub(super) fn inlined_functions(&self, reader: &HeapReader<'_, impl ProcessMemory>) -> Option<u64> {
        let count = small_integer(reader.element(self.data, reader.layout.code.deopt_count.into())?)?;
        u64::try_from(count).ok()
    }

    /// Returns an inlined function.
    pub(super) fn inlined_function(
        &self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        number: u64,
    ) -> Option<HeapObject> {
        let literals = reader.element(self.data, reader.layout.code.deopt_literals.into())?;
        HeapObject::new_weak(reader.element(HeapObject::new(literals)?, number)?)
    }

    /// Returns the bits of the position that the inlining `number` is at, and the number of the function.
    pub(super) fn inlining(
        &self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        number: u16,
    ) -> Option<(u64, u64)> {
        let layout = reader.layout;
        let table = HeapObject::new(reader.element(self.data, layout.code.deopt_inlined.into())?)?;
        let length = small_integer(reader.word(table, layout.members.array_length)?)?;
        let from = u64::from(number) * INLINING;
        if from + INLINING > u64::try_from(length).ok()? {
            return None;
        }
        let at = table.member(layout.members.array_data)?.checked_add(from)?;
        let function = u64::from(reader.u32_at(at.checked_add(8)?)?);
        Some((reader.memory.read_u64(at)?, function))
    }
}
