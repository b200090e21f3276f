//! Real processes: their memory, mappings and threads.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use runtimes::ProcessMemory;
use symbols::cfi::{CfiSections, CfiTable, CodeMapping, CodeMappings, ImageCode};
use symbols::elf::ElfFile;
use symbols::{Registers, StackMemory, VirtAddr};

#[allow(dead_code, reason = "for some of the tests")]
pub mod copies;
#[allow(dead_code, reason = "for some of the tests")]
pub mod generated;

/// Memory of a process.
#[derive(Debug)]
pub struct LiveMemory(File);

impl LiveMemory {
    /// Returns the memory of a process.
    pub fn new(pid: u32) -> Self {
        Self(File::open(format!("/proc/{pid}/mem")).expect("memory"))
    }
}

impl ProcessMemory for LiveMemory {
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        self.0.read_exact_at(into, at.0).ok()
    }
}

impl StackMemory for LiveMemory {
    fn read_u64(&self, at: u64) -> Option<u64> {
        ProcessMemory::read_u64(self, VirtAddr(at))
    }
}

/// An executable mapping.
#[derive(Debug)]
pub struct LiveMapping {
    pub range: std::ops::Range<u64>,
    pub bias: u64,
    /// Number of the file, and its tables.
    pub file: Option<u32>,
}

/// Mappings of a process.
#[derive(Debug)]
pub struct LiveMappings<'a> {
    pub mappings: Vec<LiveMapping>,
    pub tables: &'a HashMap<u32, Option<CfiTable>>,
    pub memory: &'a LiveMemory,
}

impl CodeMappings for LiveMappings<'_> {
    fn find(&self, address: VirtAddr) -> Option<CodeMapping<'_>> {
        let mapping = self.mappings.iter().find(|mapping| mapping.range.contains(&address.0))?;
        let code = match mapping.file.map(|file| self.tables.get(&file)) {
            None => ImageCode::Anonymous,
            Some(Some(Some(table))) => ImageCode::Cfi(table),
            Some(_) => ImageCode::NoCfi,
        };
        Some(CodeMapping { id: mapping.file.unwrap_or(0), bias: mapping.bias, code })
    }

    fn code(&self, address: VirtAddr, into: &mut [u8]) -> Option<()> {
        self.memory.read(address, into)
    }
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("hexadecimal")
}

/// Reader of the executable mappings of a process, with the tables of the files that it has read.
#[derive(Debug, Default)]
pub struct MappingReader {
    pub files: HashMap<PathBuf, u32>,
    pub elves: HashMap<u32, ElfFile>,
    pub tables: HashMap<u32, Option<CfiTable>>,
}

impl MappingReader {
    /// Returns the mappings of a process.
    pub fn read(&mut self, pid: u32) -> Vec<LiveMapping> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        let mut mappings = Vec::new();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[range, flags, offset, ..] = words.as_slice() else { continue };
            if !flags.contains('x') {
                continue;
            }
            let (start, end) = range.split_once('-').expect("a range");
            let (range, path) = (hex(start)..hex(end), words.get(5).map(PathBuf::from));
            let file = path.filter(|path| path.is_file()).map(|path| self.file(&path));
            let elf = file.and_then(|file| self.elves.get(&file));
            let address = elf.and_then(|elf| elf.address_of(hex(offset)));
            let bias = address.map_or(0, |address| range.start.wrapping_sub(address));
            mappings.push(LiveMapping { range, bias, file });
        }
        mappings
    }

    /// Returns the first mapped file whose name is `wanted`, its number and its load bias.
    #[allow(dead_code, reason = "for some of the tests")]
    pub fn named(
        &self,
        mappings: &[LiveMapping],
        wanted: impl Fn(&str) -> bool,
    ) -> Option<(&ElfFile, u32, u64)> {
        mappings.iter().find_map(|mapping| {
            let number = mapping.file?;
            let path = self.files.iter().find(|(_, file)| **file == number)?.0;
            let is_it = path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted);
            is_it.then(|| Some((self.elves.get(&number)?, number, mapping.bias)))?
        })
    }

    fn file(&mut self, path: &Path) -> u32 {
        if let Some(&file) = self.files.get(path) {
            return file;
        }
        let file = u32::try_from(self.files.len() + 1).expect("few files");
        self.files.insert(path.to_owned(), file);
        let elf = ElfFile::open(Box::new(File::open(path).expect("a file"))).expect("ELF");
        let table = CfiTable::parse(CfiSections::read(&elf));
        self.tables.insert(file, table.ok());
        self.elves.insert(file, elf);
        file
    }
}

/// A thread that is stopped while this exists.
pub struct StoppedThread(i32);

impl StoppedThread {
    pub fn new(tid: i32) -> Self {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests of ptrace do not use memory of this process.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, tid, none, none), 0, "PTRACE_SEIZE {tid}");
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, tid, none, none), 0, "PTRACE_INTERRUPT");
        }
        let mut status = 0;
        // SAFETY: `status` is a number that lives as long as the call.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        assert_eq!(waited, tid);
        Self(tid)
    }

    fn all_registers(&self) -> libc::user_regs_struct {
        // SAFETY: the structure consists of numbers, for which zero is a value.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel fills the structure, which lives as long as the call.
        let done = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.0, none, &raw mut regs) };
        assert_eq!(done, 0, "PTRACE_GETREGS");
        regs
    }

    /// Returns the FS base.
    #[allow(dead_code, reason = "for some of the tests")]
    pub fn fs_base(&self) -> u64 {
        self.all_registers().fs_base
    }

    pub fn registers(&self) -> Registers {
        let r = self.all_registers();
        let low = [r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp];
        let mut gpr = [0; 16];
        gpr[..8].copy_from_slice(&low);
        gpr[8..].copy_from_slice(&[r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15]);
        Registers { gpr, rip: r.rip }
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: this request does not use memory of this process.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

/// Returns the thread of a process with this name.
#[allow(dead_code, reason = "for some of the tests")]
pub fn thread(pid: u32, name: &str) -> i32 {
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        let path = entry.expect("a thread").path();
        let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        // The kernel keeps 15 characters.
        if comm.trim_end() == &name[..name.len().min(15)] {
            return path.file_name().and_then(|tid| tid.to_str()?.parse().ok()).expect("a number");
        }
    }
    panic!("no thread {name}");
}
