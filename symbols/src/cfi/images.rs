//! The process's mappings as an unwinder needs them.

use super::CfiTable;
use super::row::COLUMNS;
use crate::address::{CodeAddr, LinkAddr, VirtAddr};
use crate::registers::StackMemory;

/// Registers of a frame by their DWARF numbers, of which 16 is the return address; `None` for those that were
/// lost on the way.
pub type KnownRegisters = [Option<u64>; COLUMNS];

/// Caller of a frame in code of a runtime.
#[expect(clippy::large_enum_variant, reason = "returned once for a frame, and not kept")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GeneratedCaller {
    /// No rule covers the frame: the unwinder follows its instructions.
    Unknown,
    /// The caller's registers.
    Found(KnownRegisters),
    /// The word of the stack at this address is needed, and missing.
    Missing(u64),
}

/// The executable mappings of one process at the moment of a sample.
pub trait CodeMappings {
    /// Returns the executable mapping at the virtual address `address`; `None` where there is none, or not an
    /// executable one.
    fn find(&self, address: VirtAddr) -> Option<CodeMapping<'_>>;

    /// Fills `into` with the code from virtual address `address`; `None` unless all of it is known.
    ///
    /// Without code bytes the unwinder does not guess at functions without CFI by their return addresses, and
    /// does not recognize signal trampolines without CFI.
    fn code(&self, _address: VirtAddr, _into: &mut [u8]) -> Option<()> {
        None
    }

    /// Returns the caller of the frame at `at` in the mapping `image`, where no CFI covers it, by the rules
    /// of the runtime whose code it is: code made at run time ([`ImageCode::Anonymous`]), or of the runtime's
    /// file.
    fn generated_caller(
        &self,
        _image: &CodeMapping<'_>,
        _at: CodeAddr,
        _registers: &KnownRegisters,
        _stack: &dyn StackMemory,
    ) -> GeneratedCaller {
        GeneratedCaller::Unknown
    }
}

/// One executable mapping.
#[derive(Debug, Clone, Copy)]
pub struct CodeMapping<'a> {
    /// Name of the table in the unwinder's cache: one number for one [`CfiTable`], never used for another one
    /// as long as the unwinder lives. Not used for mappings without a table.
    pub id: u32,
    /// Load bias in bytes: virtual address minus the address inside the file's tables, modulo 2^64.
    pub bias: u64,
    /// Source of its CFI.
    pub code: ImageCode<'a>,
}

impl CodeMapping<'_> {
    /// Returns the address inside of the file's tables.
    #[inline]
    pub fn linked(&self, address: VirtAddr) -> LinkAddr {
        address.linked(self.bias)
    }
}

/// Code of a mapping.
#[derive(Debug, Clone, Copy)]
pub enum ImageCode<'a> {
    /// The tables of the file, or of the vDSO.
    Cfi(&'a CfiTable),
    /// A file that has no tables.
    NoCfi,
    /// Code without a file: made at run time (JIT).
    Anonymous,
    /// The file has not been read, or could not be.
    NotRead,
}
