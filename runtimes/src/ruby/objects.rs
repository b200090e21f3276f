//! Objects of Ruby: strings, arrays, symbols, and the internal ones that frames lead to.
//!
//! Offsets are those of include/ruby/internal/core/rbasic.h, rstring.h, rarray.h and symbol.h of 3.0 to 3.4.

use symbols::VirtAddr;

use super::layout::EmbeddedString;
use crate::ProcessMemory;

/// Bytes of a name, at most: a longer one is cut there.
const MAX_NAME: u64 = 4096;
/// Elements of an array, at most.
const MAX_ELEMENTS: u64 = 1 << 24;
/// Bits of `RBasic.flags` with the object's type (`RUBY_T_MASK`).
const TYPE: u64 = 0x1f;
/// `RUBY_T_STRING`, `RUBY_T_ARRAY`, `RUBY_T_SYMBOL`, `RUBY_T_IMEMO`.
const STRING: u64 = 0x05;
const ARRAY: u64 = 0x07;
const SYMBOL: u64 = 0x14;
const INTERNAL: u64 = 0x1a;
/// Lowest bit of the flags that a type uses (`RUBY_FL_USHIFT`).
const USER: u32 = 12;
/// `RSTRING_NOEMBED`, and `RARRAY_EMBED_FLAG`: both `RUBY_FL_USER1`.
const SEPARATE_STRING: u64 = 1 << (USER + 1);
const EMBEDDED_ARRAY: u64 = 1 << (USER + 1);
/// Bits of the length of an embedded string (`RSTRING_EMBED_LEN_MASK` of 3.1: `RUBY_FL_USER2` to 6) and array
/// (`RARRAY_EMBED_LEN_MASK`: from `RUBY_FL_USER3` on).
const STRING_LENGTH: (u32, u64) = (USER + 2, 0x1f);
const ARRAY_LENGTH: (u32, u64) = (USER + 3, 0x7f);
/// Tag of a symbol that is not an object, whose number follows (`RUBY_SYMBOL_FLAG`).
const STATIC_SYMBOL: u64 = 0x0c;

/// Internal objects (`enum imemo_type`, internal/imemo.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InternalKind {
    /// `imemo_svar`: special variables; the method follows at 8.
    SpecialVariables,
    /// `imemo_ment`: a method.
    Method,
    /// `imemo_iseq`: bytecode.
    Bytecode,
}

impl InternalKind {
    /// Returns the kind of the object with these flags; `None` for other objects.
    pub(super) fn new(flags: u64) -> Option<Self> {
        match (flags & TYPE, flags >> USER & 0xf) {
            (INTERNAL, 2) => Some(Self::SpecialVariables),
            (INTERNAL, 6) => Some(Self::Method),
            (INTERNAL, 7) => Some(Self::Bytecode),
            _ => None,
        }
    }
}

/// Reads the word at `offset` of the structure at `base`.
pub(super) fn word(memory: &impl ProcessMemory, base: u64, offset: u64) -> Option<u64> {
    memory.read_u64(VirtAddr(base.checked_add(offset)?))
}

/// Returns true for objects of the heap, whose addresses are multiples of 8.
fn is_object(value: u64) -> bool {
    value > 0xfff && value & 7 == 0
}

/// Reads a string.
pub(super) fn string(memory: &impl ProcessMemory, value: u64, embedded: EmbeddedString) -> Option<String> {
    let flags = word(memory, value, 0).filter(|_| is_object(value))?;
    if flags & TYPE != STRING {
        return None;
    }
    let (at, length) = match embedded {
        _ if flags & SEPARATE_STRING != 0 => (word(memory, value, 24)?, word(memory, value, 16)?),
        EmbeddedString::LengthInFlags => (value.checked_add(16)?, flags >> STRING_LENGTH.0 & STRING_LENGTH.1),
        EmbeddedString::LengthInObject => (value.checked_add(24)?, word(memory, value, 16)?),
    };
    let bytes = memory.read_bytes(VirtAddr(at), length.min(MAX_NAME))?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads an element of an array; `None` if there is none.
pub(super) fn element(memory: &impl ProcessMemory, value: u64, index: u64) -> Option<u64> {
    let flags = word(memory, value, 0).filter(|_| is_object(value))?;
    if flags & TYPE != ARRAY {
        return None;
    }
    let (at, length) = if flags & EMBEDDED_ARRAY != 0 {
        (value.checked_add(16)?, flags >> ARRAY_LENGTH.0 & ARRAY_LENGTH.1)
    } else {
        (word(memory, value, 32)?, word(memory, value, 16)?)
    };
    if index >= length.min(MAX_ELEMENTS) {
        return None;
    }
    word(memory, at, index * 8)
}

/// Reads a path: a string, or an array that begins with one (`pathobj_path`, vm_core.h).
pub(super) fn path(memory: &impl ProcessMemory, value: u64, embedded: EmbeddedString) -> Option<String> {
    string(memory, value, embedded).or_else(|| string(memory, element(memory, value, 0)?, embedded))
}

/// Reads the number of a symbol.
pub(super) fn symbol_number(memory: &impl ProcessMemory, value: u64) -> Option<u64> {
    if value & 0xff == STATIC_SYMBOL {
        return Some(value >> 8);
    }
    let flags = word(memory, value, 0).filter(|_| is_object(value))?;
    // `RSymbol.id`.
    if flags & TYPE == SYMBOL { word(memory, value, 32) } else { None }
}
