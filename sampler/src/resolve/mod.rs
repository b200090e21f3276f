//! From what was read of a guest to rows of a profile: who ran, in which code, for what.
//!
//! ```text
//!  record, stack ──▶ [`resolver`] ─┬─ [`identity`]: instances and threads
//!                                  ├─ [`mode`], [`entry`], [`interrupts`]: what the CPU did
//!                                  ├─ [`walker`], [`frames`], [`stacks`]: call stacks
//!                                  └─ [`accounting`], [`hot`]: CPU accounting, code that was hit
//! ```
//!
//! All of it is owned by the collector's thread.

pub(crate) mod accounting;
mod entry;
pub(crate) mod frames;
pub(crate) mod hot;
mod identity;
mod interrupts;
mod mode;
pub(crate) mod resolver;
pub(crate) mod stacks;
pub(crate) mod walker;

#[cfg(feature = "fuzz")]
pub(crate) use walker::PerfMap;
