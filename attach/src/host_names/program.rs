//! Code of a VMM: its executable mappings, and the functions of the files.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use symbols::elf::ElfFile;
use symbols::names::FunctionTable;

use super::HostName;
use crate::maps::MappingLine;

/// Executable mappings, at most; a VMM has a hundred.
const MOST_MAPPINGS: usize = 4096;
/// Files that are opened, at most.
const MOST_FILES: usize = 256;

/// Executable mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CodeMapping {
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
    state: FileState,
}

impl fmt::Debug for CodeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeFile").field("path", &self.path).finish_non_exhaustive()
    }
}

enum FileState {
    /// Not a file, or one that could not be opened.
    Absent,
    Opened(File),
    Read(Box<(ElfFile, FunctionTable)>),
}

/// Code of a program.
#[derive(Debug, Default)]
pub(super) struct ProgramCode {
    /// In the order of addresses.
    mappings: Vec<CodeMapping>,
    files: Vec<CodeFile>,
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
                let state = is_file.then(|| open(mapped)).flatten();
                opened += usize::from(state.is_some());
                let state = state.map_or(FileState::Absent, FileState::Opened);
                code.files.push(CodeFile { path: name.to_owned(), state });
                code.files.len().saturating_sub(1)
            });
            code.mappings.push(CodeMapping { start, end, offset, file });
        }
        code.mappings.sort_by_key(|mapping| mapping.start);
        code
    }

    fn mapping(&self, address: u64) -> Option<CodeMapping> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (address < mapping.end).then_some(*mapping)
    }

    /// Returns true if an address is in an executable mapping.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.mapping(address).is_some()
    }

    /// Returns the name of the code at an address.
    pub(super) fn name(&mut self, address: u64) -> HostName {
        let Some(mapping) = self.mapping(address) else { return HostName::default() };
        let Some(file) = self.files.get_mut(mapping.file) else { return HostName::default() };
        let offset = (address - mapping.start).saturating_add(mapping.offset);
        let found = file.functions().and_then(|(elf, functions)| {
            let linked = elf.address_of(offset)?;
            let function = functions.find(linked, &|_: u64| None::<u64>)?;
            Some((function.name, linked.saturating_sub(function.start)))
        });
        let (symbol, offset) = found.unzip();
        HostName { symbol, module: file.module(), offset: offset.unwrap_or(0) }
    }
}

impl CodeFile {
    /// Returns the file with its functions, which are read at the first call.
    fn functions(&mut self) -> Option<&(ElfFile, FunctionTable)> {
        if let FileState::Opened(_) = &self.state {
            let state = std::mem::replace(&mut self.state, FileState::Absent);
            if let FileState::Opened(file) = state
                && let Ok(elf) = ElfFile::open(Box::new(file))
            {
                let functions = FunctionTable::read(&elf, None);
                self.state = FileState::Read(Box::new((elf, functions)));
            }
        }
        match &self.state {
            FileState::Read(read) => Some(read),
            FileState::Opened(_) | FileState::Absent => None,
        }
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
        let mut code = ProgramCode::from_maps(MAPS, |_| None);
        assert_eq!(code.mappings.len(), 4);
        assert_eq!(code.files.len(), 3, "a file has one entry");
        let mut module = |address| code.name(address).module;
        assert_eq!(module(0x40_0fff).as_deref(), Some("a vmm"));
        assert_eq!(module(0x50_1000).as_deref(), Some("a vmm"));
        assert_eq!((module(0x40_1000), module(0x7f00_0000_0010)), (None, None));
        assert_eq!(module(0x7ffc_0000_0010).as_deref(), Some("[vdso]"));
        assert!(!code.is_code(0x40_1000) && code.is_code(0x7f00_0000_0010) && !code.is_code(u64::MAX));
    }

    #[test]
    fn functions_of_this_program_are_found_by_its_own_mappings() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut code = ProgramCode::open(pid);
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
