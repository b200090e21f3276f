//! Frames of JavaScript in builtins and generated code, and their callers.

use std::ops::Range;
use std::sync::Arc;

use symbols::cfi::{CodeMapping, GeneratedCaller, ImageCode, KnownRegisters};
use symbols::{CodeAddr, Registers, StackMemory, VirtAddr};

use super::cache::BoundedCache;
use super::code::{CodeFinder, CodeKind, GeneratedCode, MAX_INLINED, OptimizedData};
use super::functions::{FunctionData, JsFunction, SharedWords, read_function};
use super::layout::FrameLayout;
use super::objects::{HeapObject, HeapReader, small_integer};
use super::positions::{
    BaselineMap, PositionEntry, SourcePosition, bytecode_before, parse_baseline, parse_positions, position_at,
};
use super::recognise::V8Binary;
use super::scripts::Script;
use super::stages::{FrameStage, stage};
use crate::ProcessMemory;
use crate::frames::ManagedFrame;
use crate::generated::{GeneratedFrames, GeneratedRules, NativeFrame, unknown};

/// Bytes of names, lines of scripts, and entries of each kind of table that are remembered, at most.
const MAX_NAMES: usize = 16 << 20;
const MAX_LINES: usize = 1 << 23;
const MAX_ENTRIES: usize = 1 << 20;
/// Bytes of sources that are read of one process, at most.
const MAX_SOURCES: u64 = 512 << 20;
/// Functions inlined into optimised code, at most.
const MAX_FUNCTIONS: u64 = 4096;
/// Bytes of a table, at most.
const MAX_TABLE: u64 = 256 << 10;
/// Kinds of frames, at most (V8 13.6: 32).
const MAX_KINDS: u64 = 64;
/// DWARF numbers of registers (System V ABI, AMD64 supplement 1.0, figure 3.36) that have the closure when a
/// function begins, and the bytecode and its offset in the interpreter (src/codegen/x64/register-x64.h).
const RDI: usize = 5;
const R9: usize = 9;
const R12: usize = 12;
/// Registers that an entry from native code saves, and their offsets from RBP
/// (src/builtins/x64/builtins-x64.cc: `Generate_JSEntryVariant`, V8 10.2 to 13.6).
const ENTRY: [(usize, i64); 5] = [(12, -24), (13, -32), (14, -40), (15, -48), (3, -56)];
/// Offset from RBP of the closure that a builtin in C++ runs (src/execution/frame-constants.h:
/// `BuiltinExitFrameConstants::kTargetOffset`).
const EXIT_CLOSURE: i64 = 24;

/// A part of optimised code: a function and a character of its source.
type CodePoint = (HeapObject, Option<u32>);
/// A table: the object that it belongs to, its address and length.
type TableKey = (HeapObject, VirtAddr, u64);

/// V8 in one process.
#[derive(Debug)]
pub struct V8Process {
    binary: Arc<V8Binary>,
    /// Its mappings ([`CodeMapping::id`]), and the addresses in the file of builtins.
    file: u32,
    builtins: Range<u64>,
    codes: CodeFinder,
    functions: BoundedCache<(VirtAddr, u32), Option<Arc<JsFunction>>>,
    /// By address and first words.
    scripts: BoundedCache<(HeapObject, u64, u64), Option<Arc<Script>>>,
    /// Bytes of sources that may still be read.
    sources_left: u64,
    positions: BoundedCache<TableKey, Arc<[PositionEntry]>>,
    baselines: BoundedCache<TableKey, Arc<BaselineMap>>,
    points: BoundedCache<(TableKey, u32), Arc<[CodePoint]>>,
    /// Functions by their bytecode, which outlives closures.
    by_bytecode: BoundedCache<HeapObject, HeapObject>,
}

/// Frame that a frame pointer points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PointedFrame {
    /// A frame of this kind, which has no closure.
    Typed(u64),
    /// A frame that has no slots yet.
    Bare,
    /// A frame of a closure.
    Closure { bytecode: Option<u64>, closure: u64 },
    /// The word at this address is needed, and missing.
    Missing(u64),
    /// None.
    Nothing,
}

/// Place of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodePlace {
    Builtin,
    Generated,
}

impl V8Process {
    /// Returns V8 of a process that has mapped `binary` at `bias`, in mappings with the number `file`.
    pub fn new(binary: Arc<V8Binary>, memory: &impl ProcessMemory, (file, bias): (u32, u64)) -> Self {
        let builtins = binary.builtins(memory, bias).unwrap_or_default();
        Self {
            binary,
            file,
            builtins,
            codes: CodeFinder::default(),
            functions: BoundedCache::new(MAX_NAMES),
            scripts: BoundedCache::new(MAX_LINES),
            sources_left: MAX_SOURCES,
            positions: BoundedCache::new(MAX_ENTRIES),
            baselines: BoundedCache::new(MAX_ENTRIES),
            points: BoundedCache::new(MAX_ENTRIES),
            by_bytecode: BoundedCache::new(MAX_ENTRIES),
        }
    }

    /// Returns the function of a frame; `None` if its memory has another one by now, or cannot be read.
    pub fn function(&mut self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<Arc<JsFunction>> {
        if let Some(known) = self.functions.get(&(frame.code, frame.identity)) {
            return known;
        }
        let binary = Arc::clone(&self.binary);
        let reader = HeapReader { memory, layout: &binary.layout };
        let found = read_function(&reader, frame, |script| self.script(&reader, script)).map(Arc::new);
        let size = found.as_ref().map_or(0, |function| function.name.len());
        self.functions.insert((frame.code, frame.identity), found.clone(), size);
        found
    }

    fn script(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        script: HeapObject,
    ) -> Option<Arc<Script>> {
        let members = &reader.layout.members;
        let word = |offset| reader.word(script, offset);
        let key = (script, word(members.script_source)?, word(members.script_name)?);
        if let Some(known) = self.scripts.get(&key) {
            return known;
        }
        let found = Script::read(reader, script, &mut self.sources_left).map(Arc::new);
        let size = found.as_ref().map_or(0, |script| script.size());
        self.scripts.insert(key, found.clone(), size);
        found
    }

    fn place(&self, image: &CodeMapping<'_>, at: CodeAddr) -> Option<CodePlace> {
        if matches!(image.code, ImageCode::Anonymous) {
            return Some(CodePlace::Generated);
        }
        let is_builtin = image.id == self.file && self.builtins.contains(&image.linked(at.lookup()).0);
        is_builtin.then_some(CodePlace::Builtin)
    }

    /// Returns the frames in builtins, where the frame pointer points at a frame of `closure`: it is
    /// interpreted, or the closure of a builtin.
    fn in_builtin(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        frame: &NativeFrame<'_>,
        (closure, bytecode): (u64, Option<u64>),
    ) -> Option<ManagedFrame> {
        let running = bytecode.and_then(HeapObject::new);
        let shared = SharedWords::of_closure(reader, closure);
        match shared.map(|shared| (shared, shared.data(reader))) {
            Some((shared, Some(FunctionData::None))) => Some(shared.frame(None)),
            Some((shared, Some(FunctionData::Bytecode(own)))) if running == Some(own) => {
                self.learn(own, shared.shared);
                Some(shared.frame(self.interpreted(reader, frame, own)))
            }
            _ => {
                let running = running?;
                let shared = self.of_bytecode(reader, running)?;
                Some(shared.frame(self.interpreted(reader, frame, running)))
            }
        }
    }

    fn learn(&mut self, bytecode: HeapObject, shared: HeapObject) {
        self.by_bytecode.insert(bytecode, shared, 1);
    }

    /// Returns the function that had this bytecode earlier, and still has.
    fn of_bytecode(
        &self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        bytecode: HeapObject,
    ) -> Option<SharedWords> {
        let shared = SharedWords::read(reader, self.by_bytecode.get(&bytecode)?)?;
        (shared.data(reader) == Some(FunctionData::Bytecode(bytecode))).then_some(shared)
    }

    /// Returns the character of the source that an interpreted frame is at.
    fn interpreted(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        frame: &NativeFrame<'_>,
        bytecode: HeapObject,
    ) -> Option<u32> {
        let members = &reader.layout.members;
        let length = small_integer(reader.word(bytecode, members.array_length)?)?;
        // Offsets are counted from the tagged address of the object.
        let first = u64::from(members.bytecode_start) - 1;
        let inside = |offset: u64| {
            let offset = offset.checked_sub(first)?;
            u32::try_from(offset).ok().filter(|&offset| i64::from(offset) < i64::from(length))
        };
        // The interpreter saves the offset when it calls; until then it is in a register.
        let is_live = !frame.at.is_return() && frame.register(R12) == Some(bytecode.word());
        let live = if is_live { frame.register(R9).and_then(inside) } else { None };
        let saved = || {
            let slot = frame.register(Registers::RBP)?;
            let slot = frame.word(slot.wrapping_add_signed(reader.layout.frame.bytecode_offset))?;
            inside(u64::try_from(small_integer(slot)?).ok()?)
        };
        self.character(reader, bytecode, live.or_else(saved)?)
    }

    /// Returns the character of the source that the bytecode at this offset is at.
    fn character(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        bytecode: HeapObject,
        offset: u32,
    ) -> Option<u32> {
        let table = reader.byte_table(bytecode, reader.layout.members.bytecode_positions)?;
        let entries = self.entries(reader, bytecode, table)?;
        position_at(&entries, offset).map(|position| position.character)
    }

    fn entries(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        owner: HeapObject,
        table: (VirtAddr, u64),
    ) -> Option<Arc<[PositionEntry]>> {
        let key = (owner, table.0, table.1);
        if let Some(known) = self.positions.get(&key) {
            return Some(known);
        }
        let entries: Arc<[PositionEntry]> = parse_positions(&reader.table_bytes(table, MAX_TABLE)?)?.into();
        self.positions.insert(key, Arc::clone(&entries), entries.len());
        Some(entries)
    }

    /// Returns the frames in generated code, whose closure may be `closure`.
    fn in_code(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        (code, at): (&GeneratedCode, CodeAddr),
        closure: Option<u64>,
    ) -> Vec<ManagedFrame> {
        let found = match code.kind {
            CodeKind::Other | CodeKind::Interpreter => return Vec::new(),
            CodeKind::Baseline => self.in_baseline(reader, (code, at), closure).map(|frame| vec![frame]),
            CodeKind::Optimized => self.in_optimized(reader, (code, at)),
        };
        found.unwrap_or_else(|| vec![unknown(at.address)])
    }

    fn in_baseline(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        (code, at): (&GeneratedCode, CodeAddr),
        closure: Option<u64>,
    ) -> Option<ManagedFrame> {
        let layout = &reader.layout.code;
        let bytecode = reader.typed(code.code, layout.data, reader.layout.types.bytecode)?;
        let shared = closure.and_then(|closure| SharedWords::of_closure(reader, closure));
        let shared = shared.filter(|shared| shared.data(reader) == Some(FunctionData::Bytecode(bytecode)));
        let shared = match shared {
            Some(shared) => {
                self.learn(bytecode, shared.shared);
                shared
            }
            None => self.of_bytecode(reader, bytecode)?,
        };
        // The return address of a call is where the code of the next bytecode may begin.
        let end = at.address.offset_from(code.start)?.checked_add(u64::from(!at.is_return()))?;
        let offset = u32::try_from(end).ok().and_then(|end| {
            let map = self.baseline(reader, code.code, bytecode)?;
            bytecode_before(&map, end)
        });
        Some(shared.frame(offset.and_then(|offset| self.character(reader, bytecode, offset))))
    }

    /// Returns the map from code to bytecode of baseline code.
    fn baseline(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        code: HeapObject,
        bytecode: HeapObject,
    ) -> Option<Arc<BaselineMap>> {
        let members = &reader.layout.members;
        let table = reader.byte_table(code, reader.layout.code.positions)?;
        let key = (code, table.0, table.1);
        if let Some(known) = self.baselines.get(&key) {
            return Some(known);
        }
        let length = small_integer(reader.word(bytecode, members.array_length)?)?;
        let instructions = (bytecode.member(members.bytecode_start)?, u64::try_from(length).ok()?);
        let instructions = reader.table_bytes(instructions, MAX_TABLE)?;
        let map = parse_baseline(&reader.table_bytes(table, MAX_TABLE)?, &instructions, &self.binary)?;
        let map = Arc::new(map);
        self.baselines.insert(key, Arc::clone(&map), map.len());
        Some(map)
    }

    /// Returns the frames in optimised code: its function, and those that are inlined there.
    fn in_optimized(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        (code, at): (&GeneratedCode, CodeAddr),
    ) -> Option<Vec<ManagedFrame>> {
        let data = OptimizedData::read(reader, code)?;
        let offset = u32::try_from(at.lookup().offset_from(code.start)?).ok()?;
        let table = reader.byte_table(code.code, reader.layout.code.positions);
        let points = table.and_then(|table| {
            let key = ((code.code, table.0, table.1), offset);
            if let Some(known) = self.points.get(&key) {
                return Some(known);
            }
            let entries = self.entries(reader, code.code, table)?;
            let points: Arc<[CodePoint]> = points_at(reader, &data, position_at(&entries, offset)).into();
            self.points.insert(key, Arc::clone(&points), points.len());
            Some(points)
        });
        let frame = |(shared, character)| Some(SharedWords::read(reader, shared)?.frame(character));
        let points = points.filter(|points| points.last().is_some_and(|point| point.0 == data.shared));
        match points {
            Some(points) => points.iter().map(|&point| frame(point)).collect(),
            None => frame((data.shared, None)).map(|frame| vec![frame]),
        }
    }
}

/// Returns the functions that optimised code at `position` is from, innermost first. Where a function has no
/// source positions, the code that is inlined from it has those of other code: then only the outer one is
/// known.
fn points_at(
    reader: &HeapReader<'_, impl ProcessMemory>,
    data: &OptimizedData,
    position: Option<SourcePosition>,
) -> Vec<CodePoint> {
    let has_positions = |shared: HeapObject| {
        let words = SharedWords::read(reader, shared)?;
        let Some(FunctionData::Bytecode(bytecode)) = words.data(reader) else { return None };
        reader.byte_table(bytecode, reader.layout.members.bytecode_positions)
    };
    let all = || {
        let count = data.inlined_functions(reader).filter(|&count| count <= MAX_FUNCTIONS)?;
        has_positions(data.shared)?;
        (0..count)
            .try_for_each(|number| has_positions(data.inlined_function(reader, number)?).map(|_| ()))?;
        let (mut points, mut position) = (Vec::new(), position?);
        while let Some(inlining) = position.inlining {
            let (outer, function) = data.inlining(reader, inlining)?;
            points.push((data.inlined_function(reader, function)?, Some(position.character)));
            position = SourcePosition::new(outer).filter(|_| points.len() < MAX_INLINED)?;
        }
        points.push((data.shared, Some(position.character)));
        Some(points)
    };
    all().unwrap_or_else(|| vec![(data.shared, None)])
}

/// Returns what the frame pointer of `frame` points at.
fn pointed(frame: &NativeFrame<'_>, layout: &FrameLayout) -> PointedFrame {
    let (Some(rbp), Some(rsp)) = (frame.register(Registers::RBP), frame.rsp()) else {
        return PointedFrame::Nothing;
    };
    if rbp < rsp || !rbp.is_multiple_of(8) {
        return PointedFrame::Nothing;
    }
    // Below RSP are words of earlier frames: a frame that is being made has not pushed all its slots.
    let bottom = if frame.at.is_return() { 0 } else { rsp };
    let pushed = |offset: i64| Some(rbp.wrapping_add_signed(offset)).filter(|&at| at >= bottom);
    let (Some(saved), Some(_)) = (frame.word(rbp), frame.word(rbp.saturating_add(8))) else {
        return PointedFrame::Missing(rbp);
    };
    let (Some(context), Some(closure)) = (pushed(layout.context), pushed(layout.function)) else {
        return PointedFrame::Bare;
    };
    let Some(context) = frame.word(context) else { return PointedFrame::Missing(context) };
    // A marker is even.
    let kind = context >> 1;
    if context & 1 == 0 {
        let is_entry = layout.entries.contains(&kind);
        return if kind < MAX_KINDS && (is_entry || saved > rbp) {
            PointedFrame::Typed(kind)
        } else {
            PointedFrame::Nothing
        };
    }
    let Some(closure) = frame.word(closure) else { return PointedFrame::Missing(closure) };
    if HeapObject::new(context).is_none() || HeapObject::new(closure).is_none() || saved <= rbp {
        return PointedFrame::Nothing;
    }
    PointedFrame::Closure { bytecode: pushed(layout.bytecode).and_then(|at| frame.word(at)), closure }
}

/// Returns the caller of the frame that the frame pointer points at.
fn caller_of(frame: &NativeFrame<'_>) -> GeneratedCaller {
    frame.caller_of_entry(&[])
}

impl GeneratedRules for V8Process {
    fn frames(
        &mut self,
        memory: &impl ProcessMemory,
        image: &CodeMapping<'_>,
        at: CodeAddr,
        registers: &KnownRegisters,
        stack: &dyn StackMemory,
    ) -> Option<GeneratedFrames> {
        let place = self.place(image, at)?;
        let binary = Arc::clone(&self.binary);
        let reader = HeapReader { memory, layout: &binary.layout };
        let frame = NativeFrame { at, registers, stack };
        let pointed = pointed(&frame, &reader.layout.frame);
        let is_typed = at.is_return() && matches!(pointed, PointedFrame::Typed(_));
        let code = (place == CodePlace::Generated && !is_typed)
            .then(|| self.codes.find(&reader, at.lookup()))
            .flatten();
        // A copy of the interpreter's entry is like the builtin.
        let is_interpreter = code.is_some_and(|code| code.kind == CodeKind::Interpreter);
        let stage = match at.is_return() {
            true => FrameStage::Complete,
            false => stage(memory, at.address, code.map(|code| code.start)),
        };
        let of_code = |process: &mut Self, closure: Option<u64>| {
            code.map_or_else(Vec::new, |code| process.in_code(&reader, (&code, at), closure))
        };
        if stage != FrameStage::Complete {
            let closure = frame.register(RDI).filter(|_| stage != FrameStage::Leaving);
            let caller = match stage {
                FrameStage::ReturnAddress => frame.caller_at(0),
                FrameStage::SavedPointer => frame.caller_above(16),
                FrameStage::Leaving | FrameStage::Complete => GeneratedCaller::Unknown,
            };
            return Some(GeneratedFrames { frames: of_code(self, closure), caller });
        }
        let (frames, caller) = match pointed {
            PointedFrame::Nothing => (of_code(self, None), GeneratedCaller::Unknown),
            PointedFrame::Missing(at) => (of_code(self, None), GeneratedCaller::Missing(at)),
            PointedFrame::Bare => (of_code(self, frame.register(RDI)), caller_of(&frame)),
            PointedFrame::Typed(kind) if reader.layout.frame.entries.contains(&kind) => {
                (Vec::new(), frame.caller_of_entry(&ENTRY))
            }
            PointedFrame::Typed(kind) => (self.in_exit(&reader, &frame, kind), caller_of(&frame)),
            PointedFrame::Closure { bytecode, closure } if place == CodePlace::Builtin || is_interpreter => {
                match self.in_builtin(&reader, &frame, (closure, bytecode)) {
                    Some(found) => (vec![found], caller_of(&frame)),
                    None => self.without_frame(&reader, &frame),
                }
            }
            PointedFrame::Closure { closure, .. } => match code {
                Some(_) => (of_code(self, Some(closure)), caller_of(&frame)),
                None => (vec![unknown(at.address)], caller_of(&frame)),
            },
        };
        Some(GeneratedFrames { frames, caller })
    }
}

impl V8Process {
    /// Returns the frame of the closure of a builtin in C++, if the frame pointer points at a frame of its
    /// kind.
    fn in_exit(
        &self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        frame: &NativeFrame<'_>,
        kind: u64,
    ) -> Vec<ManagedFrame> {
        let closure = || {
            let rbp = frame.register(Registers::RBP)?;
            SharedWords::of_closure(reader, frame.word(rbp.checked_add_signed(EXIT_CLOSURE)?)?)
        };
        let is_exit = kind == reader.layout.frame.builtin_exit;
        let shared = is_exit.then(closure).flatten();
        shared.map(|shared| shared.frame(None)).into_iter().collect()
    }

    /// Returns frames and caller of a builtin without a frame, which generated code has called: the frame
    /// pointer is that code's.
    fn without_frame(
        &mut self,
        reader: &HeapReader<'_, impl ProcessMemory>,
        frame: &NativeFrame<'_>,
    ) -> (Vec<ManagedFrame>, GeneratedCaller) {
        let returns = frame.rsp().and_then(|rsp| frame.word(rsp)).filter(|_| !frame.at.is_return());
        let code = returns.and_then(|at| self.codes.find(reader, CodeAddr::returning(VirtAddr(at)).lookup()));
        match code {
            Some(_) => (Vec::new(), frame.caller_at(0)),
            None => (vec![unknown(frame.at.address)], caller_of(frame)),
        }
    }
}
