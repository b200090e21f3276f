//! ELF files for x86-64, written by code (System V ABI, chapters 4 and 5).
//!
//! ```text
//! ELF header, 64 bytes | program header, 56 bytes | content | sections | table of section headers
//! ```
//!
//! The program header is there with a segment, the table with sections. The names of the sections are the
//! last section, `.shstrtab`, which the writer adds.

/// Bytes of the ELF header.
const HEADER: usize = 64;
/// Bytes of a program header.
const PROGRAM_HEADER: usize = 56;
/// Bytes of an entry of a symbol table or a table of relocations with addends.
const TABLE_ENTRY: u64 = 24;
/// PT_LOAD.
const LOAD: u32 = 1;
/// PF_R and PF_X.
const READ_EXECUTE: u32 = 5;
/// SHF_ALLOC.
const ALLOCATED: u64 = 2;

/// e_type of an executable (ET_EXEC).
pub const EXECUTABLE: u16 = 2;
/// e_type of a shared library (ET_DYN).
pub const LIBRARY: u16 = 3;
/// e_machine of x86-64 (EM_X86_64).
pub const X86_64: u16 = 62;

/// Types of sections (System V ABI, "Section Header").
pub mod section_type {
    /// SHT_PROGBITS.
    pub const BITS: u32 = 1;
    /// SHT_SYMTAB.
    pub const SYMTAB: u32 = 2;
    /// SHT_STRTAB.
    pub const STRTAB: u32 = 3;
    /// SHT_RELA.
    pub const RELA: u32 = 4;
    /// SHT_NOTE.
    pub const NOTE: u32 = 7;
    /// SHT_DYNSYM.
    pub const DYNSYM: u32 = 11;
}

/// A segment that is loaded, readable and executable.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadSegment {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Virtual address.
    pub virt: u64,
    /// Physical address.
    pub phys: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Alignment, bytes.
    pub alignment: u64,
}

/// A section. One with an address is part of the program's memory.
#[derive(Debug, Clone, Copy)]
pub struct ElfSection<'a> {
    name: &'a str,
    kind: u32,
    address: u64,
    link: u32,
    bytes: &'a [u8],
}

impl<'a> ElfSection<'a> {
    /// Makes a section of one of the types of [`section_type`].
    pub fn new(name: &'a str, kind: u32, bytes: &'a [u8]) -> Self {
        Self { name, kind, address: 0, link: 0, bytes }
    }

    /// Sets the section's address in the program's memory.
    #[must_use]
    pub fn with_address(self, address: u64) -> Self {
        Self { address, ..self }
    }

    /// Sets the index of the section that this one refers to, like a symbol table to its strings.
    #[must_use]
    pub fn with_link(self, link: u32) -> Self {
        Self { link, ..self }
    }
}

/// Contents of an ELF file.
#[derive(Debug, Clone, Copy)]
pub struct ElfImage<'a> {
    /// e_type.
    pub kind: u16,
    /// e_machine.
    pub machine: u16,
    /// Entry point.
    pub entry: u64,
    /// The only segment.
    pub segment: Option<LoadSegment>,
    /// Bytes after the headers.
    pub content: &'a [u8],
    /// All sections but `.shstrtab`.
    pub sections: &'a [ElfSection<'a>],
}

impl Default for ElfImage<'_> {
    /// Returns a library for x86-64 without contents.
    fn default() -> Self {
        Self { kind: LIBRARY, machine: X86_64, entry: 0, segment: None, content: &[], sections: &[] }
    }
}

impl ElfImage<'_> {
    /// Offset of [`ElfImage::content`] in a file with a segment, bytes.
    pub const CONTENT: u64 = (HEADER + PROGRAM_HEADER) as u64;

    /// Returns the bytes of the file.
    ///
    /// # Panics
    /// There are more than 65,534 sections.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut file = vec![0; HEADER];
        if let Some(segment) = &self.segment {
            file.extend([LOAD, READ_EXECUTE].map(u32::to_le_bytes).concat());
            let LoadSegment { offset, virt, phys, file_bytes, memory_bytes, alignment } = *segment;
            let fields = [offset, virt, phys, file_bytes, memory_bytes, alignment];
            file.extend(fields.map(u64::to_le_bytes).concat());
        }
        file.extend(self.content);
        let (table_offset, sections) = self.write_sections(&mut file);
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let segments = u16::from(self.segment.is_some());
        let program_headers = if self.segment.is_some() { HEADER as u64 } else { 0 };
        // e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags; then e_ehsize, e_phentsize,
        // e_phnum, e_shentsize, e_shnum, e_shstrndx.
        let fields = [
            [self.kind, self.machine].map(u16::to_le_bytes).concat(),
            1_u32.to_le_bytes().to_vec(),
            [self.entry, program_headers, table_offset].map(u64::to_le_bytes).concat(),
            0_u32.to_le_bytes().to_vec(),
            [64, 56, segments, 64, sections, sections.saturating_sub(1)].map(u16::to_le_bytes).concat(),
        ]
        .concat();
        file[16..HEADER].copy_from_slice(&fields);
        file
    }

    /// Appends the sections and their table; returns the table's offset and the number of its entries.
    fn write_sections(&self, file: &mut Vec<u8>) -> (u64, u16) {
        if self.sections.is_empty() {
            return (0, 0);
        }
        let mut names = vec![0];
        for section in self.sections {
            names.extend(section.name.bytes().chain([0]));
        }
        let own_name = names.len();
        names.extend(b".shstrtab\0");
        // The first entry of the table is unused.
        let mut table = vec![0; 64];
        let mut name = 1;
        for section in self.sections {
            add_section(section, name, file, &mut table);
            name += section.name.len() + 1;
        }
        add_section(&ElfSection::new("", section_type::STRTAB, &names), own_name, file, &mut table);
        let offset = file.len() as u64;
        file.extend(table);
        (offset, u16::try_from(self.sections.len() + 2).expect("fewer than 65,535 sections"))
    }
}

/// Appends a section to the file and its header, with the name at this offset, to the table.
fn add_section(section: &ElfSection<'_>, name: usize, file: &mut Vec<u8>, table: &mut Vec<u8>) {
    let entry_bytes = match section.kind {
        section_type::SYMTAB | section_type::DYNSYM | section_type::RELA => TABLE_ENTRY,
        _ => 0,
    };
    let flags = if section.address == 0 { 0 } else { ALLOCATED };
    let name = u32::try_from(name).expect("short names");
    // sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size, sh_link, sh_info, sh_addralign, sh_entsize
    table.extend([name, section.kind].map(u32::to_le_bytes).concat());
    let (offset, size) = (file.len() as u64, section.bytes.len() as u64);
    table.extend([flags, section.address, offset, size].map(u64::to_le_bytes).concat());
    table.extend([section.link, 0].map(u32::to_le_bytes).concat());
    table.extend([1, entry_bytes].map(u64::to_le_bytes).concat());
    file.extend(section.bytes);
}

/// Returns a symbol (System V ABI, "Symbol Table Entry") with the name at this offset; `info` is its binding
/// and type.
pub fn symbol(name: u32, info: u8, section: u16, address: u64, bytes: u64) -> Vec<u8> {
    let mut entry = name.to_le_bytes().to_vec();
    entry.extend([info, 0]);
    entry.extend(section.to_le_bytes());
    entry.extend([address, bytes].map(u64::to_le_bytes).concat());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(file: &[u8], offset: usize, length: usize) -> usize {
        file[offset..offset + length].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }

    #[test]
    fn sections_are_where_their_headers_say() {
        let symbols = symbol(1, 2, 1, 0x1000, 16);
        let sections = [
            ElfSection::new(".text", section_type::BITS, b"code").with_address(0x1000),
            ElfSection::new(".symtab", section_type::SYMTAB, &symbols).with_link(3),
        ];
        let file = ElfImage { content: b"content", sections: &sections, ..ElfImage::default() }.to_bytes();
        assert_eq!(&file[HEADER..HEADER + 7], b"content");
        let (table, count, names) = (number(&file, 40, 8), number(&file, 60, 2), number(&file, 62, 2));
        assert_eq!((count, names, file.len()), (4, 3, table + 4 * 64));
        let header = |index: usize| table + index * 64;
        let bytes = |index: usize| {
            let start = number(&file, header(index) + 24, 8);
            &file[start..start + number(&file, header(index) + 32, 8)]
        };
        assert_eq!(
            (bytes(1), bytes(2), bytes(3)),
            (&b"code"[..], &symbols[..], &b"\0.text\0.symtab\0.shstrtab\0"[..])
        );
        assert_eq!([1, 2, 3].map(|index| number(&file, header(index), 4)), [1, 7, 15]);
        // Flags, address, link and size of an entry.
        assert_eq!((number(&file, header(1) + 8, 8), number(&file, header(1) + 16, 8)), (2, 0x1000));
        assert_eq!((number(&file, header(2) + 40, 4), number(&file, header(2) + 56, 8)), (3, 24));
    }

    #[test]
    fn a_segment_is_before_the_content() {
        let segment = LoadSegment {
            offset: ElfImage::CONTENT,
            virt: 1,
            phys: 2,
            file_bytes: 3,
            memory_bytes: 4,
            alignment: 5,
        };
        let image = ElfImage {
            kind: EXECUTABLE,
            entry: 6,
            segment: Some(segment),
            content: b"abc",
            ..ElfImage::default()
        };
        let file = image.to_bytes();
        assert_eq!((number(&file, 32, 8), number(&file, 56, 2), number(&file, 24, 8)), (64, 1, 6));
        assert_eq!([72, 80, 88, 96, 104, 112].map(|offset| number(&file, offset, 8)), [120, 1, 2, 3, 4, 5]);
        assert_eq!(&file[120..], b"abc");
        assert_eq!((number(&file, 40, 8), number(&file, 60, 2)), (0, 0), "no table of sections");
    }
}
