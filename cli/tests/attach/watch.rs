//! Stalls that `vprof attach --watch` reports.

use super::*;

/// Watches a VM until the first stall, for which `cause` is called once it is sampled. Returns the line of
/// JSON about it.
fn first_stall(vm: &TestVm, condition: &str, cause: impl FnOnce()) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("a.vprof");
    let watch = format!("--watch={condition}:2s");
    let mut attach = vprof(["attach", &vm.pid(), &watch, "--watch-exit", "--json", "-q", "-d", "60s", "-o"]);
    attach.arg(&profile).args(["--control", "none"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let attached = attach.spawn().unwrap();
    let count = || vprof(["query"]).arg(&profile).args(["SELECT count(*) FROM sample", "--csv"]).output();
    eventually("samples", SOON, || {
        let count = stdout(&count().unwrap());
        count.lines().nth(1)?.parse::<u64>().ok().filter(|count| *count > 0)
    });
    cause();
    let output = attached.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let lines = stdout(&output);
    let first = serde_json::from_str::<Value>(lines.lines().next().unwrap_or_default()).expect(&lines);
    assert_eq!((lines.lines().count(), first["type"].as_str()), (1, Some("begin")), "{lines}");
    assert_eq!(first["conditions"], serde_json::json!([condition]), "{lines}");
    first
}

#[test]
fn a_watch_reports_a_vm_that_is_stopped() {
    run_as_vmm();
    let Some(vm) = TestVm::start("watch::a_watch_reports_a_vm_that_is_stopped") else { return };
    let process = nix::unistd::Pid::from_raw(vm.0.id().cast_signed());
    let stop = || nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let stall = first_stall(&vm, "paused", stop);
    assert_eq!((&stall["alert"]["vcpu"], &stall["alert"]["number"]), (&Value::Null, &1.into()));
    assert!(stall["vm"].as_str().is_some_and(|vm| vm.starts_with("process ")), "{stall}");
    assert!(!stall["alert"]["vcpus"][0]["stack"].is_null(), "{stall}");
}

#[test]
fn a_watch_reports_a_vcpu_without_a_cpu() {
    run_as_vmm();
    let Some(vm) = TestVm::start_as("watch::a_watch_reports_a_vcpu_without_a_cpu", "spin") else { return };
    let mut hog = None;
    let spin = || Command::new("taskset").args(["1", "sh", "-c", "while :; do :; done"]).spawn().unwrap();
    let stall = first_stall(&vm, "starved", || {
        hog = Some(OwnProcess(spin()));
        // All threads of the VMM share the CPU, and lose it to the other program.
        let pin = "taskset -ap 1 $0; for task in /proc/$0/task/*; do renice -n 19 -p ${task##*/}; done";
        let pinned = Command::new("sh").args(["-ec", pin, &vm.pid()]).output().unwrap();
        assert!(pinned.status.success(), "{}", stderr(&pinned));
    });
    drop(hog);
    let sentence = stall["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("vCPU 0 has waited for a CPU of the host for "), "{sentence}");
    // Without the kernel's programs no process is known. The first that takes the CPU may be another one than
    // the one that keeps it.
    let named = sentence.contains(" took it at the begin of waits of ");
    assert!(named || !sentence.contains(';'), "{sentence}");
}
