//! One ELF file: its segments, and its sections when they are asked for.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use goblin::elf::program_header::{PT_NOTE, ProgramHeader};
use goblin::elf::section_header::{SHF_COMPRESSED, SHT_NOBITS, SHT_NOTE, SHT_NULL, SectionHeader};

use super::header::{self, ElfHeaders};
use super::{BuildId, ElfError, ElfSegment, MAX_READ, MAX_SECTION, ReadAt, compress, note, segment};
use crate::bytes::index;

/// Bytes of notes that are read, at most.
const MAX_NOTES: u64 = 64 << 10;
/// Bytes of a link to a debug file, at most.
const MAX_LINK: u64 = 8 << 10;

/// A section's bytes, decompressed, and the address that the file gives it (0 when it is not loaded).
#[derive(Clone, PartialEq, Eq)]
pub struct ElfSection {
    /// Bytes.
    pub bytes: Arc<[u8]>,
    /// First byte's address.
    pub address: u64,
}

impl fmt::Debug for ElfSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Section({} bytes at {:#x})", self.bytes.len(), self.address)
    }
}

/// Link to a separate debug file, by `.gnu_debuglink`: a name in one of the usual directories, and the CRC-32
/// (the polynomial of zlib) of all its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebugLink {
    /// A plain file name.
    pub name: String,
    /// CRC-32 of the file.
    pub crc32: u32,
}

/// A program or a shared library for x86-64. Addresses are those of the file.
pub struct ElfFile {
    file: Box<dyn ReadAt>,
    headers: ElfHeaders,
    segments: Vec<ElfSegment>,
    build_id: Option<BuildId>,
    /// By number in the section table: what is still held elsewhere is not read again.
    held: RefCell<HashMap<usize, Weak<[u8]>>>,
    /// Bytes that may still be read.
    budget: Cell<u64>,
}

impl fmt::Debug for ElfFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElfFile")
            .field("bytes", &self.file.len())
            .field("build_id", &self.build_id)
            .field("segments", &self.segments)
            .field("sections", &self.headers.sections.len())
            .finish_non_exhaustive()
    }
}

impl ElfFile {
    /// Reads the headers and the build-id of `file`, nothing else.
    pub fn open(file: Box<dyn ReadAt>) -> Result<Self, ElfError> {
        let headers = ElfHeaders::read(file.as_ref())?;
        let segments = segment::load_segments(&headers.segments)?;
        let mut elf = Self {
            file,
            headers,
            segments,
            build_id: None,
            held: RefCell::default(),
            budget: Cell::new(MAX_READ),
        };
        elf.build_id = elf.find_build_id();
        Ok(elf)
    }

    /// Returns the identity of the build, `None` when the linker wrote none.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// Returns true for ET_DYN: a shared library or a program that is loaded anywhere.
    pub fn is_relocatable(&self) -> bool {
        self.headers.is_library
    }

    /// Returns the address that execution starts at (`e_entry`).
    pub fn entry(&self) -> u64 {
        self.headers.entry
    }

    /// Returns the load segments, by address, without overlap.
    pub fn segments(&self) -> &[ElfSegment] {
        &self.segments
    }

    /// True when the file can execute what is at `address`.
    pub fn is_executable(&self, address: u64) -> bool {
        let after = self.segments.partition_point(|segment| segment.address <= address);
        let segment = after.checked_sub(1).and_then(|at| self.segments.get(at));
        segment.is_some_and(|segment| segment.executable && segment.contains(address))
    }

    /// Returns the address of the file's byte at `offset`, as it is mapped: whole pages, executable ones
    /// first.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        segment::address_of(&self.segments, offset)
    }

    /// Returns the offset in the file of the byte at `address`; `None` where memory is zero or nothing is
    /// loaded.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| segment.offset_of(address))
    }

    /// Returns the names of all sections with their address, size in the file and whether bytes for them are
    /// in this file (a debug file keeps empty headers for the sections that it lacks).
    pub fn sections(&self) -> impl Iterator<Item = SectionInfo<'_>> {
        self.headers.sections.iter().filter(|(_, h)| h.sh_type != SHT_NULL).map(|(name, header)| {
            SectionInfo {
                name,
                address: header.sh_addr,
                size: header.sh_size,
                in_file: header.sh_type != SHT_NOBITS,
            }
        })
    }

    /// True when the section is there and has bytes.
    pub fn has_section(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns the bytes of the first section of this name, decompressed.
    pub fn section(&self, name: &str) -> Result<ElfSection, ElfError> {
        let Some((number, header)) = self.find(name) else {
            return Err(ElfError::NoSection(name.into()));
        };
        if let Some(bytes) = self.held.borrow().get(&number).and_then(Weak::upgrade) {
            return Ok(ElfSection { bytes, address: header.sh_addr });
        }
        let bytes = self.read_section(name, header)?;
        self.held.borrow_mut().insert(number, Arc::downgrade(&bytes));
        Ok(ElfSection { bytes, address: header.sh_addr })
    }

    /// Returns the address and the size in bytes of a loaded section.
    pub fn section_range(&self, name: &str) -> Option<(u64, u64)> {
        let (_, header) = self
            .headers
            .sections
            .iter()
            .find(|(n, h)| n == name && h.sh_type != SHT_NULL && h.sh_addr != 0)?;
        Some((header.sh_addr, header.sh_size))
    }

    /// `size` bytes at `address`, out of the segment that holds them.
    pub fn bytes_at(&self, address: u64, size: u64) -> Result<Arc<[u8]>, ElfError> {
        let what = || format!("memory at {address:#x}");
        let held = self.segments.iter().find_map(|segment| {
            let offset = segment.offset_of(address)?;
            (segment.file_size - (offset - segment.offset) >= size).then_some(offset)
        });
        self.read(held.ok_or_else(|| ElfError::Truncated(what()))?, size, &what())
    }

    /// Returns the name and the CRC-32 of the separate debug file.
    pub fn debug_link(&self) -> Option<DebugLink> {
        note::debug_link(&self.small_section(".gnu_debuglink")?)
    }

    /// Returns the path and the build-id of the file that several debug files share (`dwz -m`).
    pub fn alt_link(&self) -> Option<(String, BuildId)> {
        note::alt_link(&self.small_section(".gnu_debugaltlink")?)
    }

    /// Returns the file that is read.
    pub fn reader(&self) -> &dyn ReadAt {
        self.file.as_ref()
    }

    /// Returns the first program header of this type.
    pub(super) fn program_header(&self, kind: u32) -> Option<&ProgramHeader> {
        self.headers.segments.iter().find(|header| header.p_type == kind)
    }

    fn find(&self, name: &str) -> Option<(usize, &SectionHeader)> {
        let mut sections = self.headers.sections.iter().enumerate();
        sections
            .find(|(_, (n, h))| n == name && !matches!(h.sh_type, SHT_NULL | SHT_NOBITS))
            .map(|(number, (_, header))| (number, header))
    }

    /// Reads a section with a link. Links are small: a large section is not read.
    fn small_section(&self, name: &str) -> Option<Arc<[u8]>> {
        let (_, header) = self.find(name)?;
        (header.sh_size <= MAX_LINK).then(|| self.section(name).ok())?.map(|section| section.bytes)
    }

    fn read_section(&self, name: &str, header: &SectionHeader) -> Result<Arc<[u8]>, ElfError> {
        let bytes = self.read(header.sh_offset, header.sh_size, &format!("section {name}"))?;
        if header.sh_flags & u64::from(SHF_COMPRESSED) == 0 {
            return Ok(bytes);
        }
        self.spend(compress::size(name, &bytes)?, name)?;
        Ok(compress::decompress(name, &bytes)?.into())
    }

    fn read(&self, offset: u64, size: u64, what: &str) -> Result<Arc<[u8]>, ElfError> {
        if size > MAX_SECTION {
            return Err(ElfError::TooLarge { what: what.into(), bytes: size });
        }
        let truncated = || ElfError::Truncated(what.into());
        if offset.checked_add(size).is_none_or(|end| end > self.file.len()) {
            return Err(truncated());
        }
        self.spend(size, what)?;
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, index(size)).collect();
        let into = Arc::get_mut(&mut bytes).ok_or_else(truncated)?;
        self.file.read_at(offset, into).ok_or_else(truncated)?;
        Ok(bytes)
    }

    fn spend(&self, bytes: u64, what: &str) -> Result<(), ElfError> {
        let left = self.budget.get().checked_sub(bytes);
        self.budget.set(left.ok_or_else(|| ElfError::TooLarge { what: what.into(), bytes })?);
        Ok(())
    }

    /// By section first: a debug file may have no bytes for its segments.
    fn find_build_id(&self) -> Option<BuildId> {
        let read = |offset, size: u64| header::read(self.file.as_ref(), offset, index(size), "notes").ok();
        let of_sections = self.headers.sections.iter().filter(|(name, header)| {
            header.sh_type == SHT_NOTE && name == ".note.gnu.build-id" && header.sh_size <= MAX_NOTES
        });
        let of_segments =
            self.headers.segments.iter().filter(|h| h.p_type == PT_NOTE && h.p_filesz <= MAX_NOTES);
        of_sections
            .map(|(_, h)| (h.sh_offset, h.sh_size, h.sh_addralign))
            .take(1)
            .chain(of_segments.map(|h| (h.p_offset, h.p_filesz, h.p_align)))
            .take(8)
            .find_map(|(offset, size, align)| note::build_id(&read(offset, size)?, align))
    }
}

/// Description of one section in the section table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionInfo<'a> {
    /// Name.
    pub name: &'a str,
    /// Address, 0 when it is not loaded.
    pub address: u64,
    /// Size in bytes, compressed where it is.
    pub size: u64,
    /// False when the file keeps only its header.
    pub in_file: bool,
}
