//! The unwind tables of one file.

use std::sync::Arc;

use gimli::{
    BaseAddresses, DebugFrame, DebugFrameOffset, EhFrame, EhFrameOffset, EndianSlice, FrameDescriptionEntry,
    LittleEndian, UnwindOffset, UnwindSection,
};

use super::index::FdeIndex;
use super::row::{CfiRow, RowContext};
use super::work_budget::WorkBudget;
use super::{UserWalkError, expression};
use crate::address::LinkAddr;
use crate::bytes::{index, u32_at};
use crate::elf::{ElfFile, ElfSection};
use crate::go::{GoFrame, GoTable};

/// Bytes of one section; the `.eh_frame` of Debian 12's python3.11 has 410,000.
pub(super) const MAX_SECTION: usize = 64 << 20;

/// Bytes of one CIE or FDE; the largest of libc, libcrypto, python3.11 and gdb in Debian 12 has 388.
pub(super) const MAX_ENTRY: usize = 1 << 14;

/// Bytes of a section as gimli reads them.
pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// One function's entry.
pub(super) type Fde<'a> = FrameDescriptionEntry<Bytes<'a>>;

/// A section: its bytes, and its virtual address inside the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CfiSection {
    /// Contents of the section.
    pub bytes: Arc<[u8]>,
    /// `sh_addr`, or for `.eh_frame_hdr` `p_vaddr` of PT_GNU_EH_FRAME.
    pub address: u64,
}

/// The sections of a file that unwinding needs; each may be missing.
///
/// Where a file has lost its section headers, `.eh_frame` may be all bytes from where `.eh_frame_hdr` says
/// that it starts to the end of its segment.
#[derive(Debug, Clone, Default)]
pub struct CfiSections {
    /// `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<CfiSection>,
    /// `.eh_frame`.
    pub eh_frame: Option<CfiSection>,
    /// `.debug_frame`, not compressed.
    pub debug_frame: Option<CfiSection>,
    /// Virtual address of `.text` inside the file: base of text-relative pointers.
    pub text: Option<u64>,
    /// Virtual address of `.got` inside the file: base of data-relative pointers.
    pub got: Option<u64>,
    /// Go's own table: it unwinds what the others do not cover, and has the functions at which a stack ends.
    pub go: Option<GoTable>,
}

impl CfiSections {
    /// Reads the sections of a file.
    pub fn read(elf: &ElfFile) -> Self {
        let section = |section: ElfSection| CfiSection { bytes: section.bytes, address: section.address };
        let start = |name| elf.section_range(name).map(|(start, _)| start);
        Self {
            eh_frame_hdr: elf.eh_frame_hdr().ok().map(section),
            eh_frame: elf.eh_frame().ok().map(section),
            debug_frame: elf.section(".debug_frame").ok().map(section),
            text: start(".text"),
            got: start(".got"),
            go: GoTable::read(elf),
        }
    }
}

/// Reason why a file has no [`CfiTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CfiError {
    /// Neither `.eh_frame` nor `.debug_frame`, or no function in them.
    #[error("no unwind tables")]
    Empty,
    /// A section of more than 64 MiB, or with more than two million functions.
    #[error("unwind tables too large")]
    TooLarge,
}

/// Bytes with their index.
#[derive(Debug)]
struct IndexedSection {
    bytes: Arc<[u8]>,
    index: FdeIndex,
}

/// The unwind tables of one file, ready for questions. Addresses are those inside the file, without load
/// bias.
#[derive(Debug)]
pub struct CfiTable {
    eh_frame: Option<IndexedSection>,
    debug_frame: Option<IndexedSection>,
    bases: BaseAddresses,
    go: Option<GoTable>,
}

/// Section of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntrySection {
    Eh,
    Debug,
}

impl CfiTable {
    /// Indexes the functions of the sections: by `.eh_frame_hdr` where its table is whole and sorted, else by
    /// reading every entry. Keeps the sections' bytes, and 8 bytes for each function.
    pub fn parse(sections: CfiSections) -> Result<Self, CfiError> {
        let all = [&sections.eh_frame_hdr, &sections.eh_frame, &sections.debug_frame];
        if all.into_iter().flatten().any(|section| section.bytes.len() > MAX_SECTION) {
            return Err(CfiError::TooLarge);
        }
        let bases = bases(&sections);
        let header = sections.eh_frame_hdr;
        let eh_frame = match sections.eh_frame {
            Some(section) => {
                let by_header = header.and_then(|header| FdeIndex::from_header(&header, &section, &bases));
                let index = match by_header {
                    Some(index) => index,
                    None => FdeIndex::from_entries(&eh(&section.bytes), &section.bytes, &bases)?,
                };
                IndexedSection::unless_empty(section.bytes, index)
            }
            None => None,
        };
        let debug_frame = match sections.debug_frame {
            Some(section) => {
                let index = FdeIndex::from_entries(&debug(&section.bytes), &section.bytes, &bases)?;
                IndexedSection::unless_empty(section.bytes, index)
            }
            None => None,
        };
        match (&eh_frame, &debug_frame, &sections.go) {
            (None, None, None) => Err(CfiError::Empty),
            _ => Ok(Self { eh_frame, debug_frame, bases, go: sections.go }),
        }
    }

    /// Returns the function that covers `address`, as start and end: the piece of code that one FDE
    /// describes, which for a function split by the compiler is one of its parts.
    pub fn function_start(&self, LinkAddr(address): LinkAddr) -> Option<(LinkAddr, LinkAddr)> {
        let (start, end) = match self.entry(address) {
            Some((_, fde)) => (fde.initial_address(), fde.end_address()),
            None => self.go.as_ref()?.range(address)?,
        };
        Some((LinkAddr(start), LinkAddr(end)))
    }

    /// Returns the number of functions in the index.
    #[cfg(test)]
    pub(super) fn functions(&self) -> usize {
        [&self.eh_frame, &self.debug_frame].into_iter().flatten().map(|section| section.index.len()).sum()
    }

    /// Returns the bytes of memory that the table keeps.
    pub fn memory(&self) -> usize {
        let of =
            |section: &IndexedSection| section.bytes.len() + section.index.len() * size_of::<(u32, u32)>();
        let go = self.go.as_ref().map_or(0, GoTable::memory);
        size_of::<Self>()
            + go
            + [&self.eh_frame, &self.debug_frame].into_iter().flatten().map(of).sum::<usize>()
    }

    /// Returns the rules at `address`. An error is one of this walk alone; what is wrong with the table
    /// becomes a row.
    pub(super) fn row(
        &self,
        LinkAddr(address): LinkAddr,
        context: &mut RowContext,
        work: &mut WorkBudget,
    ) -> Result<CfiRow, UserWalkError> {
        let go = self.go.as_ref().and_then(|go| go.frame(address));
        // Only Go's own table marks the functions that change stacks: the `.debug_frame` of the Go linker has
        // rules for them that lead to any word of the new stack (`runtime.systemstack`, Go 1.19 and 1.24).
        if go == Some(GoFrame::Outermost) {
            return Ok(CfiRow::Outermost);
        }
        let Some((section, fde)) = self.entry(address) else {
            return Ok(go.map_or(CfiRow::NoCfi, CfiRow::from_go));
        };
        work.take(fde.entry_len().saturating_add(fde.cie().entry_len()))?;
        let bytes = self.bytes(section).unwrap_or_default();
        let row = match section {
            EntrySection::Eh => fde.unwind_info_for_address(&eh(bytes), &self.bases, context, address),
            EntrySection::Debug => fde.unwind_info_for_address(&debug(bytes), &self.bases, context, address),
        };
        Ok(row.ok().and_then(|row| CfiRow::new(section, &fde, row)).unwrap_or(CfiRow::Bad))
    }

    /// Returns the bytes of an expression of a row of this table.
    pub(super) fn expression(&self, at: expression::ExpressionRange) -> Option<Bytes<'_>> {
        let start = index(at.start.into());
        let bytes = self.bytes(at.section)?.get(start..start.checked_add(index(at.length.into()))?)?;
        Some(EndianSlice::new(bytes, LittleEndian))
    }

    /// Returns the FDE that covers `address`, `.eh_frame`'s first.
    fn entry(&self, address: u64) -> Option<(EntrySection, Fde<'_>)> {
        let in_eh = self.eh_frame.as_ref().and_then(|section| {
            let offset = EhFrameOffset(section.index.find(address)?);
            section.fde(&eh(&section.bytes), offset, &self.bases, address)
        });
        if let Some(fde) = in_eh {
            return Some((EntrySection::Eh, fde));
        }
        let section = self.debug_frame.as_ref()?;
        let offset = DebugFrameOffset(section.index.find(address)?);
        Some((EntrySection::Debug, section.fde(&debug(&section.bytes), offset, &self.bases, address)?))
    }

    fn bytes(&self, section: EntrySection) -> Option<&[u8]> {
        let section = match section {
            EntrySection::Eh => self.eh_frame.as_ref()?,
            EntrySection::Debug => self.debug_frame.as_ref()?,
        };
        Some(&section.bytes)
    }
}

impl IndexedSection {
    fn unless_empty(bytes: Arc<[u8]>, index: FdeIndex) -> Option<Self> {
        (index.len() > 0).then_some(Self { bytes, index })
    }

    /// Returns the FDE at `offset` of `section`, which reads these bytes, if it covers `address`.
    fn fde<'a, S: UnwindSection<Bytes<'a>>>(
        &self,
        section: &S,
        offset: S::Offset,
        bases: &BaseAddresses,
        address: u64,
    ) -> Option<Fde<'a>> {
        let small = |at| entry_size(&self.bytes, at).is_some_and(|size| size <= MAX_ENTRY);
        small(UnwindOffset::into(offset)).then_some(())?;
        let partial = section.partial_fde_from_offset(bases, offset).ok()?;
        small(UnwindOffset::into(partial.cie_offset())).then_some(())?;
        let fde = partial.parse(S::cie_from_offset).ok()?;
        (fde.contains(address) && fde.cie().address_size() == 8).then_some(fde)
    }
}

/// Returns the bytes of the CIE or FDE at `offset` by its 32-bit length; `None` outside of `bytes`, and for
/// entries of 4 GiB and more.
pub(super) fn entry_size(bytes: &[u8], offset: usize) -> Option<usize> {
    let length = u32_at(bytes, offset)?;
    // DWARF 5, 7.4: values from here on announce a 64-bit length.
    (length < 0xffff_fff0).then_some(index(length.into()))
}

fn bases(sections: &CfiSections) -> BaseAddresses {
    let mut bases = BaseAddresses::default();
    if let Some(section) = &sections.eh_frame_hdr {
        bases = bases.set_eh_frame_hdr(section.address);
    }
    if let Some(section) = &sections.eh_frame {
        bases = bases.set_eh_frame(section.address);
    }
    if let Some(text) = sections.text {
        bases = bases.set_text(text);
    }
    if let Some(got) = sections.got {
        bases = bases.set_got(got);
    }
    bases
}

fn eh(bytes: &[u8]) -> EhFrame<Bytes<'_>> {
    EhFrame::new(bytes, LittleEndian)
}

fn debug(bytes: &[u8]) -> DebugFrame<Bytes<'_>> {
    DebugFrame::new(bytes, LittleEndian)
}
