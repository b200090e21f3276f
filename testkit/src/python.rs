//! Packages of Python that read what vprof writes.
//!
//! They come from PyPI, by the machine's own settings, and stay in the cache for tests. Without Python or
//! network a test fails ([`missing`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cached, missing, tool};

/// Returns the directory of programs, with `python3`, of an environment that has packages of one version
/// each, like `pyarrow==26.0.1`; `None` if they cannot be installed and are not required. Tests that name the
/// same packages share the environment.
///
/// # Panics
/// The cache cannot be written.
pub fn python_packages(packages: &[&str]) -> Option<PathBuf> {
    let version = tool("python3")?.args(["-c", "import platform; print(platform.python_version())"]).output();
    let version = String::from_utf8(version.expect("python3 starts").stdout).expect("a version");
    let below = format!("python/{}", version.trim());
    let environment = cached(&format!("{below}/{}", packages.join("+")), |directory| {
        make_environment(directory, &["--without-pip"])?;
        // One pip for all of them: a copy in each environment takes twenty times as long as the environment.
        let pip = cached(&format!("{below}/pip"), |directory| make_environment(directory, &[]))?;
        let mut install = Command::new(pip.join("bin/python3"));
        install.args(["-m", "pip", "--python"]).arg(directory).args(["install", "--quiet", "--no-compile"]);
        if !succeeds(install.args(packages)) {
            missing(&format!("{} from PyPI, which pip cannot fetch: check the network", packages.join(", ")));
            return None;
        }
        Some(())
    })?;
    Some(environment.join("bin"))
}

fn make_environment(directory: &Path, options: &[&str]) -> Option<()> {
    if !succeeds(tool("python3")?.args(["-m", "venv"]).args(options).arg(directory)) {
        missing("an environment of python3 (Debian package python3-venv; `cargo xtask deps` installs it)");
        return None;
    }
    Some(())
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
