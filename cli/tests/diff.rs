//! `diff` of two runs, of several, and with machine-readable output.

mod support;

use std::fs;
use std::process::Output;

use serde_json::Value;
use support::{batch_with_quarters, refused, run, stderr, stdout, write_batch, write_profile_with_quarters};

/// Profiles `a*` with a process of one quarter, and `b*` with one of three quarters.
struct ProfilePairs(tempfile::TempDir);

impl ProfilePairs {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, quarters) in [("a1", 1), ("a2", 1), ("b1", 3), ("b2", 3)] {
            write_profile_with_quarters(&directory.path().join(name), quarters);
        }
        Self(directory)
    }

    /// Runs `diff`. Words that are names of profiles become their paths.
    fn diff(&self, words: &[&str]) -> Output {
        let path = |word: &&str| {
            let file = self.0.path().join(word);
            if file.exists() { file.to_str().unwrap().to_owned() } else { (*word).to_owned() }
        };
        run(std::iter::once("diff".to_owned()).chain(words.iter().map(path)))
    }

    fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let output = self.diff(&words);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn growth_and_decline_are_marked() {
    let profiles = ProfilePairs::new();
    let diff = profiles.json(&["a1", "b1", "--by", "process"]);
    let row = |name: &str| {
        let rows = diff["rows"].as_array().unwrap();
        rows.iter().find(|row| row["name"].as_str().unwrap().starts_with(name)).unwrap().clone()
    };
    assert_eq!((&diff["method"], &diff["tested"]), (&"two_runs".into(), &2.into()));
    for (name, before, after) in [("evil", 0.25, 0.75), ("calm", 0.75, 0.25)] {
        let share = &row(name)["share"];
        assert_eq!((share["before"].as_f64(), share["after"].as_f64()), (Some(before), Some(after)));
        assert_eq!(share["marked"], true, "{share}");
        let [low, high] = ["low", "high"].map(|end| share[end].as_f64().unwrap());
        assert!(low < after - before && after - before < high && low * high > 0.0, "{share}");
    }
    let same = profiles.json(&["a1", "a2"]);
    assert!(same["rows"].as_array().unwrap().iter().all(|row| row["share"]["marked"] == false));
}

#[test]
fn the_text_has_changes_with_intervals_and_notes() {
    let profiles = ProfilePairs::new();
    let text = stdout(&profiles.diff(&["a1", "b1"]));
    assert!(text.contains("+50.00") && text.contains("do_work") && text.contains('*'), "{text}");
    assert!(text.contains("the comparison is of these two runs only") && text.contains("--repeat"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    let several = stdout(&profiles.diff(&["--before", "a1", "a2", "--after", "b1", "b2", "--by", "stack"]));
    assert!(several.contains("2 runs, each") && !several.contains("Note"), "{several}");
    let table = stdout(&profiles.diff(&["a1", "b1", "--by", "process", "--markdown"]));
    assert!(table.contains("|---|") && table.contains("| `calm` |"), "{table}");
    let filtered = stdout(&profiles.diff(&["a1", "b1", "--mode", "kernel"]));
    assert!(filtered.contains("do_work") && !filtered.contains("[user]"), "{filtered}");
}

/// Name of a process that needs escapes.
const EVIL: &str = "evil\x1b[2J,\"x\"";

#[test]
fn an_increase_beyond_the_limit_is_exit_code_3() {
    let profiles = ProfilePairs::new();
    let several = ["--before", "a1", "a2", "--after", "b1", "b2"];
    let judge = |more: &[&str]| profiles.diff(&several.iter().chain(more).copied().collect::<Vec<_>>());
    // The share of evil grows from 25 to 75 %: by 50 points, to three times the time. That of calm falls.
    for (limit, process, code) in [
        ("40pt", None, 3),
        ("60pt", None, 0),
        ("5%", Some(EVIL), 3),
        ("250%", Some(EVIL), 0),
        ("1ms", Some(EVIL), 3),
        ("10s", Some(EVIL), 0),
        ("0%", Some("calm"), 0),
        ("5%", None, 0),
    ] {
        let filter: Vec<&str> = process.into_iter().flat_map(|name| ["--process", name]).collect();
        let output = judge(&[&["--by", "process", "--fail-above", limit][..], &filter].concat());
        assert_eq!(output.status.code(), Some(code), "{limit} {process:?}: {}", stderr(&output));
        assert_eq!(
            stderr(&output).contains("more than --fail-above allows"),
            code == 3,
            "{}",
            stderr(&output)
        );
    }
    let rows = judge(&["--by", "process", "--fail-above", "40pt"]);
    assert!(
        stderr(&rows).contains("evil\\x1b[2J") && stderr(&rows).contains("(+50.00 points)"),
        "{}",
        stderr(&rows)
    );
}

#[test]
fn a_kernel_thread_beyond_the_limit_has_its_name_of_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let words = [("a", 1), ("b", 3)].map(|(name, quarters)| {
        let mut batch = batch_with_quarters(quarters);
        batch.instances.iter_mut().for_each(|row| row.kernel_thread = true);
        let path = directory.path().join(name);
        write_batch(&path, &batch);
        path.into_os_string()
    });
    let judged = ["--by", "process", "--fail-above", "40pt", "--single"].map(Into::into);
    let output = run([&["diff".into()], &words[..], &judged].concat());
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("[evil"), "{}", stderr(&output));
    assert!(stdout(&output).contains("[evil"), "{}", stdout(&output));
}

#[test]
fn one_run_of_each_is_judged_only_on_request() {
    let profiles = ProfilePairs::new();
    let words = ["a1", "b1", "--process", EVIL, "--fail-above", "5%"];
    refused(&profiles.diff(&words), 2, &["--fail-above", "--repeat", "--single"]);
    let output = profiles.diff(&[&words[..], &["--single"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn a_flame_graph_shows_both() {
    let profiles = ProfilePairs::new();
    let file = profiles.0.path().join("d.svg");
    let words = ["a1", "b1", "--flamegraph", file.to_str().unwrap()];
    assert!(profiles.diff(&words).status.success());
    let svg = fs::read_to_string(&file).unwrap();
    assert!(svg.contains("<title>do_work (300,000 us, 25.00%; -50.00%)</title>"), "{svg}");
    refused(&profiles.diff(&words), 1, &["d.svg exists"]);
}

#[test]
fn runs_that_can_not_be_compared_are_refused() {
    let profiles = ProfilePairs::new();
    refused(&profiles.diff(&["--before", "a1", "--after", "b1", "b2"]), 2, &["1 before and 2 after"]);
    refused(&profiles.diff(&["a1", "missing.vprof"]), 1, &["missing.vprof"]);
    refused(&profiles.diff(&["a1", "b1", "--process", "nobody"]), 1, &["nobody"]);
    for words in [
        &["a1"][..],
        &["a1", "b1", "--after", "b2"],
        &["--before", "a1"],
        &["a1", "b1", "--fail-above", "5", "--single"],
    ] {
        assert_eq!(profiles.diff(words).status.code(), Some(2), "{words:?}");
    }
}
