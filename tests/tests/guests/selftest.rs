//! `vprof selftest` in the portable host: what it judges there passes.

use std::process::Command;

use serde_json::Value;
use vprof_tests::{Guest, images, vprof};

fn selftest(options: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(vprof())
        .arg("selftest")
        .args(options)
        .env("VPROF_PORTABLE_HOST", images().join("portable-host"))
        .output()
        .expect("vprof starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
#[ignore = "three guests that measure: --all"]
fn every_check_that_is_judged_passes() {
    let (status, stdout, stderr) = Guest::alone(|| selftest(&["--json"]));
    let outcome: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!((status, &outcome["passed"]), (Some(0), &Value::Bool(true)), "{outcome:#}");
    let checks = outcome["checks"].as_array().expect("checks");
    let judged = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no check {name:?}: {outcome:#}"))["judgement"].clone()
    };
    for name in [
        "share of `half` in its process",
        "`half` called by `left`",
        "kernel code with a name",
        "switches in exact mode",
        "sleeps of st-ping",
    ] {
        assert_eq!(judged(name), "passed", "{name}");
    }
    // Nothing that says something is missing, whether it is judged or not.
    assert!(checks.iter().all(|check| check["measured"].is_number()), "{outcome:#}");
    assert!(outcome["machine"]["cpus"].as_i64() > Some(0), "{outcome:#}");
}

#[test]
#[ignore = "one more refusal: --all"]
fn a_kernel_that_is_none_is_refused_before_anything_runs() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("no-kernel");
    std::fs::write(&path, "no kernel").expect("room for it");
    let (status, stdout, stderr) = selftest(&["--kernel", path.to_str().expect("UTF-8")]);
    assert_eq!((status, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("no-kernel"), "{stderr}");
}
