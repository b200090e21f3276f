//! `fleet`.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use export::lake::{HOUR_NS, KnownStacks, LakeProfile, LakeVm, LakeWindow, LakeWriter};
use profile::{Profile, made_up};
use serde_json::Value;
use support::{refused, run, stderr, stdout, vprof};
use testkit::python_packages;

const SAMPLES: u64 = 2_000;

/// A lake of two hosts with a machine each.
struct Lake(tempfile::TempDir);

impl Lake {
    fn new() -> Self {
        let lake = Self(tempfile::tempdir().unwrap());
        for number in 0..2 {
            let path = lake.0.path().join(format!("{number}.vprof"));
            made_up::write_run(&path, SAMPLES, 40, number);
            let window = LakeWindow {
                host: format!("host-{number}"),
                start_unix_ns: 490_000 * HOUR_NS,
                length_ns: HOUR_NS,
                inclusion: 1.0,
                dropped_windows: 0,
            };
            let mut writer = LakeWriter::create(window, KnownStacks::default(), &lake.path()).unwrap();
            let vm = LakeVm {
                id: format!("id-{number}"),
                name: format!("web_{number}"),
                group: format!("team=a'b,tier={number}"),
                ..LakeVm::default()
            };
            let profile = LakeProfile::read(&Profile::open(&path).unwrap()).unwrap();
            writer.add(&vm, &profile).unwrap();
            writer.finish().unwrap();
        }
        lake
    }

    /// Has a quote in its name.
    fn path(&self) -> PathBuf {
        self.0.path().join("it's the lake")
    }

    fn ask(&self, programs: &Path, words: &[&str]) -> Output {
        let mut command = vprof(["fleet"]);
        command.args(words).arg("--lake").arg(self.path());
        command.env("PATH", programs).output().unwrap()
    }
}

/// Returns the sum of a column of an answer in JSON.
fn sum(output: &Output, column: &str) -> u64 {
    assert!(output.status.success(), "{}", stderr(output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    rows.iter().map(|row| row[column].as_u64().unwrap_or_else(|| panic!("{row}"))).sum()
}

#[test]
fn duckdb_answers_from_the_lake() {
    let Some(programs) = python_packages(&["duckdb-cli==1.5.6"]) else { return };
    let lake = Lake::new();
    let samples = |words: &[&str]| {
        let words = [&["top", "--json", "-n", "0"], words].concat();
        sum(&lake.ask(&programs, &words), "sample_count")
    };
    let all = samples(&[]);
    assert!(all > SAMPLES, "{all}");
    assert_eq!(samples(&["--vm", "web_0"]) * 2, all, "equal machines");
    assert_eq!(samples(&["--vm", "web*"]), all);
    assert_eq!(samples(&["--label", "team=a'b", "--vm-host", "host-*"]), all);
    assert_eq!(samples(&["--label", "tier=1", "--day", "2025-11-24"]) * 2, all);
    // Names are texts, whatever they have in them.
    for name in ["' OR 1=1 --", "web__", "web%", "\\", "web*\\"] {
        assert_eq!(samples(&["--vm", name]), 0, "{name}");
    }
    let table = lake.ask(&programs, &["top", "-n", "3"]);
    let text = stdout(&table);
    assert!(text.starts_with("share  95 % interval"), "{text}{}", stderr(&table));
    assert_eq!(text.lines().count(), 4, "{text}");
    // Of one host there is no interval.
    for question in ["top", "interrupts", "over-time"] {
        let one = lake.ask(&programs, &[question, "--vm-host", "host-0", "--json"]);
        let rows: Vec<Value> = serde_json::from_slice(&one.stdout).unwrap();
        assert!(
            !rows.is_empty() && rows.iter().all(|row| row["low"].is_null() && row["high"].is_null()),
            "{rows:?}"
        );
    }
    let machines = stdout(&lake.ask(&programs, &["vms"]));
    assert!(machines.contains("team=a'b,tier=1  web_1"), "{machines}");
    let nothing = stdout(&lake.ask(&programs, &["noisy", "--vm", "other"]));
    assert_eq!(nothing, "No window of the lake has what was asked for.\n");
    let changed = stdout(
        &lake
            .ask(&programs, &["diff", "--before", "host=host-0", "--after", "vm=web_1", "--json", "-n", "1"]),
    );
    assert!(changed.contains("\"one host\""), "{changed}");
    let graph = lake.0.path().join("graph.svg");
    let drawn = lake.ask(&programs, &["flame", "-o", graph.to_str().unwrap()]);
    assert!(drawn.status.success(), "{}", stderr(&drawn));
    let graph = fs::read_to_string(graph).unwrap();
    assert!(graph.starts_with("<?xml") && graph.contains("kernel_function_"), "{graph:.300}");
    let page = lake.0.path().join("answer.html");
    let written = lake.ask(&programs, &["top", "--vm", "web*", "-o", page.to_str().unwrap()]);
    assert!(written.status.success() && written.stdout.is_empty(), "{}", stderr(&written));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<h1>vprof fleet top</h1>") && page.contains("<dt>Machines</dt><dd>web*</dd>"));
    assert_eq!(page.matches("<rect").count(), 20, "a bar for each row");
    assert!(!page.contains("<script"));
    let folded = stdout(&lake.ask(&programs, &["flame"]));
    let line = folded.lines().next().unwrap();
    assert!(line.contains(';') && line.rsplit_once(' ').unwrap().1.parse::<u64>().is_ok(), "{line}");
}

#[test]
fn the_sql_is_printed_for_other_clients() {
    let lake = Lake::new();
    let printed = |engine: &str| {
        let words = ["noisy", "--engine", engine, "--vm", "it's*", "--label", "a=\\"];
        let output = lake.ask(Path::new(""), &words);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let duckdb = printed("print");
    assert!(
        duckdb.contains("it''s the lake/v1/vcpus") && duckdb.contains(r"LIKE 'it''s%' ESCAPE '\'"),
        "{duckdb}"
    );
    assert!(duckdb.contains(r"',a=\,'") && duckdb.trim_end().ends_with(';'), "{duckdb}");
    let spark = printed("print=spark");
    assert!(spark.contains(r"it\'s the lake/v1/vcpus") && spark.contains(r"LIKE 'it\'s%'"), "{spark}");
    assert!(spark.contains(r"',a=\\,'") && spark.contains("TEMPORARY VIEW chosen_vcpus"), "{spark}");
    let bucket = run(["fleet", "top", "--engine", "print", "--lake", "s3://profiles/a"]);
    assert!(stdout(&bucket).contains("read_parquet('s3://profiles/a/v1/samples/"), "{}", stdout(&bucket));
}

#[test]
fn what_does_not_go_is_said_in_a_sentence() {
    let lake = Lake::new();
    let none = Path::new("");
    refused(&lake.ask(none, &["top"]), 1, &["duckdb is not in a directory of PATH"]);
    refused(&lake.ask(none, &["diff", "--before", "kernel=6.1"]), 2, &["a difference has two sides"]);
    refused(&lake.ask(none, &["noisy", "--process", "x"]), 2, &["--process does not go with this question"]);
    for words in [&["top", "-o", "x.svg"][..], &["flame", "-o", "x.html"], &["vms", "--json", "-o", "x.html"]]
    {
        refused(&lake.ask(none, words), 2, &["-o does not go with this question"]);
    }
    refused(&run(["fleet", "top", "--lake", "/nowhere"]), 1, &["/nowhere has no directory v1/samples"]);
    let programs = lake.0.path().join("bin");
    fs::create_dir(&programs).unwrap();
    let engine = |script: &str| {
        let program = programs.join("duckdb");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        lake.ask(&programs, &["top"])
    };
    let failed = engine("printf 'Catalog Error: no \\033[2J table\\n' >&2; exit 1");
    refused(&failed, 1, &["duckdb has failed: Error: no \\x1b[2J table"]);
    refused(&engine("echo '[1]'"), 1, &["duckdb has not answered in JSON"]);
    // It may end without reading what it is asked.
    refused(&engine("exit 3"), 1, &["duckdb has failed"]);
}
