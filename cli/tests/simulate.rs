//! `simulate`: the same numbers for the same options, in the documented form.

mod support;

use serde_json::Value;
use support::{run, stderr, stdout};

/// Text of three profilings of each machine; the tables of a longer study look the same.
const GOLDEN: &str = include_str!("golden/simulate.txt");

#[test]
fn the_tables_are_as_they_were() {
    let output = run(["simulate", "--seed", "3", "--runs", "3"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert_eq!(text, GOLDEN);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(stderr(&output).is_empty());
}

#[test]
fn one_clock_can_be_chosen() {
    let output = run(["simulate", "--runs", "2", "--clock", "exponential", "--json"]);
    let study: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = study["rows"].as_array().unwrap();
    assert!(rows.len() > 20 && rows.iter().all(|row| row["clock"] == "exponential"));
    assert_eq!((&study["seed"], &study["runs"]), (&1.into(), &2.into()));
    let text = stdout(&run(["simulate", "--runs", "2", "--clock", "fixed"]));
    assert!(text.contains("dodges the tick, 90 %") && !text.contains("uniform"), "{text}");
    let conclusion = stdout(&run(["simulate", "--runs", "2", "--clock", "fixed", "-q"]));
    assert!(conclusion.starts_with("\nConclusion\n") && text.ends_with(&conclusion), "{conclusion}");
}

#[test]
fn wrong_options_are_refused() {
    for arguments in [["--runs", "1"], ["--runs", "many"], ["--clock", "atomic"], ["--seed", "-1"]] {
        let output = run(["simulate"].iter().chain(&arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(run(["simulate", "-q", "--json"]).status.code(), Some(2));
}
