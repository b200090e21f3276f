//! `cargo xtask install`: the program, its manual pages and completions and the portable host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use guest_images::{PORTABLE_HOST_FILES, portable_host};

use crate::compile::{VprofBuild, VprofKind};
use crate::deps;
use crate::progress::ProgressLine;

/// Path of each shell's completions, under the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/vprof"),
    ("zsh", "share/zsh/site-functions/_vprof"),
    ("fish", "share/fish/vendor_completions.d/vprof.fish"),
];

/// The program, under the prefix.
const PROGRAM: &str = "bin/vprof";
/// Directory of the manual pages, under the prefix.
pub const MANUAL: &str = "share/man/man1";
/// Directory of the portable host, under the prefix: where `vprof` in `bin` looks for it.
const PORTABLE_HOST: &str = "share/vprof/portable-host";

/// `cargo xtask install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Prefix of `bin/vprof`, `share/man/man1`, `share/vprof/portable-host` and the completions of bash, zsh
    /// and fish
    #[arg(long, default_value = "/usr/local", value_name = "DIR")]
    prefix: PathBuf,

    /// Leave out the portable host, which machines without a usable KVM need
    #[arg(long)]
    without_portable_host: bool,

    /// Leave out `vprof agent`, `vprof fleet` and the formats parquet and otlp, which take a fifth of the
    /// time to compile
    #[arg(long)]
    no_fleet: bool,
}

pub fn run(options: &InstallArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    let kind = if options.no_fleet { VprofKind::WithoutFleet } else { VprofKind::Full };
    let build = VprofBuild::start(kind, &line)?;
    let bundle = if options.without_portable_host {
        None
    } else if deps::ensure_for_demo(&line)? {
        Some(portable_host(&line)?)
    } else {
        return Ok(ExitCode::FAILURE);
    };
    let vprof = build.finish(&line)?;
    let prefix = &options.prefix;
    install_program(&vprof, prefix)?;
    println!(
        "{} is installed, with manual pages in {}",
        prefix.join(PROGRAM).display(),
        prefix.join(MANUAL).display()
    );
    if let Some(bundle) = bundle {
        let directory = copy_bundle(&bundle, prefix)?;
        println!("the portable host, for machines without a usable KVM, is in {}", directory.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies the program to its place under the prefix, with its manual pages and completions.
pub fn install_program(vprof: &Path, prefix: &Path) -> Result<()> {
    let program = prefix.join(PROGRAM);
    copy(vprof, &program)?;
    let pages = prefix.join(MANUAL);
    call(&program, &["man", pages.to_str().context("the prefix is not UTF-8")?])?;
    for (shell, path) in COMPLETIONS {
        let script = call(&program, &["completions", shell])?;
        let path = prefix.join(path);
        directory_of(&path)?;
        fs::write(&path, script).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

/// Copies the portable host's files to their place under the prefix, which it returns.
pub fn copy_bundle(from: &Path, prefix: &Path) -> Result<PathBuf> {
    let directory = prefix.join(PORTABLE_HOST);
    for name in PORTABLE_HOST_FILES {
        copy(&from.join(name), &directory.join(name))?;
    }
    Ok(directory)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_host_is_where_the_installed_program_looks() {
        let directory = tempfile::tempdir().unwrap();
        let (from, prefix) = (directory.path().join("from"), directory.path().join("prefix"));
        fs::create_dir(&from).unwrap();
        for name in PORTABLE_HOST_FILES {
            fs::write(from.join(name), name).unwrap();
        }
        let installed = copy_bundle(&from, &prefix).unwrap();
        assert_eq!(installed, prefix.join("share/vprof/portable-host"));
        // As after an update: files that exist are replaced.
        fs::write(from.join("vmlinuz"), "newer").unwrap();
        copy_bundle(&from, &prefix).unwrap();
        assert_eq!(fs::read_to_string(installed.join("vmlinuz")).unwrap(), "newer");
        assert_eq!(fs::read_dir(installed).unwrap().count(), PORTABLE_HOST_FILES.len());
    }
}
