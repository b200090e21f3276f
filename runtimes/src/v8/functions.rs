//! Functions: their bytecode, names, files and lines.

use std::sync::Arc;

use super::objects::{HeapObject, HeapReader, small_integer};
use super::scripts::Script;
use crate::ProcessMemory;
use crate::frames::ManagedFrame;

/// Characters of a name, at most.
const MAX_NAME: usize = 1024;
/// Name of a function that its source does not name, as V8 writes it.
const ANONYMOUS: &str = "(anonymous)";
/// Bits of `ScopeInfo::flags` (src/objects/scope-info.tq, V8 10.2 to 13.6).
const HAS_CLASS_VARIABLE: u32 = 1 << 10;
const FUNCTION_VARIABLE: u32 = 3 << 12;
const HAS_INFERRED_NAME: u32 = 1 << 14;
/// Local variables from which on their names are in a table (src/objects/scope-info.h:
/// `kScopeInfoMaxInlinedLocalNamesSize`).
const MAX_INLINED_NAMES: u64 = 75;
/// Local variables, at most.
const MAX_LOCALS: u64 = 1 << 20;
/// `InterpreterData::bytecode_array` (src/objects/shared-function-info.tq).
const INTERPRETER_DATA_BYTECODE: u16 = 8;

/// Function of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsFunction {
    /// Name as V8 has it: `parse`; what it inferred from an assignment (`Parser.parse`); or `(anonymous)`.
    pub name: String,
    script: Option<Arc<Script>>,
}

impl JsFunction {
    /// Returns path or URL of the script; `None` for builtins and code that has none.
    pub fn file(&self) -> Option<&str> {
        self.script.as_ref()?.name.as_deref()
    }

    /// Returns the line that `frame` of this function executes, in the script; `None` where it is not known.
    pub fn line(&self, frame: &ManagedFrame) -> Option<u32> {
        self.script.as_ref()?.line(frame.instruction?)
    }
}

/// Code of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FunctionData {
    /// Compiled to this bytecode.
    Bytecode(HeapObject),
    /// A builtin, or not compiled.
    None,
}

/// `SharedFunctionInfo`: what all closures of a function share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedWords {
    pub shared: HeapObject,
    name: u64,
    script: u64,
}

impl SharedWords {
    /// Reads the function at `shared`; `None` if it is not one.
    pub(super) fn read(reader: &HeapReader<'_, impl ProcessMemory>, shared: HeapObject) -> Option<Self> {
        let (types, members) = (&reader.layout.types, &reader.layout.members);
        if reader.kind(shared)? != types.shared {
            return None;
        }
        let name = reader.word(shared, members.shared_name)?;
        Some(Self { shared, name, script: reader.word(shared, members.shared_script)? })
    }

    /// Reads the function of the closure that `word` refers to; `None` if there is none.
    pub(super) fn of_closure(reader: &HeapReader<'_, impl ProcessMemory>, word: u64) -> Option<Self> {
        let closure = HeapObject::new(word)?;
        if !reader.layout.types.functions.contains(&reader.kind(closure)?) {
            return None;
        }
        let shared = reader.word(closure, reader.layout.members.function_shared)?;
        Self::read(reader, HeapObject::new(shared)?)
    }

    /// Returns the function's code; `None` if it cannot be read.
    pub(super) fn data(&self, reader: &HeapReader<'_, impl ProcessMemory>) -> Option<FunctionData> {
        let types = &reader.layout.types;
        let mut data = reader.word(self.shared, reader.layout.members.shared_data)?;
        // Baseline code leads to bytecode; both may do so by the data of a copy of the interpreter.
        for _ in 0..3 {
            let Some(object) = HeapObject::new(data) else { break };
            let kind = reader.kind(object)?;
            if kind == types.bytecode {
                return Some(FunctionData::Bytecode(object));
            }
            data = match kind {
                kind if kind == types.code => reader.word(object, reader.layout.code.data)?,
                kind if kind == types.interpreter_data => reader.word(object, INTERPRETER_DATA_BYTECODE)?,
                _ => break,
            };
        }
        Some(FunctionData::None)
    }

    /// Returns the frame of this function at a character of its source.
    pub(super) fn frame(&self, character: Option<u32>) -> ManagedFrame {
        ManagedFrame { code: self.shared.0, instruction: character, identity: self.identity() }
    }

    fn identity(&self) -> u32 {
        let mut hash = 0_u64;
        for word in [self.shared.word(), self.name, self.script] {
            // Multiplication by 2^64 divided by the golden ratio spreads close addresses.
            hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 32;
        }
        u32::try_from(hash & 0xffff_ffff).unwrap_or(0)
    }

    /// Returns the script.
    pub(super) fn script(&self, reader: &HeapReader<'_, impl ProcessMemory>) -> Option<HeapObject> {
        let script = HeapObject::new(self.script)?;
        (reader.kind(script)? == reader.layout.types.script).then_some(script)
    }

    fn name(&self, reader: &HeapReader<'_, impl ProcessMemory>) -> Option<String> {
        let Some(name) = HeapObject::new(self.name) else { return Some(ANONYMOUS.to_owned()) };
        let name = if reader.is_string(name) {
            reader.text(name, MAX_NAME)?
        } else if reader.kind(name)? == reader.layout.types.scope {
            scope_name(reader, name)?
        } else {
            return None;
        };
        Some(if name.is_empty() { ANONYMOUS.to_owned() } else { name })
    }
}

/// Returns the name of the function that a scope is of: its own, or the one that V8 inferred; empty without
/// one.
fn scope_name(reader: &HeapReader<'_, impl ProcessMemory>, scope: HeapObject) -> Option<String> {
    let members = &reader.layout.members;
    let word = reader.word(scope, 8)?;
    // A small integer, or (V8 13) a number of 4 bytes.
    let flags = match small_integer(word) {
        Some(flags) if word != 0 => flags.cast_unsigned(),
        _ => u32::try_from(word & 0xffff_ffff).unwrap_or(0),
    };
    let locals = small_integer(reader.word(scope, members.scope_locals)?)?;
    let locals = u64::try_from(locals).ok().filter(|&locals| locals <= MAX_LOCALS)?;
    let names = if locals < MAX_INLINED_NAMES { locals } else { 1 };
    let mut slot = names + locals + u64::from(flags & HAS_CLASS_VARIABLE != 0);
    let member = |slot: u64| {
        let at = scope.member(members.scope_first)?.checked_add(slot * 8)?;
        let text = HeapObject::new(reader.memory.read_u64(at)?)?;
        reader.is_string(text).then(|| reader.text(text, MAX_NAME))?
    };
    if flags & FUNCTION_VARIABLE != 0 {
        if let Some(name) = member(slot).filter(|name| !name.is_empty()) {
            return Some(name);
        }
        slot += 2;
    }
    let inferred = if flags & HAS_INFERRED_NAME != 0 { member(slot) } else { None };
    Some(inferred.unwrap_or_default())
}

/// Reads the function of `frame`, whose script `script_of` returns; `None` if it cannot be read, or if its
/// memory has another one by now.
pub(super) fn read_function(
    reader: &HeapReader<'_, impl ProcessMemory>,
    frame: &ManagedFrame,
    script_of: impl FnOnce(HeapObject) -> Option<Arc<Script>>,
) -> Option<JsFunction> {
    let shared = HeapObject(frame.code);
    let words = SharedWords::read(reader, shared).filter(|words| words.identity() == frame.identity)?;
    let name = words.name(reader)?;
    let script = words.script(reader).and_then(script_of);
    // Read last: a function that was replaced meanwhile is noticed, too.
    (SharedWords::read(reader, shared)? == words).then_some(JsFunction { name, script })
}
