//! Offsets of the members of CPython's structures, in bytes.
//!
//! 3.9 to 3.12: `offsetof` by a compiler on the headers of 3.9.18, 3.10.13, 3.11.2, 3.11.7 and 3.12.1
//! (Include/internal/pycore_runtime.h, pycore_interp.h, pycore_frame.h, Include/cpython/pystate.h, code.h,
//! frameobject.h). Releases of one minor version have the same layout. From 3.13 on the runtime's own table,
//! whose order is that of Include/internal/pycore_runtime.h of 3.13.0 and pycore_debug_offsets.h of 3.14.

use symbols::VirtAddr;
use symbols::bytes::u64_at;

use crate::{LayoutError, ProcessMemory, RuntimeLanguage};

/// First bytes of `_PyRuntime` since 3.13 (`_Py_Debug_Cookie`).
const COOKIE: &[u8; 8] = b"xdebugpy";
/// Words of `_Py_DebugOffsets` that are read, with the cookie.
const TABLE_WORDS: usize = 50;
/// Offsets in a frame or code object, at most: both are read in one piece.
pub(super) const LARGEST_NEAR: u16 = 256;
/// Offsets in other structures, at most: `_PyRuntime` has 460,000 bytes in 3.12.
const LARGEST: u64 = 1 << 20;

/// Offsets of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonLayout {
    /// Offsets for walks.
    pub walk: WalkLayout,
    /// Offsets for names.
    pub names: NameLayout,
}

/// Offsets that a walk needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkLayout {
    /// `_PyRuntimeState.interpreters.head`.
    pub interpreters: u32,
    /// `PyInterpreterState.next`.
    pub next_interpreter: u32,
    /// `PyInterpreterState.threads.head`.
    pub threads: u32,
    /// `PyThreadState.prev`.
    pub previous_thread: u16,
    /// `PyThreadState.next`.
    pub next_thread: u16,
    /// `PyThreadState.thread_id`.
    pub thread_id: u16,
    /// Chain of the frames of a thread.
    pub chain: FrameChain,
    /// A frame's caller: `previous`, or `f_back`.
    pub previous: u16,
    /// A frame's code object: `f_code`, or `f_executable`.
    pub code: u16,
    /// A frame's instruction.
    pub instruction: Instruction,
    /// Members that identify a code object.
    pub identity: CodeIdentity,
}

/// Members of a code object that show another object at the same address, with their offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeIdentity {
    /// Pointers: `PyCodeObject.co_filename`, `co_name`, and the line table.
    pub pointers: [u16; 3],
    /// `PyCodeObject.co_firstlineno`, an int.
    pub first_line: u16,
}

/// Chain of the frames of a thread, with the offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameChain {
    /// 3.9: `PyThreadState.frame`.
    Objects {
        /// `PyThreadState.frame`.
        frame: u16,
    },
    /// 3.10: `PyThreadState.frame`, and for each frame one of `PyThreadState.cframe`.
    ObjectsWithCframes {
        /// `PyThreadState.frame`.
        frame: u16,
        /// `PyThreadState.cframe`.
        cframe: u16,
        /// `CFrame.previous`.
        previous: u16,
    },
    /// 3.11: the last frame of each `_PyCFrame` is marked.
    Cframes {
        /// `PyThreadState.cframe`.
        cframe: u16,
        /// `_PyCFrame.current_frame`.
        current: u16,
        /// `_PyCFrame.previous`.
        previous: u16,
        /// `_PyInterpreterFrame.is_entry`, a byte.
        is_entry: u16,
    },
    /// 3.12 and later: the last frame of each native frame is a shim.
    Shims {
        /// `PyThreadState.cframe`, which points to the pointer to the current frame (3.12).
        cframe: Option<u16>,
        /// `_PyCFrame.current_frame` (3.12), or `PyThreadState.current_frame`.
        current: u16,
        /// `_PyInterpreterFrame.owner`, a byte: `FRAME_OWNED_BY_CSTACK` (3.12, 3.13: 3) or
        /// `FRAME_OWNED_BY_INTERPRETER` (3.14: 3) and above for shims.
        owner: u16,
    },
}

/// Place of a frame's instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// An address: `prev_instr`, or `instr_ptr`.
    Address(u16),
    /// `f_lasti`, an int: position in the bytecode, in units of so many bytes.
    Index {
        /// Offset in the frame.
        at: u16,
        /// Bytes of a unit.
        unit: u8,
    },
}

/// Offsets that names need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameLayout {
    /// `PyCodeObject.co_filename`.
    pub file: u16,
    /// `PyCodeObject.co_qualname`, or `co_name` before 3.11.
    pub name: u16,
    /// `PyCodeObject.co_linetable`, or `co_lnotab` before 3.10.
    pub lines: u16,
    /// Format of the line table.
    pub line_format: LineFormat,
    /// Bytes from the code object to its bytecode: `co_code_adaptive`; 0 before 3.11, where the walk counts
    /// from the bytecode's start.
    pub bytecode: u16,
    /// As in [`WalkLayout::identity`].
    pub identity: CodeIdentity,
    /// Bytes of `PyASCIIObject`: the characters of a string of ASCII.
    pub ascii: u16,
    /// Bytes of `PyCompactUnicodeObject`: the characters of other strings.
    pub compact: u16,
    /// Offsets for names of threads; `None` since 3.14, which passes them to the kernel.
    pub threads: Option<ThreadNameLayout>,
}

/// Offsets that names of threads need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadNameLayout {
    /// First local variable of a frame: `localsplus`, or `f_localsplus`.
    pub locals: u16,
    /// `PyHeapTypeObject.ht_cached_keys`.
    pub cached_keys: u16,
    /// Place of an object's attributes.
    pub storage: AttributeStorage,
}

/// Place of the attributes of an object of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeStorage {
    /// 3.9, 3.10: in a dict.
    Dict,
    /// 3.11: in an array that a pointer before the object leads to, or in a dict.
    Values,
    /// 3.12: the same, with one pointer for both.
    Tagged,
    /// 3.13: in the object, or in a dict.
    Inline,
}

/// Formats of line tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    /// `co_lnotab`, up to 3.9 (Objects/lnotab_notes.txt of 3.9).
    Lnotab,
    /// `co_linetable` of 3.10 (Objects/lnotab_notes.txt of 3.10).
    Ranges,
    /// `co_linetable` since 3.11 (Objects/locations.md of 3.11).
    Locations,
}

/// CPython 3.9.
const V3_9: PythonLayout = PythonLayout {
    walk: WalkLayout {
        interpreters: 32,
        next_interpreter: 0,
        threads: 8,
        previous_thread: 0,
        next_thread: 8,
        thread_id: 176,
        chain: FrameChain::Objects { frame: 24 },
        previous: 24,
        code: 32,
        instruction: Instruction::Index { at: 104, unit: 1 },
        identity: CodeIdentity { pointers: [104, 112, 120], first_line: 40 },
    },
    names: NameLayout {
        file: 104,
        name: 112,
        lines: 120,
        line_format: LineFormat::Lnotab,
        bytecode: 0,
        identity: CodeIdentity { pointers: [104, 112, 120], first_line: 40 },
        ascii: 48,
        compact: 72,
        threads: Some(ThreadNameLayout { locals: 360, cached_keys: 864, storage: AttributeStorage::Dict }),
    },
};

/// CPython 3.10.
const V3_10: PythonLayout = PythonLayout {
    walk: WalkLayout {
        chain: FrameChain::ObjectsWithCframes { frame: 24, cframe: 48, previous: 8 },
        instruction: Instruction::Index { at: 96, unit: 2 },
        ..V3_9.walk
    },
    names: NameLayout {
        line_format: LineFormat::Ranges,
        threads: Some(ThreadNameLayout { locals: 352, cached_keys: 872, storage: AttributeStorage::Dict }),
        ..V3_9.names
    },
};

/// CPython 3.11.
const V3_11: PythonLayout = PythonLayout {
    walk: WalkLayout {
        interpreters: 40,
        next_interpreter: 0,
        threads: 16,
        previous_thread: 0,
        next_thread: 8,
        thread_id: 152,
        chain: FrameChain::Cframes { cframe: 56, current: 8, previous: 16, is_entry: 68 },
        previous: 48,
        code: 32,
        instruction: Instruction::Address(56),
        identity: CodeIdentity { pointers: [112, 120, 136], first_line: 72 },
    },
    names: NameLayout {
        file: 112,
        name: 128,
        lines: 136,
        line_format: LineFormat::Locations,
        bytecode: 184,
        identity: CodeIdentity { pointers: [112, 120, 136], first_line: 72 },
        ascii: 48,
        compact: 72,
        threads: Some(ThreadNameLayout { locals: 72, cached_keys: 872, storage: AttributeStorage::Values }),
    },
};

/// CPython 3.12.
const V3_12: PythonLayout = PythonLayout {
    walk: WalkLayout {
        threads: 72,
        thread_id: 136,
        chain: FrameChain::Shims { cframe: Some(56), current: 0, owner: 70 },
        previous: 8,
        code: 0,
        identity: CodeIdentity { pointers: [112, 120, 136], first_line: 68 },
        ..V3_11.walk
    },
    names: NameLayout {
        bytecode: 192,
        identity: CodeIdentity { pointers: [112, 120, 136], first_line: 68 },
        ascii: 40,
        compact: 56,
        threads: Some(ThreadNameLayout { locals: 72, cached_keys: 880, storage: AttributeStorage::Tagged }),
        ..V3_11.names
    },
};

/// Positions in `_Py_DebugOffsets`, in words; the cookie is word 0.
struct TablePositions {
    interpreters: usize,
    next_interpreter: usize,
    threads: usize,
    previous_thread: usize,
    next_thread: usize,
    current_frame: usize,
    thread_id: usize,
    previous: usize,
    executable: usize,
    instruction: usize,
    owner: usize,
    file: usize,
    name: usize,
    qualified_name: usize,
    lines: usize,
    first_line: usize,
    bytecode: usize,
}

/// Position of `version`, as `PY_VERSION_HEX`.
const VERSION: usize = 1;
/// Position of `free_threaded`.
const FREE_THREADED: usize = 2;

const TABLE_3_13: TablePositions = TablePositions {
    interpreters: 5,
    next_interpreter: 8,
    threads: 9,
    previous_thread: 20,
    next_thread: 21,
    current_frame: 23,
    thread_id: 24,
    previous: 29,
    executable: 30,
    instruction: 31,
    owner: 33,
    file: 35,
    name: 36,
    qualified_name: 37,
    lines: 38,
    first_line: 39,
    bytecode: 43,
};

/// 3.14 adds `threads_main`, `code_object_generation` and `tlbc_generation` to the interpreter's offsets, and
/// `stackpointer` and `tlbc_index` to the frame's.
const TABLE_3_14: TablePositions = TablePositions {
    interpreters: 5,
    next_interpreter: 8,
    threads: 9,
    previous_thread: 23,
    next_thread: 24,
    current_frame: 26,
    thread_id: 27,
    previous: 32,
    executable: 33,
    instruction: 34,
    owner: 36,
    file: 40,
    name: 41,
    qualified_name: 42,
    lines: 43,
    first_line: 44,
    bytecode: 48,
};

impl PythonLayout {
    /// Returns the layout of `version`; since 3.13 from the table at `runtime`, the address of `_PyRuntime`.
    pub fn new(
        version: (u8, u8),
        memory: &impl ProcessMemory,
        runtime: VirtAddr,
    ) -> Result<Self, LayoutError> {
        let positions = match version {
            (3, 9) => return Ok(V3_9),
            (3, 10) => return Ok(V3_10),
            (3, 11) => return Ok(V3_11),
            (3, 12) => return Ok(V3_12),
            (3, 13) => TABLE_3_13,
            (3, 14) => TABLE_3_14,
            (major, minor) => return Err(LayoutError::Version(RuntimeLanguage::Python, major, minor)),
        };
        let mut table = [0; TABLE_WORDS * 8];
        memory.read(runtime, &mut table).ok_or(LayoutError::NotPresent)?;
        from_table(version, &table, &positions)
    }
}

/// Returns the layout in the runtime's own table.
fn from_table(version: (u8, u8), table: &[u8], at: &TablePositions) -> Result<PythonLayout, LayoutError> {
    let word = |position: usize| u64_at(table, position * 8).ok_or(LayoutError::Invalid);
    let [_, _, minor, major, ..] = word(VERSION)?.to_le_bytes();
    if !table.starts_with(COOKIE) || (major, minor) != version {
        return Err(LayoutError::Invalid);
    }
    if word(FREE_THREADED)? != 0 {
        return Err(LayoutError::FreeThreaded);
    }
    let far = |position| {
        let offset = word(position)?;
        u32::try_from(offset).ok().filter(|_| offset < LARGEST).ok_or(LayoutError::Invalid)
    };
    let middle = |position| u16::try_from(word(position)?).map_err(|_| LayoutError::Invalid);
    let near = |position| {
        let offset = middle(position)?;
        Some(offset).filter(|&offset| offset <= LARGEST_NEAR - 8).ok_or(LayoutError::Invalid)
    };
    let identity = CodeIdentity {
        pointers: [near(at.file)?, near(at.name)?, near(at.lines)?],
        first_line: near(at.first_line)?,
    };
    Ok(PythonLayout {
        walk: WalkLayout {
            interpreters: far(at.interpreters)?,
            next_interpreter: far(at.next_interpreter)?,
            threads: far(at.threads)?,
            previous_thread: middle(at.previous_thread)?,
            next_thread: middle(at.next_thread)?,
            thread_id: middle(at.thread_id)?,
            chain: FrameChain::Shims {
                cframe: None,
                current: middle(at.current_frame)?,
                owner: near(at.owner)?,
            },
            previous: near(at.previous)?,
            code: near(at.executable)?,
            instruction: Instruction::Address(near(at.instruction)?),
            identity,
        },
        names: NameLayout {
            file: near(at.file)?,
            name: near(at.qualified_name)?,
            lines: near(at.lines)?,
            bytecode: near(at.bytecode)?,
            identity,
            threads: (version == (3, 13)).then_some(ThreadNameLayout {
                storage: AttributeStorage::Inline,
                locals: 72,
                cached_keys: 880,
            }),
            ..V3_12.names
        },
    })
}
