//! Walks of threads whose runtime unwinds the code that it generates.

use runtimes::{GeneratedRules, GeneratedUnwinding, ManagedFrame};
use symbols::cfi::{UserEnd, UserUnwinder};

use super::{LiveMapping, LiveMappings, LiveMemory, MappingReader, StoppedThread};

/// Frames of a walk, at most.
const MAX_FRAMES: usize = 2000;

/// A walk: its managed frames as the program itself prints them, and its end.
pub struct Walked {
    pub frames: Vec<String>,
    pub end: UserEnd,
    /// Frames that are in doubt.
    pub doubts: usize,
    /// Instruction pointer.
    pub top: u64,
}

/// Runtime of a live process.
pub trait LiveRuntime: GeneratedRules + Sized {
    /// Returns the runtime that a process has mapped.
    fn start(reader: &MappingReader, mappings: &[LiveMapping], memory: &LiveMemory) -> Self;

    /// Returns a frame as the program prints it.
    fn describe(&mut self, memory: &LiveMemory, frame: &ManagedFrame) -> String;
}

/// Process whose threads are walked.
pub struct Walker<R> {
    pub pid: u32,
    memory: LiveMemory,
    reader: MappingReader,
    unwinder: UserUnwinder,
    runtime: Option<R>,
}

impl<R: LiveRuntime> Walker<R> {
    pub fn new(pid: u32) -> Self {
        let (reader, unwinder) = (MappingReader::default(), UserUnwinder::new());
        Self { pid, memory: LiveMemory::new(pid), reader, unwinder, runtime: None }
    }

    /// Stops a thread and walks its stack.
    pub fn walk(&mut self, tid: i32) -> Walked {
        let Self { pid, memory, reader, unwinder, runtime } = self;
        let stopped = StoppedThread::new(tid);
        let registers = stopped.registers();
        let mappings = reader.read(*pid);
        let runtime = runtime.get_or_insert_with(|| R::start(reader, &mappings, memory));
        let images = LiveMappings { mappings, tables: &reader.tables, memory };
        let unwinding = GeneratedUnwinding::new(&images, &mut *runtime, &*memory);
        let mut doubts = 0;
        let end = unwinder.walk(&registers, &*memory, &unwinding, MAX_FRAMES, |frame| {
            doubts += usize::from(frame.doubt.is_some());
        });
        let found = unwinding.into_found();
        let frames = found.iter().flat_map(|native| &native.frames);
        let frames = frames.map(|frame| runtime.describe(memory, frame)).collect();
        Walked { frames, end, doubts, top: registers.rip }
    }
}
