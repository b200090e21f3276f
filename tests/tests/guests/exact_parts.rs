//! Exact mode: interrupts by source, parts of the time on a CPU, stacks of sleeps, CPU times of processes at
//! their exit.

use serde_json::Value;
use vprof_tests::{Guest, Run};

use crate::exact::{counts_and_instances_add_up, watched};

/// Prints interrupts before and after the disk is read past all caches; runs a program that mostly faults,
/// one that only computes, and short processes, whose CPU time the shell then prints.
const SCRIPT: &str = "cat /proc/interrupts; dd if=/dev/vda of=/dev/null bs=64k count=300 iflag=direct 2>/dev/null; \
     cat /proc/interrupts; \
     python3 -c \"for k in range(40): b = bytearray(16 << 20); b[::4096] = b'x' * 4096\" ; \
     spin --seconds 1; sleep 0.5; \
     sh -c 'for n in 1 2 3 4 5 6 7 8 9 10; do spin --cpu-millis 5 --name brief; done; \
     read stat </proc/$$/stat; echo stat $stat'";

/// Returns the counts of an interrupt line over all CPUs, of each reading.
fn counts(run: &Run, line: &str) -> Vec<u64> {
    let lines = run.stdout.lines().filter(|text| text.contains(line));
    let count = |text: &str| {
        text.split_whitespace().skip(1).take(2).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>()
    };
    lines.map(count).collect()
}

fn interrupts_are_the_guests(run: &Run) {
    let report = run.exact_report();
    let sources = report["sources"].as_array().expect("sources");
    let source = |name: &str| sources.iter().find(|source| source["name"] == name).expect("a source");
    for (line, name) in [("virtio0-req.0", "virtio0-req.0"), ("Local timer", "apic_timer_interrupt")] {
        let [before, after] = counts(run, line)[..] else { panic!("two readings: {}", run.stdout) };
        let source = source(name);
        let seen = source["count"].as_u64().expect("a count");
        assert!(after > before && seen >= after - before, "{line}: {before} to {after}, {source}");
        let number = |key: &str| source[key].as_f64().expect("a number");
        assert!(number("s") > 0.0 && number("max_s") >= number("mean_s"), "{source}");
    }
    let disk = source("virtio0-req.0");
    assert!(disk["vector"].as_u64() > Some(31) && source("apic_timer_interrupt")["vector"].is_null());
    // vprof has raised at least as many since its start as the guest has served since exact mode began.
    let stat = run.json(&["stat"]);
    let raised =
        stat["interrupts"].as_array().expect("interrupts").iter().filter(|i| i["device"] == "disk 0");
    let raised: u64 = raised.filter_map(|interrupt| interrupt["count"].as_u64()).sum();
    let served = stat["served"].as_array().expect("served").iter().filter(|s| s["name"] == "virtio0-req.0");
    let served: u64 = served.filter_map(|served| served["count"].as_u64()).sum();
    assert!(
        Some(served) == disk["count"].as_u64() && (300..=raised).contains(&served),
        "{served} of {raised}"
    );
    let soft = report["soft_interrupts"].as_array().expect("soft interrupts");
    assert!(!soft.is_empty(), "a timer's tick raises some");
    for soft in soft {
        let time = |key: &str| soft[key].as_f64().expect("a time");
        assert!(time("time_low_s") <= time("time_s") && time("time_s") <= time("time_high_s"), "{soft}");
    }
}

fn time_divides(run: &Run) {
    let report = run.exact_report();
    let part = |comm: &str, part: &str, end: &str| {
        let tasks = report["tasks"].as_array().expect("tasks");
        let task = tasks.iter().find(|task| task["comm"] == comm).expect("a task");
        task["parts"][part][end].as_f64().expect("samples")
    };
    // A computing program faults at its start only.
    assert!(part("python3", "trap", "low") > 0.1, "{report}");
    assert!(
        part("spin", "user", "share") > 0.4 && part("spin", "trap", "share") < part("python3", "trap", "low"),
        "{report}"
    );
    for comm in ["python3", "spin"] {
        let sum: f64 = ["user", "system", "trap", "soft"].map(|name| part(comm, name, "share")).iter().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}

fn programs_sleep_in_their_own_code(run: &Run) {
    let report = run.exact_report();
    let sleeps = report["off_cpu"].as_array().expect("sleeps");
    let stack = |comm: &str, wait_reason: &str| {
        let mut found =
            sleeps.iter().filter(|sleep| sleep["comm"] == comm && sleep["wait_reason"] == wait_reason);
        found.next().expect("a sleep")["stack"].as_array().expect("functions").clone()
    };
    let stack = stack("sleep", "timer");
    let place = |name: &str| stack.iter().position(|function| function == name);
    let (kernel, library, start) =
        (place("do_nanosleep"), place("clock_nanosleep"), place("__libc_start_main"));
    assert!(kernel.is_some() && kernel < library && library < start, "{stack:?}");
    let kernel_threads = run.number(
        "SELECT count(*) FROM task_state t JOIN instance i ON i.id = t.instance JOIN stack s ON s.id = t.stack \
         JOIN frame f ON f.id = s.frame WHERE i.kernel_thread AND f.kind = 'user'",
    );
    assert_eq!(kernel_threads, 0.0);
}

/// Asserts that the CPU times that vprof read when processes ended are those that the shell has reaped.
fn exit_accounting_is_final(run: &Run) {
    let stat = run.stdout.lines().find_map(|line| line.strip_prefix("stat ")).expect("the shell's figures");
    // Fields 16 and 17 (proc_pid_stat(5)), in ticks of 10 ms; the names of shells have no blanks.
    let ticks =
        |n: usize| stat.split(' ').nth(n - 1).and_then(|field| field.parse::<f64>().ok()).expect("ticks");
    assert_eq!(run.number("SELECT count(*) FROM instance WHERE comm = 'brief'"), 10.0);
    for (field, column) in [(16, "user_ns"), (17, "system_ns")] {
        let ms = run.number(&format!(
            "SELECT sum({column}) / 1e6 FROM rusage r JOIN instance i ON i.id = r.instance WHERE i.comm = 'brief' AND NOT r.first"
        ));
        let reported = ticks(field) * 10.0;
        assert!(
            reported > 0.0 && (reported..reported + 10.0).contains(&ms),
            "{column}: {ms} ms, reported {reported}: {stat}"
        );
    }
}

fn checked(guest: Guest) {
    let run = watched(guest, SCRIPT);
    counts_and_instances_add_up(&run);
    interrupts_are_the_guests(&run);
    time_divides(&run);
    programs_sleep_in_their_own_code(&run);
    exit_accounting_is_final(&run);
    let complete = run.query("SELECT value FROM meta WHERE key = 'exact_end'");
    assert_eq!(complete[0][0], Value::from("the run ended"));
}

#[test]
#[ignore = "another kernel: --all"]
fn interrupts_faults_sleeps_and_exit_accounting_6_1() {
    checked(Guest::demo());
}

#[test]
#[ignore = "a guest that runs long: --all"]
fn interrupts_faults_sleeps_and_exit_accounting_6_12() {
    checked(Guest::demo_with_kernel("6.12"));
}
