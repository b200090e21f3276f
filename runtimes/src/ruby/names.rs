//! Names and lines of bytecode and of methods of C.

use symbols::bytes::{array_at, u32_at, u64_at};
use symbols::{LinkAddr, VirtAddr};

use super::layout::RubyLayout;
use super::objects::{InternalKind, element, path, string, symbol_number, word};
use super::walk::{CodeWords, LABEL, PATH};
use crate::code::LineTable;
use crate::{ManagedCode, ManagedFrame, ProcessMemory};

/// Words of bytecode whose lines are read, at most.
const MAX_WORDS: u64 = 1 << 18;
/// Entries of a line table, at most.
const MAX_ENTRIES: u64 = 1 << 14;
/// `rb_iseq_constant_body.type` of evaluated code (`ISEQ_TYPE_EVAL`, vm_core.h), and how deep it may be in
/// other such code.
const EVALUATED: u64 = 6;
const MAX_EVALUATED: usize = 16;
/// `rb_iseq_constant_body.parent_iseq`, from `insns_info` on.
const PARENT: u64 = 48;
/// `rb_method_definition_t.original_id` (method.h of 3.0 to 3.4).
const ORIGINAL_ID: u64 = 32;
/// Bytes of `iseq_insn_info_entry`, which begins with the line (iseq.h).
const LINE_ENTRY: usize = 12;
/// Symbols in one array of the table, and words of each: its text, and itself (symbol.c).
const IDS_OF_ARRAY: u64 = 512;
const ID_WORDS: u64 = 2;
/// Bits of a number that are not the place in the table, for all but operators (`ID_SCOPE_SHIFT`).
const SCOPE: u32 = 4;
/// Positions in the first part of the index of a line table, of which 9 share a word, 7 bits each; positions
/// in a block of the second part, and its bytes (`struct succ_index_table`, iseq.c).
const IMMEDIATE: usize = 54;
const IN_WORD: usize = 9;
const IN_BLOCK: usize = 512;
const BLOCK: usize = 80;

/// The table of symbols in a file (`ruby_global_symbols`, symbol.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SymbolTable {
    /// Address of the place of the last symbol.
    pub last: LinkAddr,
    /// Address of the array of arrays of symbols.
    pub ids: LinkAddr,
    /// Number of the last operator (`tLAST_OP_ID`).
    pub last_operator: u64,
}

/// Reader of the code objects of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RubyNames {
    layout: RubyLayout,
    symbols: Option<SymbolTable>,
    bias: u64,
}

impl RubyNames {
    pub(super) fn new(layout: RubyLayout, symbols: Option<SymbolTable>, bias: u64) -> Self {
        Self { layout, symbols, bias }
    }

    /// Returns the function of a frame's code; `None` if it cannot be read, or if its memory has another
    /// object by now. Methods of C have neither file nor line. Bounded reads.
    pub fn read(&self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<ManagedCode> {
        let words = CodeWords::read(memory, frame.code).ok()?;
        let code = match words.kind {
            InternalKind::Method => {
                let name = self.symbol(memory, word(memory, words.body, ORIGINAL_ID)?)?;
                ManagedCode { name, file: None, start: 0, lines: LineTable::default() }
            }
            InternalKind::Bytecode => {
                let name = self.label(memory, words.body)?;
                let file = path(memory, word(memory, words.body, PATH as u64)?, self.layout.embedded);
                let lines = self.lines(memory, &words).unwrap_or_default();
                ManagedCode { name, file, start: 0, lines }
            }
            InternalKind::SpecialVariables => return None,
        };
        // Read last: an object that was replaced meanwhile is noticed, too.
        let after = CodeWords::read(memory, frame.code).ok()?;
        (words.identity == frame.identity && after.identity == frame.identity).then_some(code)
    }

    /// See [`crate::RuntimeNames::interpreter`]: the first word of bytecode is the address of the code of an
    /// instruction, with direct threading, which every build by GCC or Clang has.
    pub(crate) fn interpreter(&self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> Option<VirtAddr> {
        let words = CodeWords::read(memory, frame.code).ok()?;
        if words.kind != InternalKind::Bytecode || words.identity != frame.identity {
            return None;
        }
        memory.read_u64(VirtAddr(words.bytecode.0)).map(VirtAddr)
    }

    /// Reads the label of bytecode. Evaluated code has that of the code around it, as in the language's own
    /// stack traces (`calculate_iseq_label`, vm_backtrace.c of 3.4); before, it is its own label, too.
    fn label(&self, memory: &impl ProcessMemory, mut body: u64) -> Option<String> {
        for _ in 0..MAX_EVALUATED {
            if word(memory, body, 0)? & 0xffff_ffff != EVALUATED {
                break;
            }
            let parent = word(memory, body, u64::from(self.layout.lines) + PARENT)?;
            if parent == 0 {
                break;
            }
            body = CodeWords::read(memory, VirtAddr(parent)).ok()?.body;
        }
        string(memory, word(memory, body, LABEL as u64)?, self.layout.embedded)
    }

    /// Reads the text of the symbol with this number. The table has the symbol itself, too, which shows
    /// whether it is the right one.
    fn symbol(&self, memory: &impl ProcessMemory, id: u64) -> Option<String> {
        let table = self.symbols?;
        let place = if id > table.last_operator { id >> SCOPE } else { id };
        let last = memory.read_u64(table.last.loaded(self.bias))? & 0xffff_ffff;
        if place == 0 || place > last {
            return None;
        }
        let ids = memory.read_u64(table.ids.loaded(self.bias))?;
        let array = element(memory, ids, place / IDS_OF_ARRAY)?;
        let at = place % IDS_OF_ARRAY * ID_WORDS;
        let [text, symbol] = [at, at + 1].map(|at| element(memory, array, at));
        if symbol_number(memory, symbol?)? != id {
            return None;
        }
        string(memory, text?, self.layout.embedded)
    }

    /// Reads the lines of bytecode by position in bytes.
    fn lines(&self, memory: &impl ProcessMemory, words: &CodeWords) -> Option<LineTable> {
        let mut info = [0; 32];
        memory.read(VirtAddr(words.body).checked_add(self.layout.lines.into())?, &mut info)?;
        let size = u64::from(u32_at(&info, 16)?);
        let entries = size.checked_mul(LINE_ENTRY as u64).filter(|_| size <= MAX_ENTRIES)?;
        let entries = memory.read_bytes(VirtAddr(u64_at(&info, 0)?), entries)?;
        let mut table = LineTable::default();
        let line = |index: usize| u32_at(&entries, index.checked_sub(1)?.checked_mul(LINE_ENTRY)?);
        if size == 1 {
            table.push(0, line(1));
            return Some(table);
        }
        let count = usize::try_from(words.bytecode.1 / 8).ok().filter(|&count| count as u64 <= MAX_WORDS)?;
        let index = read_index(memory, VirtAddr(u64_at(&info, 24)?), count)?;
        for position in 0..count {
            table.push(u32::try_from(position * 8).ok()?, line(rank(&index, position)?));
        }
        Some(table)
    }
}

/// Reads the index of the line table of `count` words of bytecode.
fn read_index(memory: &impl ProcessMemory, at: VirtAddr, count: usize) -> Option<Vec<u8>> {
    let size = if count < IMMEDIATE {
        count.div_ceil(IN_WORD) * 8
    } else {
        IMMEDIATE / IN_WORD * 8 + (count - IMMEDIATE).div_ceil(IN_BLOCK) * BLOCK
    };
    memory.read_bytes(at, size as u64)
}

/// Returns the number of entries of the line table that begin at `position` or before.
fn rank(index: &[u8], position: usize) -> Option<usize> {
    let Some(behind) = position.checked_sub(IMMEDIATE) else {
        let word = u64_at(index, position / IN_WORD * 8)?;
        return usize::try_from(word >> (position % IN_WORD * 7) & 0x7f).ok();
    };
    let block = IMMEDIATE / IN_WORD * 8 + behind / IN_BLOCK * BLOCK;
    let (small, bit) = (behind % IN_BLOCK / 64, behind % 64);
    // Of each of the block's words but the first, 9 bits: the entries in the words before it.
    let ranks = u64_at(index, block + 8)?;
    let before = if small == 0 { 0 } else { ranks >> ((small - 1) * 9) & 0x1ff };
    let bits = u64::from_le_bytes(array_at(index, block + 16 + small * 8)?);
    let within = (bits << (63 - bit)).count_ones();
    let rank = u64::from(u32_at(index, block)?) + before + u64::from(within);
    usize::try_from(rank).ok()
}
