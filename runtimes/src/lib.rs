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

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod code;
mod copies;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod frames;
mod generated;
pub mod hotspot;
mod memory;
mod order;
pub mod php;
pub mod python;
pub mod ruby;
mod runtime;
#[cfg(test)]
mod tests;
mod thread_local;
pub mod v8;

pub use code::ManagedCode;
pub use copies::{CopyPlan, CopyStep, NextStep, REGISTERS, WordLoad};
pub use frames::{
    EntryPlace, FrameWords, MAX_FRAMES, ManagedFrame, ManagedStep, WalkFailure, failure_word, thread_word,
};
pub use generated::{GeneratedFrames, GeneratedRules, GeneratedUnwinding, NativeManaged};
pub use memory::ProcessMemory;
pub use order::{NativeCode, NativeFrame, NativeStack, PlacedFrames, place};
pub use runtime::{LayoutError, RuntimeBinary, RuntimeLanguage, RuntimeNames, RuntimePlan, ThreadRegisters};
