//! The guest's CPU accounting, as vprof reads it and as the guest's own /proc reports it.

use vprof_tests::Guest;

#[test]
#[ignore = "one more guest: --all"]
fn accounting_is_that_of_the_guests_proc() {
    let run = Guest::demo()
        .script("spin --seconds 4 & p=$!; sleep 2; echo \"stat $(cat /proc/$p/stat)\"; wait")
        .run()
        .succeeded();
    let line =
        run.stdout.lines().find_map(|line| line.strip_prefix("stat ")).expect("a line of /proc/PID/stat");
    // Fields 14 and 15 (proc_pid_stat(5)); the name in field 2 has no blanks here.
    let field =
        |n: usize| line.split(' ').nth(n - 1).and_then(|field| field.parse::<f64>().ok()).expect("a number");
    let proc_s = (field(14) + field(15)) / 100.0;
    assert!(proc_s > 0.5, "{line}");
    let rusage = run.json(&["rusage"]);
    let spin = rusage["processes"].as_array().expect("processes").iter().find(|p| p["comm"] == "spin");
    let spin = spin.expect("spin");
    let ns = |key: &str| spin[key].as_f64().expect("a time") / 1e9;
    let reported = ns("reported_user_ns") + ns("reported_system_ns");
    // Read until shortly before its end, so more than halfway through.
    assert!(reported >= proc_s - 0.01 && reported < 8.0, "{proc_s} {spin}");
    assert!(
        (reported - ns("runtime_ns")).abs() < 0.011,
        "the kernel reports the scheduler's run time: {spin}"
    );
    assert!(
        ns("measured_low_ns") < ns("measured_cpu_ns") && ns("measured_cpu_ns") < ns("measured_high_ns"),
        "{spin}"
    );
    // The guest's clock also runs while the host does not run the guest.
    assert!(ns("measured_low_ns") <= 1.1 * reported, "{spin}");
    assert!(ns("measured_high_ns") > 0.5 * reported, "{spin}");
    assert!(spin["since_s"].is_null(), "it began later: {spin}");
    let cpu = &rusage["cpus"][0];
    assert!(cpu["reported"]["user_ns"].as_f64() > Some(1e9 * 0.5 * reported), "{cpu}");
    // Both sides are of the time between the two readings, of which no sample has seen the time before.
    let s = |value: &serde_json::Value| value.as_f64().expect("a number");
    let length = s(&cpu["read_s"]) - s(&cpu["since_s"]);
    let sum = |times: &str| cpu[times].as_object().expect("times").values().map(s).sum::<f64>() / 1e9;
    assert!(length > 3.0 && (sum("measured") - length).abs() < 0.05 * length, "{cpu}");
    assert!(sum("reported") < 1.1 * length, "{cpu}");
}
