//! Layout of one build of V8, from its variables for debuggers.
//!
//! Each build has its own numbers and offsets. The few that no variable has are constants here, with the
//! versions that they were read from.

use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Reason why the frames of a process with V8 are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum V8Error {
    /// A variable is missing, or its value is not possible.
    #[error("V8 has no usable variable {0}")]
    Missing(&'static str),
    /// Pointers are compressed: no release of Node.js has such a build.
    #[error("V8 is built with compressed pointers")]
    Compressed,
}

/// Numbers of object types (`instance_type`).
#[derive(Debug, Clone)]
pub(super) struct TypeNumbers {
    pub map: u16,
    pub functions: RangeInclusive<u16>,
    pub shared: u16,
    pub scope: u16,
    pub script: u16,
    pub bytecode: u16,
    pub interpreter_data: u16,
    pub code: u16,
    /// Tables of bytes, on the heap and in trusted space.
    pub bytes: [u16; 2],
    /// `InstructionStream`; none before V8 11, where `Code` has the instructions.
    pub instructions: Option<u16>,
    /// The first type that is not a string.
    pub first_not_string: u16,
}

/// Slots of frames, bytes from RBP, and markers.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameLayout {
    pub context: i64,
    pub function: i64,
    pub bytecode: i64,
    pub bytecode_offset: i64,
    /// Kinds of the frames that native code enters.
    pub entries: [u64; 2],
    /// Kind of the frame of a builtin in C++.
    pub builtin_exit: u64,
}

/// Offsets of members, bytes from the start of their object.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemberOffsets {
    pub map_type: u16,
    pub function_shared: u16,
    pub shared_data: u16,
    pub shared_name: u16,
    pub shared_script: u16,
    pub script_source: u16,
    pub script_name: u16,
    pub script_line: u16,
    /// Table of source positions of bytecode, and its instructions.
    pub bytecode_positions: u16,
    pub bytecode_start: u16,
    pub array_length: u16,
    pub array_data: u16,
    pub scope_locals: u16,
    pub scope_first: u16,
}

/// `Code`, and the instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodeLayout {
    /// Deoptimization data of optimised code; bytecode of baseline code.
    pub data: u16,
    /// Source positions of optimised code; bytecode offsets of baseline code.
    pub positions: u16,
    /// Address of the first instruction; before V8 11 they are at this offset in the object.
    pub start: u16,
    pub size: u16,
    pub flags: u16,
    pub kind_mask: u32,
    /// Kind of copies of the interpreter's entry.
    pub interpreter: u32,
    /// Kind of baseline code; optimised kinds follow.
    pub baseline: u32,
    /// Entries of the deoptimization data.
    pub deopt_shared: u16,
    pub deopt_literals: u16,
    pub deopt_inlined: u16,
    pub deopt_count: u16,
    /// The function is in a wrapper.
    pub is_shared_wrapped: bool,
}

/// Strings.
#[derive(Debug, Clone, Copy)]
pub(super) struct StringLayout {
    pub length: u16,
    pub chars: u16,
    /// First parts of strings made of parts, or what a string refers to; second part; offset in the parent.
    pub first: u16,
    pub second: u16,
    pub offset: u16,
    pub resource: u16,
    pub shapes: StringShapes,
}

/// Bits of the type of a string.
#[derive(Debug, Clone, Copy)]
pub(super) struct StringShapes {
    pub mask: u16,
    pub sequential: u16,
    pub cons: u16,
    pub external: u16,
    pub sliced: u16,
    pub thin: u16,
    pub one_byte: u16,
}

/// All that walks need of one build.
#[derive(Debug, Clone)]
pub(super) struct V8Layout {
    pub types: TypeNumbers,
    pub frame: FrameLayout,
    pub members: MemberOffsets,
    pub code: CodeLayout,
    pub strings: StringLayout,
}

/// Values of the variables, by name without their prefix.
struct Variables<'a>(&'a HashMap<String, i32>);

impl Variables<'_> {
    fn find(&self, names: &[&str]) -> Option<i32> {
        names.iter().find_map(|&name| self.0.get(name).copied())
    }

    fn find_u16(&self, names: &[&str]) -> Option<u16> {
        self.find(names).and_then(|value| u16::try_from(value).ok())
    }

    fn number(&self, name: &'static str) -> Result<i32, V8Error> {
        self.find(&[name]).ok_or(V8Error::Missing(name))
    }

    fn u16(&self, name: &'static str) -> Result<u16, V8Error> {
        self.find_u16(&[name]).ok_or(V8Error::Missing(name))
    }

    /// Returns the first variable of these names: the type of a member is a part of its name.
    fn one_of<const N: usize>(&self, names: [&'static str; N]) -> Result<u16, V8Error> {
        self.find_u16(&names).ok_or(V8Error::Missing(names.first().copied().unwrap_or_default()))
    }

    /// Returns the slot of a frame.
    fn slot(&self, name: &'static str) -> Result<i64, V8Error> {
        let value = self.number(name)?;
        (-256..0).contains(&value).then_some(value.into()).ok_or(V8Error::Missing(name))
    }

    fn kind(&self, name: &'static str) -> Result<u64, V8Error> {
        self.u16(name).map(u64::from)
    }
}

impl V8Layout {
    /// Returns the layout of a build with these variables.
    pub(super) fn new(variables: &HashMap<String, i32>) -> Result<Self, V8Error> {
        let all = Variables(variables);
        if all.number("TaggedSize")? != 8 || all.number("SmiShiftSize")? != 31 {
            return Err(V8Error::Compressed);
        }
        Ok(Self {
            types: types(&all)?,
            frame: FrameLayout {
                context: all.slot("off_fp_context_or_frame_type")?,
                function: all.slot("off_fp_function")?,
                bytecode: all.slot("off_fp_bytecode_array")?,
                bytecode_offset: all.slot("off_fp_bytecode_offset")?,
                entries: [all.kind("frametype_EntryFrame")?, all.kind("frametype_ConstructEntryFrame")?],
                builtin_exit: all.kind("frametype_BuiltinExitFrame")?,
            },
            members: members(&all)?,
            code: code(&all)?,
            strings: strings(&all)?,
        })
    }
}

/// Types of functions: those of constructors follow `JS_FUNCTION_TYPE` (src/objects/js-function.tq, V8 10.2
/// to 13.6).
const FUNCTION_TYPES: u16 = 17;

fn types(all: &Variables<'_>) -> Result<TypeNumbers, V8Error> {
    let function = all.u16("type_JSFunction__JS_FUNCTION_TYPE")?;
    let last = all.find_u16(&["LastJSFunctionType"]).unwrap_or(function.saturating_add(FUNCTION_TYPES - 1));
    let bytes = all.u16("type_ByteArray__BYTE_ARRAY_TYPE")?;
    Ok(TypeNumbers {
        map: all.u16("type_Map__MAP_TYPE")?,
        functions: all.find_u16(&["FirstJSFunctionType"]).unwrap_or(function)..=last,
        shared: all.u16("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE")?,
        scope: all.u16("type_ScopeInfo__SCOPE_INFO_TYPE")?,
        script: all.u16("type_Script__SCRIPT_TYPE")?,
        bytecode: all.u16("type_BytecodeArray__BYTECODE_ARRAY_TYPE")?,
        interpreter_data: all.u16("type_InterpreterData__INTERPRETER_DATA_TYPE")?,
        code: all.u16("type_Code__CODE_TYPE")?,
        bytes: [bytes, all.find_u16(&["type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE"]).unwrap_or(bytes)],
        instructions: all.find_u16(&["type_InstructionStream__INSTRUCTION_STREAM_TYPE"]),
        first_not_string: all.u16("FirstNonstringType")?,
    })
}

/// Word of an object.
const WORD: u16 = 8;
/// `BytecodeArray::source_position_table` where bytecode has no wrapper; otherwise it follows the wrapper
/// (src/objects/bytecode-array.tq, V8 10.2 to 11.3; src/objects/bytecode-array.h, 12.4 to 13.6).
const BYTECODE_POSITIONS: u16 = 32;

fn members(all: &Variables<'_>) -> Result<MemberOffsets, V8Error> {
    let script_name = all.u16("class_Script__name__Object")?;
    let wrapper = all.find_u16(&["class_BytecodeArray__wrapper__Tagged_BytecodeWrapper_"]);
    // A slot of a scope is counted from the first member on.
    let slot = |name| all.u16(name).map(|slot| slot.saturating_add(1).saturating_mul(WORD));
    Ok(MemberOffsets {
        map_type: all.u16("class_Map__instance_type__uint16_t")?,
        function_shared: all.u16("class_JSFunction__shared__SharedFunctionInfo")?,
        // The first member (src/objects/shared-function-info.tq, V8 10.2 to 13.6).
        shared_data: all.find_u16(&["class_SharedFunctionInfo__function_data__Object"]).unwrap_or(WORD),
        shared_name: all.one_of([
            "class_SharedFunctionInfo__name_or_scope_info__Object",
            "class_SharedFunctionInfo__name_or_scope_info__Tagged_Object_",
            "class_SharedFunctionInfo__name_or_scope_info__Tagged_NameOrScopeInfoT_",
        ])?,
        shared_script: all.one_of([
            "class_SharedFunctionInfo__script__Tagged_HeapObject_",
            "class_SharedFunctionInfo__raw_script__Tagged_Object_",
            "class_SharedFunctionInfo__script_or_debug_info__HeapObject",
        ])?,
        script_source: all.u16("class_Script__source__Object")?,
        script_name,
        // The line in the file that the source begins in follows the name (src/objects/script.tq).
        script_line: script_name.saturating_add(WORD),
        bytecode_positions: wrapper.map_or(BYTECODE_POSITIONS, |wrapper| wrapper.saturating_add(WORD)),
        bytecode_start: all.u16("class_BytecodeArray__data__uintptr_t")?,
        array_length: all.u16("class_FixedArrayBase__length__SMI")?,
        array_data: all.u16("class_FixedArray__data__uintptr_t")?,
        scope_locals: slot("scopeinfo_idx_ncontextlocals")?,
        scope_first: slot("scopeinfo_idx_first_vars")?,
    })
}

/// `Code` in three forms (src/objects/code.h in V8 10.2, 11.3, and 12.4 to 13.6).
fn code(all: &Variables<'_>) -> Result<CodeLayout, V8Error> {
    let has_stream = all.find(&["type_InstructionStream__INSTRUCTION_STREAM_TYPE"]).is_some();
    let is_trusted = all.find(&["class_BytecodeArray__wrapper__Tagged_BytecodeWrapper_"]).is_some();
    let (data, positions) = if is_trusted { (WORD, 2 * WORD) } else { (2 * WORD, 3 * WORD) };
    let (start, size, flags) = match (has_stream, is_trusted) {
        (false, _) => (128, 40, 48),
        (true, false) => (40, 56, 48),
        (true, true) => (40, 52, 48),
    };
    let entry = |names: &[&str], otherwise| all.find_u16(names).unwrap_or(otherwise);
    Ok(CodeLayout {
        data,
        positions,
        start: if has_stream { start } else { entry(&["class_Code__instruction_start__uintptr_t"], start) },
        size: entry(&["class_Code__instruction_size__int"], size),
        flags: entry(&["class_Code__flags__uint32_t"], flags),
        kind_mask: u32::from(all.u16("CodeKindFieldMask")?),
        interpreter: u32::from(all.u16("CodeKindInterpretedFunction")?),
        baseline: u32::from(all.u16("CodeKindBaseline")?),
        deopt_shared: entry(
            &[
                "DeoptimizationDataSharedFunctionInfoIndex",
                "DeoptimizationDataWrappedSharedFunctionInfoIndex",
            ],
            6,
        ),
        deopt_literals: entry(&["DeoptimizationDataLiteralArrayIndex"], 2),
        deopt_inlined: entry(&["DeoptimizationDataInliningPositionsIndex"], 7),
        deopt_count: entry(&["DeoptimizationDataInlinedFunctionCountIndex"], 1),
        is_shared_wrapped: all.find(&["DeoptimizationDataWrappedSharedFunctionInfoIndex"]).is_some(),
    })
}

fn strings(all: &Variables<'_>) -> Result<StringLayout, V8Error> {
    let first = all.u16("class_ConsString__first__String")?;
    // Other references are at the same place, so one offset is enough.
    let others = ["class_SlicedString__parent__String", "class_ThinString__actual__String"];
    if let Some(other) = others.into_iter().find(|other| all.u16(other) != Ok(first)) {
        return Err(V8Error::Missing(other));
    }
    Ok(StringLayout {
        length: all.u16("class_String__length__int32_t")?,
        chars: all.u16("class_SeqOneByteString__chars__char")?,
        first,
        second: all.u16("class_ConsString__second__String")?,
        offset: all.u16("class_SlicedString__offset__SMI")?,
        resource: all.u16("class_ExternalString__resource__Object")?,
        shapes: StringShapes {
            mask: all.u16("StringRepresentationMask")?,
            sequential: all.u16("SeqStringTag")?,
            cons: all.u16("ConsStringTag")?,
            external: all.u16("ExternalStringTag")?,
            sliced: all.u16("SlicedStringTag")?,
            thin: all.u16("ThinStringTag")?,
            one_byte: all.u16("OneByteStringTag")?,
        },
    })
}
