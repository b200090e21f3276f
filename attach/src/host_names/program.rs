//! Code of a VMM: its executable mappings, and the functions and unwind tables of the files.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use symbols::VirtAddr;
use symbols::cfi::{CfiSections, CfiTable, CodeMapping, CodeMappings, ImageCode};
use symbols::elf::ElfFile;
use symbols::names::FunctionTable;

use super::HostName;
use crate::maps::MappingLine;

/// Executable mappings, at most; a VMM has a hundred.
const MOST_MAPPINGS: usize = 4096;
/// Files that are opened, at most.
const MOST_FILES: usize = 256;
/// Bytes of unwind tables of all files, at most; QEMU and its libraries have some MiB.
const MAX_TABLES: usize = 32 << 20;

/// Executable mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MappedCode {
    start: u64,
    end: u64,
    /// Offset in the file.
    offset: u64,
    /// Index in [`ProgramCode::files`].
    file: usize,
}

/// File of mappings, or another name that the kernel gives to mappings.
struct CodeFile {
    path: String,
    /// Not there for other names, a file that could not be opened, and one that was read.
    opened: Cell<Option<File>>,
    read: OnceCell<Option<Box<ReadFile>>>,
}

/// Contents of a file.
struct ReadFile {
    elf: ElfFile,
    functions: FunctionTable,
    unwinding: Option<CfiTable>,
}

impl fmt::Debug for CodeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Code of a program.
#[derive(Debug, Default)]
pub(super) struct ProgramCode {
    /// In the order of addresses.
    mappings: Vec<MappedCode>,
    files: Vec<CodeFile>,
    /// Bytes of unwind tables.
    tables: Cell<usize>,
}

impl ProgramCode {
    /// Reads the mappings of a process and opens their files.
    pub(super) fn open(pid: i32) -> Self {
        let process = Path::new("/proc").join(pid.to_string());
        // A process that has ended has no code: its frames have no names then.
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        Self::from_maps(&maps, |mapped| open(&process, mapped))
    }

    /// Parses /proc/PID/maps. `open` is called once for each file.
    pub(super) fn from_maps(maps: &str, open: impl Fn(MappingLine<'_>) -> Option<File>) -> Self {
        let mut code = Self::default();
        let mut opened = 0;
        let lines = maps.lines().filter_map(MappingLine::parse);
        for mapped in lines.filter(|line| line.permissions.contains('x')).take(MOST_MAPPINGS) {
            let MappingLine { start, end, offset, name, .. } = mapped;
            let known = code.files.iter().position(|file| file.path == name);
            let file = known.unwrap_or_else(|| {
                let is_file = name.starts_with('/') && opened < MOST_FILES;
                let file = is_file.then(|| open(mapped)).flatten();
                opened += usize::from(file.is_some());
                let opened = Cell::new(file);
                code.files.push(CodeFile { path: name.to_owned(), opened, read: OnceCell::new() });
                code.files.len().saturating_sub(1)
            });
            code.mappings.push(MappedCode { start, end, offset, file });
        }
        code.mappings.sort_by_key(|mapping| mapping.start);
        code
    }

    fn mapping(&self, address: u64) -> Option<MappedCode> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (address < mapping.end).then_some(*mapping)
    }

    /// Returns the contents of a mapping's file, which are read at the first call.
    fn contents(&self, mapping: MappedCode) -> Option<&ReadFile> {
        let file = self.files.get(mapping.file)?;
        file.read.get_or_init(|| file.read(&self.tables)).as_deref()
    }

    /// Returns the contents of the file that has the code at an address, and the code's address in it.
    fn linked(&self, mapping: MappedCode, address: u64) -> Option<(&ReadFile, u64)> {
        let file = self.contents(mapping)?;
        let offset = address.wrapping_sub(mapping.start).saturating_add(mapping.offset);
        Some((file, file.elf.address_of(offset)?))
    }

    /// Returns the name of the code at an address.
    pub(super) fn name(&self, address: u64) -> HostName {
        let Some(mapping) = self.mapping(address) else { return HostName::default() };
        let found = self.linked(mapping, address).and_then(|(file, linked)| {
            let function = file.functions.find(linked, &|_: u64| None::<u64>)?;
            Some((function.name, linked.saturating_sub(function.start)))
        });
        let (symbol, offset) = found.unzip();
        let module = self.files.get(mapping.file).and_then(CodeFile::module);
        HostName { symbol, module, offset: offset.unwrap_or(0) }
    }
}

impl CodeMappings for ProgramCode {
    fn find(&self, VirtAddr(address): VirtAddr) -> Option<CodeMapping<'_>> {
        let mapping = self.mapping(address)?;
        let id = u32::try_from(mapping.file).ok()?;
        let found = self.linked(mapping, address);
        let code = match &found {
            Some((ReadFile { unwinding: Some(table), .. }, _)) => ImageCode::Cfi(table),
            Some(_) => ImageCode::NoCfi,
            None if self.files.get(mapping.file)?.path.is_empty() => ImageCode::Anonymous,
            None => ImageCode::NotRead,
        };
        let bias = found.map_or(0, |(_, linked)| address.wrapping_sub(linked));
        Some(CodeMapping { id, bias, code })
    }

    fn code(&self, VirtAddr(address): VirtAddr, into: &mut [u8]) -> Option<()> {
        let (file, linked) = self.linked(self.mapping(address)?, address)?;
        let bytes = file.elf.bytes_at(linked, u64::try_from(into.len()).ok()?).ok()?;
        into.copy_from_slice(bytes.get(..into.len())?);
        Some(())
    }
}

impl CodeFile {
    /// Reads the file. `tables` has the bytes of unwind tables so far.
    fn read(&self, tables: &Cell<usize>) -> Option<Box<ReadFile>> {
        let elf = ElfFile::open(Box::new(self.opened.take()?)).ok()?;
        let functions = FunctionTable::read(&elf, None);
        let unwinding = CfiTable::parse(CfiSections::read(&elf)).ok().filter(|table| {
            let all = tables.get().saturating_add(table.memory());
            let has_room = all <= MAX_TABLES;
            if has_room {
                tables.set(all);
            }
            has_room
        });
        Some(Box::new(ReadFile { elf, functions, unwinding }))
    }

    /// Returns the file's name; `[vdso]` for the kernel's own.
    fn module(&self) -> Option<String> {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        let name = path.rsplit('/').next().unwrap_or(path);
        (!name.is_empty()).then(|| name.to_owned())
    }
}

/// Opens the file of a mapping: the file itself where the kernel allows that, else the one that has its path
/// in the process's own root, if it is the same.
fn open(process: &Path, mapped: MappingLine<'_>) -> Option<File> {
    let MappingLine { name: path, start, end, inode, .. } = mapped;
    if let Ok(file) = File::open(process.join("map_files").join(format!("{start:x}-{end:x}"))) {
        return regular(file);
    }
    // Never waits: something else may have the name by now.
    let mut options = fs::OpenOptions::new();
    let path = process.join("root").join(path.trim_start_matches('/'));
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    regular(file).filter(|file| file.metadata().is_ok_and(|found| found.ino() == inode))
}

fn regular(file: File) -> Option<File> {
    file.metadata().is_ok_and(|found| found.is_file()).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings of a file with blanks in its name, whose data is not code, and one without a file.
    const MAPS: &str = "\
00400000-00401000 r-xp 00000000 08:01 42                                 /opt/a vmm
00401000-00402000 rw-p 00001000 08:01 42                                 /opt/a vmm
00500000-00502000 r-xp 00003000 08:01 42                                 /opt/a vmm
7f0000000000-7f0000001000 rwxp 00000000 00:00 0 
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0                          [vdso]
no-mapping
9-1 r-xp 0 0 0 /backwards
";

    #[test]
    fn an_address_belongs_to_the_file_that_is_mapped_there() {
        let code = ProgramCode::from_maps(MAPS, |_| None);
        assert_eq!(code.mappings.len(), 4);
        assert_eq!(code.files.len(), 3, "a file has one entry");
        let module = |address| code.name(address).module;
        assert_eq!(module(0x40_0fff).as_deref(), Some("a vmm"));
        assert_eq!(module(0x50_1000).as_deref(), Some("a vmm"));
        assert_eq!((module(0x40_1000), module(0x7f00_0000_0010)), (None, None));
        assert_eq!(module(0x7ffc_0000_0010).as_deref(), Some("[vdso]"));
        let kind = |address| code.find(VirtAddr(address)).map(|found| found.code);
        assert!(kind(0x40_1000).is_none() && kind(u64::MAX).is_none());
        assert!(matches!(kind(0x7f00_0000_0010), Some(ImageCode::Anonymous)));
        assert!(matches!(kind(0x40_0000), Some(ImageCode::NotRead)));
    }

    #[test]
    fn functions_of_this_program_are_found_by_its_own_mappings() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let code = ProgramCode::open(pid);
        let address = functions_of_this_program_are_found_by_its_own_mappings as fn() as usize;
        let found = code.name(u64::try_from(address).unwrap() + 1);
        let symbol = found.symbol.expect("a symbol");
        assert!(symbol.contains("functions_of_this_program_are_found_by_its_own_mappings"), "{symbol}");
        assert_eq!(found.offset, 1);
    }

    #[test]
    fn a_file_that_has_taken_the_name_of_another_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("opt")).unwrap();
        fs::write(root.join("opt/vmm"), b"").unwrap();
        let inode = fs::metadata(root.join("opt/vmm")).unwrap().ino();
        let mapped = MappingLine { name: "/opt/vmm", start: 1, end: 2, inode, ..MappingLine::default() };
        assert!(open(directory.path(), mapped).is_some());
        assert!(open(directory.path(), MappingLine { inode: inode + 1, ..mapped }).is_none());
        assert!(open(directory.path(), MappingLine { name: "/opt", ..mapped }).is_none());
    }
}
