//! Record of test programs that passed. A program does not run again while it, the files that tests read and
//! its environment are the same.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::programs::TestProgram;

/// Name of the record.
const FILE: &str = "passed-tests.json";
/// Package whose tests start the `vprof` under test.
const STARTS_VPROF: &str = "cli";
/// Release of the kernel, whose KVM and BPF are tested too.
const KERNEL: &str = "/proc/sys/kernel/osrelease";

/// Fingerprint of a program and of all that decides its result.
pub type Fingerprint = String;

/// Test programs that passed, by label.
#[derive(Debug)]
pub struct PassedPrograms {
    path: PathBuf,
    /// Hash of what is the same for all programs.
    surroundings: Vec<u8>,
    /// The `vprof` under test, if it was built.
    vprof: Option<PathBuf>,
    passed: Mutex<BTreeMap<String, Fingerprint>>,
}

impl PassedPrograms {
    /// Reads the record of the tree in `root`. `settings` are those of all tests. A missing or foreign record
    /// is an empty one.
    ///
    /// # Errors
    /// A file cannot be read, or git does not list the files of the tree.
    pub fn read(root: &Path, vprof: Option<&Path>, settings: &str) -> Result<Self> {
        let mut hash = Sha256::new();
        add(&mut hash, &fs::read(KERNEL).with_context(|| format!("cannot read {KERNEL}"))?);
        add(&mut hash, settings.as_bytes());
        for file in files_of_tests(root)? {
            add(&mut hash, file.as_os_str().as_bytes());
            match fs::read(root.join(&file)) {
                Ok(bytes) => add(&mut hash, &bytes),
                // Removed, but not yet for git; or a link to a directory.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
            }
        }
        let path = root.join("target").join(FILE);
        let passed = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let surroundings = hash.finalize().to_vec();
        Ok(Self { path, surroundings, vprof: vprof.map(Path::to_owned), passed: Mutex::new(passed) })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Fingerprint>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fingerprint of a program as it is.
    ///
    /// # Errors
    /// The program cannot be found.
    pub fn fingerprint(&self, program: &TestProgram) -> Result<Fingerprint> {
        let mut hash = Sha256::new();
        hash.update(&self.surroundings);
        add_program(&mut hash, program.executable())?;
        if program.package() == STARTS_VPROF
            && let Some(vprof) = &self.vprof
        {
            add_program(&mut hash, vprof)?;
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// True if a program with this fingerprint passed.
    pub fn contains(&self, program: &TestProgram, fingerprint: &Fingerprint) -> bool {
        self.lock().get(&program.label()) == Some(fingerprint)
    }

    /// Notes the result of a program: `None` if it failed.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn note(&self, program: &TestProgram, passed: Option<Fingerprint>) -> Result<()> {
        let mut entries = self.lock();
        match passed {
            Some(fingerprint) => entries.insert(program.label(), fingerprint),
            None => entries.remove(&program.label()),
        };
        let failed = || format!("cannot write {}", self.path.display());
        let directory = self.path.parent().unwrap_or(Path::new("."));
        // With a build directory elsewhere, cargo makes `target` for the first program that it copies there.
        fs::create_dir_all(directory).with_context(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
        serde_json::to_writer(&mut file, &*entries).with_context(failed)?;
        file.flush().with_context(failed)?;
        file.persist(&self.path).with_context(failed)?;
        Ok(())
    }
}

/// Returns the files that tests may read: all that are not ignored, but for sources, which are in the
/// programs.
fn files_of_tests(root: &Path) -> Result<Vec<PathBuf>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
    let output = output.context("cannot start git (Debian package git)")?;
    ensure!(output.status.success(), "git cannot list the files ({})", output.status);
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let files = names.map(|name| PathBuf::from(OsStr::from_bytes(name)));
    Ok(files.filter(|file| file.extension() != Some(OsStr::new("rs"))).collect())
}

/// Adds a text with its length, so that no two lists of texts are the same.
fn add(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// Adds what changes whenever cargo builds a program.
fn add_program(hash: &mut Sha256, program: &Path) -> Result<()> {
    let metadata = fs::metadata(program).with_context(|| format!("cannot find {}", program.display()))?;
    add(hash, program.as_os_str().as_bytes());
    hash.update(metadata.len().to_le_bytes());
    for number in [metadata.mtime(), metadata.mtime_nsec()] {
        hash.update(number.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with a document and a source, and a program that is built from it.
    struct Tree {
        directory: tempfile::TempDir,
        program: TestProgram,
    }

    impl Tree {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            let status = Command::new("git").args(["init", "--quiet"]).arg(path).status().unwrap();
            assert!(status.success());
            for (name, text) in [(".gitignore", "build\ntarget\n"), ("table.md", "1"), ("main.rs", "2")] {
                fs::write(path.join(name), text).unwrap();
            }
            fs::create_dir(path.join("build")).unwrap();
            fs::write(path.join("build/units"), "program").unwrap();
            fs::write(path.join("build/vprof"), "vprof").unwrap();
            let program = TestProgram::made_up("cli", path.join("build/units"));
            Self { directory, program }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.directory.path().join(name), text).unwrap();
        }

        fn passed(&self, settings: &str) -> PassedPrograms {
            let root = self.directory.path();
            PassedPrograms::read(root, Some(&root.join("build/vprof")), settings).unwrap()
        }

        fn is_known(&self, settings: &str) -> bool {
            let passed = self.passed(settings);
            passed.contains(&self.program, &passed.fingerprint(&self.program).unwrap())
        }

        fn note(&self, is_success: bool) {
            let passed = self.passed("all");
            let fingerprint = passed.fingerprint(&self.program).unwrap();
            passed.note(&self.program, is_success.then_some(fingerprint)).unwrap();
        }
    }

    #[test]
    fn a_program_that_passed_is_known_until_something_changes() {
        let tree = Tree::new();
        assert!(!tree.is_known("all"));
        tree.note(true);
        assert!(tree.is_known("all") && !tree.is_known("few"));
        // Sources are in the programs.
        tree.write("main.rs", "3");
        assert!(tree.is_known("all"));
        for (file, text) in
            [("table.md", "2"), ("new.txt", ""), ("build/units", "longer program"), ("build/vprof", "longer")]
        {
            tree.write(file, text);
            assert!(!tree.is_known("all"), "{file}");
            tree.note(true);
            assert!(tree.is_known("all"), "{file}");
        }
        tree.note(false);
        assert!(!tree.is_known("all"));
    }

    #[test]
    fn a_foreign_record_is_an_empty_one() {
        let tree = Tree::new();
        tree.note(true);
        tree.write("target/passed-tests.json", "[]");
        assert!(!tree.is_known("all"));
    }
}
