//! The mappings of a process, with the unwind tables of their files.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use flate2::read::ZlibDecoder;
use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;
use goblin::elf::section_header::SHF_COMPRESSED;
use symbols::VirtAddr;
use symbols::cfi::{CfiSection, CfiSections, CfiTable, CodeMapping, CodeMappings, ImageCode};

/// A file, or the vDSO.
pub struct File {
    id: u32,
    bytes: Vec<u8>,
    /// Offset in the file, virtual address and size of each segment with code: two segments may share a page
    /// of the file.
    segments: Vec<(u64, u64, u64)>,
    table: Option<CfiTable>,
}

/// An executable mapping.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    file: Option<Arc<File>>,
}

/// All executable mappings at one moment.
#[derive(Default)]
pub struct Mappings {
    list: Vec<Mapping>,
    /// Added to the ids of files: another number makes every cached row unknown.
    pub generation: Cell<u32>,
}

/// Files that were read once, by path.
pub type Files = HashMap<String, Option<Arc<File>>>;

/// Returns the contents of a compressed section: an `Elf64_Chdr` of 24 bytes precedes them.
fn inflate(stored: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(stored.get(24..)?).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the sections that unwinding needs.
fn sections(bytes: &[u8]) -> Option<CfiSections> {
    let elf = Elf::parse(bytes).ok()?;
    let section = |name| {
        let header = elf.section_headers.iter().find(|h| elf.shdr_strtab.get_at(h.sh_name) == Some(name))?;
        let stored = bytes.get(header.file_range()?)?;
        let bytes = match header.sh_flags & u64::from(SHF_COMPRESSED) {
            0 => stored.into(),
            _ => inflate(stored)?.into(),
        };
        Some(CfiSection { bytes, address: header.sh_addr })
    };
    Some(CfiSections {
        eh_frame_hdr: section(".eh_frame_hdr"),
        eh_frame: section(".eh_frame"),
        debug_frame: section(".debug_frame"),
        text: section(".text").map(|section| section.address),
        got: section(".got").map(|section| section.address),
        go: None,
    })
}

impl File {
    pub fn new(id: u32, bytes: Vec<u8>) -> Option<Self> {
        let elf = Elf::parse(&bytes).ok()?;
        let loaded =
            elf.program_headers.iter().filter(|header| header.p_type == PT_LOAD && header.is_executable());
        let segments = loaded.map(|header| (header.p_offset, header.p_vaddr, header.p_filesz)).collect();
        let table = sections(&bytes).and_then(|sections| CfiTable::parse(sections).ok());
        Some(Self { id, segments, table, bytes })
    }

    /// Returns the sections that its table was made of.
    pub fn sections(&self) -> Option<CfiSections> {
        sections(&self.bytes)
    }

    /// Returns the virtual address of the byte at `offset` of the file.
    fn address_of(&self, offset: u64) -> Option<u64> {
        // A mapping starts at a page's start, the segment in it may start later.
        let (at, address, _) =
            self.segments.iter().find(|&&(at, _, size)| at & !0xfff <= offset && offset < at + size)?;
        Some(offset.wrapping_sub(*at).wrapping_add(*address))
    }
}

impl Mappings {
    /// From the text of `/proc/PID/maps`. Reads new files.
    pub fn new(maps: &str, files: &mut Files) -> Self {
        let mut list = Vec::new();
        for line in maps.lines() {
            let mut fields = line.split_whitespace();
            let (Some(range), Some(access), Some(offset)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            let Some((start, end)) = range.split_once('-') else { continue };
            let path = fields.nth(2).unwrap_or_default();
            if !access.contains('x') {
                continue;
            }
            let file = match path {
                "" => None,
                "[vdso]" => files.get(path).cloned().flatten(),
                _ => {
                    let id = u32::try_from(files.len()).unwrap_or(0);
                    let read = || Some(Arc::new(File::new(id, std::fs::read(path).ok()?)?));
                    files.entry(path.into()).or_insert_with(read).clone()
                }
            };
            list.push(Mapping { start: number(start), end: number(end), offset: number(offset), file });
        }
        Self { list, generation: Cell::new(0) }
    }

    fn mapping_of(&self, address: u64) -> Option<&Mapping> {
        let next = self.list.partition_point(|mapping| mapping.start <= address);
        self.list.get(next.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }
}

impl CodeMappings for Mappings {
    fn find(&self, VirtAddr(address): VirtAddr) -> Option<CodeMapping<'_>> {
        let mapping = self.mapping_of(address)?;
        let Some(file) = mapping.file.as_deref() else {
            return Some(CodeMapping { id: 0, bias: 0, code: ImageCode::Anonymous });
        };
        let bias = mapping.start.wrapping_sub(file.address_of(mapping.offset)?);
        let code = file.table.as_ref().map_or(ImageCode::NoCfi, ImageCode::Cfi);
        Some(CodeMapping { id: file.id + self.generation.get(), bias, code })
    }

    fn code(&self, VirtAddr(address): VirtAddr, into: &mut [u8]) -> Option<()> {
        let mapping = self.mapping_of(address)?;
        let offset = usize::try_from(mapping.offset + (address - mapping.start)).ok()?;
        let bytes = mapping.file.as_deref()?.bytes.get(offset..offset + into.len())?;
        into.copy_from_slice(bytes);
        Some(())
    }
}
