//! Exact mode: children that were waited for, against getrusage(RUSAGE_CHILDREN), and kinds of page faults.

use serde_json::Value;
use vprof_tests::{Guest, Run};

use crate::exact::{counts_and_instances_add_up, watched};

const SCRIPT: &str = "children --millis 100 && for kind in text data kernel; do faults --kind $kind; done";

/// Returns the numbers of a line of the console that starts with these words.
fn numbers(run: &Run, start: &str) -> Vec<i64> {
    let line = run.stdout.lines().map(str::trim).find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no line {start:?}: {}", run.stdout));
    line[start.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn children_of(list: &Value) -> &Value {
    let list = list.as_array().expect("a list");
    list.iter().find(|process| process["comm"] == "children").expect("the process")
}

fn children_are_those_that_were_waited_for(run: &Run) {
    let [user, system, faults, switches] = numbers(run, "children ")[..] else { panic!("{}", run.stdout) };
    let rusage = run.json(&["rusage"]);
    let children = &children_of(&rusage["processes"])["children"];
    let number = |key: &str| children[key].as_i64().expect("a number");
    assert_eq!((children["seen"].as_bool(), number("processes")), (Some(true), 4), "{children}");
    let read = [number("reported_user_ns") / 1000, number("reported_system_ns") / 1000];
    assert_eq!(read, [user, system], "{children}");
    assert_eq!((number("minor_faults") + number("major_faults"), number("switches")), (faults, switches));
    assert!(
        number("measured_low_ns") < number("measured_cpu_ns")
            && number("measured_cpu_ns") < number("measured_high_ns")
    );

    let report = run.exact_report();
    let children = children_of(&report["children"]);
    assert_eq!((children["waited_for"].as_u64(), children["processes"].as_u64()), (Some(3), Some(4)));
    let states = children["states"].as_array().expect("states");
    let time = |names: &[&str]| {
        let fits = states.iter().filter(|state| names.contains(&state["state"].as_str().expect("a name")));
        fits.map(|state| state["s"].as_f64().expect("a time")).sum::<f64>()
    };
    let on_cpu = time(&["running", "interrupted", "sampler"]);
    // The scheduler's clock also runs in interrupts, and while the host has the CPU.
    let reported = (user + system) as f64 / 1e6;
    assert!((on_cpu / reported - 1.0).abs() < 0.1, "{on_cpu} s on a CPU, reported {reported} s: {children}");
    let life = children["life_s"].as_f64().expect("a time");
    let sum: f64 = states.iter().map(|state| state["s"].as_f64().expect("a time")).sum();
    assert!((sum - life).abs() < 1e-6 && time(&["zombie"]) > 0.0, "{children}");
}

fn faults_are_of_their_kind(run: &Run) {
    for kind in ["text", "data", "kernel"] {
        let [reads] = numbers(run, &format!("fault-{kind} read the disk"))[..] else {
            panic!("{}", run.stdout)
        };
        assert!(reads > 30, "{kind}: {reads} faults read the disk");
        let slept = |fault: &str| {
            run.number(&format!(
                "SELECT coalesce(sum(count), 0) FROM task_state s JOIN instance i ON i.id = s.instance \
                 WHERE comm = 'fault-{kind}' AND wait_reason = '{fault} fault' AND state IN ('sleep', 'disk')"
            ))
        };
        let (own, all) = (slept(kind), ["text", "data", "kernel"].map(slept).iter().sum::<f64>());
        // A fault may wait for a lock and for the disk; the program's own pages may be on the disk, too.
        assert!(own >= 0.9 * reads as f64 && own < 3.0 * reads as f64, "{kind}: {own} sleeps, {reads} reads");
        assert!(own > 0.7 * all, "{kind}: {own} of {all} sleeps");
        // The program's start has faults of other kinds.
        let samples = |condition: &str| {
            run.number(&format!(
                "WITH RECURSIVE up (sample, stack) AS (SELECT s.id, s.stack FROM sample s JOIN instance i ON i.id = s.instance \
                 WHERE comm = 'fault-{kind}' AND {condition} \
                 UNION SELECT sample, k.parent FROM up JOIN stack k ON k.id = up.stack) \
                 SELECT count(DISTINCT sample) FROM up JOIN stack k ON k.id = up.stack JOIN frame f ON f.id = k.frame \
                 WHERE f.symbol LIKE '%faults::pass%'"
            ))
        };
        let (own, all) = (samples(&format!("fault = '{kind}'")), samples("fault IS NOT NULL"));
        assert!(own > 20.0 && own >= 0.98 * all, "{kind}: {own} of {all} samples");
    }
}

#[test]
#[ignore = "what the units test, in a guest: --all"]
fn children_and_kinds_of_faults() {
    let run = watched(Guest::demo(), SCRIPT);
    counts_and_instances_add_up(&run);
    children_are_those_that_were_waited_for(&run);
    faults_are_of_their_kind(&run);
}
