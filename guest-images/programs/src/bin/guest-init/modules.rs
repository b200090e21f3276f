//! Kernel modules of the initramfs.

use std::fs::{self, File};

use guest_programs::LOAD_ORDER;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

/// Loads every module of the list and returns the failures.
///
/// A guest may run without a module that failed, so all others are tried in any case.
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
        // The module is built in or already loaded, which is fine.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
