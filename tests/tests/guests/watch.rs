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

/// Watches a guest of this many vCPUs that runs this script, for all conditions that a stub shows, some with
/// shorter times.
fn watched(vcpus: &str, script: &str, duration: &str) -> Vec<Value> {
    let kernel = "root=/dev/vda console=ttyS0 quiet panic=-1 iomem=relaxed";
    let guest = EmulatedGuest::start(&["-m", "512", "-smp", vcpus, "-append", kernel], script);
    let watch = "--watch=irqs-off,soft-lockup:7s,rcu-stall:7s,blocked-task,lost-timer,paused,oom";
    lines(&guest.attach(&[watch, "--json", "-F", "100", "-d", duration]).finish().exited(3))
}

/// Leaves out that a grace period does not end, either: a CPU or the kernel's thread for it may be stuck.
fn without_consequences(lines: Vec<Value>) -> Vec<Value> {
    lines.into_iter().filter(|line| line["conditions"][0] != "rcu-stall").collect()
}

/// Asserts that the line reports this condition of vCPU 1, which runs python3 and is in `function`.
fn assert_stuck(line: &Value, condition: &str, function: &str) {
    assert_eq!((&line["type"], &line["conditions"][0]), (&"begin".into(), &condition.into()), "{line}");
    let sample = &line["alert"]["vcpus"][1];
    assert_eq!((&line["alert"]["vcpu"], &sample["task"]["comm"]), (&1.into(), &"python3".into()), "{line}");
    assert!(sample["stack"].to_string().contains(function), "{line}");
}

/// Asserts that the lines are the begin and the end of this condition, which has held for 12 s.
fn assert_over(lines: &[Value], condition: &str) {
    let (begins, ends) = (reports(lines, "begin", condition), reports(lines, "end", condition));
    assert_eq!((begins.len(), ends.len(), lines.len()), (1, 1, 2), "{lines:?}");
    let time = |name: &str| ends[0]["alert"][name].as_f64().expect("seconds");
    let held = time("time_s") - time("since_s");
    assert!((11.0..20.0).contains(&held), "{held} s: {lines:?}");
}

/// Panics on CPU 1, and waits with interrupts off for ten minutes until it reboots, or with interrupts on for
/// ever (panic(), kernel/panic.c). The other CPUs are halted.
fn panics(timeout: u32) -> String {
    format!(
        "echo ready; sleep 8; echo {timeout} >/proc/sys/kernel/panic; exec python3 -c 'import os
os.sched_setaffinity(0, {{1}}); open(\"/proc/sysrq-trigger\", \"w\").write(\"c\")'"
    )
}

/// Asserts that a guest that panics with this timeout has this condition, and no other one.
fn assert_panic_is(condition: &str, timeout: u32) {
    let lines = without_consequences(watched("2", &panics(timeout), "30s"));
    assert_stuck(&lines[0], condition, "panic");
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
#[ignore = "one more guest: --all"]
fn a_panicked_guest_that_waits_with_interrupts_off() {
    assert_panic_is("irqs-off", 600);
}

#[test]
#[ignore = "one more guest: --all"]
fn a_panicked_guest_that_waits_with_interrupts_on() {
    assert_panic_is("soft-lockup", 0);
}

/// Reads random numbers for 12 s on CPU 1, which the guest's own watchdog would interrupt by a switch.
const LONG_CALL: &str = "echo ready; sleep 8; echo 0 >/proc/sys/kernel/soft_watchdog
echo -1 >/proc/sys/kernel/sched_rt_runtime_us; python3 -c 'import os, signal
buffer = bytearray(1 << 26); file = os.open(\"/dev/urandom\", os.O_RDONLY)
os.sched_setaffinity(0, {1}); os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99)); signal.alarm(12)
while True: os.readv(file, [buffer] * 31)'; sleep 300";

#[test]
#[ignore = "one more guest: --all"]
fn a_system_call_that_keeps_a_vcpu_in_the_kernel() {
    let lines = without_consequences(watched("2", LONG_CALL, "35s"));
    assert_stuck(&lines[0], "soft-lockup", "random");
    assert_over(&lines, "soft-lockup");
}

/// Keeps the kernel's threads from all CPUs for 12 s, by user code in the middle of a grace period.
const BUSY_CPUS: &str = "for i in 1 2 3; do while :; do (:); done & done
echo ready; sleep 8; echo -1 >/proc/sys/kernel/sched_rt_runtime_us; python3 -c 'import os, signal
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99)); os.fork(); signal.alarm(12)
while True: pass'; sleep 300";

#[test]
#[ignore = "one more guest: --all"]
fn a_grace_period_that_busy_vcpus_hold_up() {
    assert_over(&watched("2", BUSY_CPUS, "35s"), "rcu-stall");
}

/// Program that masks the timer of the local APIC: `or dword [0xfee00320], 0x10000` on a mapping of /dev/mem.
const MASK: &str = "\
    f0VMRgIBAQAAAAAAAAAAAAIAPgABAAAAeAABAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAEAAOAABAAAAAAAAAAEAAAAFAAAAAAAA\
    AAAAAAAAAAEAAAAAAAAAAQAAAAAAxwAAAAAAAADHAAAAAAAAAAAQAAAAAAAASI09PwAAAL4CEBAAuAIAAAAPBUGJwDH/vgAQAAC6\
    AwAAAEG6AQAAAEG5AADg/rgJAAAADwWBiCADAAAAAAEAuDwAAAAPBS9kZXYvbWVtAA==";

/// Loses the timer of the only CPU, and then runs this command.
fn loses_its_timer(command: &str) -> Vec<Value> {
    let script =
        format!("echo {MASK} | base64 -d >/mask; chmod +x /mask; echo ready; sleep 8; /mask; {command}");
    let lines = without_consequences(watched("1", &script, "25s"));
    assert_eq!((reports(&lines, "begin", "lost-timer").len(), lines.len()), (1, 1), "{lines:?}");
    lines
}

#[test]
#[ignore = "one more guest: --all"]
fn a_halted_guest_whose_timer_is_lost() {
    let lines = loses_its_timer("sleep 300");
    assert!(lines[0]["sentence"].to_string().contains("halted"), "{lines:?}");
}

#[test]
#[ignore = "one more guest: --all"]
fn a_busy_guest_whose_timer_is_lost() {
    let lines = loses_its_timer("while :; do :; done");
    assert!(lines[0]["sentence"].to_string().contains("has not advanced"), "{lines:?}");
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
