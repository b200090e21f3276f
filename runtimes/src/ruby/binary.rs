//! Recognition of CRuby: a program or library with its functions, whose code shows where its variables are.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use symbols::LinkAddr;
use symbols::elf::ElfFile;
use symbols::names::exported;

use super::layout::{RubyLayout, RubyVersion};
use super::names::{RubyNames, SymbolTable};
use super::walk::RubyPlan;
use crate::thread_local::ThreadAccess;
use crate::{LayoutError, ProcessMemory};

/// Symbols of each CRuby: its version, a function that reads the execution context of its thread, and one
/// that reads the table of symbols.
const SYMBOLS: [&str; 3] = ["ruby_version", "rb_thread_current", "rb_id2str"];
/// Bytes of a function that are searched, at most.
const FUNCTION: u64 = 256;
/// Bytes of a version.
const VERSION: u64 = 16;
/// `rb_symbols_t.ids`, from `rb_symbols_t.last_id` (symbol.h of 3.0 to 3.4).
const IDS: u64 = 16;

/// Returns true if a file of this name may be CRuby: `ruby3.1`, `libruby-3.1.so.3.1.2`. Only such files are
/// opened.
pub fn may_be_ruby(name: &str) -> bool {
    name.contains("ruby")
}

/// A program or library that is CRuby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RubyBinary {
    version: RubyVersion,
    /// Access to `ruby_current_ec`.
    context: Option<ThreadAccess>,
    symbols: Option<SymbolTable>,
}

impl RubyBinary {
    /// Returns the binary in `elf`; `None` if it is not CRuby.
    pub fn read(elf: &ElfFile) -> Option<Self> {
        let [version, current, name_of] = exported(elf, &SYMBOLS).ok()?;
        let (at, size) = version?;
        let version = version_in(&elf.bytes_at(at.0, size.min(VERSION)).ok()?)?;
        let (current, size) = current?;
        let code = elf.bytes_at(current.0, size.min(FUNCTION)).ok()?;
        let context = ThreadAccess::find(&code, current);
        let symbols = name_of.and_then(|(name_of, size)| symbol_table(elf, name_of, size));
        Some(Self { version, context, symbols })
    }

    /// Returns a binary of this version that has `ruby_current_ec` at this offset from the FS base, and the
    /// table of symbols at this address, with the number of its last operator.
    #[cfg(any(test, feature = "fixture"))]
    pub fn new(version: RubyVersion, context: i64, (last, last_operator): (LinkAddr, u64)) -> Self {
        let symbols = SymbolTable { last, ids: LinkAddr(last.0 + IDS), last_operator };
        Self { version, context: Some(ThreadAccess::Offset(context)), symbols: Some(symbols) }
    }

    /// Returns the plan for walks of a process that has mapped this file at `bias`, and its reader of names.
    pub fn plan(&self, memory: &impl ProcessMemory, bias: u64) -> Result<(RubyPlan, RubyNames), LayoutError> {
        let layout = RubyLayout::new(self.version)?;
        let context = self.context.ok_or(LayoutError::NoThreadVariable)?;
        let context = context.resolve(memory, bias).ok_or(LayoutError::NotPresent)?;
        Ok((RubyPlan::new(context, layout), RubyNames::new(layout, self.symbols, bias)))
    }
}

/// Returns major and minor version in `ruby_version`: `3.1.2`.
fn version_in(text: &[u8]) -> Option<RubyVersion> {
    let text = std::str::from_utf8(symbols::bytes::until_nul(text)).ok()?;
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Returns the table of symbols by the code of `rb_id2str`: it compares with the number of the last operator,
/// and ends with a jump to the function that reads the table. That compares a number with the last one in the
/// table, and loads the table's array, which is next to it.
fn symbol_table(elf: &ElfFile, start: LinkAddr, size: u64) -> Option<SymbolTable> {
    let mut last_operator = None;
    let reader = instructions(elf, start, size.min(FUNCTION))?.into_iter().find_map(|instruction| {
        let is_limit = instruction.mnemonic() == Mnemonic::Cmp && instruction.op0_kind() == OpKind::Register;
        if is_limit && is_number(instruction.op1_kind()) {
            last_operator = Some(instruction.immediate(1));
        }
        (instruction.code() == Code::Jmp_rel32_64).then(|| LinkAddr(instruction.near_branch_target()))
    })?;
    let mut last = None;
    instructions(elf, reader, FUNCTION)?.into_iter().find_map(|instruction| {
        if !instruction.is_ip_rel_memory_operand() {
            return None;
        }
        let at = instruction.ip_rel_memory_address();
        match instruction.code() {
            Code::Cmp_rm32_r32 | Code::Cmp_r32_rm32 => last = Some(at),
            Code::Mov_r64_rm64 if last.and_then(|last| last.checked_add(IDS)) == Some(at) => {
                let (last, ids) = (LinkAddr(last?), LinkAddr(at));
                return Some(SymbolTable { last, ids, last_operator: last_operator? });
            }
            _ => {}
        }
        None
    })
}

/// Returns true for operands that are a number in the instruction.
fn is_number(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate32 | OpKind::Immediate8
    )
}

/// Returns the instructions in these bytes of a file.
fn instructions(elf: &ElfFile, start: LinkAddr, size: u64) -> Option<Vec<Instruction>> {
    let code = elf.bytes_at(start.0, size).ok()?;
    Some(Decoder::with_ip(64, &code, start.0, DecoderOptions::NONE).iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_text() {
        for (text, wanted) in [
            (&b"3.1.2\0"[..], Some((3, 1))),
            (b"3.4.11", Some((3, 4))),
            (b"3", None),
            (b"3.x", None),
            (b"300.1", None),
            (b"\xff", None),
        ] {
            assert_eq!(version_in(text), wanted, "{text:?}");
        }
    }
}
