//! Reads the files of programs: ELF, call frame information, DWARF, symbol names, Go's tables. Knows no
//! kernel.
//!
//! The files belong to a guest and may be hostile: every table and length is bounded and nothing panics.
//!
//! ```text
//! registers, copy of a stack ──▶ [`cfi`] ──▶ frames ──▶ [`names`] ──▶ functions, source lines
//!                                  └──── [`elf`] ────────┴── [`go`]
//! ```

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod address;
pub mod bytes;
pub mod cfi;
pub mod counted;
pub mod elf;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod go;
pub mod names;
mod registers;
pub mod shared_table;

pub use address::{AddressKind, CodeAddr, CodeSpace, FileOffset, LinkAddr, PhysAddr, VirtAddr};
pub use registers::{Registers, StackMemory};
