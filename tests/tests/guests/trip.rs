//! Watched functions against what the guest does.

use serde_json::Value;
use vprof_tests::{Guest, Run};

use crate::stacks::programs;

/// Options that watch the two functions to which [`CALLS`] leads.
pub(crate) const WATCHED: [&str; 4] = ["--trip", "hrtimer_nanosleep", "--trip", "do_sys_openat2"];
/// Sleeps of a known number and length, and opens of a file.
pub(crate) const CALLS: &str = "n=0; while [ $n -lt 7 ]; do sleep 0.03; n=$((n + 1)); done; \
     for n in 1 2 3 4 5; do cat /etc/passwd >/dev/null; done";

/// Asserts counts, arguments, callers and cost of the calls that [`CALLS`] makes.
pub(crate) fn assert_calls(run: &Run) {
    let slept = "symbol = 'hrtimer_nanosleep' AND argument_1 = 30000000";
    assert_eq!(run.number(&format!("SELECT count(*) FROM v_trip_calls WHERE {slept}")), 7.0);
    let report = run.json(&["report", "--trips"]);
    let callers = report["functions"][0]["callers"].as_array().expect("callers");
    let by_a_call = |caller: &&Value| {
        caller["stack"].as_array().is_some_and(|stack| stack.iter().any(|name| name == "do_syscall_64"))
    };
    let calls: f64 = callers.iter().filter(by_a_call).filter_map(|caller| caller["calls"].as_f64()).sum();
    assert!(calls >= 7.0, "{callers:?}");
    let opened = "JOIN trip_text x ON x.id = c.argument_2 WHERE x.text = '/etc/passwd' AND c.comm = 'cat'";
    assert_eq!(run.number(&format!("SELECT count(*) FROM v_trip_calls c {opened}")), 5.0);
    let all = run.number("SELECT count(*) FROM trip_call");
    assert_eq!(
        [run.number("SELECT sum(calls) FROM trip"), run.number("SELECT sum(lost) FROM trip")],
        [all, 0.0]
    );
    assert!(run.number("SELECT min(cost_ns) FROM trip") > 0.0);
    let modes = "SELECT count(*) FROM trip_argument WHERE trip = 1 AND names LIKE '%HRTIMER_MODE_REL%'";
    assert_eq!(run.number(modes), 1.0);
}

#[test]
fn calls_are_counted_with_their_arguments() {
    assert_calls(programs());
}

/// A name that no function has ends the run as soon as the kernel is found, because the guest need not come
/// up for it.
#[test]
fn a_function_that_is_not_there_ends_the_run() {
    refuses("vfs_raed", &["has no function vfs_raed", "vfs_read"]);
}

#[test]
#[ignore = "one more guest: --all"]
fn a_function_that_is_not_traceable_ends_the_run() {
    refuses("exc_page_fault", &["not traceable"]);
}

/// Asserts that a run which is to watch this function ends with these words.
fn refuses(function: &str, words: &[&str]) {
    let run = Guest::demo()
        .next_to_others()
        .options(["-F", "100", "--trip", function])
        .script("sleep 60")
        .run()
        .exited(1);
    assert!(words.iter().all(|word| run.stderr.contains(word)), "{}", run.stderr);
}
