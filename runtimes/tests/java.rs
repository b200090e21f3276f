//! Frames of real Java virtual machines, compared with what their threads say of themselves.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use runtimes::hotspot::{HotspotBinary, JavaProcess, JavaUnwinding, may_be_hotspot};
use runtimes::{ManagedFrame, ProcessMemory};
use symbols::cfi::{
    CfiSection, CfiSections, CfiTable, CodeMapping, CodeMappings, ImageCode, UserEnd, UserUnwinder,
};
use symbols::elf::{ElfFile, ElfSection};
use symbols::{Registers, StackMemory, VirtAddr};

/// Threads of tests/Live.java that stay as they are, besides the idle ones.
const STILL: usize = 8;
/// Threads that have done nothing but stop.
const IDLE: usize = 50;
/// Samples of the busy thread.
const SAMPLES: usize = 400;

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory of a process.
#[derive(Debug)]
struct LiveMemory(File);

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
struct LiveMapping {
    range: std::ops::Range<u64>,
    bias: u64,
    /// Number of the file, and its tables.
    file: Option<u32>,
}

/// Mappings of a process.
#[derive(Debug)]
struct LiveMappings<'a> {
    mappings: Vec<LiveMapping>,
    tables: &'a HashMap<u32, Option<CfiTable>>,
    memory: &'a LiveMemory,
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
struct MappingReader {
    files: HashMap<PathBuf, u32>,
    elves: HashMap<u32, ElfFile>,
    tables: HashMap<u32, Option<CfiTable>>,
}

impl MappingReader {
    fn read(&mut self, pid: u32) -> Vec<LiveMapping> {
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

    fn file(&mut self, path: &Path) -> u32 {
        if let Some(&file) = self.files.get(path) {
            return file;
        }
        let file = u32::try_from(self.files.len() + 1).expect("few files");
        self.files.insert(path.to_owned(), file);
        let elf = ElfFile::open(Box::new(File::open(path).expect("a file"))).expect("ELF");
        let section = |section: ElfSection| CfiSection { bytes: section.bytes, address: section.address };
        let start = |name| elf.section_range(name).map(|(start, _)| start);
        let table = CfiTable::parse(CfiSections {
            eh_frame_hdr: elf.eh_frame_hdr().ok().map(section),
            eh_frame: elf.eh_frame().ok().map(section),
            debug_frame: elf.section(".debug_frame").ok().map(section),
            text: start(".text"),
            got: start(".got"),
            go: None,
        });
        self.tables.insert(file, table.ok());
        self.elves.insert(file, elf);
        file
    }

    fn hotspot(&self, mappings: &[LiveMapping]) -> (HotspotBinary, u64) {
        let is_it =
            |path: &&PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(may_be_hotspot);
        let file = self.files[self.files.keys().find(is_it).expect("libjvm.so")];
        let mapping = mappings.iter().find(|mapping| mapping.file == Some(file)).expect("a mapping");
        (HotspotBinary::read(&self.elves[&file]).expect("HotSpot"), mapping.bias)
    }
}

/// A thread that is stopped while this exists.
struct StoppedThread(i32);

impl StoppedThread {
    fn new(tid: i32) -> Self {
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

    fn registers(&self) -> Registers {
        // SAFETY: the structure consists of numbers, for which zero is a value.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel fills the structure, which lives as long as the call.
        let done = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.0, none, &raw mut regs) };
        assert_eq!(done, 0, "PTRACE_GETREGS");
        let r = &regs;
        let low = [r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp];
        let mut gpr = [0; 16];
        gpr[..8].copy_from_slice(&low);
        gpr[8..].copy_from_slice(&[r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15]);
        Registers { gpr, rip: regs.rip }
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: this request does not use memory of this process.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

/// Returns the virtual machines to test: those of `VPROF_TESTS_JAVA`, separated by colons, or this machine's.
fn machines() -> Vec<PathBuf> {
    match std::env::var("VPROF_TESTS_JAVA") {
        Ok(list) => list.split(':').map(PathBuf::from).collect(),
        Err(_) => testkit::tool("java").into_iter().map(|java| java.get_program().into()).collect(),
    }
}

/// Process whose threads are walked.
struct Walker {
    pid: u32,
    memory: LiveMemory,
    reader: MappingReader,
    unwinder: UserUnwinder,
    java: Option<RefCell<JavaProcess>>,
}

/// A walk: its frames as tests/Live.java prints them, and its end.
struct Walked {
    frames: Vec<String>,
    end: UserEnd,
    doubts: usize,
    top: u64,
}

impl Walker {
    fn new(pid: u32) -> Self {
        let memory = LiveMemory(File::open(format!("/proc/{pid}/mem")).expect("memory"));
        let (reader, unwinder) = (MappingReader::default(), UserUnwinder::new());
        Self { pid, memory, reader, unwinder, java: None }
    }

    fn walk(&mut self, tid: i32) -> Walked {
        let stopped = StoppedThread::new(tid);
        let registers = stopped.registers();
        let mappings = self.reader.read(self.pid);
        if self.java.is_none() {
            let (binary, bias) = self.reader.hotspot(&mappings);
            let java = JavaProcess::new(&binary, &self.memory, bias).expect("a layout");
            self.java = Some(RefCell::new(java));
        }
        let images = LiveMappings { mappings, tables: &self.reader.tables, memory: &self.memory };
        let mut java = self.java.as_ref().expect("a process").borrow_mut();
        let unwinding = JavaUnwinding::new(&images, &mut java, &self.memory);
        let mut doubts = 0;
        let end = self.unwinder.walk(&registers, &self.memory, &unwinding, 2000, |frame| {
            doubts += usize::from(frame.doubt.is_some());
        });
        let found = unwinding.into_found();
        let frames = found.iter().flat_map(|native| &native.frames);
        let frames = frames.map(|frame| described(&mut java, &self.memory, frame)).collect();
        Walked { frames, end, doubts, top: registers.rip }
    }
}

/// Returns a frame as tests/Live.java prints it.
fn described(java: &mut JavaProcess, memory: &LiveMemory, frame: &ManagedFrame) -> String {
    let Some(method) = java.method(memory, frame) else { return "unknown".to_owned() };
    let file = method.file.as_deref().unwrap_or("-");
    normal(&format!("{}|{file}|{}", method.name, method.line(frame).unwrap_or(0)))
}

/// Removes the number of a hidden class, which JDK 11 does not have in the class's name.
fn normal(frame: &str) -> String {
    match frame.split_once('/') {
        Some((class, rest)) => format!("{class}{}", &rest[rest.find('.').unwrap_or(0)..]),
        None => frame.to_owned(),
    }
}

/// Returns the thread of a process with this name.
fn thread(pid: u32, name: &str) -> i32 {
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

fn check(java: &Path, options: &[&str], warm: &str) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/Live.java");
    let mut command = Command::new(java);
    command.args(options).arg("-Dfile.encoding=UTF-8").args([source, warm, &IDLE.to_string()]);
    let mut process = Process(command.stdout(Stdio::piped()).spawn().expect("java"));
    let out = BufReader::new(process.0.stdout.take().expect("a pipe"));
    let lines: Vec<String> = out.lines().take(STILL + IDLE).map(|line| line.expect("a line")).collect();
    assert_eq!(lines.len(), STILL + IDLE, "{java:?} {options:?}: threads");
    let mut walker = Walker::new(process.0.id());
    for line in &lines {
        let mut parts = line.split('\t').map(normal);
        let name = parts.next().expect("a name");
        // Without the frames of the report.
        let wanted: Vec<String> = parts.skip_while(|frame| !frame.starts_with("Live.stop|")).collect();
        assert!(wanted.len() > 5, "{line}");
        let found = walker.walk(thread(process.0.id(), &name));
        let place = format!("{java:?} {options:?} {name}");
        let from = found.frames.iter().position(|frame| frame.starts_with("Live.stop|"));
        let from = from.unwrap_or_else(|| panic!("{place}: {:?} {:?}", found.frames, found.end));
        assert_eq!(found.frames[from..], wanted, "{place}");
        assert_eq!((found.end, found.doubts), (UserEnd::Complete, 0), "{place}");
        let parked = found.frames.iter().any(|frame| frame.contains("LockSupport.park|"));
        assert!(parked, "{place}: {:?}", found.frames);
    }
    busy(&mut walker, &format!("{java:?} {options:?}"));
}

/// Samples the thread that is busy: all but a few stacks must be whole, and none may have another order.
fn busy(walker: &mut Walker, place: &str) {
    let tid = thread(walker.pid, "busy");
    let (mut bad, mut kinds, mut doubtful) = (Vec::new(), HashMap::new(), 0);
    for _ in 0..SAMPLES {
        std::thread::sleep(std::time::Duration::from_millis(2));
        let walked = walker.walk(tid);
        let names: Vec<&str> =
            walked.frames.iter().map(|frame| frame.split('|').next().unwrap_or("")).collect();
        let whole = names.ends_with(&["Live.busy", "Live.lambda$main$0", "java.lang.Thread.run"])
            || names.windows(2).any(|pair| pair[0] == "Live.busy" && pair[1].contains("Lambda"));
        let first = names.first().copied().unwrap_or("nothing").to_owned();
        *kinds.entry(first).or_insert(0) += 1;
        // Stubs without a fixed frame are unwound by their instructions.
        doubtful += usize::from(walked.doubts > 0);
        if walked.end != UserEnd::Complete || !whole || names.contains(&"unknown") {
            bad.push(format!("{:#x} {:?} {} {names:?}", walked.top, walked.end, walked.doubts));
        }
    }
    println!(
        "{place}: of {SAMPLES} stacks {} not whole, {doubtful} doubtful; innermost: {kinds:?}",
        bad.len()
    );
    let few = bad.len() * 50 <= SAMPLES;
    bad.truncate(20);
    println!("{}", bad.join("\n"));
    assert!(few, "{place}");
}

#[test]
fn threads_have_the_frames_that_their_program_sees() {
    for java in machines() {
        check(&java, &["-XX:TieredStopAtLevel=4"], "20000");
        check(&java, &["-Xint"], "10");
        check(&java, &["-XX:TieredStopAtLevel=1"], "3000");
    }
}
