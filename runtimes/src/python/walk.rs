//! The walk of a thread's frames at a tick.

use symbols::VirtAddr;
use symbols::bytes::{u32_at, u64_at};

use super::copies::copies;
use super::layout::{CodeIdentity, FrameChain, Instruction, LARGEST_NEAR, WalkLayout};
use crate::copies::CopyPlan;
use crate::frames::{self, EntryPlace, FrameWriter, MAX_FRAMES, WalkFailure};
use crate::{LayoutError, ProcessMemory};

/// Interpreters of a process that are searched for a thread, at most.
const MAX_INTERPRETERS: usize = 16;
/// Threads of all interpreters that are searched, at most.
const MAX_THREADS: usize = 1024;
/// Bytes of a `PyThreadState`, at most (3.10: 280, 3.11: 360).
const THREAD_STATE: u64 = 512;
/// Smallest `owner` of a shim.
const SHIM: u8 = 3;
/// Tag bits in a `_PyStackRef` (3.14: Include/internal/pycore_stackref.h); objects are aligned to 8 bytes.
const TAGS: u64 = 3;

/// Positions and offsets for walks of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonPlan {
    /// Address of `_PyRuntime`.
    runtime: VirtAddr,
    layout: WalkLayout,
}

/// Members of a frame that are read.
#[derive(Debug, Clone, Copy)]
struct FrameHead {
    code: VirtAddr,
    instruction: VirtAddr,
    previous: VirtAddr,
    /// A byte of the frame, by which the chain recognises the last frame of a native one.
    mark: u8,
}

impl PythonPlan {
    /// Returns a plan; all offsets in frames and code objects must be small enough to be read in one piece.
    pub(super) fn new(runtime: VirtAddr, layout: WalkLayout) -> Result<Self, LayoutError> {
        let CodeIdentity { pointers: [file, name, lines], first_line } = layout.identity;
        let mark = match layout.chain {
            FrameChain::Cframes { is_entry: mark, .. } | FrameChain::Shims { owner: mark, .. } => mark,
            FrameChain::Objects { .. } | FrameChain::ObjectsWithCframes { .. } => 0,
        };
        let (Instruction::Address(instruction) | Instruction::Index { at: instruction, .. }) =
            layout.instruction;
        let near = [file, name, lines, first_line, mark, instruction, layout.previous, layout.code];
        if near.iter().any(|&offset| offset > LARGEST_NEAR - 8) {
            return Err(LayoutError::Invalid);
        }
        Ok(Self { runtime, layout })
    }

    /// See [`crate::RuntimePlan::copies`].
    pub(crate) fn copies(&self) -> Option<CopyPlan> {
        copies(self.runtime, &self.layout, self.frame_bytes())
    }

    /// Returns the number of bytes of a frame that are read.
    fn frame_bytes(&self) -> usize {
        let mark = match self.layout.chain {
            FrameChain::Cframes { is_entry: mark, .. } | FrameChain::Shims { owner: mark, .. } => mark,
            FrameChain::Objects { .. } | FrameChain::ObjectsWithCframes { .. } => 0,
        };
        let (Instruction::Address(instruction) | Instruction::Index { at: instruction, .. }) =
            self.layout.instruction;
        let last = instruction.max(self.layout.previous).max(self.layout.code).max(mark);
        usize::from(last) + 8
    }

    /// See [`crate::RuntimePlan::thread`].
    pub(crate) fn thread(
        &self,
        memory: &impl ProcessMemory,
        fs_base: u64,
        hint: Option<VirtAddr>,
    ) -> Option<VirtAddr> {
        if let Some(thread) = hint
            && self.is_thread(memory, thread, fs_base) == Some(true)
        {
            return Some(thread);
        }
        let mut interpreter = word(memory, self.runtime, self.layout.interpreters)?;
        let mut threads = 0;
        for _ in 0..MAX_INTERPRETERS {
            if interpreter.0 == 0 {
                break;
            }
            let mut thread = word(memory, interpreter, self.layout.threads)?;
            while thread.0 != 0 && threads < MAX_THREADS {
                if word(memory, thread, self.layout.thread_id.into())?.0 == fs_base {
                    return Some(thread);
                }
                thread = word(memory, thread, self.layout.next_thread.into())?;
                threads += 1;
            }
            interpreter = word(memory, interpreter, self.layout.next_interpreter)?;
        }
        None
    }

    /// Returns true if `thread` is the state of the thread with this FS base. Memory of a thread that has
    /// ended may look like it, but is no longer in the list.
    fn is_thread(&self, memory: &impl ProcessMemory, thread: VirtAddr, fs_base: u64) -> Option<bool> {
        if word(memory, thread, self.layout.thread_id.into())?.0 != fs_base {
            return Some(false);
        }
        let previous = word(memory, thread, self.layout.previous_thread.into())?;
        let to_it = if previous.0 == 0 {
            let interpreter = word(memory, self.runtime, self.layout.interpreters)?;
            word(memory, interpreter, self.layout.threads)?
        } else {
            word(memory, previous, self.layout.next_thread.into())?
        };
        Some(to_it == thread)
    }

    /// See [`crate::RuntimePlan::walk`].
    pub(crate) fn walk<P: FnMut(u64) -> bool>(
        &self,
        memory: &impl ProcessMemory,
        thread: VirtAddr,
        out: &mut FrameWriter<P>,
    ) -> Result<(), WalkFailure> {
        let read = |base, offset: u16| word(memory, base, offset.into()).ok_or(WalkFailure::NotPresent);
        match self.layout.chain {
            FrameChain::Objects { frame } => {
                let mut frame = read(thread, frame)?;
                while frame.0 != 0 {
                    frame = self.push(memory, frame, out)?.previous;
                    out.entry(EntryPlace::Interpreter)?;
                }
                Ok(())
            }
            FrameChain::ObjectsWithCframes { frame, cframe, previous } => {
                let mut cframe = read(thread, cframe)?;
                let mut frame = read(thread, frame)?;
                while frame.0 != 0 {
                    frame = self.push(memory, frame, out)?.previous;
                    out.entry(EntryPlace::Address(cframe.0))?;
                    cframe = read(cframe, previous)?;
                }
                ends_in(thread, cframe)
            }
            FrameChain::Cframes { cframe, current, previous, .. } => {
                let mut cframe = read(thread, cframe)?;
                let mut frame = read(cframe, current)?;
                while frame.0 != 0 {
                    let head = self.push(memory, frame, out)?;
                    frame = head.previous;
                    if head.mark != 0 {
                        out.entry(EntryPlace::Address(cframe.0))?;
                        cframe = read(cframe, previous)?;
                        // It points to the frame in which a native function has called.
                        if read(cframe, current)? != frame {
                            return Err(WalkFailure::Inconsistent);
                        }
                    }
                }
                ends_in(thread, cframe)
            }
            FrameChain::Shims { cframe, current, .. } => {
                let holder = cframe.map_or(Ok(thread), |cframe| read(thread, cframe))?;
                self.walk_shims(memory, read(holder, current)?, out)
            }
        }
    }

    /// Returns the outermost frame of a thread, and its code object; `None` while the frames change.
    pub(super) fn outermost(
        &self,
        memory: &impl ProcessMemory,
        thread: VirtAddr,
    ) -> Option<(VirtAddr, VirtAddr)> {
        let pointer = |base, offset: u16| word(memory, base, offset.into());
        let (mut frame, has_shims) = match self.layout.chain {
            FrameChain::Objects { frame } | FrameChain::ObjectsWithCframes { frame, .. } => {
                (pointer(thread, frame)?, false)
            }
            FrameChain::Cframes { cframe, current, .. } => {
                (pointer(pointer(thread, cframe)?, current)?, false)
            }
            FrameChain::Shims { cframe, current, .. } => {
                let holder = cframe.map_or(Some(thread), |cframe| pointer(thread, cframe))?;
                (pointer(holder, current)?, true)
            }
        };
        let mut outermost = None;
        for _ in 0..2 * MAX_FRAMES {
            if frame.0 == 0 {
                return outermost;
            }
            let head = self.head(memory, frame).ok()?;
            if !has_shims || head.mark < SHIM {
                outermost = Some((frame, head.code));
            }
            frame = head.previous;
        }
        None
    }

    fn walk_shims<P: FnMut(u64) -> bool>(
        &self,
        memory: &impl ProcessMemory,
        mut frame: VirtAddr,
        out: &mut FrameWriter<P>,
    ) -> Result<(), WalkFailure> {
        let mut is_open = false;
        // Shims follow each other only where a native frame has just begun or is about to end.
        for _ in 0..2 * MAX_FRAMES {
            if frame.0 == 0 {
                return if is_open { Err(WalkFailure::Inconsistent) } else { Ok(()) };
            }
            let head = self.head(memory, frame)?;
            is_open = head.mark < SHIM;
            if is_open {
                self.push_head(memory, head, out)?;
            } else {
                out.entry(EntryPlace::Address(frame.0))?;
            }
            frame = head.previous;
        }
        Err(WalkFailure::TooDeep)
    }

    fn push<P: FnMut(u64) -> bool>(
        &self,
        memory: &impl ProcessMemory,
        frame: VirtAddr,
        out: &mut FrameWriter<P>,
    ) -> Result<FrameHead, WalkFailure> {
        let head = self.head(memory, frame)?;
        self.push_head(memory, head, out)?;
        Ok(head)
    }

    fn push_head<P: FnMut(u64) -> bool>(
        &self,
        memory: &impl ProcessMemory,
        head: FrameHead,
        out: &mut FrameWriter<P>,
    ) -> Result<(), WalkFailure> {
        let identity = identity(memory, head.code, &self.layout.identity).ok_or(WalkFailure::NotPresent)?;
        out.frame(head.code, head.instruction, identity)
    }

    /// Reads the frame at `frame`.
    fn head(&self, memory: &impl ProcessMemory, frame: VirtAddr) -> Result<FrameHead, WalkFailure> {
        let mark_at = match self.layout.chain {
            FrameChain::Cframes { is_entry: mark, .. } | FrameChain::Shims { owner: mark, .. } => Some(mark),
            FrameChain::Objects { .. } | FrameChain::ObjectsWithCframes { .. } => None,
        };
        let mut bytes = [0; LARGEST_NEAR as usize];
        let bytes = bytes.get_mut(..self.frame_bytes()).ok_or(WalkFailure::Inconsistent)?;
        memory.read(frame, bytes).ok_or(WalkFailure::NotPresent)?;
        let word = |at: u16| u64_at(bytes, at.into()).map(VirtAddr).ok_or(WalkFailure::Inconsistent);
        let code = VirtAddr(word(self.layout.code)?.0 & !TAGS);
        let instruction = match self.layout.instruction {
            Instruction::Address(at) => word(at)?,
            Instruction::Index { at, unit } => {
                let index = u32_at(bytes, at.into()).ok_or(WalkFailure::Inconsistent)?;
                // -1 before the first instruction.
                let index = if index.cast_signed() < 0 { 0 } else { index };
                VirtAddr(code.0.wrapping_add(u64::from(index) * u64::from(unit)))
            }
        };
        let mark = mark_at.and_then(|at| bytes.get(usize::from(at)).copied()).unwrap_or(0);
        Ok(FrameHead { code, instruction, previous: word(self.layout.previous)?, mark })
    }
}

/// Checks that the outermost `CFrame` is that in the thread's state, which belongs to no frame
/// (`PyThreadState.root_cframe`).
fn ends_in(thread: VirtAddr, cframe: VirtAddr) -> Result<(), WalkFailure> {
    let offset = cframe.offset_from(thread);
    offset.filter(|&offset| offset < THREAD_STATE).map(drop).ok_or(WalkFailure::Inconsistent)
}

/// Returns the hash of the members that identify the code object at `code`.
pub(super) fn identity(memory: &impl ProcessMemory, code: VirtAddr, of: &CodeIdentity) -> Option<u32> {
    let (first, count) = identity_range(of);
    let mut bytes = [0; LARGEST_NEAR as usize];
    let bytes = bytes.get_mut(..count)?;
    memory.read(code.checked_add(first.into())?, bytes)?;
    let line = u32_at(bytes, usize::from(of.first_line - first))?;
    let [file, name, lines] = of.pointers.map(|at| u64_at(bytes, usize::from(at - first)));
    Some(frames::identity([line.into(), file?, name?, lines?]))
}

/// Returns the offset and number of the bytes that hold those members.
pub(super) fn identity_range(of: &CodeIdentity) -> (u16, usize) {
    let [first, last] =
        of.pointers.into_iter().fold([of.first_line; 2], |[first, last], at| [first.min(at), last.max(at)]);
    (first, usize::from(last - first) + 8)
}

/// Reads the pointer at `offset` of the structure at `base`.
fn word(memory: &impl ProcessMemory, base: VirtAddr, offset: u32) -> Option<VirtAddr> {
    memory.read_u64(base.checked_add(offset.into())?).map(VirtAddr)
}
