//! Runtimes of processes that unwind their code by their own rules, as Java and JavaScript: rules for frames
//! of this code, and the functions of these frames.

use std::collections::HashMap;
use std::sync::Arc;

use guest_linux::{CodeAddr, PageCache, VirtAddr};
use runtimes::hotspot::{HotspotBinary, JavaProcess, may_be_hotspot, may_hold_hotspot_data};
use runtimes::v8::{V8Binary, V8Process, may_be_v8};
use runtimes::{GeneratedFrames, GeneratedRules, ManagedFrame, NativeManaged, ProcessMemory};
use symbols::StackMemory;
use symbols::cfi::{CodeMapping, KnownRegisters};

use super::files::FileEntry;
use super::managed::{ManagedFunction, NativeFrame};
use super::searches::ProcessSearches;
use super::source::GuestSource;
use super::spaces::ProcessSpace;
use super::{ReasonSubject, StackStep};
use crate::managed::SpaceMemory;
use crate::memory::GuestMemory;

/// Shortest time between two searches in a process whose runtime has not started, ns.
const AGAIN_NS: u64 = 100_000_000;
/// Managed frames in one stack, at most.
const MAX_FRAMES: usize = 2048;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Returns true if a file of this name may be a runtime. Only such files are opened.
pub(super) fn may_be_runtime(name: &str) -> bool {
    may_be_hotspot(name) || may_be_v8(name)
}

/// Returns true if a file of this name may be mapped with data of a runtime that the process has not touched
/// itself: names, methods, sources.
pub(super) fn may_hold_runtime_data(name: &str) -> bool {
    may_hold_hotspot_data(name) || may_be_v8(name)
}

/// Runtime of one process.
#[derive(Debug)]
pub(super) enum GeneratedRuntime {
    /// HotSpot.
    Java(JavaProcess),
    /// V8.
    JavaScript(Box<V8Process>),
}

impl GeneratedRuntime {
    /// Returns the function of a frame.
    fn function(&mut self, memory: &impl ProcessMemory, frame: &ManagedFrame) -> ManagedFunction {
        match self {
            Self::Java(java) => ManagedFunction::Java(java.method(memory, frame)),
            Self::JavaScript(v8) => ManagedFunction::JavaScript(v8.function(memory, frame)),
        }
    }

    /// Returns the name of the language in messages.
    fn language(&self) -> &'static str {
        match self {
            Self::Java(_) => "Java",
            Self::JavaScript(_) => "JavaScript",
        }
    }
}

impl GeneratedRules for GeneratedRuntime {
    fn frames(
        &mut self,
        memory: &impl ProcessMemory,
        image: &CodeMapping<'_>,
        at: CodeAddr,
        registers: &KnownRegisters,
        stack: &dyn StackMemory,
    ) -> Option<GeneratedFrames> {
        match self {
            Self::Java(java) => java.frames(memory, image, at, registers, stack),
            Self::JavaScript(v8) => v8.frames(memory, image, at, registers, stack),
        }
    }
}

/// Binary of a runtime.
#[derive(Debug, Clone)]
enum RuntimeBinary {
    Java(HotspotBinary),
    JavaScript(Arc<V8Binary>),
}

impl RuntimeBinary {
    /// Reads `file`; `None` if it is not a runtime, or of a build that is not supported.
    fn read(file: &FileEntry, source: &GuestSource) -> Option<Self> {
        let elf = file.elf(source)?;
        if may_be_hotspot(file.name()) {
            HotspotBinary::read(&elf).map(Self::Java)
        } else {
            V8Binary::read(&elf).ok()?.map(|binary| Self::JavaScript(Arc::new(binary)))
        }
    }

    /// Returns the runtime of a process that has mapped the binary, the file with the row id `file`, at
    /// `bias`.
    fn start(&self, memory: &impl ProcessMemory, file: u32, bias: u64) -> Option<GeneratedRuntime> {
        match self {
            // A version that is not supported has native frames only.
            Self::Java(binary) => JavaProcess::new(binary, memory, bias).ok().map(GeneratedRuntime::Java),
            Self::JavaScript(binary) => {
                let v8 = V8Process::new(Arc::clone(binary), memory, (file, bias));
                Some(GeneratedRuntime::JavaScript(Box::new(v8)))
            }
        }
    }
}

/// The runtimes of all processes.
#[derive(Debug, Default)]
pub(super) struct GeneratedRuntimes {
    /// By row id of the file.
    binaries: HashMap<u32, Option<RuntimeBinary>>,
    known: ProcessSearches<GeneratedRuntime>,
}

impl GeneratedRuntimes {
    /// Returns the runtime of the process `instance`, whose files that may be runtimes are `images`, if it
    /// has one that has started.
    pub(super) fn get(
        &mut self,
        instance: u32,
        (space, source): (&ProcessSpace, &GuestSource),
        mut images: impl Iterator<Item = (Arc<FileEntry>, u64)>,
    ) -> Option<&mut GeneratedRuntime> {
        let Self { binaries, known } = self;
        known.get(instance, space.version(), AGAIN_NS, || {
            let memory = RuntimeMemory::new(space, source);
            images.find_map(|(file, bias)| {
                let binary = binaries.entry(file.id());
                let binary = binary.or_insert_with(|| RuntimeBinary::read(&file, source)).as_ref()?;
                binary.start(&memory, file.id(), bias)
            })
        })
    }
}

/// Memory of a process with such a runtime. Pages of its program, library and archives that the process has
/// not touched are read from the files.
#[derive(Debug)]
pub(super) struct RuntimeMemory<'a> {
    present: SpaceMemory<'a, GuestMemory>,
    space: &'a ProcessSpace,
    source: &'a GuestSource,
}

impl<'a> RuntimeMemory<'a> {
    pub(super) fn new(space: &'a ProcessSpace, source: &'a GuestSource) -> Self {
        let present = SpaceMemory::new(space.address_space(source), &source.memory);
        Self { present, space, source }
    }

    /// Reads a part of a page from the file that it is mapped from.
    fn read_file(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        let (file, offset) = self.space.file_at(at)?;
        let (kernel, memory) = (&self.source.kernel, &self.source.memory);
        let cached = PageCache::new(kernel, memory).ok();
        if cached.and_then(|cache| cache.read(memory, file, offset, into)).is_some() {
            return Some(());
        }
        self.source.open(file).ok()?.0.read_at(offset, into)
    }
}

impl ProcessMemory for RuntimeMemory<'_> {
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        if self.present.read(at, into).is_some() {
            return Some(());
        }
        let (mut at, mut rest) = (at, into);
        while !rest.is_empty() {
            let len = rest.len().min(usize::try_from(PAGE - at.0 % PAGE).ok()?);
            let (part, behind) = rest.split_at_mut_checked(len)?;
            self.present.read(at, part).or_else(|| self.read_file(at, part))?;
            (at, rest) = (at.checked_add(len as u64)?, behind);
        }
        Some(())
    }
}

/// Inserts the managed frames in `found` into `steps`, whose frames from `first` on are `natives`: each
/// before the native frame that runs it.
pub(super) fn insert(
    found: Vec<NativeManaged>,
    natives: &[NativeFrame],
    (runtime, memory): (&mut GeneratedRuntime, &impl ProcessMemory),
    (steps, first): (&mut Vec<StackStep>, usize),
) {
    let rest = steps.split_off(first.min(steps.len()));
    let (mut found, mut inserted) = (found.into_iter().peekable(), 0_usize);
    for (native, step) in natives.iter().zip(rest) {
        let runs = |managed: &NativeManaged| managed.at == native.at && managed.stack == native.stack;
        for frame in found.next_if(runs).into_iter().flat_map(|native| native.frames) {
            inserted += 1;
            if inserted <= MAX_FRAMES {
                let function = runtime.function(memory, &frame);
                steps.push(StackStep::Managed { frame, function });
            }
        }
        steps.push(step);
    }
    if inserted > MAX_FRAMES {
        let why = format!("{}: more than {MAX_FRAMES} frames", runtime.language());
        steps.push(StackStep::Reason { of: ReasonSubject::User, why });
    }
}

#[cfg(test)]
mod tests {
    use super::super::managed::NativePlace;
    use super::*;
    use runtimes::fixture::hotspot::{self as fixture, FRAMES, Version};

    #[test]
    fn frames_precede_the_native_frame_that_runs_them() {
        let memory = fixture::java(Version::Jdk25);
        let mut java = JavaProcess::new(&fixture::binary(), &memory, 0).expect("a layout");
        let (frames, _) = fixture::walk(&mut java, &memory);
        let mut java = GeneratedRuntime::Java(java);
        let native = |number: u64| NativeFrame {
            at: CodeAddr::returning(VirtAddr(number)),
            stack: number << 8,
            place: NativePlace::Anonymous,
        };
        let natives = [1, 2, 3, 4].map(native);
        let java_of = |number: u64, frames: &[runtimes::ManagedFrame]| {
            let NativeFrame { at, stack, .. } = native(number);
            NativeManaged { at, stack, frames: frames.to_vec() }
        };
        // The kernel's frame, then the native ones: two functions are compiled into one.
        let step = |number| {
            let at = CodeAddr::returning(VirtAddr(number));
            StackStep::Memory { at, anonymous: true, made: None }
        };
        let kernel = StackStep::Kernel(CodeAddr::exact(VirtAddr(9)));
        let mut steps: Vec<StackStep> = [kernel].into_iter().chain((1..=4).map(step)).collect();
        let found = vec![java_of(2, &frames[..2]), java_of(4, &frames[2..])];
        insert(found, &natives, (&mut java, &memory), (&mut steps, 1));
        let names = steps.iter().map(|step| match step {
            StackStep::Managed { function, .. } => function.name().unwrap_or("unknown").to_owned(),
            StackStep::Memory { at, .. } => at.address.0.to_string(),
            StackStep::Kernel(_) => "kernel".to_owned(),
            other => format!("{other:?}"),
        });
        let [inner, middle, outer] = FRAMES.map(|(name, _)| name);
        assert_eq!(names.collect::<Vec<_>>(), ["kernel", "1", inner, middle, "2", "3", outer, "4"]);
    }
}
