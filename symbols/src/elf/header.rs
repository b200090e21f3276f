//! The headers of a file: read first, and alone.

use display::clean::ascii;
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::header::{EM_X86_64, ET_DYN, ET_EXEC};
use goblin::elf::program_header::ProgramHeader;
use goblin::elf::program_header::program_header64::SIZEOF_PHDR;
use goblin::elf::section_header::section_header64::SIZEOF_SHDR;
use goblin::elf::section_header::{SHN_XINDEX, SectionHeader};

use super::{ElfError, MAX_SECTIONS, MAX_SEGMENTS, ReadAt};
use crate::bytes::{array_at, u16_at, u32_at, u64_at, until_nul};

/// Bytes of an `Elf64_Ehdr`.
const FILE_HEADER: usize = 64;
/// `e_ident`: the magic number, ELFCLASS64, ELFDATA2LSB, EV_CURRENT.
const IDENT: [u8; 7] = [0x7f, b'E', b'L', b'F', 2, 1, 1];
/// `e_phnum` that says: the number is in `sh_info` of section 0 (PN_XNUM).
const PN_XNUM: u16 = 0xffff;
/// Bytes of a section's name that are kept.
const MAX_NAME: usize = 128;
/// Bytes of section names, at most.
const MAX_NAMES: u64 = 4 << 20;

/// The headers of a file.
pub(super) struct ElfHeaders {
    pub is_library: bool,
    pub entry: u64,
    pub segments: Vec<ProgramHeader>,
    /// With names; empty when the file has none, or none that can be read.
    pub sections: Vec<(String, SectionHeader)>,
}

/// Reads `size` bytes at `offset`; `what` names them where they cannot be read.
pub(super) fn read(file: &dyn ReadAt, offset: u64, size: usize, what: &str) -> Result<Vec<u8>, ElfError> {
    let inside = offset.checked_add(size as u64).is_some_and(|end| end <= file.len());
    let mut bytes = vec![0; if inside { size } else { 0 }];
    if !inside || file.read_at(offset, &mut bytes).is_none() {
        return Err(ElfError::Truncated(what.into()));
    }
    Ok(bytes)
}

impl ElfHeaders {
    /// Reads the headers of `file`. A section table that cannot be read counts as stripped: an image in
    /// memory rarely has one.
    pub fn read(file: &dyn ReadAt) -> Result<Self, ElfError> {
        let header = read(file, 0, FILE_HEADER, "the ELF header").map_err(|_| ElfError::NotElf)?;
        let half = |at| u16_at(&header, at).unwrap_or(0);
        if header.get(..4) != IDENT.get(..4) {
            return Err(ElfError::NotElf);
        }
        if header.get(..IDENT.len()) != Some(&IDENT) || half(18) != EM_X86_64 {
            return Err(ElfError::NotX86_64);
        }
        let kind = half(16);
        if kind != ET_EXEC && kind != ET_DYN {
            return Err(ElfError::NotLoadable(kind));
        }
        let word = |at| u64_at(&header, at).unwrap_or(0);
        let first = read_first_section(file, word(40), half(58));
        let segments = read_segments(file, word(32), half(56), half(54), first.as_ref())?;
        let sections = match &first {
            Some(first) => read_sections(file, word(40), half(60), half(62), first)?,
            None => Vec::new(),
        };
        Ok(Self { is_library: kind == ET_DYN, entry: word(24), segments, sections })
    }
}

fn context() -> Ctx {
    Ctx::new(Container::Big, Endian::Little)
}

/// Section 0, whose members hold what the file header has no room for.
fn read_first_section(file: &dyn ReadAt, offset: u64, entry_size: u16) -> Option<SectionHeader> {
    if offset == 0 || usize::from(entry_size) != SIZEOF_SHDR {
        return None;
    }
    let bytes = read(file, offset, SIZEOF_SHDR, "the section table").ok()?;
    section_headers(&bytes).pop()
}

/// Parses a table of section headers by hand: goblin's own reader gives the first entry a meaning.
fn section_headers(bytes: &[u8]) -> Vec<SectionHeader> {
    let parse = |entry: &[u8]| {
        Some(SectionHeader {
            sh_name: index32(entry, 0)?,
            sh_type: u32_at(entry, 4)?,
            sh_flags: u64_at(entry, 8)?,
            sh_addr: u64_at(entry, 16)?,
            sh_offset: u64_at(entry, 24)?,
            sh_size: u64_at(entry, 32)?,
            sh_link: u32_at(entry, 40)?,
            sh_info: u32_at(entry, 44)?,
            sh_addralign: u64_at(entry, 48)?,
            sh_entsize: u64_at(entry, 56)?,
        })
    };
    bytes.chunks_exact(SIZEOF_SHDR).filter_map(parse).collect()
}

fn index32(bytes: &[u8], at: usize) -> Option<usize> {
    array_at(bytes, at).map(|b| u32::from_le_bytes(b) as usize)
}

fn read_segments(
    file: &dyn ReadAt,
    offset: u64,
    count: u16,
    entry_size: u16,
    first: Option<&SectionHeader>,
) -> Result<Vec<ProgramHeader>, ElfError> {
    let count = match (count, first) {
        (PN_XNUM, Some(first)) => first.sh_info as usize,
        _ => usize::from(count),
    };
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > MAX_SEGMENTS {
        return Err(ElfError::TooMany { what: "program headers".into(), count: count as u64 });
    }
    if usize::from(entry_size) != SIZEOF_PHDR {
        return Err(ElfError::Malformed("the program header table".into()));
    }
    let bytes = read(file, offset, count * SIZEOF_PHDR, "the program header table")?;
    ProgramHeader::parse(&bytes, 0, count, context())
        .map_err(|_| ElfError::Malformed("the program header table".into()))
}

fn read_sections(
    file: &dyn ReadAt,
    offset: u64,
    count: u16,
    names: u16,
    first: &SectionHeader,
) -> Result<Vec<(String, SectionHeader)>, ElfError> {
    let count = if count == 0 { first.sh_size } else { u64::from(count) };
    if count > MAX_SECTIONS as u64 {
        return Err(ElfError::TooMany { what: "sections".into(), count });
    }
    let bytes = read(file, offset, crate::bytes::index(count) * SIZEOF_SHDR, "the section table");
    let Ok(bytes) = bytes else { return Ok(Vec::new()) };
    let headers = section_headers(&bytes);
    let names = if u32::from(names) == SHN_XINDEX { first.sh_link as usize } else { usize::from(names) };
    let names = match headers.get(names) {
        Some(header) if header.sh_size <= MAX_NAMES => {
            read(file, header.sh_offset, crate::bytes::index(header.sh_size), "the section names")
                .unwrap_or_default()
        }
        Some(header) => {
            return Err(ElfError::TooLarge { what: "the section names".into(), bytes: header.sh_size });
        }
        None => Vec::new(),
    };
    let named = |header: SectionHeader| {
        let name = names.get(header.sh_name..).unwrap_or_default();
        let name = until_nul(name.get(..MAX_NAME).unwrap_or(name));
        (ascii(name), header)
    };
    Ok(headers.into_iter().map(named).collect())
}
