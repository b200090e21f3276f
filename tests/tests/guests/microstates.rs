//! Microstates of vCPUs, on guests that idle, work, halt again and again, and do I/O.

use serde_json::Value;
use vprof_tests::{Guest, Run};

use crate::attribution::mixture;

/// Returns a state of a vCPU as a part of its wall time.
fn part(stat: &Value, vcpu: usize, state: &str) -> f64 {
    let vcpu = &stat["vcpus"][vcpu];
    vcpu["states"][state].as_f64().expect("a state") / vcpu["wall_ns"].as_f64().expect("a time")
}

/// Asserts what must hold for any run as a whole and for every segment of a second.
fn adds_up(run: &Run) -> Value {
    let stat = run.json(&["stat"]);
    for vcpu in stat["vcpus"].as_array().expect("vCPUs") {
        let states = vcpu["states"].as_object().expect("states");
        let sum: u64 = states.values().filter_map(Value::as_u64).sum();
        assert_eq!(Some(sum), vcpu["wall_ns"].as_u64(), "{vcpu}");
    }
    // Measured by two independent clocks: segments by the collector's, their sum by the vCPUs'.
    let gaps = run.query(
        "SELECT max(abs(length - total) * 1.0 / length) FROM (
             SELECT m.time_ns - lag(m.time_ns, 8) OVER w AS length,
                    sum(guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns + paused_ns)
                        OVER (PARTITION BY vcpu ORDER BY time_ns ROWS 7 PRECEDING) AS total
             FROM microstate m WINDOW w AS (PARTITION BY vcpu ORDER BY time_ns))
         WHERE length >= 1e9",
    );
    let worst = gaps[0][0].as_f64().expect("segments of a second");
    assert!(worst < 0.005, "a segment is off by {worst}");
    let whole = run.query(
        "SELECT max(abs(m.guest - v.guest_ns)), max(abs(m.halted - v.halted_ns)) FROM vcpu v JOIN
             (SELECT vcpu, sum(guest_ns) AS guest, sum(halted_ns) AS halted FROM microstate GROUP BY vcpu) m
         ON m.vcpu = v.id",
    );
    assert_eq!(
        (whole[0][0].as_i64(), whole[0][1].as_i64()),
        (Some(0), Some(0)),
        "segments add up to the whole"
    );
    stat
}

#[test]
#[ignore = "one more load: --all"]
fn a_busy_guest_is_in_the_guest() {
    let run = Guest::demo().script("spin --seconds 4").run().succeeded();
    let stat = adds_up(&run);
    // Under emulation a tick keeps the guest from running for longer than it takes to serve it.
    let (guest, sampler) = (part(&stat, 0, "guest"), part(&stat, 0, "sampler"));
    assert!(guest > 0.3 && guest + sampler > 0.6, "{}", stat["vcpus"]);
    assert!(part(&stat, 0, "halted") < 0.2, "{}", stat["vcpus"]);
}

#[test]
#[ignore = "one more load: --all"]
fn an_idle_guest_is_halted() {
    let run = Guest::demo().script("sleep 8").run().succeeded();
    let stat = adds_up(&run);
    // Under emulation it costs much to get a halted vCPU out of KVM_RUN and in again.
    let halted = part(&stat, 0, "halted") + part(&stat, 0, "kvm");
    let wall = stat["vcpus"][0]["wall_ns"].as_f64().expect("a time") / 1e9;
    // Of the eight seconds that the guest sleeps; booting takes the rest.
    assert!(halted * wall > 4.0, "{}", stat["vcpus"]);
    // The samples know it from KVM's run state, the clock from the host's scheduler.
    let ticks = run.number("SELECT count(*) FROM sample WHERE halted") / 1_000.0;
    assert!((ticks / wall / halted - 1.0).abs() < 0.25, "{ticks} s by ticks: {}", stat["vcpus"]);
}

#[test]
fn a_guest_that_reads_its_disk_has_exits_and_interrupts() {
    let run = mixture("6.1");
    let stat = adds_up(run);
    let exits = stat["exits"].as_array().expect("exits");
    let count = |device: &str| {
        let matching = exits.iter().filter(|exit| exit["device"] == device);
        matching.filter_map(|exit| exit["count"].as_u64()).sum::<u64>()
    };
    assert!(
        count("serial port") > 5 && count("PCI configuration") > 100 && count("disk 0") > 10,
        "{exits:?}"
    );
    let interrupts = stat["interrupts"].as_array().expect("interrupts");
    let disk = interrupts.iter().filter(|i| i["device"] == "disk 0").filter_map(|i| i["count"].as_u64());
    assert!(disk.sum::<u64>() > 500, "{interrupts:?}");
    let kvm = stat["kvm_counters"].as_array().expect("counters");
    let all = kvm.iter().find(|counter| counter["name"] == "exits").expect("KVM counts exits");
    // Not those by a signal that came before the guest was entered.
    let served: u64 = exits
        .iter()
        .filter(|exit| exit["device"].is_string())
        .filter_map(|exit| exit["count"].as_u64())
        .sum();
    assert!(
        all["value"].as_u64() > Some(served),
        "KVM counts all exits, vprof those that it serves ({served}): {kvm:?}"
    );
}

#[test]
#[ignore = "one more load: --all"]
fn a_second_vcpu_that_nobody_uses_is_halted() {
    let run = Guest::demo()
        .options(["--cpus", "2"])
        .script("split --seconds 4 --ratio 1:1 --cpu 0")
        .run()
        .succeeded();
    let stat = adds_up(&run);
    let idle = |vcpu| part(&stat, vcpu, "halted") + part(&stat, vcpu, "kvm");
    assert!(
        idle(1) > idle(0) + 0.1 && part(&stat, 0, "guest") > part(&stat, 1, "guest") + 0.1,
        "{}",
        stat["vcpus"]
    );
}
