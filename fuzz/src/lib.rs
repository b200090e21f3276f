//! Guests, files and stacks that the fuzz targets share: valid until the fuzzer's bytes change them.
//!
//! Random bytes do not reach a parser that needs a page table, a symbol table and BTF first. So most targets
//! start from valid input, written by code, and the fuzzer chooses what to break: [`memory::PatchedMemory`]
//! for memory, [`seeds`] for files.

pub mod disks;
pub mod files;
pub mod guests;
pub mod memory;
pub mod seeds;
pub mod stacks;
