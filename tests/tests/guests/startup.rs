//! Units and targets of a boot, against systemd's own times in the guest.

use std::collections::HashMap;

use serde_json::Value;
use vprof_tests::{Guest, Run};

/// Times of a unit as systemd-analyze takes them, ns: the start job began, and the unit was active.
const SHOW: &str =
    "systemctl show --property=Id,InactiveExitTimestampMonotonic,ActiveEnterTimestampMonotonic '*'";
/// Maximum delay of a message after the unit has changed, ns.
const LATER: f64 = 0.1e9;

/// Returns by unit the times at which it began to start and was active, ns by the guest's clock.
fn shown(text: &str) -> HashMap<String, [f64; 2]> {
    let unit = |block: &str| {
        let value = |name: &str| {
            block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
        };
        let ns = |name: &str| Some(value(name)?.parse::<f64>().ok()? * 1e3);
        let times = [ns("InactiveExitTimestampMonotonic")?, ns("ActiveEnterTimestampMonotonic")?];
        Some((value("Id")?, times))
    };
    text.split("\n\n").filter_map(unit).collect()
}

/// Compares what vprof has read with what the guest's own systemd shows.
fn agrees(run: &Run) {
    let shown = shown(&run.stdout);
    let sql = "SELECT unit, guest_ns, step, within_ns FROM unit_event WHERE step IN ('starting', 'started')";
    let rows = run.query(sql);
    let mut compared = 0;
    for row in &rows {
        let (Some(unit), Some(ns)) = (row[0].as_str(), row[1].as_f64()) else { panic!("{row:?}") };
        let which = usize::from(row[2] == "started");
        let Some(time) = shown.get(unit).map(|times| times[which]).filter(|time| *time > 0.0) else {
            continue;
        };
        // The kernel's log has its own clock.
        let bound = if row[3].is_null() { 10.0 * LATER } else { LATER };
        assert!((time - bound..time + bound).contains(&ns), "{unit} {}: {ns} is not {time}", row[2]);
        compared += 1;
    }
    assert!(compared > 60, "{compared} of {} messages", rows.len());
    // All targets that are active, by whichever way their messages took.
    let reached: Vec<&str> =
        rows.iter().filter(|row| row[2] == "started").filter_map(|row| row[0].as_str()).collect();
    for (unit, times) in &shown {
        let named = reached.contains(&unit.as_str());
        assert!(!unit.ends_with(".target") || times[1] == 0.0 || named, "{unit} was not seen: {reached:?}");
    }
    // The guest's clock by the host's, once more: the command began at a time that both clocks have.
    let began = run.number("SELECT time_ns FROM event WHERE kind = 'command' ORDER BY id LIMIT 1");
    let began_guest = run.number("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'command_begun_ns'");
    let offset = run.number("SELECT avg(time_ns - guest_ns) FROM unit_event");
    assert!((began - began_guest - offset).abs() < 1e9, "{began} - {began_guest} is not {offset}");
    assert!(run.number("SELECT max(within_ns) FROM unit_event") < 0.1e9);
}

#[test]
#[ignore = "a whole system: --all"]
fn units_have_the_times_that_the_guests_own_systemd_shows() {
    let run = Guest::debian().options(["-F", "200"]).command(["sh", "-c", SHOW]).run().succeeded();
    agrees(&run);
}

#[test]
#[ignore = "one more distribution, whose journal is a compact one: --all"]
fn units_have_their_times_in_a_compact_journal() {
    let run = Guest::debian_trixie().options(["-F", "200"]).command(["sh", "-c", SHOW]).run().succeeded();
    agrees(&run);
}

#[test]
#[ignore = "a whole system: --all"]
fn a_boot_is_over_when_systemd_says_so() {
    let run = Guest::debian().boot().options(["-F", "200", "--timeout", "8m", "--json"]).run().succeeded();
    let output = run.stdout_json();
    let boot = &output["boots"][0]["boot"];
    let systemd = &boot["systemd"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {systemd}"));
    let end_s = number(&systemd["startup"]["at_s"]);
    for phase in boot["phases"].as_array().expect("phases") {
        let ends = phase["name"] == "total" || phase["name"] == "userspace";
        assert!(!ends || (number(&phase["to_s"]) - end_s).abs() < 1e-6 && phase["ended"] == true, "{phase}");
    }
    let targets = systemd["targets"].as_array().expect("targets");
    let multi_user = targets.iter().find(|target| target["name"] == "multi-user.target").expect("reached");
    assert!(number(&multi_user["at_s"]) < end_s);
    let chain = systemd["chain"].as_array().expect("a chain");
    assert!(chain.len() > 4 && chain[0]["name"] == "graphical.target", "{chain:?}");
    for pair in chain.windows(2) {
        assert!(number(&pair[1]["to_s"]) <= number(&pair[0]["from_s"]) + 0.02, "{pair:?}");
    }
    assert_eq!(run.json(&["report", "--boot"])["systemd"], *systemd, "the profile has it, too");
}
