//! Exact mode against what the guest itself counts and does.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;
use vprof_tests::{FRAMES_AT_PROBES, Guest, Run};

use crate::attribution;

/// Threads that take turns by a futex, a sleep, a pipe, and a child that is waited for.
const MIXTURE: &str = "threads --seconds 2 --cpu 0 & from=$(date +%s%N); sleep 1; echo slept $(($(date +%s%N) - from)); \
     dd if=/dev/zero bs=64k count=100 2>/dev/null | gzip -1 | cat >/dev/null; wait";

/// Returns the run of the mixture on the demo image.
fn mixture() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| watched(Guest::demo().on_own_cpu(), MIXTURE))
}

pub(crate) fn watched(guest: Guest, script: &str) -> Run {
    guest.options(["--exact"]).script(script).run().succeeded()
}

/// Runs [`watched`] with two vCPUs, with which the portable host's emulation fails more often.
pub(crate) fn watched_on_two(guest: Guest, script: &str) -> Run {
    watched(guest.options(["--cpus", "2"]), script)
}

/// Returns the switches that were seen and those that the kernel counted, of each vCPU.
fn switches(run: &Run) -> Vec<(i64, i64)> {
    let rows = run.query("SELECT switches, guest_switches FROM exact_vcpu");
    rows.iter().map(|row| (row[0].as_i64().unwrap(), row[1].as_i64().expect("the kernel's count"))).collect()
}

fn ms(run: &Run, comm: &str, condition: &str) -> f64 {
    run.number(&format!(
        "SELECT coalesce(sum(ms), 0) FROM v_task_states WHERE comm = '{comm}' AND {condition}"
    ))
}

/// Asserts what must hold for any exact data, however it ended.
pub(crate) fn counts_and_instances_add_up(run: &Run) {
    assert_eq!(run.number("SELECT sum(lost) FROM exact_vcpu"), 0.0);
    let switches = switches(run);
    assert_eq!(switches.len(), run.report().vcpus().len());
    for (seen, counted) in switches {
        // At either end the kernel may have counted a switch that can't be seen yet (docs/limits.md).
        assert!(seen > 100 && (seen - counted).abs() <= 2, "{seen} switches seen, {counted} counted");
    }
    let off = run.query(
        "SELECT l.instance, l.tid, to_ns - from_ns, sum(ns) FROM task_life l \
         JOIN task_state s ON s.instance = l.instance AND s.tid = l.tid \
         GROUP BY l.instance, l.tid HAVING sum(ns) <> to_ns - from_ns",
    );
    assert!(off.is_empty(), "states that do not add up to instances: {off:?}");
    runs_add_up_to_states(run);
    let (by_task, by_source) =
        ("SELECT sum(count) FROM interrupt_time", "SELECT sum(count) FROM interrupt_source");
    assert_eq!(run.number(by_task), run.number(by_source), "each interrupt has a task and a source");
}

/// Asserts that the runs of each task, as `--timehist` prints them, add up to its states, but for the last
/// wait, which has no run.
fn runs_add_up_to_states(run: &Run) {
    let history = run.json(&["report", "--exact", "--timehist"]);
    assert_eq!(history["left_out"], 0, "runs are left out");
    let number = |of: &Value, key: &str| of[key].as_f64().expect("a number");
    let key = |of: &Value| ["comm", "instance", "tid"].map(|key| of[key].to_string());
    let mut sums: BTreeMap<[String; 3], [f64; 5]> = BTreeMap::new();
    let times = ["wait_s", "delay_s", "running_s", "interrupted_s", "sampler_s"];
    for row in history["runs"].as_array().expect("runs") {
        let sum = sums.entry(key(row)).or_default();
        times.iter().zip(sum).for_each(|(key, sum)| *sum += number(row, key));
    }
    let states: [&[&str]; 5] =
        [&["sleep", "disk", "stopped"], &["runnable"], &["running"], &["interrupted"], &["sampler"]];
    let report = run.exact_report();
    let mut compared = 0;
    for task in report["tasks"].as_array().expect("tasks") {
        let [waited, delayed, on_cpu @ ..] = states.map(|names| {
            let states = task["states"].as_array().expect("states").iter();
            let fits = states.filter(|state| names.contains(&state["state"].as_str().expect("a name")));
            fits.map(|state| number(state, "s")).sum::<f64>()
        });
        let [wait, delay, ran @ ..] = sums.get(&key(task)).copied().unwrap_or_default();
        let differ = |a: f64, b: f64| (a - b).abs() > 1e-6;
        assert!(
            !ran.iter().zip(on_cpu).any(|(ran, state)| differ(*ran, state)),
            "{ran:?}, not {on_cpu:?}: {task}"
        );
        assert!(wait < waited + 1e-6 && delay < delayed + 1e-6, "{wait} and {delay}: {task}");
        if task["ended"] == Value::Bool(true) && ran[0] > 0.0 {
            assert!(!differ(wait, waited) && !differ(delay, delayed), "{wait} and {delay}: {task}");
            compared += 1;
        }
        let longest = task["delay"]["max_s"].as_f64().unwrap_or(0.0);
        assert!(longest <= delayed + 1e-6, "{task}");
    }
    assert!(compared > 0, "no task has ended");
    let off = run.query(
        "SELECT d.instance, d.tid, d.ns, s.ns, d.count, s.count \
         FROM (SELECT instance, tid, sum(ns) AS ns, sum(count) AS count FROM task_delay GROUP BY 1, 2) d \
         JOIN task_state s ON s.instance = d.instance AND s.tid = d.tid AND s.state = 'runnable' \
         WHERE d.ns <> s.ns OR d.count <> s.count",
    );
    assert!(off.is_empty(), "waits for a CPU that do not add up: {off:?}");
}

fn everything_adds_up(run: &Run) {
    counts_and_instances_add_up(run);
    assert!(run.number("SELECT count(*) FROM task_life WHERE ended") > 5.0);
    each_vcpu_is_idle_or_runs_a_task(run);
}

/// Asserts that each vCPU is idle or runs a task, with an interrupt or without.
pub(crate) fn each_vcpu_is_idle_or_runs_a_task(run: &Run) {
    let vcpus = run.report().vcpus().len() as f64;
    let span = run.number("SELECT max(to_ns) - min(from_ns) FROM task_life");
    let busy =
        run.number("SELECT sum(ns) FROM task_state WHERE state IN ('running', 'interrupted', 'sampler')");
    let idle = run.number("SELECT sum(idle_ns) FROM exact_vcpu");
    let apart = (busy + idle) / (vcpus * span) - 1.0;
    assert!(apart.abs() < 0.02, "{busy} + {idle} is not {vcpus} x {span}");
}

/// Compares two measures of the same time: events, and the part of all ticks that found the task on a CPU,
/// whatever that CPU was doing. Neither charges the task for the switches to the host and back that events
/// cost.
fn ticks_agree_with_events(run: &Run) {
    let rows = run.query(&format!(
        "WITH span AS (SELECT min(from_ns) low, max(to_ns) high FROM task_life), \
         tick AS (SELECT s.* FROM sample s, span WHERE s.time_ns BETWEEN low AND high \
           AND s.frame NOT IN ({FRAMES_AT_PROBES})), \
         lost AS (SELECT coalesce(sum(sampler_ns), 0) + (SELECT value FROM meta WHERE key = 'exact_switching_ns') ns \
           FROM microstate m, span WHERE m.time_ns BETWEEN low AND high), \
         task AS (SELECT instance, sum(ns) ns FROM task_state WHERE state IN ('running', 'interrupted') GROUP BY 1) \
         SELECT comm, task.ns / ((SELECT count(*) FROM vcpu) * 1.0 * (high - low) - lost.ns) * (SELECT count(*) FROM tick), \
         (SELECT count(*) FROM tick WHERE tick.instance = task.instance AND vcpu_state <> 'halted') \
         FROM task JOIN instance i ON i.id = task.instance, span, lost WHERE pid <> 0 ORDER BY task.ns DESC LIMIT 5"
    ));
    assert_eq!(rows.len(), 5);
    for row in &rows {
        let (expected, ticks) = (row[1].as_f64().expect("ticks"), row[2].as_f64().expect("ticks"));
        // Five standard deviations of independent ticks, and what a busy machine serves too late to count.
        let tolerance = 5.0 * expected.sqrt() + 0.05 * expected + 5.0;
        assert!((ticks - expected).abs() < tolerance, "{ticks} ticks found {row:?} of {rows:?}");
    }
}

/// Asserts the length of a sleep. A busy host may delay the guest in its sleep: the guest's own clock, read
/// before and after, gives the maximum.
pub(crate) fn sleep_is_as_long_as_the_guest_says(run: &Run, asked_ms: f64) {
    let sleep = ms(run, "sleep", "wait_reason = 'timer'");
    let slept = run.stdout.lines().find_map(|line| line.strip_prefix("slept "));
    let slept = slept.and_then(|ns| ns.parse::<f64>().ok()).expect("the guest's time") / 1e6;
    // An emulated guest's clock may run a little faster or slower than its host's.
    assert!(
        (0.95 * asked_ms..1.05 * slept).contains(&sleep) && slept > 0.95 * asked_ms,
        "{sleep} ms where the guest says {slept}"
    );
}

fn programs_have_their_states(run: &Run) {
    assert!(
        ms(run, "threads", "wait_reason = 'futex'") > 1000.0,
        "{:?}",
        run.query("SELECT * FROM v_task_states")
    );
    sleep_is_as_long_as_the_guest_says(run, 1000.0);
    assert!(ms(run, "cat", "wait_reason = 'pipe'") > 0.0);
    assert!(ms(run, "sh", "wait_reason = 'child'") > 900.0);
    let stacks = run.query(
        "SELECT v.text FROM task_state t JOIN instance i ON i.id = t.instance JOIN v_stacks v ON v.id = t.stack \
         WHERE i.comm = 'sleep' AND t.wait_reason = 'timer'",
    );
    let stack = stacks[0][0].as_str().expect("a stack");
    assert!(stack.starts_with("__schedule;schedule;do_nanosleep;hrtimer_nanosleep"), "{stack}");
    let woken = run.number(
        "SELECT sum(count) FROM wakeup w JOIN instance i ON i.id = w.woken WHERE i.comm = 'sleep' AND w.\"by\" = 'hard'",
    );
    assert!(woken >= 1.0, "a timer's interrupt ends a sleep");
    assert!(run.number("SELECT sum(count) FROM interrupt_time") > 100.0);
}

#[test]
fn counts_times_and_states_are_the_guests_6_1() {
    everything_adds_up(mixture());
    programs_have_their_states(mixture());
}

#[test]
#[ignore = "many ticks: --all"]
fn ticks_and_events_give_the_same_times() {
    ticks_agree_with_events(mixture());
}

#[test]
#[ignore = "another kernel: --all"]
fn counts_times_and_states_are_the_guests_6_12() {
    let run = watched_on_two(Guest::demo_with_kernel("6.12"), MIXTURE);
    everything_adds_up(&run);
    programs_have_their_states(&run);
}

#[test]
fn the_report_shows_tasks_and_refuses_a_profile_without() {
    let report = mixture().exact_report();
    let tasks = report["tasks"].as_array().expect("tasks");
    assert!(tasks.iter().any(|task| task["comm"] == "sleep" && task["ended"] == Value::Bool(true)));
    let (status, stderr) = attribution::mixture("6.1").call(&["report", "--exact"]);
    assert_eq!(status, Some(1));
    assert!(stderr.trim().lines().count() == 1 && stderr.contains("run --exact"), "{stderr}");
}

#[test]
#[ignore = "one more change of the guest: --all"]
fn a_guest_that_traces_itself_meets_no_probe() {
    traces_itself(Guest::demo());
}

#[test]
#[ignore = "two more kernels: --all"]
fn a_guest_of_another_kernel_that_traces_itself_meets_no_probe() {
    for kernel in ["6.12", "newest"] {
        traces_itself(Guest::demo_with_kernel(kernel));
    }
}

/// Asserts that the guest's own function tracer finds its code unchanged.
fn traces_itself(guest: Guest) {
    let run = watched(
        guest,
        // A tracer of one function alone: of all, it would keep an emulated guest busy for minutes.
        "sleep 0.2; rmmod virtio_rng && echo unloaded; cd /sys/kernel/tracing; \
         echo 'finish_task_switch*' > set_ftrace_filter; echo function > current_tracer; sleep 0.2; \
         grep -c -m 100 finish_task_switch trace; echo nop > current_tracer; echo continued",
    );
    assert!(run.stdout.contains("unloaded") && run.stdout.contains("continued"), "{}", run.stdout);
    let traced = run.stdout.lines().find_map(|line| line.trim().parse::<u32>().ok());
    assert!(traced.is_some_and(|count| count > 0), "the guest traces: {}", run.stdout);
    let console = run.console();
    assert!(["ftrace", "WARNING", "Oops"].iter().all(|word| !console.contains(word)), "{console}");
    let end = run.query("SELECT value FROM meta WHERE key IN ('exact_end', 'exact_missing')");
    assert!(end[0][0].as_str().is_some_and(|text| text.contains("its own code")), "{end:?}");
    for (seen, counted) in switches(&run) {
        assert!((seen - counted).abs() <= 2, "{seen} switches seen, {counted} counted");
    }
}
