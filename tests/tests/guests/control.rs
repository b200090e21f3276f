//! A run that is controlled while it is in progress.

use std::time::Duration;

use serde_json::Value;
use vprof_tests::{ActiveRun, Guest};

const A_WHILE: Duration = Duration::from_secs(2);

/// Asserts that `vprof top` shows the run, takes keys, and leaves the terminal and the guest as they were.
fn seen_in_a_terminal(running: &ActiveRun) {
    let mut top = running.top();
    let text = top.until("row of spin", |text| text.lines().any(|line| line.trim_end().ends_with(" spin")));
    assert!(text.contains("Linux 6.1") && text.contains("300 Hz"), "{text}");
    top.press("?");
    top.until("help", |text| text.contains("any key goes back"));
    top.press("q");
    top.until("table", |text| text.contains("[1 programs]"));
    top.press("/spin\r\r");
    let functions = |text: &str| text.contains(" programs > spin") && text.contains("self  ");
    top.until("functions of spin", functions);
    top.press("\r");
    top.until("their callees", |text| text.contains(" programs > spin > callees of "));
    top.press("\x7f\x7f");
    top.until("programs", |text| text.contains("[1 programs]"));
    top.press("2");
    top.until("functions", |text| text.contains("[2 functions]"));
    top.press("q");
    let (status, _) = top.end();
    assert!(status.success());
}

#[test]
#[ignore = "Linux and the portable host in the way: --all"]
fn sampling_stops_and_resumes_and_the_run_is_ended() {
    let mut running = Guest::demo().next_to_others().script("spin --seconds 1000").start();
    running.wait_for_samples(1);
    let spins = |tables: &Value| tables["processes"][0]["comm"] == "spin";
    running.wait_for_ctl(&["tables", "--last", "1s"], spins);
    let about = running.ctl(&["status"]);
    assert!(about["sampling"] == true && about["samples"].as_u64() >= Some(500), "{about}");
    running.ctl(&["stop"]);
    running.ctl(&["mark", "off"]);
    std::thread::sleep(A_WHILE);
    running.ctl(&["mark", "on", "again"]);
    running.ctl(&["start"]);
    running.ctl(&["rate", "300"]);
    std::thread::sleep(A_WHILE);
    let tables = running.wait_for_ctl(&["tables", "--last", "1s"], spins);
    assert_eq!(
        (&tables["sampling"]["on"], &tables["sampling"]["rate_hz"]),
        (&true.into(), &300.0.into()),
        "{tables}"
    );
    seen_in_a_terminal(&running);
    let written = running.ctl(&["write"]);
    assert!(written["time_s"].as_f64() > tables["time_s"].as_f64(), "{written}");
    running.ctl(&["end"]);
    let run = running.finish().exited(0);

    let marks = run.query("SELECT time_ns, text FROM event WHERE kind = 'mark' ORDER BY time_ns");
    assert_eq!([&marks[0][1], &marks[1][1]], ["off", "on again"]);
    // One more tick finds the request; the portable host forwards the request a little later.
    let between = "SELECT count(*) FROM sample, \
        (SELECT min(time_ns) a, max(time_ns) b FROM event WHERE kind = 'mark') \
        WHERE time_ns BETWEEN a + 500000000 AND b";
    assert_eq!(run.number(between), 0.0);
    let rates = run.query("SELECT rate_hz FROM rate ORDER BY time_ns");
    assert_eq!((rates[0][0].as_f64(), rates[rates.len() - 1][0].as_f64()), (Some(0.0), Some(300.0)));
    let unsampled = run.report().number("unsampled_s");
    assert!((1.0..8.0).contains(&unsampled), "{unsampled}");
}
