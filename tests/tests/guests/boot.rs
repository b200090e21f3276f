//! `vprof boot`: guests that come up, and guests that fail in each way.

use serde_json::Value;
use vprof_tests::{Guest, Run};

/// Runs `vprof boot` on a guest that runs a script once it is up.
fn judged(options: &[&str], script: &str) -> Run {
    Guest::demo()
        .next_to_others()
        .boot()
        .options(options.iter().copied().chain(["-F", "200", "--json"]))
        .script(script)
        .run()
}

fn verdict(run: &Run) -> String {
    run.stdout_json()["boots"][0]["verdict"].as_str().expect("a verdict").to_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// Returns the sentence that says why the boot failed.
fn failure(run: &Run) -> String {
    run.stdout_json()["failure"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_guest_that_comes_up_has_phases_and_its_budgets_are_judged() {
    let directory = tempfile::tempdir().expect("a directory");
    let (junit, baseline) = (directory.path().join("boot.xml"), directory.path().join("boot.json"));
    let options = [
        "--until",
        "^ready [0-9]",
        "--budget",
        "kernel=2m",
        "--budget",
        "userspace=1ms",
        "--budget",
        "initrd=1ms",
    ];
    let files =
        ["--junit", junit.to_str().expect("text"), "--save-baseline", baseline.to_str().expect("text")];
    let options: Vec<&str> = options.into_iter().chain(files).collect();
    // A control group named as systemd names one.
    let script = "mkdir /sys/fs/cgroup/load.service && echo $$ > /sys/fs/cgroup/load.service/cgroup.procs; \
                  sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; echo ready 1; sleep 60";
    let run = judged(&options, script).exited(3);
    let output = run.stdout_json();
    let boot = &output["boots"][0]["boot"];
    let phases: Vec<(&str, f64, f64)> = boot["phases"]
        .as_array()
        .expect("phases")
        .iter()
        .map(|p| (p["name"].as_str().expect("a name"), number(&p["from_s"]), number(&p["to_s"])))
        .collect();
    let phase = |name: &str| {
        *phases.iter().find(|phase| phase.0 == name).unwrap_or_else(|| panic!("no {name}: {phases:?}"))
    };
    let (total, kernel) = (phase("total"), phase("kernel"));
    // Each phase begins where the one before it ends.
    let order = [phase("decompression"), phase("early"), phase("initcalls")];
    for pair in order.windows(2) {
        assert!((pair[0].2 - pair[1].1).abs() < 1e-9 && pair[0].1 < pair[0].2, "{phases:?}");
    }
    assert!((kernel.1 - order[1].1).abs() < 1e-9 && (kernel.2 - order[2].2).abs() < 1e-9, "{phases:?}");
    assert!(total.1 == 0.0 && phase("userspace").2 <= total.2 + 1e-9 && kernel.2 < total.2, "{phases:?}");
    let initcalls: Vec<&str> = boot["initcalls"]
        .as_array()
        .expect("initcalls")
        .iter()
        .filter_map(|call| call["function"].as_str())
        .collect();
    // Calls are known by stacks, which begin once the kernel is found: on a loaded machine that takes longer
    // than an emulated guest's initcalls.
    let found_s = run.number("SELECT min(time_ns) / 1e9 FROM event WHERE kind = 'kernel'");
    let is_late = found_s > order[2].1;
    assert!(is_late || initcalls.contains(&"acpi_init") && initcalls.len() > 30, "{initcalls:?}");
    let early = boot["early"].as_array().expect("calls");
    let has_early = early.iter().any(|call| call["function"] == "arch_cpu_finalize_init");
    assert!(is_late || has_early, "{early:?}");
    let units = boot["units"].as_array().expect("units");
    let load =
        units.iter().find(|unit| unit["name"] == "load.service").unwrap_or_else(|| panic!("{units:?}"));
    assert!(number(&load["time"]["low_s"]) > 0.0 && number(&load["from_s"]) > kernel.2, "{load}");
    assert_eq!(boot["init"][0]["filesystem"], "rootfs", "{}", boot["init"]);
    assert_eq!(boot["systemd"]["missing"], "no process systemd-journald was seen", "{}", boot["systemd"]);
    // The message names the broken budget alone; the file has all budgets.
    assert!(failure(&run).starts_with("userspace took "), "{}", failure(&run));
    assert!(run.stderr.contains(&failure(&run)), "{}", run.stderr);
    let junit = std::fs::read_to_string(junit).expect("the file");
    assert!(junit.contains("failures=\"1\"") && junit.contains("name=\"budget kernel\""), "{junit}");
    let baseline: Value =
        serde_json::from_str(&std::fs::read_to_string(baseline).expect("the file")).expect("JSON");
    assert!(number(&baseline["boots"][0]["kernel"]) > 0.1, "{baseline}");
    let chart = run.profile().with_extension("boot.svg");
    let out = chart.to_str().expect("text");
    let (code, stderr) = run.call(&["export", "-o", out]);
    assert_eq!(code, Some(0), "{stderr}");
    let chart = std::fs::read_to_string(chart).expect("the picture");
    assert!(is_late || chart.contains(">acpi_init"), "no calls in the picture");
    assert!(chart.contains("decompression"), "no phases in the picture");
}

#[test]
#[ignore = "one more way to fail: --all"]
fn a_panic_is_reported_with_the_consoles_last_lines() {
    let run = judged(&["--until", "never"], "echo c > /proc/sysrq-trigger; sleep 60").exited(3);
    assert_eq!(verdict(&run), "panic");
    assert!(failure(&run).contains("Kernel panic - not syncing: sysrq triggered crash"), "{}", failure(&run));
    assert!(run.stderr.contains("the console's last lines:\n"), "{}", run.stderr);
    let evidence = &run.stdout_json()["boots"][0]["evidence"];
    assert_eq!(evidence["panicked"], true, "the kernel's own state: {evidence}");
}

#[test]
#[ignore = "one more way to fail: --all"]
fn an_oops_is_reported_by_the_kernels_taint_though_the_guest_comes_up() {
    // 128: TAINT_DIE, as an oops leaves it.
    let run =
        judged(&["--until", "^up$"], "echo 128 > /proc/sys/kernel/tainted; echo up; sleep 60").exited(3);
    assert_eq!(verdict(&run), "oops", "{}", run.stdout);
    assert!(failure(&run).contains("by its own state"), "{}", failure(&run));
}

#[test]
#[ignore = "one more way to fail: --all"]
fn a_reboot_loop_is_reported_after_the_last_start() {
    let run =
        judged(&["--until", "never", "--reboots", "1"], "echo b > /proc/sysrq-trigger; sleep 60").exited(3);
    assert_eq!(verdict(&run), "reboot-loop");
    assert!(failure(&run).starts_with("reboot loop: the guest reset itself 2 times"), "{}", failure(&run));
    assert_eq!(run.stderr.matches("is started again").count(), 1, "{}", run.stderr);
}

#[test]
#[ignore = "one more way to fail: --all"]
fn a_triple_fault_is_reported() {
    let options = ["--until", "never", "--append", "reboot=triple,force"];
    let run = Guest::demo()
        .next_to_others()
        .boot()
        .options(options)
        .options(["--json"])
        .script("echo b > /proc/sysrq-trigger; sleep 60")
        .start()
        .finish();
    assert_eq!((run.status.code(), verdict(&run).as_str()), (Some(3), "triple-fault"), "{}", run.stderr);
}

/// Returns the time at the end in which a guest made no progress, s.
fn still_s(run: &Run) -> f64 {
    let evidence = &run.stdout_json()["boots"][0]["evidence"];
    number(&evidence["duration_s"]) - number(&evidence["progress_s"])
}

#[test]
#[ignore = "a minute and a half: --all"]
fn a_hang_is_reported_at_the_time_out_too() {
    // A quarter of the limit has to be silent: on a slow machine the guest takes a minute to come this far.
    let run =
        judged(&["--until", "never", "--timeout", "90s"], "exec python3 -c 'while True: pass'").exited(3);
    assert_eq!(verdict(&run), "hang-busy", "{}", failure(&run));
}

#[test]
#[ignore = "a minute: --all"]
fn a_silent_guest_that_makes_progress_does_not_hang() {
    // Now the console, now the disk, now a process: each alone for longer than the limit.
    let script = "exec python3 -uc '
import os, time
for i in range(12): print(i); time.sleep(1)
data = open(\"/data\", \"wb\")
for i in range(12): data.write(b\"x\"); data.flush(); os.fsync(data.fileno()); time.sleep(1)
for i in range(12):
    if os.fork() == 0: time.sleep(0.3); os._exit(0)
    os.wait(); time.sleep(1)
print(\"up\"); time.sleep(60)
'";
    let run = judged(&["--until", "^up", "--timeout", "10m", "--hang-after", "6s"], script).exited(0);
    assert_eq!(verdict(&run), "up");
}

#[test]
#[ignore = "one more way to fail: --all"]
fn a_hang_in_which_all_wait_names_who_sleeps_where() {
    // A frozen file system blocks a process that writes to it, in a sleep that nothing else ends.
    let freeze = "python3 -c 'import fcntl, os; fcntl.ioctl(os.open(\"/\", 0), 0xC0045877, 0); open(\"/held\", \"w\")'";
    let run = judged(&["--until", "never", "--timeout", "10m", "--hang-after", "10s"], freeze).exited(3);
    assert_eq!(verdict(&run), "hang-idle", "{}", failure(&run));
    assert!(failure(&run).contains("all vCPUs wait; python3"), "{}", failure(&run));
    assert!(
        still_s(&run) >= 10.0 && number(&run.stdout_json()["boots"][0]["evidence"]["duration_s"]) < 300.0
    );
    let blocked = &run.stdout_json()["boots"][0]["evidence"]["blocked"][0];
    assert_eq!(
        (blocked["comm"].as_str(), blocked["state"].as_str()),
        (Some("python3"), Some("disk")),
        "{blocked}"
    );
    assert!(
        blocked["stack"].as_array().is_some_and(|stack| stack.iter().any(|f| f == "do_sys_openat2")),
        "{blocked}"
    );
}

#[test]
#[ignore = "one more way to fail: --all"]
fn a_hang_of_a_busy_guest_names_what_it_does() {
    let busy = "exec python3 -c 'while True: pass'";
    let run = judged(&["--until", "never", "--timeout", "10m", "--hang-after", "8s"], busy).exited(3);
    assert_eq!(verdict(&run), "hang-busy", "{}", failure(&run));
    assert!(still_s(&run) >= 8.0 && number(&run.stdout_json()["boots"][0]["evidence"]["duration_s"]) < 300.0);
    let vcpu = &run.stdout_json()["boots"][0]["evidence"]["vcpus"][0];
    assert_eq!(vcpu["process"], "python3", "{vcpu}");
}
