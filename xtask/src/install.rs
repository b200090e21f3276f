//! `cargo xtask install`: the program, its manual pages and completions, into a prefix.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use guest_images::static_binary;

use crate::progress::ProgressLine;

/// Path of each shell's completions, under the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/vprof"),
    ("zsh", "share/zsh/site-functions/_vprof"),
    ("fish", "share/fish/vendor_completions.d/vprof.fish"),
];

/// `cargo xtask install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Prefix of `bin/vprof`, `share/man/man1` and the completions of bash, zsh and fish
    #[arg(long, default_value = "/usr/local", value_name = "DIR")]
    prefix: PathBuf,
}

pub fn run(options: &InstallArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    let vprof = line.during("building the static vprof", || static_binary("vprof"))?;
    let prefix = &options.prefix;
    let program = prefix.join("bin/vprof");
    copy(&vprof, &program)?;
    let pages = prefix.join("share/man/man1");
    call(&program, &["man", pages.to_str().context("the prefix is not UTF-8")?])?;
    for (shell, path) in COMPLETIONS {
        let script = call(&program, &["completions", shell])?;
        let path = prefix.join(path);
        directory_of(&path)?;
        fs::write(&path, script).with_context(|| format!("can't write {}", path.display()))?;
    }
    println!("{} is installed, with manual pages in {}", program.display(), pages.display());
    Ok(ExitCode::SUCCESS)
}

fn directory_of(path: &Path) -> Result<()> {
    let directory = path.parent().context("a file has a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("can't make {}", directory.display()))
}

/// Copies to a file next to the target first: a running program cannot be overwritten.
fn copy(from: &Path, to: &Path) -> Result<()> {
    directory_of(to)?;
    let beside = to.with_extension("new");
    fs::copy(from, &beside)
        .and_then(|_| fs::rename(&beside, to))
        .with_context(|| format!("can't install {}", to.display()))
}

fn call(program: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("can't start {}", program.display()))?;
    ensure!(
        output.status.success(),
        "vprof {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}
