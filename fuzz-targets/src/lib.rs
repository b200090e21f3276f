//! Fuzz targets: functions that feed a parser of vprof with a fuzzer's bytes, and panic if the parser breaks
//! a promise, for example if it returns more mappings than its bound.
//!
//! Each public module is a target. `fuzz/src/bin` makes a program of each one, in a separate workspace
//! because only these programs need libFuzzer. The targets are here so that every build of the workspace
//! compiles them, and `tests/seeds.rs` runs each target on its seeds.
//!
//! Random bytes do not reach a parser that needs a page table, a symbol table and BTF first. So most targets
//! start from valid input, written by code, and the fuzzer chooses what to break: `input` has what they
//! share.

pub mod accounting;
pub mod boot;
pub mod control;
pub mod dwarf;
pub mod elf;
pub mod gdb;
pub mod go;
pub mod host_message;
pub mod image;
pub mod initrd;
mod input;
pub mod journal;
pub mod kernel;
pub mod kernel_stack;
pub mod managed;
pub mod memory;
pub mod processes;
pub mod profile;
pub mod tables;
pub mod tasks;
pub mod text;
pub mod user_stack;
pub mod virtio;

use std::path::Path;

/// Names the directory that a program writes its target's seeds into, instead of running.
const SEEDS: &str = "VPROF_FUZZ_SEEDS";

/// Writes `seeds` and ends the process if `VPROF_FUZZ_SEEDS` names a directory. Call it before fuzzing
/// starts.
pub fn offer_seeds(seeds: fn() -> Vec<Vec<u8>>) {
    let Some(directory) = std::env::var_os(SEEDS) else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        let path = Path::new(&directory).join(format!("seed-{number}"));
        if let Err(error) = std::fs::write(&path, seed) {
            eprintln!("error: cannot write {}: {error}", path.display());
            std::process::exit(1);
        }
    }
    std::process::exit(0);
}
