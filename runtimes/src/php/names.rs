//! Names and lines of functions.

use symbols::VirtAddr;
use symbols::bytes::{u32_at, until_nul};

use super::layout::PhpLayout;
use super::walk::{CodeWords, EVALUATED, FunctionWords, INSTRUCTION};
use crate::code::LineTable;
use crate::{ManagedCode, ManagedFrame, ProcessMemory};

/// Bytes of a name, at most: a longer one is cut there.
const MAX_NAME: u64 = 4096;
/// Instructions of a function whose lines are read, at most, and of one reading.
const MAX_INSTRUCTIONS: u64 = 1 << 16;
const CHUNK: u64 = 1 << 12;
/// `zend_op.lineno`.
const LINE: usize = 24;
/// `zend_class_entry.name`.
const CLASS_NAME: u64 = 8;
/// `zend_string.len` and `zend_string.val`.
const LENGTH: u64 = 16;
const TEXT: u64 = 24;
/// Names of code without one: that of a file outside of its functions, as in the language's own stack traces,
/// and evaluated code.
const FILE_CODE: &str = "{main}";
const EVALUATED_CODE: &str = "eval";

/// Reader of the functions of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhpNames {
    layout: PhpLayout,
}

impl PhpNames {
    pub(super) fn new(layout: PhpLayout) -> Self {
        Self { layout }
    }

    /// Returns the function of a frame; `None` if it cannot be read, or if its memory has another object by
    /// now. Internal functions have neither file nor line. Bounded reads.
    pub fn read(&self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<ManagedCode> {
        let words = FunctionWords::read(memory, frame.code, self.layout).ok()?;
        let function = match words.name {
            0 if words.kind == EVALUATED => EVALUATED_CODE.to_owned(),
            0 => FILE_CODE.to_owned(),
            name => string(memory, name)?,
        };
        let name = match words.scope {
            0 => function,
            scope => {
                let class = memory.read_u64(VirtAddr(scope.checked_add(CLASS_NAME)?))?;
                format!("{}::{function}", string(memory, class)?)
            }
        };
        let file = words.code.and_then(|code| string(memory, code.file));
        let lines = words.code.and_then(|code| lines(memory, &code)).unwrap_or_default();
        // Read last: an object that was replaced meanwhile is noticed, too.
        let after = FunctionWords::read(memory, frame.code, self.layout).ok()?;
        let is_it = words.identity == frame.identity && after.identity == frame.identity;
        is_it.then_some(ManagedCode { name, file, start: 0, lines })
    }
}

/// Reads a string; that of an anonymous class has its place after a NUL, which is left out.
fn string(memory: &impl ProcessMemory, at: u64) -> Option<String> {
    let length = memory.read_u64(VirtAddr(at.checked_add(LENGTH)?))?.min(MAX_NAME);
    let bytes = memory.read_bytes(VirtAddr(at.checked_add(TEXT)?), length)?;
    Some(String::from_utf8_lossy(until_nul(&bytes)).into_owned())
}

/// Reads the lines of instructions by position in bytes.
fn lines(memory: &impl ProcessMemory, code: &CodeWords) -> Option<LineTable> {
    let (start, count) = code.instructions;
    let (mut table, mut at) = (LineTable::default(), 0);
    let count = count.min(MAX_INSTRUCTIONS);
    while at < count {
        let next = count.min(at + CHUNK);
        let from = VirtAddr(start.checked_add(at * INSTRUCTION)?);
        let bytes = memory.read_bytes(from, (next - at) * INSTRUCTION)?;
        let instructions = bytes.chunks_exact(usize::try_from(INSTRUCTION).ok()?);
        for (number, instruction) in (at..next).zip(instructions) {
            table.push(u32::try_from(number * INSTRUCTION).ok()?, u32_at(instruction, LINE));
        }
        at = next;
    }
    Some(table)
}
