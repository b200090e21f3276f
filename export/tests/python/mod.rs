//! Packages of Python that read vprof's exports.
//!
//! They come from PyPI, by the machine's own settings, and are kept in cargo's directory for tests. Without
//! Python or network a test fails (`testkit::missing`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use testkit::{missing, tool};

/// Returns a Python that has a package of one version, like `pyarrow==26.0.1`; `None` if it cannot be
/// installed and is not required.
pub fn with_package(package: &str) -> Option<PathBuf> {
    // Tests of one program would install it at the same time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(package);
    let python = directory.join("bin/python3");
    let ready = directory.join("ready");
    if ready.exists() {
        return Some(python);
    }
    let made = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !made(tool("python3")?.args(["-m", "venv"]).arg(&directory)) {
        missing("an environment of python3 (Debian package python3-venv; `cargo xtask deps` installs it)");
        return None;
    }
    if !made(Command::new(&python).args(["-m", "pip", "install", "--quiet", package])) {
        missing(&format!("{package} from PyPI, which pip cannot fetch: check the network"));
        return None;
    }
    fs::write(ready, "").expect("room");
    Some(python)
}
