//! Refusals that a process inside the wall meets. Each one is in a separate process: this program, started
//! again.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use wall::{REPORT_BYTES, RefusedCall, ResourceLimits, SyscallPolicy, ThreadKind, WallConfig};

/// Environment variable with what the child tries.
const TRIAL: &str = "WALL_TRIAL";
/// Environment variable with the directory that it keeps.
const DIRECTORY: &str = "WALL_DIRECTORY";
/// Exit status after the trial was done.
const DONE: i32 = 40;
/// Exit status after the kernel has denied it with an error.
const DENIED: i32 = 41;
/// Outcome of a refused call while all signals are blocked, as the C library does around `clone`: the kernel
/// ends the process, without a report.
const KILLED: (Option<i32>, Option<RefusedCall>) = (None, None);

/// Name, kind of the thread, and what it does inside the wall. An error is the kernel's, without a report.
type Trial = (&'static str, Option<ThreadKind>, fn() -> std::io::Result<()>);

fn trials() -> Vec<Trial> {
    fn socket() -> std::io::Result<()> {
        TcpListener::bind("127.0.0.1:0").map(drop)
    }
    fn own() -> std::io::Result<()> {
        File::open("/proc/thread-self/schedstat").map(drop)
    }
    vec![
        ("process own", None, own),
        ("process socket", None, socket),
        ("process passwd", None, || File::open("/etc/passwd").map(drop)),
        ("process create", None, || File::create("/tmp/wall-was-climbed").map(drop)),
        ("process program", None, || Command::new("/bin/true").status().map(drop)),
        ("process temporary", None, || tempfile::tempfile().map(drop)),
        ("process thread", None, || {
            std::thread::Builder::new().spawn(own)?.join().map_err(|_| std::io::Error::other("panic"))?
        }),
        ("process connect", None, || TcpStream::connect("127.0.0.1:9").map(drop)),
        ("vcpu own", Some(ThreadKind::Vcpu), own),
        ("sampler temporary", Some(ThreadKind::Sampler), || tempfile::tempfile().map(drop)),
        ("vcpu socket", Some(ThreadKind::Vcpu), socket),
        ("disk socket", Some(ThreadKind::Disk), socket),
        ("device socket", Some(ThreadKind::Device), socket),
        ("sampler socket", Some(ThreadKind::Sampler), socket),
        ("disk file", Some(ThreadKind::Disk), own),
        ("device file", Some(ThreadKind::Device), own),
        ("reader memory", Some(ThreadKind::Reader), || {
            std::hint::black_box(vec![1_u8; 8 << 20]);
            Ok(())
        }),
        ("reader socket", Some(ThreadKind::Reader), socket),
        ("reader file", Some(ThreadKind::Reader), own),
        ("reader thread", Some(ThreadKind::Reader), || std::thread::Builder::new().spawn(|| ()).map(drop)),
        ("vcpu thread", Some(ThreadKind::Vcpu), || std::thread::Builder::new().spawn(|| ()).map(drop)),
    ]
}

/// The child's part: does nothing unless it was started for a trial.
#[test]
fn trial() {
    let Ok(name) = std::env::var(TRIAL) else { return };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory"));
    let (_, kind, run) = trials().into_iter().find(|(trial, ..)| *trial == name).expect("a trial");
    let report = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
    match kind {
        Some(ThreadKind::Reader) => {
            let limits = ResourceLimits { memory_bytes: 1 << 30, file_bytes: 1 << 20, cpu_seconds: 60 };
            wall::enter_reader(SyscallPolicy::Refuse, limits, report).expect("a wall");
        }
        kind => {
            wall::enter(WallConfig { policy: SyscallPolicy::Refuse, directory, report }).expect("a wall");
            kind.into_iter().for_each(wall::enter_thread);
        }
    }
    std::process::exit(if run().is_err() { DENIED } else { DONE });
}

/// Runs a trial; returns its exit status, and the call that a filter has refused.
fn outcome(name: &str) -> (Option<i32>, Option<RefusedCall>) {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", "trial", "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
    child.env(TRIAL, name).env(DIRECTORY, directory.path()).env("TMPDIR", directory.path()).stdin(writer);
    let status = child.status().expect("a child");
    // The command holds the writing end.
    drop(child);
    let mut report = [0; REPORT_BYTES];
    let refused = reader.read_exact(&mut report).is_ok().then(|| RefusedCall::from_report(report));
    (status.code(), refused)
}

fn is_refused(name: &str, kind: Option<ThreadKind>, call: i64) {
    let number = u32::try_from(call).expect("a small number");
    assert_eq!(outcome(name), (Some(159), Some(RefusedCall { kind, number })), "{name}");
}

#[test]
fn what_the_process_needs_it_may() {
    for name in [
        "process own",
        "process temporary",
        "process thread",
        "vcpu own",
        "sampler temporary",
        "reader memory",
    ] {
        assert_eq!(outcome(name), (Some(DONE), None), "{name}");
    }
}

#[test]
fn files_of_others_are_denied() {
    assert_eq!(outcome("process passwd"), (Some(DENIED), None));
}

#[test]
fn the_process_is_ended_by_a_call_outside_of_its_filter() {
    is_refused("process socket", None, libc::SYS_socket);
    is_refused("process connect", None, libc::SYS_socket);
    is_refused("process create", None, libc::SYS_openat);
    assert_eq!(outcome("process program"), KILLED);
    assert!(!std::path::Path::new("/tmp/wall-was-climbed").exists());
}

#[test]
fn each_kind_of_thread_is_held_to_its_own_calls() {
    for (name, kind) in [
        ("vcpu socket", ThreadKind::Vcpu),
        ("disk socket", ThreadKind::Disk),
        ("device socket", ThreadKind::Device),
        ("sampler socket", ThreadKind::Sampler),
    ] {
        is_refused(name, Some(kind), libc::SYS_socket);
    }
    is_refused("disk file", Some(ThreadKind::Disk), libc::SYS_openat);
    is_refused("device file", Some(ThreadKind::Device), libc::SYS_openat);
    assert_eq!(outcome("vcpu thread"), KILLED);
    is_refused("reader socket", Some(ThreadKind::Reader), libc::SYS_socket);
    is_refused("reader file", Some(ThreadKind::Reader), libc::SYS_openat);
    assert_eq!(outcome("reader thread"), KILLED);
}
