//! The Java virtual machines of processes: rules for frames of the code that they generate, and the methods
//! of these frames.

use std::collections::HashMap;
use std::sync::Arc;

use linux::{PageCache, VirtAddr};
use runtimes::ProcessMemory;
use runtimes::hotspot::{HotspotBinary, JavaProcess, NativeJava};

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
/// Frames of Java in one stack, at most.
const MAX_FRAMES: usize = 2048;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// The virtual machines of all processes.
#[derive(Debug, Default)]
pub(super) struct JavaRuntimes {
    /// By row id of the file.
    binaries: HashMap<u32, Option<HotspotBinary>>,
    known: ProcessSearches<JavaProcess>,
}

impl JavaRuntimes {
    /// Returns the virtual machine of the process `instance`, whose files that may be HotSpot's are `images`,
    /// if it has one that has started.
    pub(super) fn get(
        &mut self,
        instance: u32,
        (space, source): (&ProcessSpace, &GuestSource),
        mut images: impl Iterator<Item = (Arc<FileEntry>, u64)>,
    ) -> Option<&mut JavaProcess> {
        let Self { binaries, known } = self;
        known.get(instance, space.version(), AGAIN_NS, || {
            let memory = JavaMemory::new(space, source);
            images.find_map(|(file, bias)| {
                let read = || HotspotBinary::read(&file.elf(source)?);
                let binary = *binaries.entry(file.id()).or_insert_with(read);
                // A version that is not supported has native frames only.
                JavaProcess::new(&binary?, &memory, bias).ok()
            })
        })
    }
}

/// Memory of a process with a virtual machine. Pages of its library and archives that the process has not
/// touched are read from the files.
#[derive(Debug)]
pub(super) struct JavaMemory<'a> {
    present: SpaceMemory<'a, GuestMemory>,
    space: &'a ProcessSpace,
    source: &'a GuestSource,
}

impl<'a> JavaMemory<'a> {
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

impl ProcessMemory for JavaMemory<'_> {
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

/// Inserts the frames of Java in `found` into `steps`, whose frames from `first` on are `natives`: each
/// before the native frame that runs it.
pub(super) fn insert(
    found: Vec<NativeJava>,
    natives: &[NativeFrame],
    (java, memory): (&mut JavaProcess, &impl ProcessMemory),
    (steps, first): (&mut Vec<StackStep>, usize),
) {
    let rest = steps.split_off(first.min(steps.len()));
    let (mut found, mut inserted) = (found.into_iter().peekable(), 0_usize);
    for (native, step) in natives.iter().zip(rest) {
        let runs = |java: &NativeJava| java.at == native.at && java.stack == native.stack;
        for frame in found.next_if(runs).into_iter().flat_map(|native| native.frames) {
            inserted += 1;
            if inserted <= MAX_FRAMES {
                let function = ManagedFunction::Java(java.method(memory, &frame));
                steps.push(StackStep::Managed { frame, function });
            }
        }
        steps.push(step);
    }
    if inserted > MAX_FRAMES {
        let why = format!("Java: more than {MAX_FRAMES} frames");
        steps.push(StackStep::Reason { of: ReasonSubject::User, why });
    }
}

#[cfg(test)]
mod tests {
    use super::super::managed::NativePlace;
    use super::*;
    use linux::CodeAddr;
    use runtimes::fixture::hotspot::{self as fixture, FRAMES, Version};

    #[test]
    fn frames_precede_the_native_frame_that_runs_them() {
        let memory = fixture::java(Version::Jdk25);
        let mut java = JavaProcess::new(&fixture::binary(), &memory, 0).expect("a layout");
        let (frames, _) = fixture::walk(&mut java, &memory);
        let native = |number: u64| NativeFrame {
            at: CodeAddr::returning(VirtAddr(number)),
            stack: number << 8,
            place: NativePlace::Anonymous,
        };
        let natives = [1, 2, 3, 4].map(native);
        let java_of = |number: u64, frames: &[runtimes::ManagedFrame]| {
            let NativeFrame { at, stack, .. } = native(number);
            NativeJava { at, stack, frames: frames.to_vec() }
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
