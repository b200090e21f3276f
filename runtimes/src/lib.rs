//! Frames of managed languages, read from the memory of a process that the language's runtime runs in.
//!
//! ```text
//! files of the mappings ──▶ recognise ──▶ RuntimePlan: addresses and offsets       once for a process
//! thread's FS base, plan ──▶ walk ──▶ FrameWords: code objects, instructions       at a tick, bounded
//! code object ──▶ names ──▶ function, file, lines                                  once for a code object
//! ```
//!
//! A runtime is one folder with these parts. Whatever changes with each call is read at the tick, while the
//! thread is stopped: a few words of each frame. Names stay in memory as long as the code is used, so they
//! are read later. An identity of each code object is among the words: if the memory has another object by
//! then, the frame has no name.
//!
//! All structures belong to the guest and may be hostile: each offset is checked when a plan is made, each
//! list and walk is bounded, and a walk that contradicts itself ends with that reason.

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod frames;
pub mod hotspot;
mod memory;
pub mod python;
#[cfg(test)]
mod tests;

pub use frames::{FrameWords, MAX_FRAMES, ManagedFrame, ManagedStep, WalkFailure};
pub use memory::ProcessMemory;

use symbols::VirtAddr;

/// Positions and layout of the runtime of one process: what a walk of one of its threads needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimePlan {
    /// CPython.
    Python(python::PythonPlan),
}

impl RuntimePlan {
    /// Returns the runtime's state of the thread whose FS base is `fs_base`, by which [`RuntimePlan::walk`]
    /// finds its frames; `None` for a thread that the runtime does not know. `hint` is an earlier result for
    /// the same FS base, which saves the search if it still holds. Bounded reads, no allocation.
    pub fn thread(
        &self,
        memory: &impl ProcessMemory,
        fs_base: u64,
        hint: Option<VirtAddr>,
    ) -> Option<VirtAddr> {
        match self {
            Self::Python(plan) => plan.thread(memory, fs_base, hint),
        }
    }

    /// Passes the words of the frames of `thread` to `push`, until it returns false. No allocation; at most
    /// [`MAX_FRAMES`] frames.
    pub fn walk(&self, memory: &impl ProcessMemory, thread: VirtAddr, push: impl FnMut(u64) -> bool) {
        match self {
            Self::Python(plan) => frames::write(push, |out| plan.walk(memory, thread, out)),
        }
    }
}
