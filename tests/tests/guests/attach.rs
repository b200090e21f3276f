//! `vprof attach` by QEMU's GDB stub, to guests under emulation.

use nix::sys::signal::Signal;
use vprof_tests::{EmulatedGuest, Report, Run, assert_share};

/// Two processes that share CPU 0 three to one for longer than any test samples.
const SPLIT: &str = "split --seconds 300 --ratio 3:1 --cpu 0 & echo ready; wait";

/// Asserts the shares of two processes that share a CPU three to one, whatever memory the guest has.
pub(crate) fn assert_split(run: &Run) -> Report {
    let report = run.report();
    let (alpha, beta) = (report.process("alpha"), report.process("beta"));
    // The scheduler's own share of 3:1 is not exact to the tick: half a percent is within the bound of so few
    // samples.
    assert_share("alpha", alpha.samples, alpha.samples + beta.samples, 0.75);
    let named = run.number(
        "SELECT avg(symbol IS NOT NULL) FROM sample JOIN frame ON frame.id = sample.frame \
         JOIN mode ON mode.id = sample.mode WHERE mode.name = 'kernel'",
    );
    assert!(named > 0.9, "{named} of the kernel's samples have names");
    report
}

/// Asserts that the CPU accounting of a guest that ran before vprof counts on both sides from its first
/// reading on.
fn assert_accounting(run: &Run) {
    let rusage = run.json(&["rusage"]);
    let processes = rusage["processes"].as_array().expect("processes");
    let alpha = processes.iter().find(|process| process["comm"] == "alpha").expect("alpha");
    let ns = |key: &str| alpha[key].as_f64().expect("a time");
    let reported = ns("reported_user_ns") + ns("reported_system_ns");
    assert!(reported > 1e9 && (reported - ns("measured_cpu_ns")).abs() < 0.2 * reported, "{alpha}");
    // The time from the guest's boot to the run, most of all of init and kernel threads, does not count.
    let length = rusage["duration_s"].as_f64().expect("a number") * 1e9;
    for process in processes {
        let reported = process["reported_user_ns"].as_f64().zip(process["reported_system_ns"].as_f64());
        assert!(process["since_s"].is_f64() && reported.is_some_and(|(a, b)| a + b <= length), "{process}");
    }
    let before = processes.iter().find(|process| process["pid"] == 1).expect("init");
    let ns = |key: &str| before[key].as_f64().expect("a time");
    assert!(ns("before_system_ns") > 10.0 * ns("reported_system_ns"), "{before}");
}

#[test]
fn one_vcpu_without_kvm() {
    let mut guest = EmulatedGuest::start(&["-m", "512", "-smp", "1"], SPLIT);
    let run = guest.attached(&["-d", "8s", "-F", "100"]).succeeded();
    assert_split(&run);
    assert!(run.stderr.contains("memory from its process"), "{}", run.stderr);
    assert_accounting(&run);
    assert!(guest.runs(), "the guest still runs");
    memory_through_the_stub(&mut guest);
}

/// Through a tunnel QEMU's process is unknown, so memory is read through the stub.
fn memory_through_the_stub(guest: &mut EmulatedGuest) {
    let tunnel = guest.tunnel();
    let mut attached = guest.attach_at(&tunnel, &["-F", "1000"]);
    attached.wait_for_samples(3);
    attached.signal(Signal::SIGINT);
    let run = attached.finish().succeeded();
    assert!(run.stderr.contains("memory through the stub"), "{}", run.stderr);
    // The rate that the stub sustains is measured and reported.
    let sentence = |line: &str| line.contains("GDB stub") && line.contains(" 1000 Hz");
    assert!(run.stderr.lines().any(sentence), "{}", run.stderr);
    assert!(run.number("SELECT CAST(value AS REAL) FROM meta WHERE key = 'rate_hz'") < 1000.0);
    assert!(guest.runs(), "the guest still runs");
}

/// Memory above 4 GiB is a second region.
#[test]
#[ignore = "one more guest: --all"]
fn two_vcpus_without_kvm_of_which_one_idles_and_memory_above_4_gib() {
    let guest = EmulatedGuest::start(&["-m", "5G", "-smp", "2"], SPLIT);
    let run = guest.attached(&["-d", "8s", "-F", "100"]).succeeded();
    assert_split(&run);
    let halted = "SELECT 1.0 * halted_ns / (guest_ns + halted_ns) FROM vcpu WHERE id = ";
    let (busy, idle) = (run.number(&format!("{halted}0")), run.number(&format!("{halted}1")));
    assert!(busy < 0.1 && idle > 0.9, "halted: {busy} and {idle}");
    assert_eq!(
        run.number("SELECT count(DISTINCT n) FROM (SELECT count(*) AS n FROM sample GROUP BY vcpu)"),
        1.0
    );
    let memory = run.query("SELECT text FROM event WHERE kind = 'memory'");
    assert!(memory[0][0].as_str().is_some_and(|text| text.contains("at 0x100000000")), "{memory:?}");
}

#[test]
#[ignore = "another kind of QEMU's memory: --all"]
fn memory_in_a_file_shared_by_its_vmm() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let backend = format!("memory-backend-file,id=m,size=512M,share=on,mem-path={}", file.path().display());
    let machine = ["-m", "512", "-machine", "q35,memory-backend=m", "-object", &backend];
    let guest = EmulatedGuest::start(&machine, SPLIT);
    assert_split(&guest.attached(&["-d", "6s", "-F", "100"]).succeeded());
}

#[test]
#[ignore = "another kind of QEMU's memory: --all"]
fn memory_in_huge_pages() {
    let free = std::fs::read_to_string("/proc/meminfo").expect("/proc");
    let free = free.lines().find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse().ok());
    // 512 MiB in pages of 2 MiB.
    if free.unwrap_or(0) < 256 {
        return testkit::missing("256 free huge pages: `sysctl vm.nr_hugepages=256`");
    }
    let machine = ["-m", "512", "-machine", "q35,memory-backend=m"];
    let backend = ["-object", "memory-backend-memfd,id=m,size=512M,hugetlb=on,hugetlbsize=2M"];
    let guest = EmulatedGuest::start(&[machine, [backend[0], backend[1], "-smp", "1"]].concat(), SPLIT);
    assert_split(&guest.attached(&["-d", "6s", "-F", "100"]).succeeded());
}

/// Profilers are killed at random times, in a stop or between two: the guest still runs, and the stub serves
/// the next one.
fn a_killed_vprof_leaves_the_guest_running(guest: &mut EmulatedGuest) {
    for round in 0..10 {
        let mut attached = guest.attach(&["-F", "1000", "-q"]);
        attached.wait_for_samples(1);
        attached.signal(Signal::SIGKILL);
        attached.wait();
        guest.wait_until_it_runs(&format!("round {round}"));
    }
    guest.attached(&["-d", "1s"]).succeeded();
    assert!(guest.runs());
}

fn a_stub_has_one_debugger(guest: &mut EmulatedGuest) {
    let mut attached = guest.attach(&[]);
    attached.wait_for_samples(1);
    let refused = guest.attached(&[]).exited(1);
    assert!(
        refused.stderr.contains(&format!("by another vprof (process {})", attached.pid())),
        "{}",
        refused.stderr
    );
    attached.signal(Signal::SIGINT);
    attached.finish().succeeded();
    assert!(guest.runs());
}

fn a_guest_that_others_pause_stays_so(guest: &mut EmulatedGuest) {
    let mut attached = guest.attach(&["-F", "100"]);
    attached.wait_for_samples(50);
    guest.pause();
    attached.wait_for_rows("FROM microstate WHERE paused_ns > 0", 5);
    assert!(!guest.runs(), "vprof has resumed it");
    attached.signal(Signal::SIGINT);
    attached.finish().succeeded();
    assert!(!guest.runs(), "vprof has resumed it at its end");
    let refused = guest.attached(&[]).exited(1);
    assert!(refused.stderr.contains("is paused; resume it"), "{}", refused.stderr);
    guest.monitor("cont");
    guest.attached(&["-d", "1s"]).succeeded();
}

fn a_guest_that_is_reset_ends_the_profile(guest: &mut EmulatedGuest) {
    let mut attached = guest.attach(&["-F", "200"]);
    attached.wait_for_samples(50);
    guest.monitor("system_reset");
    let run = attached.finish().succeeded();
    assert!(run.stderr.contains("the guest was reset"), "{}", run.stderr);
    assert!(guest.runs());
}

#[test]
#[ignore = "more ways to end: --all"]
fn bad_moments_of_a_guest_without_kvm() {
    let mut guest = EmulatedGuest::start(&["-m", "512", "-action", "reboot=reset"], SPLIT);
    let refused = guest.attach_with(&[&guest.pid().to_string()]).finish().exited(1);
    assert!(refused.stderr.contains("without KVM") && refused.stderr.contains("--gdb"), "{}", refused.stderr);
    a_stub_has_one_debugger(&mut guest);
    a_guest_that_others_pause_stays_so(&mut guest);
    a_killed_vprof_leaves_the_guest_running(&mut guest);
    a_guest_that_is_reset_ends_the_profile(&mut guest);
    guest.wait_for_console(2, "ready");
    a_vmm_that_ends_ends_the_profile(guest);
}

fn a_vmm_that_ends_ends_the_profile(mut guest: EmulatedGuest) {
    let mut attached = guest.attach(&[]);
    attached.wait_for_samples(50);
    guest.kill();
    let run = attached.finish().succeeded();
    assert!(run.stderr.contains("process has ended"), "{}", run.stderr);
    assert!(run.number("SELECT count(*) FROM sample") > 0.0);
}
