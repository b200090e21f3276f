//! Frames of real interpreters among the native ones, compared with what their programs say of themselves.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use runtimes::{
    FrameWords, ManagedFrame, ManagedStep, NativeCode, NativeFrame, NativeStack, ProcessMemory,
    RuntimeBinary, RuntimeNames, RuntimePlan, ThreadRegisters, WalkFailure, place,
};
use symbols::VirtAddr;
use symbols::cfi::{UserEnd, UserUnwinder};
use testkit::OwnProcess;

mod process;
use process::copies::CopiedMemory;
use process::{LiveMapping, LiveMappings, LiveMemory, MappingReader, StoppedThread};

/// Samples of the busy thread.
const SAMPLES: usize = 400;

/// Process whose threads are walked.
struct Walker {
    pid: u32,
    memory: LiveMemory,
    reader: MappingReader,
    unwinder: UserUnwinder,
    runtime: Option<FoundRuntime>,
}

/// Runtime of the process: its plan, its names, and the addresses of its interpreter, if a symbol shows them.
type FoundRuntime = (RuntimePlan, RuntimeNames, Option<std::ops::Range<u64>>);

/// A walk.
struct Walked {
    /// Managed frames, innermost first.
    managed: Vec<String>,
    failure: Option<WalkFailure>,
    /// All frames, innermost first: managed ones, and signs for native ones: `*` of the interpreter, `+` for
    /// code made at run time, `-` for others.
    mixed: Result<Vec<String>, WalkFailure>,
    end: UserEnd,
}

impl Walker {
    fn new(pid: u32) -> Self {
        let (memory, reader) = (LiveMemory::new(pid), MappingReader::default());
        Self { pid, memory, reader, unwinder: UserUnwinder::new(), runtime: None }
    }

    /// Returns the runtime among the mappings.
    fn find(&self, mappings: &[LiveMapping]) -> FoundRuntime {
        for (path, file) in &self.reader.files {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if RuntimeBinary::may_be(name)
                && let Some(binary) = RuntimeBinary::read(&self.reader.elves[file], name)
            {
                let mapping = mappings.iter().find(|mapping| mapping.file == Some(*file)).expect("a mapping");
                let (plan, names) = binary.plan(&self.memory, mapping.bias).expect("a layout");
                let at = |address: u64| address.wrapping_add(mapping.bias);
                return (plan, names, binary.interpreter().map(|range| at(range.start)..at(range.end)));
            }
        }
        panic!("no runtime in {:?}", self.reader.files);
    }

    fn walk(&mut self, tid: i32) -> Walked {
        let stopped = StoppedThread::new(tid);
        let registers = stopped.registers();
        let mappings = self.reader.read(self.pid);
        if self.runtime.is_none() {
            self.runtime = Some(self.find(&mappings));
        }
        let (plan, names, symbol) = self.runtime.clone().expect("found");
        let state = ThreadRegisters { fs_base: stopped.fs_base(), stack_pointer: registers.rsp() };
        let (above, words) = words(&plan, &self.memory, state);
        let copied = CopiedMemory::new(&plan.copies().expect("a plan"), &self.memory, state.fs_base);
        assert_eq!(
            self::words(&plan, &copied, state),
            (above, words.clone()),
            "what is copied shows the same frames"
        );
        let steps: Vec<ManagedStep> = FrameWords::new(words.into_iter()).collect();
        let images = LiveMappings { mappings, tables: &self.reader.tables, memory: &self.memory };
        let mut natives = Vec::new();
        let end = self.unwinder.walk(&registers, &self.memory, &images, 4000, |frame| natives.push(frame));
        let first = steps.iter().find_map(|step| match step {
            ManagedStep::Frame(frame) => names.interpreter(&self.memory, frame),
            _ => None,
        });
        let interpreter = symbol.or_else(|| function(&images, first?)).unwrap_or_default();
        let natives: Vec<NativeFrame> = natives
            .iter()
            .map(|native| NativeFrame {
                stack: native.stack,
                code: code(&images, native.at.lookup(), &interpreter),
            })
            .collect();
        let describe = |frame: &ManagedFrame| described(&names, &self.memory, frame);
        let managed = steps.iter().filter_map(|step| match step {
            ManagedStep::Frame(frame) => Some(describe(frame)),
            _ => None,
        });
        let failure = steps.iter().find_map(|step| match step {
            ManagedStep::Failure(why) => Some(*why),
            _ => None,
        });
        let stack = NativeStack {
            frames: &natives,
            is_whole: end == UserEnd::Complete,
            may_begin: plan.pushes_before_native(),
        };
        let mixed = place(steps.iter().copied(), stack).map(|(placed, _)| {
            let mut mixed = Vec::new();
            for at in 0..=natives.len() {
                mixed.extend(
                    placed.iter().filter(|(place, _)| *place == at).map(|(_, frame)| describe(frame)),
                );
                mixed.extend(natives.get(at).map(|native| sign(native.code).to_owned()));
            }
            mixed
        });
        Walked { managed: managed.collect(), failure, mixed, end }
    }
}

/// Returns the address above which a thread's stack continues, and the words of its frames; none for a thread
/// that the runtime does not know.
fn words(
    plan: &RuntimePlan,
    memory: &impl ProcessMemory,
    state: ThreadRegisters,
) -> (Option<VirtAddr>, Vec<u64>) {
    let (mut above, mut words) = (None, Vec::new());
    if let Some(thread) = plan.thread(memory, state, None) {
        above = plan.stack_above(memory, thread, state.stack_pointer);
        plan.walk(memory, thread, |word| {
            words.push(word);
            true
        });
    }
    (above, words)
}

/// Returns the sign of a native frame.
fn sign(code: NativeCode) -> &'static str {
    match code {
        NativeCode::Interpreter => "*",
        NativeCode::Made => "+",
        NativeCode::Runtime | NativeCode::Other => "-",
    }
}

/// Returns the kind of code at an address, by the addresses of the interpreter's function.
fn code(images: &LiveMappings<'_>, at: VirtAddr, interpreter: &std::ops::Range<u64>) -> NativeCode {
    if interpreter.contains(&at.0) {
        return NativeCode::Interpreter;
    }
    let file =
        |at: u64| images.mappings.iter().find(|mapping| mapping.range.contains(&at)).map(|found| found.file);
    match file(at.0) {
        Some(None) => NativeCode::Made,
        found if found.is_some() && found == file(interpreter.start) => NativeCode::Runtime,
        _ => NativeCode::Other,
    }
}

/// Returns the function that covers an address of a process.
fn function(images: &LiveMappings<'_>, at: VirtAddr) -> Option<std::ops::Range<u64>> {
    let mapping = images.mappings.iter().find(|mapping| mapping.range.contains(&at.0))?;
    let table = images.tables.get(&mapping.file?)?.as_ref()?;
    let (start, end) = table.function_start(symbols::LinkAddr(at.0.wrapping_sub(mapping.bias)))?;
    Some(start.loaded(mapping.bias).0..end.loaded(mapping.bias).0)
}

/// Returns a frame as the programs print it.
fn described(names: &RuntimeNames, memory: &LiveMemory, frame: &ManagedFrame) -> String {
    let Some(code) = names.read(memory, frame) else { return "unknown".to_owned() };
    let other = ManagedFrame { identity: frame.identity ^ 1, ..*frame };
    assert_eq!(names.read(memory, &other), None, "another object has no name");
    match &code.file {
        Some(file) => format!("{}|{file}|{}", code.name, code.line(frame).unwrap_or(0)),
        None => code.name,
    }
}

/// Returns the interpreters to test: those of the variable, separated by colons, or this machine's.
fn interpreters(variable: &str, program: &str) -> Vec<PathBuf> {
    match std::env::var(variable) {
        Ok(list) => list.split(':').map(PathBuf::from).collect(),
        Err(_) => testkit::tool(program).into_iter().map(|tool| tool.get_program().into()).collect(),
    }
}

/// Asserts that the frames of a thread are those that its program sees, from its function `park` on;
/// functions without a file, and those inside of the runtime's own files, have only their names.
fn assert_frames(found: &[String], wanted: &[String], place: &str) {
    let parks = |frame: &String| frame.starts_with("park|") || frame.starts_with("Live\\park|");
    let from = found.iter().position(parks);
    let from = from.unwrap_or_else(|| panic!("{place}: {found:?}"));
    let name = |frame: &str| frame.split('|').next().unwrap_or("").to_owned();
    let pairs: Vec<(String, String)> = found[from..]
        .iter()
        .zip(wanted)
        .map(|(found, wanted)| match found.contains('|') && !found.contains("|<internal:") {
            true => (found.clone(), wanted.clone()),
            false => (name(found), name(wanted)),
        })
        .collect();
    let (left, right): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    assert_eq!(left, right, "{place}");
    assert_eq!(found.len() - from, wanted.len(), "{place}: {found:?}");
}

/// Removes the frames of handlers of exceptions, which Ruby 3.4 shows as the lines of their functions.
fn without_handlers(frames: &[String]) -> Vec<String> {
    let (mut without, mut line) = (Vec::new(), None);
    for frame in frames {
        if ["rescue in ", "ensure in "].iter().any(|handler| frame.starts_with(handler)) {
            line = line.or_else(|| frame.rsplit('|').next());
        } else {
            let name = frame.rsplit_once('|').map_or(frame.as_str(), |(name, _)| name);
            without.push(line.take().map_or_else(|| frame.clone(), |line| format!("{name}|{line}")));
        }
    }
    without
}

/// Starts a program; returns its process and its first lines.
fn start(mut command: Command, lines: usize, place: &str) -> (OwnProcess, Vec<String>) {
    let mut process = OwnProcess(command.stdout(Stdio::piped()).spawn().expect("an interpreter"));
    let out = BufReader::new(process.stdout.take().expect("a pipe"));
    let found: Vec<String> = out.lines().take(lines).map(|line| line.expect("a line")).collect();
    assert_eq!(found.len(), lines, "{place}: threads");
    // Threads that have just printed go to sleep, which they cannot print.
    std::thread::sleep(std::time::Duration::from_millis(100));
    (process, found)
}

/// Compares the frames of a thread with the line that it has printed; returns its id if it has none there.
fn compare(walker: &mut Walker, line: &str, place: &str) -> Option<i32> {
    let mut parts = line.split('\t');
    let tid = parts.next().and_then(|tid| tid.parse().ok()).expect("a thread");
    let wanted: Vec<String> = parts.map(str::to_owned).collect();
    if wanted.is_empty() {
        return Some(tid);
    }
    let found = walker.walk(tid);
    assert_eq!(found.failure, None, "{place}: {:?}", found.managed);
    let has_handlers = wanted.iter().any(|frame| frame.starts_with("rescue in "));
    let managed = if has_handlers { found.managed.clone() } else { without_handlers(&found.managed) };
    assert_frames(&managed, &wanted, place);
    // The code that starts a fiber of PHP has no unwind table.
    let in_fiber = wanted.iter().any(|frame| frame == "Fiber::start");
    assert!(in_fiber || found.end == UserEnd::Complete, "{place}: {:?} {wanted:?}", found.end);
    let mixed = found.mixed.unwrap_or_else(|why| panic!("{place}: {why}: {wanted:?}"));
    let managed: Vec<&String> =
        mixed.iter().filter(|frame| !["-", "*", "+"].contains(&frame.as_str())).collect();
    assert_eq!(managed, found.managed.iter().collect::<Vec<_>>(), "{place}: in the order of calls");
    None
}

/// Samples the thread that is busy: all but a few stacks must be whole.
fn busy(walker: &mut Walker, tid: i32, place: &str) {
    let (mut bad, mut innermost) = (Vec::new(), HashMap::new());
    for _ in 0..SAMPLES {
        // Samples are that far apart, because the thread then is in another function.
        std::thread::sleep(std::time::Duration::from_millis(2));
        let walked = walker.walk(tid);
        let names: Vec<&str> =
            walked.managed.iter().map(|frame| frame.split('|').next().unwrap_or("")).collect();
        let first = names.first().copied().unwrap_or("nothing").to_owned();
        *innermost.entry(first).or_insert(0) += 1;
        let is_busy = |name: &&str| ["busy", "Live\\busy"].contains(name);
        let whole = names.iter().any(is_busy) && !names.contains(&"unknown") && walked.failure.is_none();
        if !whole || walked.end != UserEnd::Complete || walked.mixed.is_err() {
            let why = walked.mixed.err();
            bad.push(format!("{:?} {:?} {why:?} {names:?}", walked.end, walked.failure));
        }
    }
    println!("{place}: of {SAMPLES} stacks {} not whole; innermost: {innermost:?}", bad.len());
    let few = bad.len() * 50 <= SAMPLES;
    bad.truncate(20);
    println!("{}", bad.join("\n"));
    assert!(few, "{place}");
}

#[test]
fn threads_of_ruby_have_the_frames_that_their_program_sees() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live.rb");
    for ruby in interpreters("VPROF_TESTS_RUBY", "ruby") {
        let mut has_jit = Command::new(&ruby);
        has_jit.args(["--yjit", "--disable-gems", "-e", "exit RubyVM::YJIT.enabled?"]);
        let has_jit = has_jit.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        let options =
            if has_jit { &[&[][..], &["--yjit", "--yjit-call-threshold=2"]][..] } else { &[&[][..]] };
        for options in options {
            let mut command = Command::new(&ruby);
            command.args(*options).args(["--disable-gems", script]);
            let place = format!("{ruby:?} {options:?}");
            let (process, lines) = start(command, 14, &place);
            let mut walker = Walker::new(process.id());
            let threads: Vec<i32> =
                lines.iter().filter_map(|line| compare(&mut walker, line, &place)).collect();
            let [tid] = threads.as_slice() else { panic!("{place}: busy threads {threads:?}") };
            busy(&mut walker, *tid, &place);
        }
    }
}

#[test]
fn processes_of_php_have_the_frames_that_their_program_sees() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live.php");
    for php in interpreters("VPROF_TESTS_PHP", "php") {
        for kind in 0..10 {
            let place = format!("{php:?} {kind}");
            let mut command = Command::new(&php);
            command.args([script, &kind.to_string()]);
            let (process, lines) = start(command, 1, &place);
            assert_eq!(compare(&mut Walker::new(process.id()), &lines[0], &place), None);
        }
        let place = format!("{php:?}");
        let mut command = Command::new(&php);
        command.arg(script);
        let (process, lines) = start(command, 1, &place);
        let mut walker = Walker::new(process.id());
        let tid = compare(&mut walker, &lines[0], &place).expect("a busy thread");
        busy(&mut walker, tid, &place);
    }
}
