//! Sampling from and up to a condition, repeated runs, and the command apart from the rest of the guest.

use serde_json::Value;
use vprof_tests::Guest;

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
#[ignore = "two guests: --all"]
fn only_the_benchmark_is_sampled_in_each_of_several_runs() {
    // The shell's own loop is outside; `sha256sum` under another process is the benchmark.
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 0.3; \
                  sh -c 'dd if=/dev/zero bs=1M count=60 2>/dev/null | sha256sum'; \
                  i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo over";
    let run = Guest::demo()
        .next_to_others()
        .options(["--start-when", "process:sha256sum", "--stop-when", "process-end:sha256sum"])
        .options(["--repeat", "2", "--json"])
        .script(script)
        .start()
        .finish();
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    let output = run.stdout_json();
    let profiles = output["profiles"].as_array().expect("profiles");
    assert_eq!(profiles.len(), 2);
    let share = |name: &str| {
        let shares = output["shares"].as_array().expect("shares");
        shares.iter().find(|row| row["name"] == name).map_or(0.0, |row| number(&row["min"]))
    };
    // The loops before and after take as long as the benchmark, and do not belong to it.
    assert!(share("sha256sum") > 0.4, "{output}");
    assert!(share("the command's processes") > share("sha256sum"), "{output}");
    let shell: f64 = output["shares"]
        .as_array()
        .expect("shares")
        .iter()
        .filter(|row| row["name"] == "sh")
        .map(|row| number(&row["max"]))
        .sum();
    assert!(shell < 0.15, "{output}");
    let times = output["times_s"].as_array().expect("times");
    assert!(times.iter().all(|row| row["count"] == 2 && number(&row["min"]) > 0.0), "{output}");
}

#[test]
#[ignore = "one more guest: --all"]
fn a_mark_starts_sampling_and_the_socket_ends_it() {
    let mut running = Guest::demo()
        .next_to_others()
        .options(["--start-when", "mark:go now", "-q"])
        .script("sleep 2; exec python3 -c 'while True: pass'")
        .start();
    let status = running.wait_for_ctl(&["status"], |status| status["kernel"].is_string());
    // Samples of the last milliseconds may not be counted yet.
    assert!(status["sampling"] == false && status["samples"].as_u64() < Some(100), "{status}");
    running.ctl(&["stop", "--when", "time:1s", "--then", "end"]);
    running.ctl(&["mark", "go", "now"]);
    let run = running.finish();
    let unsampled = number(&run.json(&["report"])["unsampled_s"]);
    let report = run.json(&["report"]);
    let sampled = number(&report["duration_s"]) - unsampled;
    assert!((0.9..2.0).contains(&sampled), "{sampled} of {}", report["duration_s"]);
}
