//! Recognition of V8: a program or library with its variables for debuggers.

#[cfg(any(test, feature = "fixture"))]
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use symbols::LinkAddr;
use symbols::bytes::{u32_at, u64_at};
use symbols::elf::ElfFile;
use symbols::names::{defined, exported_with_prefix};

use super::layout::{V8Error, V8Layout};
use crate::ProcessMemory;

/// Prefix of the variables, each a number of 4 bytes.
const PREFIX: &str = "v8dbg_";
/// Variables, at most (Node.js 18 to 24: 665).
const MAX_VARIABLES: usize = 4096;
/// Functions that return the address and the size of the code of builtins (src/snapshot/embedded/ in V8), and
/// the table of the lengths of bytecodes (src/interpreter/bytecodes.h: `kBytecodeSizes`).
const SYMBOLS: [&str; 3] = [
    "_ZN2v88internal23DefaultEmbeddedBlobCodeEv",
    "_ZN2v88internal27DefaultEmbeddedBlobCodeSizeEv",
    "_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE",
];
/// Bytes of code of these functions that are read.
const FUNCTION: u64 = 24;
/// Bytes of builtins, at most (Node.js 18 to 24: 2 MiB).
const MAX_BUILTINS: u32 = 64 << 20;
/// Operand scales of bytecodes: 1, 2 and 4 bytes.
const SCALES: usize = 3;

/// Returns true if a file of this name may be V8: a program or library of Node.js. Only such files are
/// opened.
pub fn may_be_v8(name: &str) -> bool {
    matches!(name, "node" | "nodejs") || name.starts_with("libnode.so")
}

/// A program or library that is V8.
#[derive(Debug, Clone)]
pub struct V8Binary {
    pub(super) layout: V8Layout,
    /// Lengths of bytecodes without prefix, by scale; empty if not known.
    pub(super) bytecode_sizes: Arc<[u8]>,
    builtins: Option<BuiltinCode>,
}

/// Position of the code of builtins in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BuiltinCode {
    start: BuiltinStart,
    /// In bytes.
    size: u32,
}

/// Start of the code of builtins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BuiltinStart {
    Address(LinkAddr),
    /// A variable in the memory of a process has its address.
    Variable(LinkAddr),
}

impl V8Binary {
    /// Returns the binary in `elf`; `Ok(None)` if it is not V8.
    ///
    /// # Errors
    /// The binary is V8, but of a build that is not supported.
    pub fn read(elf: &ElfFile) -> Result<Option<Self>, V8Error> {
        let variables = exported_with_prefix(elf, PREFIX, MAX_VARIABLES).unwrap_or_default();
        if variables.is_empty() {
            return Ok(None);
        }
        let value = |at: LinkAddr| match elf.offset_of(at.0) {
            Some(_) => elf.bytes_at(at.0, 4).ok().and_then(|bytes| u32_at(&bytes, 0)),
            // Zeros are not in the file.
            None => Some(0),
        };
        let values = variables.into_iter().filter_map(|(name, at)| Some((name, value(at)?.cast_signed())));
        let layout = V8Layout::new(&values.collect())?;
        let [code, size, lengths] = defined(elf, &SYMBOLS).unwrap_or_default();
        let bytecode_sizes =
            lengths.and_then(|(at, size)| elf.bytes_at(at.0, size.min(SCALES as u64 * 256)).ok());
        let function = |at: LinkAddr| elf.bytes_at(at.0, FUNCTION).ok();
        let builtins = code.zip(size).and_then(|((code, _), (size, _))| {
            let start = start_in(&function(code)?, code)?;
            let size = elf.bytes_at(loaded_from(&function(size)?, size)?.0, 4).ok()?;
            let size = u32_at(&size, 0).filter(|&size| size <= MAX_BUILTINS)?;
            Some(BuiltinCode { start, size })
        });
        Ok(Some(Self { layout, bytecode_sizes: bytecode_sizes.unwrap_or_default(), builtins }))
    }

    /// Returns a binary with these variables, lengths of bytecodes and code of builtins.
    #[cfg(any(test, feature = "fixture"))]
    pub(crate) fn new(
        variables: &HashMap<String, i32>,
        bytecode_sizes: &[u8],
        builtins: Range<u32>,
    ) -> Result<Self, V8Error> {
        let start = BuiltinStart::Address(LinkAddr(builtins.start.into()));
        Ok(Self {
            layout: V8Layout::new(variables)?,
            bytecode_sizes: bytecode_sizes.into(),
            builtins: Some(BuiltinCode { start, size: builtins.end - builtins.start }),
        })
    }

    /// Returns the addresses in the file of the code of builtins, in a process that has mapped the file at
    /// `bias`.
    pub(super) fn builtins(&self, memory: &impl ProcessMemory, bias: u64) -> Option<Range<u64>> {
        let BuiltinCode { start, size } = self.builtins?;
        let start = match start {
            BuiltinStart::Address(at) => at,
            BuiltinStart::Variable(at) => symbols::VirtAddr(memory.read_u64(at.loaded(bias))?).linked(bias),
        };
        Some(start.0..start.0.checked_add(size.into())?)
    }

    /// Returns the bytes of the bytecode at the start of `code`, with its prefix.
    pub(super) fn bytecode_length(&self, code: &[u8]) -> Option<usize> {
        // kWide, kExtraWide and the same for breakpoints come first (src/interpreter/bytecodes.h).
        let (scale, prefix) = match code.first()? {
            0 | 2 => (1, 1),
            1 | 3 => (2, 1),
            _ => (0, 0),
        };
        let bytecodes = self.bytecode_sizes.len() / SCALES;
        let number = usize::from(*code.get(prefix)?);
        let length = *self.bytecode_sizes.get(scale * bytecodes + number).filter(|_| number < bytecodes)?;
        (length > 0).then_some(prefix + usize::from(length))
    }
}

/// Returns what the function at `at` with this code returns: an address, or the value of a variable.
fn start_in(code: &[u8], at: LinkAddr) -> Option<BuiltinStart> {
    let (code, at) = without_mark(code, at);
    let after = |length: u64| relative(code, at, length);
    match code {
        // mov $address, %eax; ret
        [0xb8, _, _, _, _, 0xc3, ..] => {
            u32_at(code, 1).map(|address| BuiltinStart::Address(LinkAddr(address.into())))
        }
        // mov $address, %rax; ret
        [0x48, 0xc7, 0xc0, _, _, _, _, 0xc3, ..] => {
            u32_at(code, 3).map(|address| BuiltinStart::Address(LinkAddr(address.into())))
        }
        // movabs $address, %rax; ret
        [0x48, 0xb8, _, _, _, _, _, _, _, _, 0xc3, ..] => {
            u64_at(code, 2).map(|address| BuiltinStart::Address(LinkAddr(address)))
        }
        // mov variable(%rip), %rax; ret
        [0x48, 0x8b, 0x05, _, _, _, _, 0xc3, ..] => after(7).map(BuiltinStart::Variable),
        // lea variable(%rip), %rax; mov (%rax), %rax; ret
        [0x48, 0x8d, 0x05, _, _, _, _, 0x48, 0x8b, 0x00, 0xc3, ..] => after(7).map(BuiltinStart::Variable),
        // lea address(%rip), %rax; ret
        [0x48, 0x8d, 0x05, _, _, _, _, 0xc3, ..] => after(7).map(BuiltinStart::Address),
        _ => None,
    }
}

/// Returns the variable of 4 bytes that the function at `at` with this code returns.
fn loaded_from(code: &[u8], at: LinkAddr) -> Option<LinkAddr> {
    let (code, at) = without_mark(code, at);
    match code {
        // mov variable(%rip), %eax; ret
        [0x8b, 0x05, _, _, _, _, 0xc3, ..] => relative(code, at, 6),
        // lea variable(%rip), %rax; mov (%rax), %eax; ret
        [0x48, 0x8d, 0x05, _, _, _, _, 0x8b, 0x00, 0xc3, ..] => relative(code, at, 7),
        _ => None,
    }
}

/// Returns code without a mark for indirect branches (endbr64).
fn without_mark(code: &[u8], at: LinkAddr) -> (&[u8], LinkAddr) {
    match code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        Some(rest) => (rest, LinkAddr(at.0.wrapping_add(4))),
        None => (code, at),
    }
}

/// Returns the address that the first instruction of `code`, which is at `at` and ends with a distance to its
/// end after `length` bytes, refers to.
fn relative(code: &[u8], at: LinkAddr, length: u64) -> Option<LinkAddr> {
    let distance = u32_at(code, usize::try_from(length).ok()?.checked_sub(4)?)?.cast_signed();
    Some(LinkAddr(at.0.checked_add(length)?.checked_add_signed(distance.into())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtins_are_where_the_functions_of_all_compilers_say() {
        let at = LinkAddr(0x1000);
        let address = |at| Some(BuiltinStart::Address(LinkAddr(at)));
        let variable = |at| Some(BuiltinStart::Variable(LinkAddr(at)));
        for (code, wanted) in [
            (&[0xb8, 0, 0x70, 0x8c, 1, 0xc3][..], address(0x18c_7000)),
            (&[0x48, 0x8b, 5, 0, 1, 0, 0, 0xc3], variable(0x1107)),
            (&[0x48, 0x8d, 5, 0, 1, 0, 0, 0x48, 0x8b, 0, 0xc3], variable(0x1107)),
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 5, 0xf0, 0xff, 0xff, 0xff, 0xc3], address(0xffb)),
            (&[0x31, 0xc0, 0xc3], None),
            (&[0xb8, 0, 0x70], None),
        ] {
            assert_eq!(start_in(code, at), wanted, "{code:x?}");
        }
        assert_eq!(loaded_from(&[0x8b, 5, 0, 1, 0, 0, 0xc3], at), Some(LinkAddr(0x1106)));
        assert_eq!(loaded_from(&[0x48, 0x8d, 5, 0, 1, 0, 0, 0x8b, 0, 0xc3], at), Some(LinkAddr(0x1107)));
        assert_eq!(loaded_from(&[0xb8, 0, 0, 0, 0, 0xc3], at), None);
    }

    #[test]
    fn only_files_of_node_are_opened() {
        for (name, wanted) in [
            ("node", true),
            ("nodejs", true),
            ("libnode.so.108", true),
            ("nodemon", false),
            ("libv8.so", false),
        ] {
            assert_eq!(may_be_v8(name), wanted, "{name}");
        }
    }
}
