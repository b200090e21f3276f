//! Watched functions against what the guest does.

use serde_json::Value;
use vprof_tests::{Guest, Run};

/// Sleeps of a known number and length, and opens of a file.
const CALLS: &str = "n=0; while [ $n -lt 7 ]; do sleep 0.03; n=$((n + 1)); done; \
     for n in 1 2 3 4 5; do cat /etc/passwd >/dev/null; done";

/// Runs [`CALLS`], and asserts counts, arguments, callers and cost of the two functions that they lead to.
fn calls_are_the_guests_own(guest: Guest, options: &[&str]) -> Run {
    let guest = guest.options(["--trip", "hrtimer_nanosleep", "--trip", "do_sys_openat2"]);
    let run = guest.options(options).script(CALLS).run().succeeded();
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
    run
}

#[test]
fn calls_are_counted_with_their_arguments() {
    calls_are_the_guests_own(Guest::demo(), &[]);
}

#[test]
fn calls_are_counted_on_the_newest_kernel_in_exact_mode() {
    let run = calls_are_the_guests_own(Guest::demo_with_kernel("newest"), &["--exact", "--cpus", "2"]);
    assert_eq!(run.number("SELECT sum(lost) FROM exact_vcpu"), 0.0);
    assert!(run.number("SELECT count(*) FROM task_run") > 100.0);
}

#[test]
fn a_function_that_is_not_there_ends_the_run() {
    let run = Guest::demo().options(["--trip", "vfs_raed"]).script("sleep 60").run().exited(1);
    assert!(
        run.stderr.contains("has no function vfs_raed") && run.stderr.contains("vfs_read"),
        "{}",
        run.stderr
    );
    let run = Guest::demo().options(["--trip", "exc_page_fault"]).script("sleep 60").run().exited(1);
    assert!(run.stderr.contains("not traceable"), "{}", run.stderr);
}
