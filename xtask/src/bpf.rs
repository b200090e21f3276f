//! `cargo xtask bpf`: compiles the programs that vprof runs in the kernel of the host.
//!
//! The object is committed next to its source, so that building vprof needs no clang. `record.sum` has the
//! hashes of both: a change of one without the other is found on every machine. Where the same compiler is
//! installed, the object is built again and compared as well.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest_images::find_program;
use sha2::{Digest, Sha256};

use crate::workspace;

/// Release of clang, Debian 12's. Others make other objects.
const RELEASE: &str = "14";
/// The source, the object and their hashes, in `DIRECTORY`.
const DIRECTORY: &str = "attach/bpf";
const SOURCE: &str = "record.c";
const OBJECT: &str = "record.o";
const SUMS: &str = "record.sum";
/// Options of the compiler. `-g` is for BTF, which the verifier needs for functions that it looks at alone;
/// what is for a debugger is removed. Version 3 of the instruction set needs Linux 5.1.
const OPTIONS: [&str; 11] = [
    "-target",
    "bpf",
    "-mcpu=v3",
    "-O2",
    "-g",
    "-ffile-compilation-dir=.",
    "-Wall",
    "-Werror",
    "-ffreestanding",
    "-nostdinc",
    "-c",
];

/// Arguments of `cargo xtask bpf`.
#[derive(Debug, Args)]
pub struct BpfArgs {
    /// Write nothing; fail if the object is not that of the source
    #[arg(long)]
    check: bool,
}

/// Runs `cargo xtask bpf`.
pub fn run(options: &BpfArgs) -> Result<ExitCode> {
    let directory = workspace::root()?.join(DIRECTORY);
    let compiler = BpfCompiler::find();
    if options.check {
        check(&directory, compiler.ok().as_ref())?;
        return Ok(ExitCode::SUCCESS);
    }
    fs::write(directory.join(OBJECT), compiler?.object(&directory)?)
        .with_context(|| format!("cannot write {OBJECT}"))?;
    fs::write(directory.join(SUMS), sums(&directory)?).with_context(|| format!("cannot write {SUMS}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Clang, and LLVM's strip.
struct BpfCompiler {
    clang: PathBuf,
    strip: PathBuf,
}

impl BpfCompiler {
    fn find() -> Result<Self> {
        let program = |name: &str, package: &str| {
            let versioned = find_program(&format!("{name}-{RELEASE}"));
            versioned.or_else(|| find_program(name)).with_context(|| {
                format!("{name} {RELEASE} is not installed: run apt-get install {package}-{RELEASE}")
            })
        };
        let found = Self { clang: program("clang", "clang")?, strip: program("llvm-strip", "llvm")? };
        let version = output(Command::new(&found.clang).arg("--version"))?;
        let version = String::from_utf8_lossy(&version);
        ensure!(
            version.contains(&format!("clang version {RELEASE}.")),
            "{} is not of release {RELEASE}: run apt-get install clang-{RELEASE}",
            found.clang.display()
        );
        Ok(found)
    }

    /// Returns the object of the source.
    fn object(&self, directory: &Path) -> Result<Vec<u8>> {
        let temporary = tempfile::tempdir().context("cannot make a directory")?;
        let object = temporary.path().join(OBJECT);
        // Paths in the object are relative to the directory.
        let mut compile = Command::new(&self.clang);
        output(compile.args(OPTIONS).arg(SOURCE).arg("-o").arg(&object).current_dir(directory))?;
        output(Command::new(&self.strip).arg("-g").arg(&object))?;
        fs::read(&object).with_context(|| format!("cannot read {}", object.display()))
    }
}

/// Returns the standard output of a program that ends well.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(output.stdout)
}

/// Returns the hashes of source and object, in the format of sha256sum(1).
fn sums(directory: &Path) -> Result<String> {
    let mut lines = String::new();
    for name in [SOURCE, OBJECT] {
        let path = directory.join(name);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for byte in Sha256::digest(&bytes) {
            write!(lines, "{byte:02x}").context("cannot format a hash")?;
        }
        writeln!(lines, "  {name}").context("cannot format a hash")?;
    }
    Ok(lines)
}

/// Checks that the object is that of the source: by their hashes, and by the compiler, if there is one.
fn check(directory: &Path, compiler: Option<&BpfCompiler>) -> Result<()> {
    let path = directory.join(SUMS);
    let recorded = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        recorded == sums(directory)?,
        "{DIRECTORY}/{SOURCE} and {OBJECT} are not those of {SUMS}: run cargo xtask bpf"
    );
    if let Some(compiler) = compiler {
        let path = directory.join(OBJECT);
        let object = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            compiler.object(directory)? == object,
            "{DIRECTORY}/{OBJECT} is not that of {SOURCE}: run cargo xtask bpf"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_object_is_that_of_the_source() {
        let directory = workspace::root().unwrap().join(DIRECTORY);
        check(&directory, BpfCompiler::find().ok().as_ref()).unwrap();
    }

    #[test]
    fn a_change_of_source_or_object_alone_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write(SOURCE, "abc");
        write(OBJECT, "def");
        let recorded = sums(directory.path()).unwrap();
        assert!(
            recorded
                .starts_with("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  record.c\n")
        );
        write(SUMS, &recorded);
        check(directory.path(), None).unwrap();
        write(SOURCE, "abd");
        assert!(check(directory.path(), None).is_err());
        write(SOURCE, "abc");
        write(OBJECT, "deg");
        assert!(check(directory.path(), None).is_err());
    }
}
