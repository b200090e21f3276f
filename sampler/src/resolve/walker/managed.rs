//! Managed frames in a stack: the runtimes of processes, the names of their frames, and the places of these
//! among the native frames ([`runtimes::place`]).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use guest_linux::{CodeAddr, VirtAddr};
use runtimes::hotspot::JavaMethod;
use runtimes::v8::JsFunction;
use runtimes::{
    FrameWords, LayoutError, ManagedCode, ManagedFrame, ManagedStep, NativeCode, NativeStack, RuntimeBinary,
    RuntimeLanguage, RuntimeNames, RuntimePlan, place,
};
use symbols::LinkAddr;

use super::files::FileEntry;
use super::searches::ProcessSearches;
use super::source::GuestSource;
use super::spaces::{CodePlace, ProcessSpace};
use super::{ReasonSubject, StackStep};
use crate::managed::{RuntimeTable, SpaceMemory};

/// Shortest time between two searches in a process whose runtime was not found, ns: at each new reading of
/// its mappings.
const AGAIN_NS: u64 = 1;
/// Code objects of a process that are remembered, at most.
const MAX_CODE: usize = 65_536;

/// Threads of a process that are remembered, at most.
const MAX_THREADS: usize = 4096;
/// Attempts to read the name of a thread: its frames may change meanwhile.
const ATTEMPTS: u32 = 8;
/// Characters of a thread's name, at most.
const MAX_THREAD_NAME: usize = 64;

/// Function of a managed frame; `None` if its memory has something else by now, or cannot be read.
#[derive(Debug, Clone)]
pub(crate) enum ManagedFunction {
    /// Of a language whose frames ticks copy.
    Copied(RuntimeLanguage, Option<Arc<ManagedCode>>),
    /// Of Java.
    Java(Option<Arc<JavaMethod>>),
    /// Of JavaScript.
    JavaScript(Option<Arc<JsFunction>>),
}

impl ManagedFunction {
    /// Returns the language, which is the module of all its functions.
    pub(crate) fn language(&self) -> &'static str {
        match self {
            Self::Copied(language, _) => language.module(),
            Self::Java(_) => "java",
            Self::JavaScript(_) => "javascript",
        }
    }

    /// Returns the function's name.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Copied(_, code) => code.as_ref().map(|code| code.name.as_str()),
            Self::Java(method) => method.as_ref().map(|method| method.name.as_str()),
            Self::JavaScript(function) => function.as_ref().map(|function| function.name.as_str()),
        }
    }

    /// Returns the source file.
    pub(crate) fn file(&self) -> Option<&str> {
        match self {
            Self::Copied(_, code) => code.as_ref().and_then(|code| code.file.as_deref()),
            Self::Java(method) => method.as_ref().and_then(|method| method.file.as_deref()),
            Self::JavaScript(function) => function.as_ref().and_then(|function| function.file()),
        }
    }

    /// Returns the line that `frame` of this function executes.
    pub(crate) fn line(&self, frame: &ManagedFrame) -> Option<u32> {
        match self {
            Self::Copied(_, code) => code.as_ref().and_then(|code| code.line(frame)),
            Self::Java(method) => method.as_ref().and_then(|method| method.line(frame)),
            Self::JavaScript(function) => function.as_ref().and_then(|function| function.line(frame)),
        }
    }
}

/// A native frame that managed frames may run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NativeFrame {
    /// Address of its code.
    pub at: CodeAddr,
    /// Stack pointer in the frame: its part of the stack ends at that of the next one.
    pub stack: u64,
    /// The file that its code is in.
    pub place: NativePlace,
}

/// Mapping of the code of a native frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NativePlace {
    /// File by its row id, and address in it.
    File(u32, LinkAddr),
    /// Memory without a file.
    Anonymous,
    /// Unknown memory.
    Unknown,
}

/// Runtime of one process.
#[derive(Debug)]
pub(super) struct FoundRuntime {
    language: RuntimeLanguage,
    /// Row id of the runtime's file.
    file: u32,
    /// Layout, or why there is none.
    reader: Result<RuntimeReader, LayoutError>,
}

/// Reader of the frames of one process.
#[derive(Debug)]
struct RuntimeReader {
    plan: RuntimePlan,
    names: RuntimeNames,
    /// Addresses of the interpreter in the runtime's file, as far as they are known.
    interpreter: Option<Range<u64>>,
    code: HashMap<CodeKey, Option<Arc<ManagedCode>>>,
    threads: HashMap<VirtAddr, FoundName>,
}

/// Name of a thread by its runtime's state.
#[derive(Debug, Default)]
struct FoundName {
    name: Option<Arc<str>>,
    attempts: u32,
}

/// A code object: address and identity.
type CodeKey = (u64, u32);

/// The runtimes of all processes.
#[derive(Debug, Default)]
pub(super) struct ManagedRuntimes {
    table: RuntimeTable,
    /// By row id of the file.
    binaries: HashMap<u32, Option<RuntimeBinary>>,
    known: ProcessSearches<FoundRuntime>,
}

impl ManagedRuntimes {
    pub(super) fn new(table: RuntimeTable) -> Self {
        Self { table, ..Self::default() }
    }

    /// Returns the runtime of the process `instance`, whose files that may be a runtime are `images`; lets
    /// later ticks copy its frames.
    pub(super) fn get(
        &mut self,
        instance: u32,
        space: &ProcessSpace,
        source: &GuestSource,
        images: impl Iterator<Item = (Arc<FileEntry>, u64)>,
    ) -> Option<&mut FoundRuntime> {
        let Self { table, binaries, known } = self;
        let search = || {
            let memory = SpaceMemory::new(space.address_space(source), &source.memory);
            let mut unsupported = None;
            for (file, bias) in images {
                let read = || RuntimeBinary::read(&file.elf(source)?, file.name());
                let Some(binary) = binaries.entry(file.id()).or_insert_with(read) else { continue };
                let reader = binary.plan(&memory, bias).map(|(plan, names)| RuntimeReader {
                    plan,
                    names,
                    interpreter: binary.interpreter(),
                    code: HashMap::new(),
                    threads: HashMap::new(),
                });
                // Its table may not be there yet.
                if reader.as_ref().is_err_and(|why| *why == LayoutError::NotPresent) {
                    continue;
                }
                let is_supported = reader.is_ok();
                let found = FoundRuntime { language: binary.language(), file: file.id(), reader };
                if is_supported {
                    return Some(found);
                }
                unsupported = unsupported.or(Some(found));
            }
            unsupported
        };
        let found = known.get(instance, space.version(), AGAIN_NS, search);
        let plan = found.as_ref().and_then(|found| found.reader.as_ref().ok()).map(|reader| reader.plan);
        table.set(space.version().0, plan);
        found
    }
}

impl FoundRuntime {
    /// Inserts the frames in `words` into `steps`, whose frames from `first` on are `natives`; `is_whole` if
    /// these reach to the thread's start. Adds the reason if managed frames are missing. Returns the name
    /// that the runtime alone has for the thread.
    pub(super) fn insert(
        &mut self,
        words: impl Iterator<Item = u64>,
        (natives, is_whole): (&[NativeFrame], bool),
        (space, source): (&ProcessSpace, &GuestSource),
        (steps, first): (&mut Vec<StackStep>, usize),
    ) -> Option<Arc<str>> {
        let language = self.language;
        let missing = |why: &dyn std::fmt::Display| StackStep::Reason {
            of: ReasonSubject::User,
            why: format!("{language}: {why}"),
        };
        let reader = match &mut self.reader {
            Ok(reader) => reader,
            Err(why) => {
                let is_of_file = |native: &NativeFrame| matches!(native.place, NativePlace::File(file, _) if file == self.file);
                steps.extend(natives.iter().any(is_of_file).then(|| missing(why)));
                return None;
            }
        };
        let managed: Vec<ManagedStep> = FrameWords::new(words).collect();
        if managed.is_empty() {
            return None;
        }
        let memory = SpaceMemory::new(space.address_space(source), &source.memory);
        let thread_name = match managed.first() {
            Some(&ManagedStep::Thread(thread)) => reader.thread_name(thread, &memory),
            _ => None,
        };
        reader.find_interpreter(&managed, &memory, (space, self.file));
        let frames: Vec<runtimes::NativeFrame> = natives
            .iter()
            .map(|native| runtimes::NativeFrame {
                stack: native.stack,
                code: reader.code_of(native.place, self.file),
            })
            .collect();
        let may_begin = reader.plan.pushes_before_native();
        let placed = place(managed.into_iter(), NativeStack { frames: &frames, is_whole, may_begin });
        let (placed, failure) = match placed {
            Ok(placed) => placed,
            Err(failure) => (Vec::new(), Some(failure)),
        };
        let rest = steps.split_off(first.min(steps.len()));
        let mut placed = placed.into_iter().peekable();
        for (at, step) in rest.into_iter().enumerate() {
            while let Some((_, frame)) = placed.next_if(|&(before, _)| before <= at) {
                steps.push(reader.step(language, frame, &memory));
            }
            steps.push(step);
        }
        for (_, frame) in placed {
            steps.push(reader.step(language, frame, &memory));
        }
        steps.extend(failure.map(|failure| missing(&failure)));
        thread_name
    }
}

impl RuntimeReader {
    /// Returns the name of a thread, read once; `None` while it cannot be read.
    fn thread_name(&mut self, thread: VirtAddr, memory: &impl runtimes::ProcessMemory) -> Option<Arc<str>> {
        if self.threads.len() >= MAX_THREADS {
            self.threads.clear();
        }
        let found = self.threads.entry(thread).or_default();
        if found.name.is_none() && found.attempts < ATTEMPTS {
            found.attempts += 1;
            let name = self.names.thread_name(memory, &self.plan, thread);
            found.name = name.map(|name| name.chars().take(MAX_THREAD_NAME).collect::<String>().into());
        }
        found.name.clone()
    }

    /// Finds the interpreter through the first frame's code, for runtimes whose code leads to it.
    fn find_interpreter(
        &mut self,
        managed: &[ManagedStep],
        memory: &impl runtimes::ProcessMemory,
        (space, file): (&ProcessSpace, u32),
    ) {
        if self.interpreter.is_some() {
            return;
        }
        let names = &self.names;
        let at = managed.iter().find_map(|step| match step {
            ManagedStep::Frame(frame) => names.interpreter(memory, frame),
            _ => None,
        });
        let Some(at) = at else { return };
        if let CodePlace::File(at, entry) = space.place(CodeAddr::exact(at))
            && entry.id() == file
        {
            self.interpreter = entry.function_at(at.lookup());
        }
    }

    /// Returns the kind of code at `place`; `file` is the runtime's.
    fn code_of(&self, place: NativePlace, file: u32) -> NativeCode {
        match place {
            NativePlace::Anonymous => NativeCode::Made,
            NativePlace::File(other, at) if other == file => {
                match self.interpreter.as_ref().is_some_and(|range| range.contains(&at.0)) {
                    true => NativeCode::Interpreter,
                    false => NativeCode::Runtime,
                }
            }
            NativePlace::File(..) | NativePlace::Unknown => NativeCode::Other,
        }
    }

    fn step(
        &mut self,
        language: RuntimeLanguage,
        frame: ManagedFrame,
        memory: &impl runtimes::ProcessMemory,
    ) -> StackStep {
        if self.code.len() >= MAX_CODE {
            self.code.clear();
        }
        let key = (frame.code.0, frame.identity);
        let read = || self.names.read(memory, &frame).map(Arc::new);
        let code = self.code.entry(key).or_insert_with(read).clone();
        StackStep::Managed { frame, function: ManagedFunction::Copied(language, code) }
    }
}
