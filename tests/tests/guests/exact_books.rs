//! Exact mode: children that were waited for, against getrusage(RUSAGE_CHILDREN), and kinds of page faults.

use serde_json::Value;
use vprof_tests::{Guest, Run};

use crate::exact::{counts_and_lives_add_up, watched};

const SCRIPT: &str = "children --millis 100 && for kind in text data kernel; do faults --kind $kind; done";

/// The numbers of a line of the console that starts with these words.
fn numbers(run: &Run, start: &str) -> Vec<i64> {
    let line = run.stdout.lines().map(str::trim).find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no line {start:?}: {}", run.stdout));
    line[start.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn of_children(list: &Value) -> &Value {
    let list = list.as_array().expect("a list");
    list.iter().find(|process| process["comm"] == "children").expect("the process")
}

fn children_are_those_that_were_waited_for(run: &Run) {
    let [user, system, faults, switches] = numbers(run, "children ")[..] else { panic!("{}", run.stdout) };
    let rusage = run.json(&["rusage"]);
    let children = &of_children(&rusage["processes"])["children"];
    let told = |key: &str| children[key].as_i64().expect("a number");
    assert_eq!((children["seen"].as_bool(), told("processes")), (Some(true), 4), "{children}");
    let read = [told("reported_user_ns") / 1000, told("reported_system_ns") / 1000];
    assert_eq!(read, [user, system], "{children}");
    assert_eq!((told("minor_faults") + told("major_faults"), told("switches")), (faults, switches));
    assert!(told("true_low_ns") < told("true_cpu_ns") && told("true_cpu_ns") < told("true_high_ns"));

    let report = run.exact_report();
    let children = of_children(&report["children"]);
    assert_eq!((children["waited_for"].as_u64(), children["processes"].as_u64()), (Some(3), Some(4)));
    let states = children["states"].as_array().expect("states");
    let of = |names: &[&str]| {
        let fits = states.iter().filter(|state| names.contains(&state["state"].as_str().expect("a name")));
        fits.map(|state| state["s"].as_f64().expect("a time")).sum::<f64>()
    };
    let on_cpu = of(&["running", "interrupted", "sampler"]);
    // The scheduler's clock: it runs on in interrupts, and while the host has the CPU.
    let told = (user + system) as f64 / 1e6;
    assert!((on_cpu / told - 1.0).abs() < 0.1, "{on_cpu} s on a CPU, told {told} s: {children}");
    let life = children["life_s"].as_f64().expect("a time");
    let sum: f64 = states.iter().map(|state| state["s"].as_f64().expect("a time")).sum();
    assert!((sum - life).abs() < 1e-6 && of(&["zombie"]) > 0.0, "{children}");
}

fn faults_are_of_their_kind(run: &Run) {
    for kind in ["text", "data", "kernel"] {
        let [reads] = numbers(run, &format!("fault-{kind} read the disk"))[..] else {
            panic!("{}", run.stdout)
        };
        assert!(reads > 30, "{kind}: {reads} faults read the disk");
        let slept = |of: &str| {
            run.number(&format!(
                "SELECT coalesce(sum(count), 0) FROM task_state s JOIN instance i ON i.id = s.instance \
                 WHERE comm = 'fault-{kind}' AND wait_reason = '{of} fault' AND state IN ('sleep', 'disk')"
            ))
        };
        let (own, all) = (slept(kind), ["text", "data", "kernel"].map(slept).iter().sum::<f64>());
        // It may wait for a lock and for the disk in one fault; the program's own pages may be on the disk, too.
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
    counts_and_lives_add_up(&run);
    children_are_those_that_were_waited_for(&run);
    faults_are_of_their_kind(&run);
}
