//! Builds of this workspace's programs that need no other file at run time.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use guest_programs::{INIT, WORKLOADS};
use sha2::{Digest, Sha256};

use crate::manifest::hex;
use crate::place::workspace;

/// The target of `.cargo/config.toml`, whose flags make every program static.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Parts of the workspace that decide what [`programs`] builds.
const SOURCES_OF_PROGRAMS: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo",
    "guest-images/programs",
    "guest-images/inlined",
];

/// Builds a program of this workspace for release and returns its path. Takes a moment if the program is
/// built already.
///
/// # Errors
/// There is no such program, or it does not compile: the compiler's last lines are in the error.
pub fn static_binary(name: &str) -> Result<PathBuf> {
    let directory = if name == INIT || WORKLOADS.contains(&name) {
        programs()?
    } else {
        build(&["--package", name, "--bin", name])?;
        output_directory()
    };
    let path = directory.join(name);
    ensure!(path.is_file(), "cargo built no program {}", path.display());
    Ok(path)
}

/// Returns the directory of init and all workloads. It is in the user's cache under the hash of their
/// sources, because a checkout would otherwise build them only to find that its images are made already.
pub(crate) fn programs() -> Result<PathBuf> {
    let mut hash = Sha256::new();
    // The settings are in this file.
    hash.update(include_str!("binary.rs"));
    for part in SOURCES_OF_PROGRAMS {
        add_files(&mut hash, &workspace().join(part))?;
    }
    let mut failure = None;
    let fill = |directory: &Path| build_programs(directory).map_err(|error| failure = Some(error)).ok();
    let directory = testkit::cached(&format!("programs/{}", hex(&hash.finalize())), fill);
    directory.ok_or_else(|| failure.unwrap_or_else(|| anyhow!("cannot build the guest's programs")))
}

/// Adds the names and contents of a file, or of all files below a directory, to a hash.
fn add_files(hash: &mut Sha256, path: &Path) -> Result<()> {
    let failed = || format!("cannot read {}", path.display());
    if path.is_dir() {
        let entries = fs::read_dir(path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        let mut entries = entries.with_context(failed)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        return entries.iter().try_for_each(|entry| add_files(hash, &entry.path()));
    }
    let name = path.strip_prefix(workspace()).unwrap_or(path).as_os_str();
    for bytes in [name.as_encoded_bytes(), &fs::read(path).with_context(failed)?] {
        hash.update(bytes.len().to_le_bytes());
        hash.update(bytes);
    }
    Ok(())
}

/// Builds init and all workloads, and copies them into a directory.
fn build_programs(into: &Path) -> Result<()> {
    // The programs are unpacked into memory or copied into images at every start, so they have to be small.
    // Line tables are stripped again. They are asked for because the compiler then gives `main` unwind
    // tables, although a panic aborts.
    let small = ["codegen-units=1", "panic='abort'", "debug='line-tables-only'"];
    let mut settings: Vec<String> =
        small.iter().map(|setting| format!("--config=profile.release.{setting}")).collect();
    // The line tables that stay name the checkout, by which a program would differ from one to the other.
    let root = workspace();
    settings.push(format!(
        "--config=target.{TARGET}.rustflags=['--remap-path-prefix={}=/vprof']",
        root.display()
    ));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    build(&[&["--package", "guest-programs", "--package", "inlined"][..], &settings].concat())?;
    for name in WORKLOADS.iter().chain([&INIT]) {
        let copied = fs::copy(output_directory().join(name), into.join(name));
        copied.with_context(|| format!("cannot copy the program {name} to {}", into.display()))?;
    }
    Ok(())
}

/// Returns the cargo that runs this program, with the environment of the user's shell: `cargo run` adds
/// variables that describe xtask, and the build script of `ring` runs again whenever they change. With them,
/// `cargo build` after `cargo xtask test` would compile `ring`, and all that uses TLS, once more.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    for (name, _) in env::vars_os() {
        let is_of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()));
        if is_of_package {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Returns the directory in which cargo puts the programs that [`build`] builds.
fn output_directory() -> PathBuf {
    // Cargo resolves a relative directory from where it is started.
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    workspace().join(target).join(TARGET).join("release")
}

/// Builds for release with these arguments of cargo, in silence.
///
/// There is no wrapper of the compiler, because cargo hashes the wrapper's path into every symbol: a program
/// would differ from checkout to checkout, and each checkout would make its own images for it.
fn build(arguments: &[&str]) -> Result<()> {
    let mut cargo = cargo();
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "").args(["build", "--release", "--quiet"]).args(arguments);
    let output =
        cargo.current_dir(workspace()).stdin(Stdio::null()).output().context("cannot start cargo")?;
    if !output.status.success() {
        // The compiler's messages have several lines, and all of them matter.
        bail!(
            "cannot build a static program with cargo build {}:\n{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    /// Returns the directory of workloads.
    fn workloads() -> &'static Path {
        // Cargo is asked once, because it takes a while even to find that nothing is to be built.
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        BUILT.get_or_init(|| programs().unwrap())
    }

    #[test]
    fn static_programs_need_no_loader() {
        let path = static_binary("spin").unwrap();
        // A dynamic program names its interpreter; a static one does not (System V ABI, PT_INTERP).
        let contents = std::fs::read(&path).unwrap();
        let loader = b"/lib64/ld-linux-x86-64.so.2\0";
        assert!(!contents.windows(loader.len()).any(|window| window == loader));
        let ran = Command::new(&path).args(["--seconds", "0"]).status().unwrap();
        assert!(ran.success());
    }

    /// Returns the output of a program.
    fn output_text(name: &str, arguments: &[&str]) -> String {
        let output = Command::new(workloads().join(name)).args(arguments).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the number that is the word at this index.
    fn number(text: &str, place: usize) -> f64 {
        text.split_whitespace().nth(place).and_then(|word| word.parse().ok()).expect("a number")
    }

    #[test]
    fn known_shares_come_out() {
        for (name, shares) in [("shares", [0.5, 0.3, 0.2]), ("threads", [0.5, 1.0 / 3.0, 1.0 / 6.0])] {
            let text = output_text(name, &["--seconds", "0.2", "--slice-millis", "1"]);
            let used: Vec<f64> = text.lines().map(|line| number(line, 2)).collect();
            let total: f64 = used.iter().sum();
            assert_eq!(used.len(), 3, "{text}");
            for (used, share) in used.iter().zip(shares) {
                assert!((used / total - share).abs() < 0.05, "{name}: {text}");
            }
        }
    }

    #[test]
    fn programs_report_their_work() {
        let brief = ["--seconds", "0.05"];
        assert!(
            output_text("recursion", &["--depth", "7", "--seconds", "0.05"])
                .starts_with("descend was 7 times")
        );
        // 1 + 2 + ... + 9,999.
        assert!(output_text("loop", &["--iterations", "10000"]).contains(" 49995000, "));
        assert!(output_text("call", &["--outer", "100"]).starts_with("outer 100 inner 4950 iterations"));
        let btree = output_text("btree", &["--operations", "20000"]);
        let (inserts, lookups) = (number(&btree, 0), number(&btree, 2));
        assert!(inserts + lookups == 20_000.0 && (inserts / 20_000.0 - 0.2).abs() < 0.02, "{btree}");
        assert!(output_text("handler", &brief).starts_with("on_alarm ran "));
        assert!(output_text("jit", &brief).contains(" b jit_inner\n"));
        for what in ["stacks", "tasks", "processes", "mappings"] {
            assert_eq!(output_text("hostile", &["--what", what, "--seconds", "0.05"]), "", "{what}");
        }
        assert!(output_text("inlined", &brief).starts_with("outer used 0."));
        assert!(output_text("filter", &["--classic", "--seconds", "0.05"]).starts_with("filter sent "));
    }

    #[test]
    fn functions_of_known_shares_keep_their_names_and_one_program_its_lines() {
        let holds = |name: &str, text: &[u8]| {
            let contents = std::fs::read(workloads().join(name)).unwrap();
            contents.windows(text.len()).any(|window| window == text)
        };
        assert!(["half", "third", "fifth"].iter().all(|f| holds("shares", format!("\0{f}\0").as_bytes())));
        assert!(holds("inlined", b".debug_line\0") && !holds("shares", b".debug_line\0"));
        // Images with the program are the same in every checkout.
        assert!(!holds("inlined", workspace().as_os_str().as_encoded_bytes()));
    }

    #[test]
    fn an_unknown_program_is_an_error() {
        let error = format!("{:#}", static_binary("no-such-program").unwrap_err());
        assert!(error.contains("no-such-program"), "{error}");
    }
}
