//! What the fuzz targets share: guests, files and stacks that are sound until the fuzzer's bytes change them.
//!
//! A parser that wants a page table, a symbol table and BTF before it does anything is not reached by bytes at
//! random. So most targets start from something that is right, written by code, and the fuzzer chooses what to break:
//! [`memory::Patched`] for memory, [`seeds`] for files.

pub mod disks;
pub mod files;
pub mod guests;
pub mod memory;
pub mod seeds;
pub mod stacks;
