//! Frames of real processes, compared with what the programs say of themselves.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use runtimes::python::{PythonBinary, PythonNames, PythonPlan, may_be_python};
use runtimes::{
    EntryPlace, FrameWords, ManagedStep, ProcessMemory, RuntimeNames, RuntimePlan, ThreadRegisters,
};
use serde_json::Value;
use symbols::VirtAddr;
use symbols::elf::ElfFile;
use testkit::OwnProcess;

#[path = "process/copies.rs"]
mod copies;

/// Threads of tests/live.py.
const THREADS: usize = 7;

/// Memory of a process, and the number of reads.
struct LiveMemory {
    file: File,
    reads: RefCell<usize>,
}

impl ProcessMemory for LiveMemory {
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        *self.reads.borrow_mut() += 1;
        self.file.read_exact_at(into, at.0).ok()
    }
}

/// Returns the plan and the names of the CPython in a process.
fn python(pid: u32, memory: &LiveMemory) -> (PythonPlan, PythonNames) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[range, _, offset, _, _, path] = words.as_slice() else { continue };
        let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or("");
        if !may_be_python(name) {
            continue;
        }
        let elf = ElfFile::open(Box::new(File::open(path).expect("a file"))).expect("ELF");
        let Some(binary) = PythonBinary::read(&elf, name) else { continue };
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let start = hex(range.split('-').next().expect("a start"));
        let bias = start.wrapping_sub(elf.address_of(hex(offset)).expect("a segment"));
        return binary.plan(memory, bias).expect("a layout");
    }
    panic!("no CPython in {maps}");
}

/// Returns the registers of the thread with this ident.
fn registers(fs_base: u64) -> ThreadRegisters {
    ThreadRegisters { fs_base, stack_pointer: 0 }
}

/// Returns the interpreters to test: those of `VPROF_TESTS_PYTHON`, separated by colons, or this machine's.
fn interpreters() -> Vec<Command> {
    match std::env::var("VPROF_TESTS_PYTHON") {
        Ok(list) => list.split(':').map(Command::new).collect(),
        Err(_) => testkit::tool("python3").into_iter().collect(),
    }
}

#[test]
fn threads_have_the_frames_that_their_program_sees() {
    for mut interpreter in interpreters() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live.py");
        let child = interpreter.arg(script).stdout(Stdio::piped()).spawn().expect("python3");
        let mut process = OwnProcess(child);
        let out = BufReader::new(process.stdout.take().expect("a pipe"));
        let lines: Vec<String> = out.lines().take(THREADS).map(|line| line.expect("a line")).collect();
        let pid = process.id();
        let file = File::open(format!("/proc/{pid}/mem")).expect("memory");
        let memory = LiveMemory { file, reads: RefCell::default() };
        let (plan, names) = python(pid, &memory);
        let by_py_spy = py_spy(pid);
        // All threads sleep, or are about to, in the line that has reported.
        for line in lines {
            let mut parts = line.split('\t');
            let ident: u64 = parts.next().and_then(|ident| ident.parse().ok()).expect("an ident");
            let thread_name = parts.next().expect("a name");
            let wanted: Vec<String> = parts.map(str::to_owned).collect();
            let found = frames(&plan, &names, &memory, ident);
            assert_eq!(found, wanted, "{interpreter:?}");
            if let Some(threads) = &by_py_spy {
                assert_eq!(threads.get(&ident), Some(&found), "{interpreter:?}: by py-spy");
            }
            let named = name_of(plan, names, &memory, ident);
            // Since 3.14 the kernel has these names.
            let is_known = named.is_none() && has_names_in_kernel(pid);
            assert!(is_known || named.as_deref() == name_by_threading(thread_name), "{named:?}: {line}");
        }
        assert_eq!(
            RuntimePlan::Python(plan).thread(&memory, registers(0x1234), None),
            None,
            "no such thread"
        );
    }
}

/// Returns the frames of each thread, by its ident, as py-spy sees them.
fn py_spy(pid: u32) -> Option<HashMap<u64, Vec<String>>> {
    let programs = testkit::python_packages(&["py-spy==0.4.3"])?;
    let mut command = Command::new(programs.join("py-spy"));
    let output = command.args(["dump", "--json", "--pid", &pid.to_string()]).output().expect("py-spy");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let threads: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |frame: &Value, key: &str| frame[key].as_str().expect("a text").to_owned();
    let frame =
        |frame: &Value| format!("{}|{}|{}", text(frame, "name"), text(frame, "filename"), frame["line"]);
    let thread = |thread: &Value| {
        let frames = thread["frames"].as_array().expect("frames").iter().map(frame).collect();
        (thread["thread_id"].as_u64().expect("an ident"), frames)
    };
    Some(threads.iter().map(thread).collect())
}

/// Returns the name of a thread.
fn name_of(plan: PythonPlan, names: PythonNames, memory: &LiveMemory, ident: u64) -> Option<String> {
    let plan = RuntimePlan::Python(plan);
    let thread = plan.thread(memory, registers(ident), None).expect("a thread of the runtime");
    RuntimeNames::Python(names).thread_name(memory, &plan, thread)
}

/// Returns the name that a thread has by `threading` alone; the main thread has none.
fn name_by_threading(name: &str) -> Option<&str> {
    (name != "MainThread").then_some(name)
}

/// Returns true if a thread of the process has another name than the process.
fn has_names_in_kernel(pid: u32) -> bool {
    let comm = |path: std::path::PathBuf| std::fs::read_to_string(path.join("comm")).expect("a name");
    let own = comm(format!("/proc/{pid}").into());
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    threads.into_iter().any(|thread| comm(thread.expect("a thread").path()) != own)
}

/// Returns the frames of a thread as tests/live.py prints them.
fn frames(plan: &PythonPlan, names: &PythonNames, memory: &LiveMemory, ident: u64) -> Vec<String> {
    let runtime = RuntimePlan::Python(*plan);
    let thread = runtime.thread(memory, registers(ident), None).expect("a thread of the runtime");
    *memory.reads.borrow_mut() = 0;
    assert_eq!(runtime.thread(memory, registers(ident), Some(thread)), Some(thread));
    assert!(*memory.reads.borrow() <= 4, "a hint saves the search");
    let other = VirtAddr(thread.0 + 64);
    assert_eq!(
        runtime.thread(memory, registers(ident), Some(other)),
        Some(thread),
        "a wrong hint does no harm"
    );
    *memory.reads.borrow_mut() = 0;
    let mut words = Vec::new();
    runtime.walk(memory, thread, |word| {
        words.push(word);
        true
    });
    let reads = *memory.reads.borrow();
    let copied = copies::CopiedMemory::new(&runtime.copies().expect("a plan"), memory, ident);
    assert_eq!(runtime.thread(&copied, registers(ident), None), Some(thread));
    let mut of_copies = Vec::new();
    runtime.walk(&copied, thread, |word| {
        of_copies.push(word);
        true
    });
    assert_eq!(of_copies, words, "what is copied shows the same frames");
    let (mut found, mut entry, mut without) = (Vec::new(), 0, 0);
    for step in FrameWords::new(words.iter().copied()) {
        match step {
            ManagedStep::Frame(frame) => {
                let code = names.read(memory, &frame).expect("a code object");
                let line = code.line(&frame).expect("a line");
                found.push(format!("{}|{}|{line}", code.name, code.file.as_deref().expect("a file")));
                let other = runtimes::ManagedFrame { identity: frame.identity ^ 1, ..frame };
                assert_eq!(names.read(memory, &other), None, "another object has no name");
            }
            ManagedStep::Entry(EntryPlace::Interpreter) => without += 1,
            ManagedStep::Entry(EntryPlace::Outermost) => panic!("frames outside of the interpreter"),
            ManagedStep::Entry(EntryPlace::Address(at)) => {
                assert!(at > entry, "an outer native frame is above: {at:#x}, {entry:#x}");
                entry = at;
            }
            ManagedStep::Failure(why) => panic!("{why} after {found:?}"),
            ManagedStep::Thread(_) => panic!("a walk does not add the thread"),
        }
    }
    // Up to 3.9 each frame has its own native frame.
    assert!(if entry == 0 { without == found.len() } else { without == 0 }, "{without}");
    assert!(reads <= 4 * found.len() + 8, "{reads} reads for {} frames", found.len());
    found
}
