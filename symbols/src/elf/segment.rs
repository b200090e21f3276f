//! Load segments: what of a file is mapped where.

use goblin::elf::program_header::{PF_R, PF_W, PF_X, PT_LOAD, ProgramHeader};

use super::ElfError;

/// Bytes of a page: what the kernel maps is rounded to these.
const PAGE: u64 = 4096;

/// A load segment (PT_LOAD). Addresses are those of the file, before it is moved to where it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElfSegment {
    /// First address.
    pub address: u64,
    /// Bytes in memory.
    pub memory_size: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes in the file; the rest of the memory is zero.
    pub file_size: u64,
    /// Can be read.
    pub readable: bool,
    /// Can be written.
    pub writable: bool,
    /// Can be executed.
    pub executable: bool,
}

impl ElfSegment {
    /// Returns true for an address inside the segment's memory.
    pub fn contains(&self, address: u64) -> bool {
        address >= self.address && address - self.address < self.memory_size
    }

    /// Returns the offset in the file of the byte at `address`.
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address)?;
        (within < self.file_size).then(|| self.offset + within)
    }

    /// Returns the address of the file's byte at `offset`, exact or inside the pages that the kernel maps.
    fn address_of(&self, offset: u64, page: u64) -> Option<u64> {
        let first = self.offset & !(page - 1);
        let end = (self.offset + self.file_size).checked_next_multiple_of(page)?;
        if self.file_size == 0 || offset < first || offset >= end {
            return None;
        }
        self.address.checked_add(offset)?.checked_sub(self.offset)
    }
}

/// Returns the load segments among `headers`, by address.
pub(super) fn load_segments(headers: &[ProgramHeader]) -> Result<Vec<ElfSegment>, ElfError> {
    let mut segments = Vec::new();
    for header in headers.iter().filter(|header| header.p_type == PT_LOAD && header.p_memsz > 0) {
        let segment = ElfSegment {
            address: header.p_vaddr,
            memory_size: header.p_memsz,
            offset: header.p_offset,
            file_size: header.p_filesz.min(header.p_memsz),
            readable: header.p_flags & PF_R != 0,
            writable: header.p_flags & PF_W != 0,
            executable: header.p_flags & PF_X != 0,
        };
        let ends =
            [segment.address.checked_add(segment.memory_size), segment.offset.checked_add(segment.file_size)];
        if ends.contains(&None) {
            return Err(ElfError::Malformed("a load segment".into()));
        }
        segments.push(segment);
    }
    segments.sort_by_key(|segment| segment.address);
    match segments.windows(2).find(|pair| pair[0].contains(pair[1].address)) {
        Some(pair) => Err(ElfError::Overlap(pair[1].address)),
        None => Ok(segments),
    }
}

/// Returns the address of the file's byte at `offset`: of the segment that holds it, else of one whose pages
/// do; executable segments first, since two may share a page of the file.
pub(super) fn address_of(segments: &[ElfSegment], offset: u64) -> Option<u64> {
    let find = |page: u64, executable: bool| {
        segments.iter().filter(|s| s.executable == executable).find_map(|s| s.address_of(offset, page))
    };
    find(1, true).or_else(|| find(1, false)).or_else(|| find(PAGE, true)).or_else(|| find(PAGE, false))
}
