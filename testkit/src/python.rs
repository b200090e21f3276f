//! Packages of Python that read what vprof writes.
//!
//! They come from PyPI, by the machine's own settings, and are kept in a directory for tests. Without Python
//! or network a test fails ([`missing`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::{missing, tool};

/// Returns the directory of programs, with `python3`, of an environment below `directory` that has packages
/// of one version each, like `pyarrow==26.0.1`; `None` if they cannot be installed and are not required.
/// `directory` is cargo's for tests (`CARGO_TARGET_TMPDIR`).
///
/// # Panics
/// There is no room.
pub fn python_packages(directory: &Path, packages: &[&str]) -> Option<PathBuf> {
    // Tests of one program would install it at the same time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = directory.join(packages.join("+"));
    let (programs, ready) = (directory.join("bin"), directory.join("ready"));
    if ready.exists() {
        return Some(programs);
    }
    let made = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !made(tool("python3")?.args(["-m", "venv"]).arg(&directory)) {
        missing("an environment of python3 (Debian package python3-venv; `cargo xtask deps` installs it)");
        return None;
    }
    let python = programs.join("python3");
    if !made(Command::new(python).args(["-m", "pip", "install", "--quiet"]).args(packages)) {
        missing(&format!("{} from PyPI, which pip cannot fetch: check the network", packages.join(", ")));
        return None;
    }
    fs::write(ready, "").expect("room");
    Some(programs)
}
