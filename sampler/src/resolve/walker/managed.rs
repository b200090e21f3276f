//! Managed frames in a stack: the runtimes of processes, the names of their frames, and the places of these
//! among the native frames.
//!
//! ```text
//! native                      managed                 stack
//! sorted_key                                          sorted_key
//! eval    [0x7ff0, 0x80f0)    c, b | entry 0x8010     c, b, eval
//! call    [0x80f0, 0x8120)                            call
//! eval    [0x8120, 0x8220)    a    | entry 0x8140     a, eval
//! main    [0x8220, ...                                main
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use linux::CodeAddr;
use runtimes::hotspot::JavaMethod;
use runtimes::python::{PythonBinary, PythonCode, PythonNames, PythonPlan};
use runtimes::{FrameWords, ManagedFrame, ManagedStep, RuntimePlan, WalkFailure};
use symbols::LinkAddr;

use super::files::FileEntry;
use super::searches::ProcessSearches;
use super::source::GuestSource;
use super::spaces::ProcessSpace;
use super::{ReasonSubject, StackStep};
use crate::managed::{RuntimeTable, SpaceMemory};

/// Shortest time between two searches in a process whose runtime was not found, ns: at each new reading of
/// its mappings.
const AGAIN_NS: u64 = 1;
/// Code objects of a process that are remembered, at most.
const MAX_CODE: usize = 65_536;

/// Function of a managed frame; `None` if its memory has something else by now, or cannot be read.
#[derive(Debug, Clone)]
pub(crate) enum ManagedFunction {
    /// Of Python.
    Python(Option<Arc<PythonCode>>),
    /// Of Java.
    Java(Option<Arc<JavaMethod>>),
}

impl ManagedFunction {
    /// Returns the language, which is the module of all its functions.
    pub(crate) fn language(&self) -> &'static str {
        match self {
            Self::Python(_) => "python",
            Self::Java(_) => "java",
        }
    }

    /// Returns the function's name.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Python(code) => code.as_ref().map(|code| code.name.as_str()),
            Self::Java(method) => method.as_ref().map(|method| method.name.as_str()),
        }
    }

    /// Returns the source file.
    pub(crate) fn file(&self) -> Option<&str> {
        match self {
            Self::Python(code) => code.as_ref().map(|code| code.file.as_str()),
            Self::Java(method) => method.as_ref().and_then(|method| method.file.as_deref()),
        }
    }

    /// Returns the line that `frame` of this function executes.
    pub(crate) fn line(&self, frame: &ManagedFrame) -> Option<u32> {
        match self {
            Self::Python(code) => code.as_ref().and_then(|code| code.line(frame)),
            Self::Java(method) => method.as_ref().and_then(|method| method.line(frame)),
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
    /// It is the runtime's interpreter, for runtimes that do not show the native frame of a managed one.
    pub is_interpreter: bool,
}

/// Runtime of one process.
#[derive(Debug)]
pub(super) struct FoundRuntime {
    plan: PythonPlan,
    names: PythonNames,
    /// Row id of the runtime's file, and the addresses of its interpreter.
    interpreter: Option<(u32, std::ops::Range<u64>)>,
    code: HashMap<ManagedCode, Option<Arc<PythonCode>>>,
}

/// A code object: address and identity.
type ManagedCode = (u64, u32);

/// The runtimes of all processes.
#[derive(Debug, Default)]
pub(super) struct ManagedRuntimes {
    table: RuntimeTable,
    /// By row id of the file.
    binaries: HashMap<u32, Option<PythonBinary>>,
    known: ProcessSearches<FoundRuntime>,
}

impl ManagedRuntimes {
    pub(super) fn new(table: RuntimeTable) -> Self {
        Self { table, ..Self::default() }
    }

    /// Returns the runtime of the process `instance`, whose files that may be Python's are `images`; lets
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
            for (file, bias) in images {
                let read = || PythonBinary::read(&file.elf(source)?, file.name());
                let binary = *binaries.entry(file.id()).or_insert_with(read);
                // A version that is not supported, or whose table is not there yet, has native frames only.
                if let Some(binary) = binary
                    && let Ok((plan, names)) = binary.plan(&memory, bias)
                {
                    let interpreter = binary.interpreter().map(|range| (file.id(), range));
                    return Some(FoundRuntime { plan, names, interpreter, code: HashMap::new() });
                }
            }
            None
        };
        let found = known.get(instance, space.version(), AGAIN_NS, search);
        let plan = found.as_ref().map(|found| RuntimePlan::Python(found.plan));
        table.set(space.version().0, plan);
        found
    }
}

impl FoundRuntime {
    /// Returns true if the code at `at` of `file` is the runtime's interpreter.
    pub(super) fn is_interpreter(&self, file: &FileEntry, at: LinkAddr) -> bool {
        self.interpreter.as_ref().is_some_and(|(id, range)| *id == file.id() && range.contains(&at.0))
    }

    /// Inserts the frames in `words` into `steps`, whose frames from `first` on are `natives`; `is_whole` if
    /// these reach to the thread's start. Adds the reason if managed frames are missing.
    pub(super) fn insert(
        &mut self,
        words: impl Iterator<Item = u64>,
        (natives, is_whole): (&[NativeFrame], bool),
        (space, source): (&ProcessSpace, &GuestSource),
        (steps, first): (&mut Vec<StackStep>, usize),
    ) {
        let placed = place(FrameWords::new(words), natives, is_whole, self.plan.has_entries());
        let (placed, failure) = match placed {
            Ok(placed) => placed,
            Err(failure) => (Vec::new(), Some(failure)),
        };
        let memory = SpaceMemory::new(space.address_space(source), &source.memory);
        let rest = steps.split_off(first.min(steps.len()));
        let mut placed = placed.into_iter().peekable();
        for (at, step) in rest.into_iter().enumerate() {
            while let Some((_, frame)) = placed.next_if(|&(before, _)| before <= at) {
                steps.push(self.step(frame, &memory));
            }
            steps.push(step);
        }
        for (_, frame) in placed {
            steps.push(self.step(frame, &memory));
        }
        if let Some(failure) = failure {
            steps.push(StackStep::Reason { of: ReasonSubject::User, why: format!("Python: {failure}") });
        }
    }

    fn step(&mut self, frame: ManagedFrame, memory: &impl runtimes::ProcessMemory) -> StackStep {
        if self.code.len() >= MAX_CODE {
            self.code.clear();
        }
        let key = (frame.code.0, frame.identity);
        let read = || self.names.read(memory, &frame).map(Arc::new);
        let code = self.code.entry(key).or_insert_with(read).clone();
        StackStep::Managed { frame, function: ManagedFunction::Python(code) }
    }
}

/// Frames with the index of the native frame that each is put before, in order; and the reason if outer ones
/// are missing.
type PlacedFrames = (Vec<(usize, ManagedFrame)>, Option<WalkFailure>);

/// Returns the places of managed frames among `natives`, innermost first. If these end early, managed frames
/// of further ones follow them all.
fn place(
    steps: impl Iterator<Item = ManagedStep>,
    natives: &[NativeFrame],
    is_whole: bool,
    has_entries: bool,
) -> Result<PlacedFrames, WalkFailure> {
    let (mut placed, mut open, mut failure, mut from) = (Vec::new(), Vec::new(), None, 0);
    for step in steps {
        match step {
            ManagedStep::Frame(frame) => open.push(frame),
            ManagedStep::Entry(entry) => {
                let around = |at: &usize| {
                    let begins = natives.get(*at).is_some_and(|native| native.stack <= entry);
                    begins && natives.get(at + 1).map_or(is_whole, |next| entry < next.stack)
                };
                from = match (from..natives.len()).find(around) {
                    Some(at) => at,
                    None if is_whole => return Err(WalkFailure::Inconsistent),
                    None => natives.len(),
                };
                placed.extend(open.drain(..).map(|frame| (from, frame)));
            }
            ManagedStep::Failure(why) => failure = Some(why),
        }
    }
    if has_entries {
        // Without an entry only after a failure: their native frames are not known.
        if !open.is_empty() && failure.is_none() {
            return Err(WalkFailure::Inconsistent);
        }
        placed.extend(open.into_iter().map(|frame| (natives.len(), frame)));
        return Ok((placed, failure));
    }
    let interpreters: Vec<usize> = (0..natives.len()).filter(|&at| natives[at].is_interpreter).collect();
    let skip = match interpreters.len().checked_sub(open.len()) {
        Some(0) => 0,
        // One that has just begun, or is about to end, has no frame.
        Some(1) if is_whole && failure.is_none() => 1,
        // The outer frames of one of the two are missing.
        Some(_) if failure.is_some() => 0,
        None if !is_whole => 0,
        _ => return Err(WalkFailure::Inconsistent),
    };
    let places = interpreters.into_iter().skip(skip).chain(std::iter::repeat(natives.len()));
    placed.extend(places.zip(open));
    Ok((placed, failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::VirtAddr;

    fn native(stack: u64) -> NativeFrame {
        NativeFrame { at: CodeAddr::exact(VirtAddr(0)), stack, is_interpreter: false }
    }

    fn frame(number: u64) -> ManagedStep {
        ManagedStep::Frame(ManagedFrame { code: VirtAddr(number), instruction: None, identity: 0 })
    }

    /// Places of frames by their numbers, and the reason for missing ones.
    type Placed = Result<(Vec<(usize, u64)>, Option<WalkFailure>), WalkFailure>;

    /// Returns the places of frames.
    fn placed(steps: &[ManagedStep], natives: &[NativeFrame], is_whole: bool, has_entries: bool) -> Placed {
        let (placed, failure) = place(steps.iter().copied(), natives, is_whole, has_entries)?;
        Ok((placed.into_iter().map(|(at, frame)| (at, frame.code.0)).collect(), failure))
    }

    #[test]
    fn frames_precede_the_native_frame_around_their_entry() {
        let natives = [0x7fe0, 0x7ff0, 0x80f0, 0x8120, 0x8220].map(native);
        let steps = [frame(3), frame(2), ManagedStep::Entry(0x8010), frame(1), ManagedStep::Entry(0x8140)];
        let wanted = (vec![(1, 3), (1, 2), (3, 1)], None);
        assert_eq!(placed(&steps, &natives, true, true), Ok(wanted.clone()));
        assert_eq!(placed(&steps, &natives, false, true), Ok(wanted));
        // A walk that ended early does not know the outer native frame, nor where its last one ends.
        for known in [3, 4] {
            let found = placed(&steps, &natives[..known], false, true);
            assert_eq!(found, Ok((vec![(1, 3), (1, 2), (known, 1)], None)), "{known}");
        }
    }

    #[test]
    fn entries_that_are_on_no_frame_are_a_contradiction() {
        let natives = [0x7fe0, 0x7ff0, 0x80f0].map(native);
        let steps = |entries: [u64; 2]| {
            [frame(2), ManagedStep::Entry(entries[0]), frame(1), ManagedStep::Entry(entries[1])]
        };
        let contradiction = Err(WalkFailure::Inconsistent);
        assert_eq!(placed(&steps([0x7fd0, 0x8000]), &natives, true, true), contradiction, "below the stack");
        assert_eq!(placed(&steps([0x8100, 0x7ff8]), &natives, true, true), contradiction, "in another order");
        assert_eq!(placed(&[frame(1)], &natives, true, true), contradiction, "no entry at all");
    }

    #[test]
    fn what_precedes_a_failure_is_kept() {
        let natives = [0x7ff0, 0x80f0].map(native);
        let why = WalkFailure::NotPresent;
        let steps = [frame(3), ManagedStep::Entry(0x8000), frame(2), ManagedStep::Failure(why)];
        assert_eq!(placed(&steps, &natives, true, true), Ok((vec![(0, 3), (2, 2)], Some(why))));
    }

    #[test]
    fn without_entries_each_frame_has_its_interpreter() {
        let natives = |marks: &[bool]| -> Vec<NativeFrame> {
            marks.iter().map(|&is_interpreter| NativeFrame { is_interpreter, ..native(0x1000) }).collect()
        };
        let steps = [frame(2), frame(1)];
        let whole = natives(&[false, true, false, true, false]);
        assert_eq!(placed(&steps, &whole, true, false), Ok((vec![(1, 2), (3, 1)], None)));
        // One that has just begun has no frame; one that was not reached has.
        let begun = natives(&[true, true, false, true]);
        assert_eq!(placed(&steps, &begun, true, false), Ok((vec![(1, 2), (3, 1)], None)));
        let cut = natives(&[false, true, false]);
        assert_eq!(placed(&steps, &cut, false, false), Ok((vec![(1, 2), (3, 1)], None)));
        for marks in [&[true][..], &[true; 4]] {
            let found = placed(&steps, &natives(marks), true, false);
            assert_eq!(found, Err(WalkFailure::Inconsistent), "{marks:?}");
        }
    }
}
