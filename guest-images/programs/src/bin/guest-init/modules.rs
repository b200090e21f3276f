//! Loads the kernel modules that the initramfs lists.

use std::fs::{self, File};

use guest_programs::LOAD_ORDER;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

/// Loads every module of the list and returns what went wrong with any of them.
///
/// A guest may well run without a module that failed, so the others are tried in any case.
pub fn load_all() -> Vec<String> {
    let list = match fs::read_to_string(LOAD_ORDER) {
        Ok(list) => list,
        Err(error) => return vec![format!("cannot read {LOAD_ORDER}: {error}")],
    };
    list.lines()
        .filter(|path| !path.is_empty())
        .filter_map(|path| load(path).err().map(|why| format!("cannot load {path}: {why}")))
        .collect()
}

fn load(path: &str) -> std::io::Result<()> {
    let module = File::open(path)?;
    match finit_module(&module, c"", ModuleInitFlags::empty()) {
        // Built in or loaded before: what is wanted.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
