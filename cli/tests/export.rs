//! `export`: its output, and its errors.

mod support;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use profile::made_up;
use support::{refused, run, stderr, stdout, vprof, write_profile};
use testkit::Terminal;

/// A profile in a directory.
struct TestProfile(tempfile::TempDir);

impl TestProfile {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_profile(&directory.path().join("p.vprof"));
        Self(directory)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn export(&self, more: &[&str]) -> std::process::Output {
        let path = self.file("p.vprof");
        run(["export", path.to_str().unwrap()].iter().chain(more))
    }

    fn export_to(&self, output: &Path, more: &[&str]) -> std::process::Output {
        let arguments = ["-o", output.to_str().unwrap()];
        self.export(&arguments.iter().chain(more).copied().collect::<Vec<_>>())
    }
}

#[test]
fn the_format_is_inferred_from_the_file_name() {
    let profile = TestProfile::new();
    for (name, start) in [
        ("a.folded", &b"calm;"[..]),
        ("a.svg", b"<?xml"),
        ("a.json", b"{\"meta\":"),
        ("a.json.gz", b"\x1f\x8b"),
        ("a.pb.gz", b"\x1f\x8b"),
        ("a.pftrace", b"\n"),
        ("a.perf", b"evil"),
        ("a.csv", b"time_ns,"),
    ] {
        let file = profile.file(name);
        let output = profile.export_to(&file, &[]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert_eq!((stdout(&output), stderr(&output)), (String::new(), String::new()), "{name}");
        let written = fs::read(&file).unwrap();
        assert!(written.starts_with(start), "{name}: {:?}", String::from_utf8_lossy(&written[..40]));
    }
    refused(&profile.export_to(&profile.file("a.what"), &[]), 2, &["--format", "folded", "pprof"]);
    refused(&profile.export(&[]), 2, &["--format"]);
    assert!(profile.export(&["--format", "svg"]).stdout.starts_with(b"<?xml"));
    let wrong = profile.export(&["--format", "gif"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("perfetto, perf-script"), "{}", stderr(&wrong));
}

#[test]
fn a_terminal_shows_what_was_written_and_no_page() {
    let profile = TestProfile::new();
    let export = |more: &[&str]| {
        let mut command = vprof(["export", "p.vprof"]);
        command.args(more).current_dir(profile.0.path());
        let (status, text) = Terminal::start(command, 24, 80).end();
        (status.code(), text)
    };
    let (code, text) = export(&["-o", "a.folded"]);
    assert!(code == Some(0) && text.contains("a.folded has ") && text.contains("in format folded"), "{text}");
    let (code, text) = export(&["-f", "html"]);
    assert!(code == Some(2) && text.contains("give a file with -o"), "{text}");
}

#[test]
fn standard_output_has_what_a_filter_chooses() {
    let profile = TestProfile::new();
    let output = profile.export(&["--format", "folded", "--count", "samples"]);
    assert_eq!(stdout(&output), "calm;do_work 100\nevil\\x1b[2J,\"x\";[user] 300\n");
    let calm = profile.export(&["-f", "folded", "-o", "-", "--process", "calm", "--count", "samples"]);
    assert_eq!(stdout(&calm), "calm;do_work 100\n");
    let root = profile.export(&["-f", "folded", "--root", "none", "--time", "..400ms", "--count", "samples"]);
    assert_eq!(stdout(&root), "[user] 150\ndo_work 50\n");
    refused(&profile.export(&["-f", "folded", "--process", "nobody"]), 1, &["no process nobody"]);
}

#[test]
fn files_are_replaced_by_force_only_and_profiles_never() {
    let profile = TestProfile::new();
    let file = profile.file("a.folded");
    fs::write(&file, "mine").unwrap();
    refused(&profile.export_to(&file, &[]), 1, &["a.folded exists", "--force"]);
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    assert!(profile.export_to(&file, &["--force"]).status.success());
    assert!(fs::read_to_string(&file).unwrap().contains("calm;do_work"));
    let own = profile.file("p.vprof");
    refused(&profile.export_to(&own, &["-f", "folded", "--force"]), 1, &["p.vprof", "is a profile"]);
    assert!(fs::read(&own).unwrap().starts_with(b"SQLite"));
}

#[test]
fn a_failed_write_leaves_no_partial_file() {
    let profile = TestProfile::new();
    for (output, words) in [
        (profile.file("no/such/a.folded"), ["no such file or directory", "no/such"]),
        (profile.file("p.vprof/a.folded"), ["not a directory", "a.folded"]),
        (profile.0.path().to_owned(), ["is a directory", "write"]),
        (PathBuf::from("/dev/full"), ["no space left", "/dev/full"]),
    ] {
        refused(&profile.export_to(&output, &["-f", "folded"]), 1, &words);
    }
    // A limit on the size of files has the effect of a full disk.
    let program = env!("CARGO_BIN_EXE_vprof");
    let (from, to) = (profile.file("p.vprof"), profile.file("big.csv"));
    let script = format!("ulimit -f 1; exec {program} export {} -o {}", from.display(), to.display());
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    refused(&output, 1, &["big.csv", "file too large"]);
    let left: Vec<_> =
        fs::read_dir(profile.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().starts_with("p.vprof")), "{left:?}");
}

#[test]
fn a_reader_that_ends_early_is_not_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("long.vprof");
    made_up::write_profile(&path, 50_000, 0);
    let mut child = vprof(["export", path.to_str().unwrap(), "--format", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_file_that_is_not_a_profile_is_refused_and_nothing_is_written() {
    let profile = TestProfile::new();
    let (bad, to) = (profile.file("bad.vprof"), profile.file("bad.folded"));
    fs::write(&bad, "no profile").unwrap();
    let output = run(["export", bad.to_str().unwrap(), "-o", to.to_str().unwrap()]);
    refused(&output, 1, &["bad.vprof"]);
    // A name that is not UTF-8, as only a damaged profile has.
    let damaged = profile.file("p.vprof");
    let mut bytes = fs::read(&damaged).unwrap();
    let at = bytes.windows(7).position(|window| window == b"do_work").unwrap();
    bytes[at] = 0xff;
    fs::write(&damaged, bytes).unwrap();
    refused(&profile.export_to(&to, &[]), 1, &["p.vprof"]);
    assert!(!to.exists());
}
