//! Names that are left out, texts on terminals of any size, colours, and the pager.

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;

use profile::store::ProfileWriter;
use support::{
    batch_with_quarters, refused, stderr, stdout, vprof, write_batch, write_profile_with_quarters,
};
use testkit::Terminal;
use unicode_width::UnicodeWidthStr;

/// A directory with the profiles of the last run and the one before.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_profile_with_quarters(&directory.path().join("vprof.vprof"), 3);
    write_profile_with_quarters(&directory.path().join("vprof.vprof.old"), 1);
    directory
}

fn run_in(directory: &Path, words: &[&str]) -> std::process::Output {
    vprof(words).current_dir(directory).output().unwrap()
}

#[test]
fn commands_without_a_name_read_the_last_profile() {
    let directory = directory();
    for (words, wanted) in [
        (&["report"][..], "Programs"),
        (&["report", "--by", "function"], "do_work"),
        (&["stat"], "Time of each vCPU"),
        (&["annotate", "do_work"], "do_work"),
        (&["export", "-f", "folded"], "calm;do_work"),
        (&["query", "SELECT count(*) FROM sample"], "800"),
        (&["query", "SELECT count(*) AS n FROM sample", "--csv"], "n\r\n800\r\n"),
        (&["symbolize", "--debug-dir", "."], "profile has no user code of files"),
        (&["diff", "--by", "process"], "calm"),
        (&["vprof.vprof"], "Programs"),
        (&["--color=never", "vprof.vprof", "--by", "process"], "calm"),
        // Not its name shows that it is a profile.
        (&["vprof.vprof.old"], "Programs"),
    ] {
        let output = run_in(directory.path(), words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        assert!(stdout(&output).contains(wanted), "{words:?}: {}", stdout(&output));
    }
    let empty = tempfile::tempdir().unwrap();
    for words in [&["report"][..], &["stat"], &["vprof.vprof"]] {
        refused(&run_in(empty.path(), words), 1, &["vprof.vprof does not exist"]);
    }
    refused(&run_in(empty.path(), &["diff"]), 1, &["vprof.vprof.old does not exist"]);
    let unknown = run_in(directory.path(), &["repotr"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("unrecognized subcommand"), "{}", stderr(&unknown));
}

#[test]
fn the_last_run_is_compared_with_the_one_before() {
    let directory = directory();
    let text = stdout(&run_in(directory.path(), &["diff", "--by", "process"]));
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("CPU time: 1.200 s -> 1.200 s, no change beyond chance (+0.0 %, "), "{text}");
    // `calm` has three quarters before and one after, of the same time.
    let calm = text.lines().find(|line| line.ends_with("calm")).unwrap();
    assert!(calm.contains(" 0.33 ") && calm.contains("-50.00"), "{text}");
}

#[test]
fn a_query_is_read_from_standard_input_and_tables_have_names() {
    let directory = directory();
    let mut command = vprof(["query", "-"]);
    let script = directory.path().join("q.sql");
    fs::write(&script, "SELECT max(time_ns)\nFROM sample").unwrap();
    command.stdin(fs::File::open(script).unwrap()).current_dir(directory.path());
    let output = command.output().unwrap();
    assert!(stdout(&output).contains("799000000"), "{}", stderr(&output));
    let tables = stdout(&run_in(directory.path(), &["query", ".tables"]));
    assert!(tables.contains("v_processes") && tables.contains("sample"), "{tables}");
    let schema = stdout(&run_in(directory.path(), &["query", ".schema"]));
    assert!(schema.contains("CREATE TABLE sample (\n"), "{schema}");
    let of_one = stdout(&run_in(directory.path(), &["query", ".schema v_processes"]));
    assert!(of_one.starts_with("CREATE VIEW v_processes") && !of_one.contains("CREATE TABLE"), "{of_one}");
    let unknown = run_in(directory.path(), &["query", ".schema v_proceses"]);
    refused(&unknown, 2, &["no table or view v_proceses", "near are v_processes"]);
}

#[test]
fn a_profile_without_data_is_not_a_measurement() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vprof.vprof");
    let _writer = ProfileWriter::create(&path, false).unwrap();
    for words in [&["report"][..], &["report", "--json"], &["report", "--by", "function"], &["stat"]] {
        refused(&run_in(directory.path(), words), 1, &["vprof.vprof has no data", "full disk"]);
    }
}

#[test]
fn a_file_of_the_default_name_that_is_not_a_profile_stays() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = directory.path().join("kernel");
    fs::write(&kernel, testkit::bz_image(10_000)).unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("vprof.vprof"), "my thesis").unwrap();
    refused(&run_in(directory.path(), &["run", "kernel"]), 1, &["vprof.vprof exists", "-o"]);
    fs::remove_file(at("vprof.vprof")).unwrap();
    write_profile_with_quarters(&at("vprof.vprof"), 3);
    fs::write(at("vprof.vprof.old"), "my thesis").unwrap();
    refused(&run_in(directory.path(), &["run", "kernel"]), 1, &["vprof.vprof.old is not a profile", "-o"]);
    assert_eq!(fs::read(at("vprof.vprof.old")).unwrap(), b"my thesis");
    // A name that was given is never taken from a profile.
    let output = run_in(directory.path(), &["run", "kernel", "-o", "vprof.vprof"]);
    refused(&output, 1, &["vprof.vprof exists", "--force"]);
}

/// Runs vprof in a terminal of this size, with these variables; returns all that it printed.
fn on_terminal(directory: &Path, words: &[&str], size: (u16, u16), set: &[(&str, &str)]) -> String {
    let mut command = vprof(words);
    command.current_dir(directory).env("VPROF_PAGER", "").env("TERM", "xterm").envs(set.iter().copied());
    command.env_remove("CLICOLOR_FORCE");
    let (status, text) = Terminal::start(command, size.0, size.1).end();
    assert!(status.success(), "{words:?}: {text}");
    text.replace('\r', "")
}

#[test]
fn lines_fit_terminals_of_40_columns_and_more() {
    let directory = directory();
    let mut batch = batch_with_quarters(3);
    let long = "a_function_with_a_name_that_is_longer_than_the_terminal_is_wide".to_owned();
    batch.frames[1].symbol = Some(long);
    batch.instances[1].comm = "kworker/0:1-eve".to_owned();
    write_batch(&directory.path().join("long.vprof"), &batch);
    for words in [
        &["report", "long.vprof"][..],
        &["report", "long.vprof", "--by", "function"],
        &["report", "long.vprof", "--by", "instance"],
        &["report", "long.vprof", "--by", "thread"],
        &["report", "long.vprof", "--by", "process,function"],
        &["report", "long.vprof", "--by", "instance,thread,function"],
        &["report", "long.vprof", "--boot"],
        &["stat", "long.vprof"],
        &["diff", "vprof.vprof", "long.vprof"],
    ] {
        for width in [40, 60, 80, 120] {
            let words = [words, &["--color", "never"]].concat();
            let text = on_terminal(directory.path(), &words, (24, width), &[]);
            for line in text.lines() {
                assert!(line.width() <= width.into(), "{words:?} at {width}: {line}");
            }
        }
    }
}

#[test]
fn piped_tables_are_not_cut() {
    let directory = tempfile::tempdir().unwrap();
    let mut batch = batch_with_quarters(3);
    let long = "a_function_with_a_name_that_is_longer_than_the_terminal_is_wide".repeat(3);
    batch.frames[1].symbol = Some(long.clone());
    write_batch(&directory.path().join("vprof.vprof"), &batch);
    assert!(stdout(&run_in(directory.path(), &["report"])).contains(&long));
}

#[test]
fn a_locale_without_utf_8_has_ascii_tables() {
    let directory = tempfile::tempdir().unwrap();
    let mut batch = batch_with_quarters(3);
    batch.frames[1].symbol =
        Some("a_function_with_a_name_that_is_longer_than_the_terminal_is_wide".repeat(3));
    write_batch(&directory.path().join("vprof.vprof"), &batch);
    for width in [60, 140] {
        let shown =
            |locale: &str| on_terminal(directory.path(), &["report"], (80, width), &[("LC_ALL", locale)]);
        assert!(shown("C.UTF-8").contains('…'));
        let ascii = shown("C");
        assert!(ascii.is_ascii() && ascii.contains('~'), "{ascii}");
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = vprof(["--help"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("can't write to standard output"), "{}", stderr(&output));
}

#[test]
fn an_exit_code_is_the_same_if_nobody_reads() {
    let directory = directory();
    // Like `| true`: the reader has left before the first line.
    let unread = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for (words, code) in [
        (&["report", "gone.vprof"][..], 1),
        (&["repotr"], 2),
        (&["report", "--rows", "many"], 2),
        (&["diff", "--by", "process", "--fail-above", "40pt", "--single"], 3),
    ] {
        for (name, stdout, stderr) in [
            ("2>/dev/full", Stdio::null(), full()),
            ("2> >(true)", Stdio::null(), unread()),
            ("2>&1 | true", unread(), unread()),
            ("| true", unread(), Stdio::null()),
        ] {
            let mut command = vprof(words);
            let status =
                command.current_dir(directory.path()).stdout(stdout).stderr(stderr).status().unwrap();
            assert_eq!(status.code(), Some(code), "{words:?} {name}");
        }
    }
}

#[test]
fn colours_are_as_requested() {
    let directory = directory();
    let piped = |words: &[&str]| stdout(&run_in(directory.path(), words));
    assert!(!piped(&["report"]).contains('\x1b'));
    assert!(piped(&["report", "--color", "always"]).contains("\x1b[1;31m75.0 %\x1b[0m"));
    let shown = |words: &[&str], set: &[(&str, &str)]| on_terminal(directory.path(), words, (24, 80), set);
    assert!(shown(&["report"], &[]).contains("\x1b[1mPrograms\x1b[0m"));
    assert!(!shown(&["report", "--color", "never"], &[]).contains('\x1b'));
    let forced = vprof(["report"]).env("CLICOLOR_FORCE", "1").current_dir(directory.path()).output().unwrap();
    assert!(stdout(&forced).contains("\x1b[1mPrograms"));
    let none = [("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")];
    let none = vprof(["report"]).envs(none).current_dir(directory.path()).output().unwrap();
    assert!(!stdout(&none).contains('\x1b'));
}

#[test]
fn a_text_longer_than_the_terminal_goes_through_the_pager() {
    let directory = directory();
    let pager = [("VPROF_PAGER", "sed s/^/paged:/")];
    let shown =
        |words: &[&str], rows, set: &[(&str, &str)]| on_terminal(directory.path(), words, (rows, 80), set);
    let long = shown(&["report"], 10, &pager);
    assert!(long.contains("paged:") && long.contains("Measurement"), "{long}");
    assert!(!shown(&["report"], 100, &pager).contains("paged:"), "it fits");
    assert!(!shown(&["report", "--no-pager"], 10, &pager).contains("paged:"));
    let gone = shown(&["report"], 10, &[("VPROF_PAGER", "no-such-pager-of-vprof -x")]);
    assert!(gone.contains("Programs") && gone.contains("Measurement"), "{gone}");
    let piped = vprof(["report"]).current_dir(directory.path()).envs(pager).output().unwrap();
    assert!(!stdout(&piped).contains("paged:"));
}
