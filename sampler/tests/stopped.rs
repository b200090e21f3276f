//! A run that the host stops for a while (SIGSTOP) and continues (SIGCONT): a machine on this host's KVM with
//! a few bytes of code at CPL 3 as the guest, which every KVM runs.
//!
//! The run is this test's own binary, started again with `RUN` set.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use profile::store::Value;
use profile::{Filter, Profile, ProfileWriter, Report};
use sampler::{RecordingConfig, Session, SessionConfig};
use testkit::eventually;
use vmm::{Machine, VmConfig, kvm_check};

const RUN: &str = "VPROF_TEST_STOPPED";
/// Time for which the run is stopped.
const STOPPED: Duration = Duration::from_secs(2);
/// Time limit of what must happen.
const SOON: Duration = Duration::from_secs(20);
/// `1: jmp 1b`
const SPIN: &[u8] = &[0xeb, 0xfe];

/// Runs a guest whose first vCPU spins and whose second is never started; prints a line when it runs. The
/// test closes the pipe to end it.
fn run(path: &Path) -> ! {
    let writer = ProfileWriter::create(path, false).expect("a new profile");
    let config = SessionConfig {
        vcpus: 2,
        recording: RecordingConfig { rate_hz: 500.0, ..RecordingConfig::default() },
        meta: Vec::new(),
    };
    let (mut session, samplers) = Session::new(config, Box::new(writer), symbols::names::no_files());
    let machine = VmConfig { vcpus: 2, ..VmConfig::flat(SPIN) };
    let mut samplers = samplers.into_iter();
    let mut machine =
        Machine::start(machine, |_| samplers.next().expect("one for each vCPU")).expect("a machine");
    session.bind(&mut machine);
    session.start(machine.memory()).expect("a disk with room");
    println!("it runs");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("a pipe");
    machine.stop();
    machine.wait(Some(SOON)).expect("vCPUs that end");
    session.finish(Vec::new());
    std::process::exit(0)
}

fn signal(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).expect("a pid");
    // SAFETY: kill takes no pointers; the child is not waited for yet, so its id is not used again.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "{}", std::io::Error::last_os_error());
}

fn integers(profile: &Profile, sql: &str) -> Vec<i64> {
    let rows = profile.query(sql).expect("a query").rows;
    let integer = |value: &Value| match value {
        Value::Integer(value) => *value,
        other => panic!("{sql} gave {other:?}"),
    };
    rows.first().expect("a row").iter().map(integer).collect()
}

#[test]
fn time_in_which_a_run_was_stopped_is_waiting() {
    if let Some(path) = env::var_os(RUN) {
        run(&PathBuf::from(path));
    }
    if let Err(error) = kvm_check::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stopped.vprof");
    let mut command = Command::new(env::current_exe().expect("this binary"));
    command.args(["--exact", "time_in_which_a_run_was_stopped_is_waiting", "--nocapture"]);
    let mut child = command
        .env(RUN, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this binary starts again");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("text").contains("it runs")));
    // While the profile is being written.
    let wait_for = |samples: i64, late_ns: u64| {
        let sql = format!("SELECT count(*) FROM sample WHERE late_ns > {late_ns}");
        let count = || Some(integers(&Profile::open(&path).ok()?, &sql)[0]);
        eventually("samples", SOON, || count().filter(|count| *count >= samples));
    };
    wait_for(500, 0);
    signal(&child, libc::SIGSTOP);
    let begin = Instant::now();
    std::thread::sleep(STOPPED);
    let stopped = begin.elapsed();
    signal(&child, libc::SIGCONT);
    wait_for(1, 1_000_000_000);
    drop(child.stdin.take());
    assert!(child.wait().expect("a child").success());

    let profile = Profile::open(&path).expect("a profile");
    let stopped_ns = i64::try_from(stopped.as_nanos()).expect("seconds");
    for vcpu in 0..2 {
        let sum = "guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns + paused_ns";
        let row = integers(&profile, &format!("SELECT {sum}, waiting_ns FROM vcpu WHERE id = {vcpu}"));
        let (wall, waiting) = (row[0], row[1]);
        let run_ns =
            integers(&profile, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'duration_ns'")[0];
        assert!((wall - run_ns).abs() < run_ns / 20, "vCPU {vcpu}: {wall} ns of {run_ns}");
        // The rest of the waiting time is that of a busy host's CPU.
        assert!(waiting > stopped_ns * 9 / 10, "vCPU {vcpu} waited {waiting} ns, stopped for {stopped_ns}");
    }
    let events = integers(&profile, "SELECT count(*) FROM event WHERE kind = 'stopped'");
    assert_eq!(events, [1]);
    let late = integers(
        &profile,
        "SELECT count(*), sum(vcpu_state = 'guest') FROM sample WHERE late_ns > 1000000000",
    );
    assert!(late[0] >= 1 && late[1] == 0, "ticks of the stop and those that count: {late:?}");
    let report = Report::read(&profile, &Filter::default()).expect("a report");
    let shares: f64 = report.processes.iter().map(|process| process.estimate.share).sum();
    assert!((shares - 1.0).abs() < 1e-9 && report.samples > 100, "{shares}");
}
