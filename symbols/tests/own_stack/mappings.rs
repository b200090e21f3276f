//! The mappings of this process, with the unwind tables of their files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::rc::Rc;

use symbols::VirtAddr;
use symbols::cfi::{CfiSections, CfiTable, CodeMapping, CodeMappings, ImageCode};
use symbols::elf::ElfFile;

struct MappedFile {
    id: u32,
    elf: ElfFile,
    table: Option<CfiTable>,
}

struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    /// None of anonymous memory and of the vDSO.
    file: Option<Rc<MappedFile>>,
}

/// All executable mappings at one moment.
pub struct Mappings(Vec<Mapping>);

impl MappedFile {
    fn open(path: &str, id: u32) -> Option<Self> {
        let elf = ElfFile::open(Box::new(File::open(path).ok()?)).ok()?;
        let table = CfiTable::parse(CfiSections::read(&elf)).ok();
        Some(Self { id, elf, table })
    }
}

impl Mapping {
    /// Returns the address inside the file of what is mapped at `address`.
    fn linked(&self, file: &MappedFile, address: u64) -> Option<u64> {
        file.elf.address_of(address - self.start + self.offset)
    }
}

impl Mappings {
    /// Reads those of this process.
    pub fn own() -> Self {
        let mut list = Vec::new();
        let mut files: HashMap<String, Option<Rc<MappedFile>>> = HashMap::new();
        for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if !fields[1].contains('x') {
                continue;
            }
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end) = fields[0].split_once('-').unwrap();
            let path = fields.get(5).copied().unwrap_or_default();
            let id = u32::try_from(files.len()).unwrap();
            let file =
                files.entry(path.to_owned()).or_insert_with(|| MappedFile::open(path, id).map(Rc::new));
            let file = file.clone();
            list.push(Mapping { start: number(start), end: number(end), offset: number(fields[2]), file });
        }
        Self(list)
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let next = self.0.partition_point(|mapping| mapping.start <= address);
        self.0.get(next.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }
}

impl CodeMappings for Mappings {
    fn find(&self, VirtAddr(address): VirtAddr) -> Option<CodeMapping<'_>> {
        let mapping = self.mapping(address)?;
        let Some(file) = mapping.file.as_deref() else {
            return Some(CodeMapping { id: 0, bias: 0, code: ImageCode::Anonymous });
        };
        let bias = address.wrapping_sub(mapping.linked(file, address)?);
        let code = file.table.as_ref().map_or(ImageCode::NoCfi, ImageCode::Cfi);
        Some(CodeMapping { id: file.id, bias, code })
    }

    fn code(&self, VirtAddr(address): VirtAddr, into: &mut [u8]) -> Option<()> {
        let mapping = self.mapping(address)?;
        let file = mapping.file.as_deref()?;
        let bytes = file.elf.bytes_at(mapping.linked(file, address)?, into.len() as u64).ok()?;
        into.copy_from_slice(&bytes);
        Some(())
    }
}
