//! Programs and files of this machine that tests need.
//!
//! A test that cannot run has not passed: it fails, and its message names the Debian package.
//! `cargo xtask deps` installs all packages. With `cargo xtask test --allow-missing` such a test prints
//! `SKIPPED` and passes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable that lets tests pass without what they need.
pub const ALLOW_MISSING: &str = "VPROF_TESTS_ALLOW_MISSING";

/// A Debian package that tests need.
#[derive(Debug)]
pub struct TestNeed {
    /// Name of the package.
    pub package: &'static str,
    /// Evidence that the package is installed.
    pub sign: InstalledSign,
    /// Use in the tests.
    pub purpose: &'static str,
}

/// Evidence that a package is installed, by whatever means.
#[derive(Debug)]
pub enum InstalledSign {
    /// A program in `PATH` or in a directory of system programs.
    Program(&'static str),
    /// A file.
    File(&'static str),
    /// A module of Debian's `python3`.
    PythonModule(&'static str),
}

const fn program(program: &'static str, package: &'static str, purpose: &'static str) -> TestNeed {
    TestNeed { package, sign: InstalledSign::Program(program), purpose }
}

/// Every package whose program a test starts.
pub const PROGRAMS: &[TestNeed] = &[
    program("bash", "bash", "is a program with PLT entries, and writes hostile scripts"),
    program("bzip2", "bzip2", "packs an initrd"),
    program("g++", "g++", "compiles a C++ program with inlined functions"),
    program("cc", "gcc", "compiles programs with debug information"),
    program("chromium", "chromium", "clicks through exported pages"),
    program("debuginfod", "debuginfod", "serves a debug file"),
    program("git", "git", "lists the tree's files"),
    program("go", "golang-go", "reads pprof profiles"),
    program("ip", "iproute2", "makes taps"),
    program("java", "openjdk-17-jdk-headless", "runs threads whose frames are read"),
    program("javac", "openjdk-17-jdk-headless", "compiles a program that runs in a guest"),
    program("jstack", "openjdk-17-jdk-headless", "prints the frames of threads"),
    program("llvm-symbolizer", "llvm", "names inlined functions"),
    program("mcopy", "mtools", "fills FAT file systems"),
    program("mke2fs", "e2fsprogs", "makes ext4 file systems"),
    program("mkfs.vfat", "dosfstools", "makes FAT file systems"),
    program("nm", "binutils", "lists symbols"),
    program("node", "nodejs", "runs speedscope's importers, and functions whose frames are read"),
    program("npm", "npm", "fetches speedscope and the Firefox Profiler"),
    program("objcopy", "binutils", "separates debug information"),
    program("objdump", "binutils", "names PLT entries"),
    program("openssl", "openssl", "makes certificates of servers"),
    program("c++filt", "binutils", "demangles names"),
    program("passt", "passt", "is a guest's network"),
    program("php", "php-cli", "runs functions whose frames are read"),
    program("python3", "python3", "reads CSV, Parquet and traces of Perfetto"),
    program("qemu-img", "qemu-utils", "makes qcow2 images"),
    program("qemu-io", "qemu-utils", "locks disks as QEMU does"),
    program("qemu-system-x86_64", "qemu-system-x86", "locks its guest's disks"),
    program("readelf", "binutils", "reads ELF headers"),
    program("ruby", "ruby", "runs threads whose frames are read"),
    program("sfdisk", "fdisk", "makes partition tables"),
    program("strip", "binutils", "strips programs"),
    program("tar", "tar", "unpacks packages of npm"),
    program("xz", "xz-utils", "packs a symbol table"),
];

/// The other packages that tests need.
pub const FILES: &[TestNeed] = &[
    TestNeed {
        package: "libc6-dbg",
        sign: InstalledSign::File("/usr/lib/debug/.build-id"),
        purpose: "is debug information of a stripped library",
    },
    TestNeed {
        package: "python3-venv",
        sign: InstalledSign::PythonModule("ensurepip"),
        purpose: "keeps pyarrow apart from the machine's Python",
    },
    TestNeed {
        package: "python3-yaml",
        sign: InstalledSign::PythonModule("yaml"),
        purpose: "reads workflows of CI",
    },
];

impl TestNeed {
    /// True if the package is installed.
    pub fn is_met(&self) -> bool {
        match self.sign {
            InstalledSign::Program(name) => find(name).is_some(),
            InstalledSign::File(path) => Path::new(path).exists(),
            InstalledSign::PythonModule(module) => has_python_module(module),
        }
    }
}

/// Directories of system programs, which a user's `PATH` may lack.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/sbin"];

fn find(program: &str) -> Option<PathBuf> {
    // Another Python in PATH lacks the modules that Debian's packages add.
    let first = (program == "python3").then(|| PathBuf::from("/usr/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(SYSTEM.into_iter().map(Into::into));
    first.into_iter().chain(directories).map(|directory| directory.join(program)).find(|file| file.is_file())
}

fn has_python_module(module: &str) -> bool {
    let import = format!("import {module}");
    let imports = |python| {
        let mut command = Command::new(python);
        command.args(["-c", &import]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    find("python3").is_some_and(imports)
}

/// Returns a call of a program, whose messages are in English. `None`, reported by [`missing`], if the
/// program is not installed.
///
/// # Panics
/// The program is not installed, and nothing may be missing, or it has no package in [`PROGRAMS`].
#[track_caller]
pub fn tool(program: &str) -> Option<Command> {
    let need =
        PROGRAMS.iter().find(|need| matches!(need.sign, InstalledSign::Program(name) if name == program));
    let need = need.unwrap_or_else(|| panic!("{program} has no Debian package in testkit/src/needs.rs"));
    let Some(path) = find(program) else {
        missing(&format!("{program} (Debian package {}; `cargo xtask deps` installs it)", need.package));
        return None;
    };
    let mut command = Command::new(path);
    command.env("LC_ALL", "C");
    Some(command)
}

/// True if `python3` has a module. A missing module is reported by [`missing`].
///
/// # Panics
/// The module is missing, and nothing may be missing.
#[track_caller]
pub fn python_module(module: &str, package: &str) -> bool {
    let is_there = has_python_module(module);
    if !is_there {
        missing(&format!(
            "python3's module {module} (Debian package {package}; `cargo xtask deps` installs it)"
        ));
    }
    is_there
}

/// Reports that a test needs something that this machine lacks: prints `SKIPPED` and returns if
/// [`ALLOW_MISSING`] is set.
///
/// # Panics
/// [`ALLOW_MISSING`] is not set.
#[track_caller]
pub fn missing(what: &str) {
    assert!(
        std::env::var_os(ALLOW_MISSING).is_some(),
        "this test needs {what}; `cargo xtask test --allow-missing` skips it"
    );
    // Not eprintln!, which libtest captures.
    let test = std::thread::current().name().unwrap_or("a thread").to_owned();
    let written = writeln!(std::io::stderr(), "SKIPPED {test}: needs {what}");
    written.expect("standard error is open");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_there_starts() {
        let output = tool("tar").expect("tar").arg("--version").output().expect("tar starts");
        assert!(output.status.success());
    }

    #[test]
    #[should_panic(expected = "no Debian package")]
    fn a_program_without_a_package_is_not_asked_for() {
        drop(tool("no-such-program-here"));
    }

    #[test]
    fn what_is_missing_fails_the_test() {
        let failed = std::panic::catch_unwind(|| missing("a machine of gold"));
        assert_eq!(failed.is_err(), std::env::var_os(ALLOW_MISSING).is_none());
    }

    #[test]
    fn signs_are_read() {
        let need = |sign| TestNeed { package: "x", sign, purpose: "x" };
        assert!(
            need(InstalledSign::Program("sh")).is_met()
                && need(InstalledSign::File("/proc/self/exe")).is_met()
        );
        assert!(!need(InstalledSign::Program("no-such-program-here")).is_met());
        assert!(!need(InstalledSign::File("/no/such/file")).is_met());
        assert!(!need(InstalledSign::PythonModule("no_such_module_here")).is_met());
    }
}
