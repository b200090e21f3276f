//! Sampled task states and wait reasons, against the programs' own clocks and against exact mode.

use serde_json::Value;
use vprof_tests::{Guest, Run};

use crate::names::without_stacks_and_scans;

/// Threads that wait for one thing each.
const SLEEPS: [&str; 7] = ["sleeps", "--seconds", "14", "--period-millis", "330", "--disk", "/dev/vda"];

fn thread<'a>(report: &'a Value, name: &str) -> &'a Value {
    let tasks = report["tasks"].as_array().expect("tasks");
    let found = tasks.iter().find(|task| task["comm"] == "sleeps" && task["thread"] == name);
    found.unwrap_or_else(|| panic!("no thread {name} in {report:#}"))
}

/// Returns the time of a thread in a state: of all its waits for one thing, or of a state without.
fn time<'a>(task: &'a Value, list: &str, key: &str, value: &str) -> Option<&'a Value> {
    task[list].as_array().expect("times").iter().find(|time| time[key] == value)
}

/// Returns the distance of the true value from an estimate, in distances of the end of its 95 % interval.
fn apart(estimate: &Value, exact: f64, [at, low, high]: [&str; 3]) -> f64 {
    let number = |name: &str| estimate[name].as_f64().expect("a number");
    let end = if exact < number(at) { number(low) } else { number(high) };
    (exact - number(at)).abs() / (end - number(at)).abs().max(1e-9)
}

/// Returns the time that a thread has waited by the program's own clock, s.
fn waited(run: &Run, name: &str) -> f64 {
    let start = format!("{name} waited ");
    let line = run.stdout.lines().find_map(|line| line.trim().strip_prefix(&start)?.split(' ').next());
    line.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{name}: {}", run.stdout))
}

#[test]
#[ignore = "many scans: --all"]
fn waits_are_estimated_within_their_intervals() {
    let run = Guest::demo().options(["--cpus", "2", "--exact"]).command(SLEEPS).run().succeeded();
    let (sampled, exact) =
        (run.json(&["report", "--states=sampled"]), run.json(&["report", "--states=exact"]));
    assert_eq!((&sampled["source"], &exact["source"]), (&"sampled".into(), &"exact".into()));
    assert!(sampled["scans"]["scans"].as_u64() > Some(60), "{}", sampled["scans"]);
    // Waits by the program's own clock: twice the distance of an interval's end are 4 standard errors.
    for name in ["futex", "pipe", "poll", "socket"] {
        let task = thread(&sampled, name);
        let wait = time(task, "waits", "wait_reason", name).unwrap_or_else(|| panic!("no {name}: {task:#}"));
        let own = waited(&run, name);
        let distance = apart(wait, own, ["s", "low_s", "high_s"]);
        assert!(own > 4.0 && distance < 2.0, "{name} waited {own} s, {distance} ends apart: {wait}");
        assert!(wait["high_s"].as_f64() < Some(own * 1.6), "an interval that says something: {wait}");
    }
    let disk = thread(&sampled, "disk");
    let (reads, sleeps) = (time(disk, "waits", "state", "disk"), time(disk, "waits", "wait_reason", "timer"));
    // The time of its reads depends on the host's disk; the wait reason does not.
    assert!(reads.is_none_or(|reads| reads["wait_reason"] == "block"), "{disk:#}");
    assert!(sleeps.is_some_and(|sleeps| sleeps["s"].as_f64() > Some(2.0)), "{disk:#}");
    agree(&sampled, &exact);
}

/// Asserts that sampling and exact mode agree on each thread, within the intervals. The thread that reads the
/// disk is left out: it is woken so often that the cost of exact mode under emulation counts. An event is
/// recorded when its function begins, but the task is in its new state only when the guest has continued.
fn agree(sampled: &Value, exact: &Value) {
    let (mut compared, mut outside, mut far) = (0, 0, Vec::new());
    for name in ["sleeps", "futex", "pipe", "poll", "socket"] {
        let (estimated, exact) = (thread(sampled, name), thread(exact, name));
        let mut compare = |estimate: &Value, exact: &Value| {
            let distance = apart(
                estimate,
                exact["share"].as_f64().expect("a share"),
                ["share", "share_low", "share_high"],
            );
            compared += 1;
            outside += i32::from(distance > 1.0);
            if distance > 2.0 {
                far.push(format!("{name}, {distance:.1} ends apart: {estimate} is not {exact}"));
            }
        };
        compare(&estimated["running"], &exact["running"]);
        for state in ["runnable", "sleep", "disk", "stopped"] {
            let state_time =
                |task| time(task, "states", "state", state).unwrap_or_else(|| panic!("no {state}"));
            compare(state_time(estimated), state_time(exact));
        }
    }
    assert!(compared == 25 && far.is_empty(), "{far:#?}");
    // One or two of them by chance; states of a thread are not independent of one another.
    assert!(outside <= 8, "{outside} of {compared} intervals do not hold");
}

#[test]
#[ignore = "one more guest: --all"]
fn without_scans_there_is_a_reason() {
    let run = without_stacks_and_scans();
    let (status, stderr) = run.call(&["report", "--states"]);
    assert_eq!(status, Some(1));
    assert!(stderr.trim().lines().count() == 1 && stderr.contains("--task-rate 0"), "{stderr}");
    assert_eq!(run.number("SELECT count(*) FROM task_scan"), 0.0);
}

/// On kernels of other series the guest's clock is the only reference: when the emulation serves a timer
/// late, a sleep is longer than requested.
#[test]
#[ignore = "other kernels: --all"]
fn sleeps_are_found_on_other_kernels() {
    let script = "read from idle </proc/uptime; sleep 6; read to idle </proc/uptime; echo slept $from $to";
    for kernel in ["6.12", "newest"] {
        let run = Guest::demo_with_kernel(kernel).script(script).run().succeeded();
        let slept = run.stdout.lines().find_map(|line| line.strip_prefix("slept ")).expect("two times");
        let times: Vec<f64> = slept.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [from, to] = times[..] else { panic!("two times: {slept}") };
        let report = run.json(&["report", "--states", "--process", "sleep"]);
        let sleep = &report["tasks"][0]["waits"][0];
        assert_eq!(sleep["state"], "sleep", "{report:#}");
        // The newest kernel's stacks of sleepers end in the scheduler (docs/limits.md).
        assert!(kernel == "newest" || sleep["wait_reason"] == "timer", "{report:#}");
        let distance = apart(sleep, to - from, ["s", "low_s", "high_s"]);
        assert!(to - from > 5.9 && distance < 2.0, "{distance} ends apart from {slept}: {sleep}");
    }
}
