//! A profile survives its writer: killed at any moment, or out of disk space.
//!
//! Writers are this test's own binary, started again with `WRITER` set.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_regs, kvm_sregs};
use profile::store::Value;
use profile::{Filter, Profile, ProfileWriter, Report};
use sampler::{RecordingConfig, Session, SessionConfig};
use statistics::clock::ClockKind;
use testkit::repetitions;
use vm_memory::GuestAddress;
use vmm::{GuestMemoryMmap, Observer, TickContext};

const WRITER: &str = "VPROF_TEST_WRITER";
/// Ticks per second that a writer serves.
const RATE: u64 = 2_000;

/// Runs a session whose `n`th sample has n as its address; prints its progress on stdout.
fn write_until_killed(path: &Path, flood: bool) -> ! {
    let writer = ProfileWriter::create(path, false).expect("a new profile");
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let rate_hz = RATE as f64;
    let config = SessionConfig {
        vcpus: 1,
        recording: RecordingConfig {
            rate_hz,
            clock: ClockKind::Fixed,
            stack_depth: 127,
            ..RecordingConfig::default()
        },
        meta: Vec::new(),
    };
    let (mut session, mut samplers) = Session::new(config, Box::new(writer), symbols::names::no_files());
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
    session.start(memory.clone()).expect("a disk with room");
    let mut sregs = kvm_sregs::default();
    sregs.ss.dpl = 3;
    samplers[0].started();
    let begin = Instant::now();
    for n in 0_u64.. {
        // Ticks come at a rate, as a clock's.
        while !flood && begin.elapsed() < Duration::from_micros(n * 1_000_000 / RATE) {
            std::thread::sleep(Duration::from_micros(300));
        }
        if flood && n % 1_000 == 0 {
            session.console().write_all(&[b'x'; 60_000]).expect("never fails");
            std::thread::sleep(Duration::from_millis(5));
        }
        let now_ns = vmm::monotonic_ns();
        let regs = kvm_regs { rip: n, ..Default::default() };
        let moment =
            TickContext { due_ns: now_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory: &memory };
        samplers[0].serve(&moment, || None);
        if !flood && n % 20 == 0 {
            println!("at {n}");
        }
        if session.failed() {
            let totals = session.finish(Vec::new());
            println!("failed {}: {}", totals.samples, totals.sink_error.expect("the reason of the failure"));
            std::process::exit(7);
        }
    }
    unreachable!()
}

fn start(test: &str, path: &Path, prepare: impl FnOnce(&mut Command)) -> Child {
    let mut command = Command::new(env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture"]).env(WRITER, path).stdout(Stdio::piped());
    prepare(&mut command);
    command.spawn().expect("this binary starts again")
}

fn integer(profile: &Profile, sql: &str) -> u64 {
    match profile.query(sql).expect("a query").rows[0][0] {
        Value::Integer(value) => value.try_into().expect("not negative"),
        ref other => panic!("{sql} gave {other:?}"),
    }
}

/// Starts a writer, kills it `after` its first sample, and checks that everything older than a second is in
/// the profile.
fn kill_once(path: &Path, after: Duration) {
    let mut child = start("killed_at_any_moment", path, |_| {});
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (sender, first) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for line in lines.map_while(Result::ok) {
            if let Some(n) = line.rsplit_once("at ").and_then(|(_, n)| n.parse::<u64>().ok()) {
                seen.push((Instant::now(), n));
                sender.send(()).expect("the receiver waits");
            }
        }
        seen
    });
    first.recv_timeout(Duration::from_secs(60)).expect("a first sample");
    // Any moment, because the profile must be whole at each.
    std::thread::sleep(after);
    child.kill().expect("SIGKILL");
    let killed = Instant::now();
    child.wait().expect("an ended child");
    let seen = reader.join().expect("the reader of stdout");
    let old = seen.iter().rev().find(|(time, _)| killed.duration_since(*time) >= Duration::from_secs(1));
    let &(_, expected) = old.expect("the first sample is older than a second");
    let profile = Profile::open(path).unwrap_or_else(|error| panic!("killed after {after:?}: {error}"));
    let samples = integer(&profile, "SELECT count(*) FROM sample");
    assert!(samples > expected, "{samples} samples, and {expected} was taken before, killed after {after:?}");
    let highest = integer(&profile, "SELECT max(address) FROM frame JOIN sample ON sample.frame = frame.id");
    assert_eq!(highest + 1, samples, "samples without a gap");
    assert_eq!(integer(&profile, "SELECT samples - lost <= 0 FROM vcpu"), 0);
    let report = Report::read(&profile, &Filter::default()).expect("a report");
    assert!(!report.complete && report.duration_s > after.as_secs_f64() - 1.5 && report.samples == samples);
}

#[test]
fn killed_at_any_moment() {
    if let Some(path) = env::var_os(WRITER) {
        write_until_killed(&PathBuf::from(path), false);
    }
    let directory = tempfile::tempdir().expect("a directory");
    // Spread over the 200 ms of a batch and beyond; four writers at once.
    let kills = repetitions(8, 20);
    let moments: Vec<u64> = (0..kills).map(|n| 1_010 + n * 900 / kills).collect();
    for (round, group) in moments.chunks(4).enumerate() {
        std::thread::scope(|scope| {
            for (n, &milliseconds) in group.iter().enumerate() {
                let path = directory.path().join(format!("{round}-{n}.vprof"));
                scope.spawn(move || kill_once(&path, Duration::from_millis(milliseconds)));
            }
        });
    }
}

/// Returns the output of a writer that ends by itself.
fn ended(mut child: Child) -> String {
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let said = lines
        .map_while(Result::ok)
        .find(|line| line.contains("failed "))
        .expect("the writer reports its failure");
    assert_eq!(child.wait().expect("an ended child").code(), Some(7));
    said
}

fn check_failed(said: &str, path: &Path) {
    let (_, rest) = said.split_once("failed ").expect("a failure");
    let (written, reason) = rest.split_once(": ").expect("a reason");
    assert!(reason.starts_with(&format!("cannot write {}: the disk", path.display())), "{reason}");
    let profile = Profile::open(path).expect("a profile that stays readable");
    let samples = integer(&profile, "SELECT count(*) FROM sample");
    assert_eq!(samples.to_string(), written, "exactly what was reported as written");
    assert!(samples > 1_000);
    let report = Report::read(&profile, &Filter::default()).expect("a report");
    assert!(!report.complete && report.samples == samples);
}

#[test]
fn a_file_that_may_not_grow() {
    if let Some(path) = env::var_os(WRITER) {
        write_until_killed(&PathBuf::from(path), true);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limited.vprof");
    let child = start("a_file_that_may_not_grow", &path, |command| {
        let limit = || {
            let limit = libc::rlimit { rlim_cur: 3 << 20, rlim_max: 3 << 20 };
            // SAFETY: both calls are async-signal-safe system calls on values that outlive them.
            let failed = unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
            };
            if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: the closure makes only async-signal-safe calls and does not allocate.
        unsafe { command.pre_exec(limit) };
    });
    check_failed(&ended(child), &path);
}

/// A separate file system of 4 MiB, if this machine lets us mount one.
#[test]
fn a_full_disk() {
    if let Some(path) = env::var_os(WRITER) {
        write_until_killed(&PathBuf::from(path), true);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mount = |arguments: &[&str]| {
        let done = Command::new(arguments[0]).args(&arguments[1..]).arg(directory.path()).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=4m", "vprof-test"]) {
        return testkit::missing("a file system that can be mounted: run the tests as root");
    }
    struct Unmount<F: Fn()>(F);
    impl<F: Fn()> Drop for Unmount<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let _unmount = Unmount(|| assert!(mount(&["umount"]), "cannot unmount"));
    let path = directory.path().join("full.vprof");
    let child = start("a_full_disk", &path, |_| {});
    let said = ended(child);
    assert!(said.ends_with("the disk is full"), "{said}");
    check_failed(&said, &path);
}
