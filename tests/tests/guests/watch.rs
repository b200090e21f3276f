//! `vprof attach --watch` on guests that stall, under emulation.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use vprof_tests::{ActiveRun, EmulatedGuest, Run};

/// Reads the disk without its cache.
const LOAD: &str =
    "echo ready; while :; do dd if=/dev/vda of=/dev/null bs=64k count=64 iflag=direct; done 2>/dev/null";

/// Returns the lines of a watch.
fn lines(run: &Run) -> Vec<Value> {
    run.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Returns the reports of this type and condition.
fn reports<'a>(lines: &'a [Value], kind: &str, condition: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind && line["conditions"][0] == condition).collect()
}

/// Waits until the profile has this many reports of the watch.
fn wait_for_reports(run: &mut ActiveRun, count: i64) {
    run.wait_for_rows("FROM event WHERE kind = 'watch'", count);
}

#[test]
#[ignore = "one more guest: --all"]
fn a_machine_that_is_paused_and_runs_again() {
    let mut guest = EmulatedGuest::start(&["-m", "512", "-smp", "2"], LOAD);
    let mut attached =
        guest.attach(&["--watch=paused:3s,irqs-off,soft-lockup,rcu-stall,lost-timer", "--json"]);
    attached.wait_for_samples(20);
    guest.pause();
    wait_for_reports(&mut attached, 1);
    guest.monitor("cont");
    wait_for_reports(&mut attached, 2);
    attached.signal(Signal::SIGINT);
    let lines = lines(&attached.finish().exited(3));
    assert_eq!((reports(&lines, "begin", "paused").len(), reports(&lines, "end", "paused").len()), (1, 1));
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
#[ignore = "one more guest: --all"]
fn a_process_that_is_killed_for_lack_of_memory() {
    let script = "echo ready; sleep 10; tail /dev/zero; sleep 300";
    let guest = EmulatedGuest::start(&["-m", "512", "-smp", "1"], script);
    let attached = guest.attach(&["--watch=oom", "--watch-exit", "--json", "-F", "100", "-d", "90s"]);
    let lines = lines(&attached.finish().exited(3));
    assert_eq!((reports(&lines, "begin", "oom").len(), lines.len()), (1, 1), "{lines:?}");
}

/// Freezes the root file system (FIFREEZE, include/uapi/linux/fs.h) and writes to it.
const FREEZE: &str = "echo ready; sleep 8; mount -o remount,rw /; \
    python3 -c 'import fcntl, os; fcntl.ioctl(os.open(\"/\", 0), 0xC0045877, 0)'; dd if=/dev/zero of=/file count=1";

#[test]
#[ignore = "one more guest: --all"]
fn a_task_that_waits_for_a_frozen_file_system() {
    let guest = EmulatedGuest::start(&["-m", "512", "-smp", "1"], FREEZE);
    let watch = ["--watch=blocked-task:5s", "--watch-exit", "--json", "-F", "100", "-d", "90s"];
    let lines = lines(&guest.attach(&watch).finish().exited(3));
    assert_eq!((reports(&lines, "begin", "blocked-task").len(), lines.len()), (1, 1), "{lines:?}");
    assert!(lines[0].to_string().contains("percpu_rwsem_wait"), "{lines:?}");
}

/// Minutes for which a guest without a stall is watched, or those of the variable `VPROF_WATCH_MINUTES`.
const MINUTES: u64 = 2;

/// Watches a guest that runs this script, and asserts that nothing was reported.
fn assert_no_alarm(script: &str) {
    let minutes = std::env::var("VPROF_WATCH_MINUTES").ok().and_then(|text| text.parse().ok());
    let minutes = minutes.unwrap_or(MINUTES);
    let guest = EmulatedGuest::start(&["-m", "512", "-smp", "2"], script);
    let words = ["--gdb", guest.stub(), "--watch", "--json", "-F", "50", "-d", &format!("{minutes}m")];
    let run = guest.attach_within(Duration::from_secs(60 * minutes + 120), &words).finish().succeeded();
    let lines = lines(&run);
    assert!(lines.iter().all(|line| line["type"] == "unjudged"), "{lines:?}");
    assert_eq!(lines.len(), 1, "a stub shows no waits for a CPU: {lines:?}");
}

#[test]
#[ignore = "two minutes: --all"]
fn an_idle_guest_has_no_alarm() {
    assert_no_alarm("echo ready; sleep 100000");
}

#[test]
#[ignore = "two minutes: --all"]
fn a_loaded_guest_has_no_alarm() {
    let load = "while :; do head -c 200M /dev/zero | sha256sum; dd if=/dev/vda of=/dev/null bs=1M count=99; \
                dd if=/dev/zero of=/dev/null bs=64M count=20; done >/dev/null 2>&1";
    assert_no_alarm(&format!("({load}) & ({load}) & ({load}) & echo ready; wait"));
}
