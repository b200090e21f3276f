//! Names and lines of code objects.

use symbols::VirtAddr;
use symbols::bytes::{array_at, u64_at};

use super::layout::{NameLayout, ThreadNameLayout};
use super::lines;
use super::threads::thread_name;
use super::walk::{PythonPlan, identity};
use crate::{ManagedCode, ManagedFrame, ProcessMemory};

/// Characters of a name, at most: a longer one is cut there.
const MAX_NAME: u64 = 1024;
/// Bytes of a line table, at most.
const MAX_LINES: u64 = 256 << 10;
/// `PyObject.ob_type`, `PyVarObject.ob_size`, `PyBytesObject.ob_sval` (Include/object.h and
/// Include/cpython/bytesobject.h of 3.9 to 3.14).
const TYPE: u64 = 8;
const SIZE: u64 = 16;
const BYTES: u64 = 32;
/// `PyASCIIObject.length` and `.state` (Include/cpython/unicodeobject.h of 3.9 to 3.14).
const LENGTH: usize = 16;
const STATE: usize = 32;
/// Bits of `state` of builds with the global interpreter lock: `interned:2, kind:3, compact:1, ascii:1`.
const KIND_SHIFT: u32 = 2;
const COMPACT: u8 = 1 << 5;
const ASCII: u8 = 1 << 6;

/// Reader of the code objects of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonNames {
    layout: NameLayout,
    /// Address of `PyCode_Type`.
    code_type: VirtAddr,
}

impl PythonNames {
    pub(super) fn new(layout: NameLayout, code_type: VirtAddr) -> Self {
        Self { layout, code_type }
    }

    /// Returns the offsets for names of threads.
    pub(super) fn thread_layout(&self) -> Option<ThreadNameLayout> {
        self.layout.threads
    }

    /// Returns name and file of the code object at `code`; `None` for another object.
    pub(super) fn function(&self, memory: &impl ProcessMemory, code: VirtAddr) -> Option<(String, String)> {
        let member = |offset: u16| memory.read_u64(code.checked_add(offset.into())?).map(VirtAddr);
        if memory.read_u64(code.checked_add(TYPE)?)? != self.code_type.0 {
            return None;
        }
        let name = self.string(memory, member(self.layout.name)?)?;
        Some((name, self.string(memory, member(self.layout.file)?)?))
    }

    /// Returns the function of a frame's code; `None` if it cannot be read, or if its memory has another
    /// object by now. Reads at most 256 KiB.
    pub fn read(&self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<ManagedCode> {
        let member = |offset: u16| memory.read_u64(frame.code.checked_add(offset.into())?).map(VirtAddr);
        let (name, file) = self.function(memory, frame.code)?;
        let mut first_line = [0; 4];
        let line_at = self.layout.identity.first_line;
        memory.read(frame.code.checked_add(line_at.into())?, &mut first_line)?;
        let first_line = u32::from_le_bytes(first_line);
        let table = bytes_object(memory, member(self.layout.lines)?).unwrap_or_default();
        // Read last: an object that was replaced meanwhile is noticed, too.
        if identity(memory, frame.code, &self.layout.identity)? != frame.identity {
            return None;
        }
        let lines = lines::parse(self.layout.line_format, &table, first_line);
        Some(ManagedCode { name, file: Some(file), start: self.layout.bytecode.into(), lines })
    }

    /// Returns the name that `threading` has for a thread.
    pub(crate) fn thread_name(
        &self,
        memory: &impl ProcessMemory,
        plan: &PythonPlan,
        thread: VirtAddr,
    ) -> Option<String> {
        thread_name(plan, self, memory, thread)
    }

    /// Reads a `str`, with its last characters left out beyond 1,024.
    pub(super) fn string(&self, memory: &impl ProcessMemory, at: VirtAddr) -> Option<String> {
        let mut head = [0; STATE + 8];
        memory.read(at, &mut head)?;
        let length = u64_at(&head, LENGTH)?.min(MAX_NAME);
        let [state] = array_at::<1>(&head, STATE)?;
        if state & COMPACT == 0 {
            return None;
        }
        let ascii = state & ASCII != 0;
        let data = at.checked_add(if ascii { self.layout.ascii } else { self.layout.compact }.into())?;
        let width = u64::from(state >> KIND_SHIFT & 7);
        let bytes = memory.read_bytes(data, length.checked_mul(width)?)?;
        let character = |value: u32| char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
        Some(match width {
            1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
            2 => bytes.as_chunks().0.iter().map(|&two| character(u16::from_le_bytes(two).into())).collect(),
            4 => bytes.as_chunks().0.iter().map(|&four| character(u32::from_le_bytes(four))).collect(),
            _ => return None,
        })
    }
}

/// Reads a `bytes`; `None` if it is too long.
fn bytes_object(memory: &impl ProcessMemory, at: VirtAddr) -> Option<Vec<u8>> {
    let length = memory.read_u64(at.checked_add(SIZE)?).filter(|&length| length <= MAX_LINES)?;
    memory.read_bytes(at.checked_add(BYTES)?, length)
}
