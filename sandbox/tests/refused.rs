//! Refusals that a process inside the sandbox meets. Each one is in a separate process: this program, started
//! again.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use sandbox::{
    AttachedSandbox, REPORT_BYTES, Reach, RefusedCall, ResourceLimits, SandboxConfig, SyscallPolicy,
    ThreadKind,
};

/// Environment variable with what the child tries.
const TRIAL: &str = "WALL_TRIAL";
/// Environment variable with the directory that it keeps.
const DIRECTORY: &str = "WALL_DIRECTORY";
/// Environment variable with the address of a listener.
const LISTENER: &str = "WALL_LISTENER";
/// Exit status after the trial was done.
const DONE: i32 = 40;
/// Exit status after the kernel has denied it with an error.
const DENIED: i32 = 41;
/// Outcome of a refused call while all signals are blocked, as the C library does around `clone`: the kernel
/// ends the process, without a report.
const KILLED: (Option<i32>, Option<RefusedCall>) = (None, None);

/// Name, kind of the thread, and what it does inside the sandbox. An error is the kernel's, without a report.
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
        ("process create", None, || File::create("/tmp/sandbox-was-left").map(drop)),
        ("process program", None, || Command::new("/bin/true").status().map(drop)),
        ("process temporary", None, || tempfile::tempfile().map(drop)),
        ("process thread", None, || {
            std::thread::Builder::new().spawn(own)?.join().map_err(|_| std::io::Error::other("panic"))?
        }),
        ("process connect", None, || TcpStream::connect("127.0.0.1:9").map(drop)),
        ("vcpu own", Some(ThreadKind::Vcpu), own),
        ("sampler own", Some(ThreadKind::Sampler), own),
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

/// Trials in an attached process, which reaches its own memory and traces a thread that does not exist.
fn attached_trials() -> Vec<(&'static str, Means, Option<ThreadKind>, Attempt)> {
    use ThreadKind::{Device, Sampler, Ticker, Watcher};
    fn passwd() -> std::io::Result<()> {
        File::open("/etc/passwd").map(drop)
    }
    fn own() -> std::io::Result<()> {
        read_memory(std::process::id())
    }
    fn seize() -> std::io::Result<()> {
        ptrace(libc::PTRACE_SEIZE, TRACED, 0)
    }
    vec![
        ("attached passwd", Means::Stops, None, passwd),
        ("attached create", Means::Stops, None, || File::create("/tmp/sandbox-was-left").map(drop)),
        ("attached process", Means::Stops, None, || File::open("/proc/self/status").map(drop)),
        ("attached passwd by kernel", Means::Kernel, Some(Ticker), passwd),
        ("attached passwd by stub", Means::Stub, Some(Sampler), passwd),
        ("attached memory", Means::Stops, None, own),
        ("attached memory of sampler", Means::Stops, Some(Sampler), own),
        ("attached memory of ticker", Means::Kernel, Some(Ticker), own),
        ("attached memory of watcher", Means::Stops, Some(Watcher), own),
        ("attached thread", Means::Stops, None, || {
            std::thread::Builder::new().spawn(own)?.join().map_err(|_| std::io::Error::other("panic"))?
        }),
        ("attached seize", Means::Stops, Some(Ticker), seize),
        ("attached seize of main", Means::Stops, None, seize),
        ("attached link", Means::Stops, Some(Watcher), || std::fs::read_link("/proc/1/no").map(drop)),
        ("attached other memory", Means::Stops, None, || read_memory(1)),
        ("attached written memory", Means::Stops, None, || {
            // SAFETY: without a vector nothing is written.
            check(unsafe {
                libc::process_vm_writev(libc::getpid(), std::ptr::null(), 0, std::ptr::null(), 0, 0)
            })
        }),
        ("attached other thread", Means::Stops, Some(Ticker), || ptrace(libc::PTRACE_SEIZE, 1, 0)),
        ("attached poke", Means::Stops, Some(Ticker), || ptrace(libc::PTRACE_POKEDATA, TRACED, 0)),
        ("attached registers", Means::Stops, Some(Ticker), || ptrace(libc::PTRACE_SETREGS, TRACED, 0)),
        ("attached exit kill", Means::Stops, Some(Ticker), || {
            // PTRACE_O_EXITKILL (linux/ptrace.h).
            ptrace(libc::PTRACE_SEIZE, TRACED, 0x10_0000)
        }),
        ("attached attach", Means::Stops, None, || ptrace(libc::PTRACE_ATTACH, TRACED, 0)),
        ("watcher seize", Means::Stops, Some(Watcher), seize),
        ("sampler seize", Means::Stops, Some(Sampler), seize),
        ("kernel seize", Means::Kernel, None, seize),
        ("mixed seize", Means::Mixed, Some(Ticker), seize),
        ("mixed counters", Means::Mixed, Some(Sampler), || bpf(10)),
        ("mixed seize of sampler", Means::Mixed, Some(Sampler), seize),
        ("mixed other thread", Means::Mixed, Some(Ticker), || ptrace(libc::PTRACE_SEIZE, 1, 0)),
        ("stub seize", Means::Stub, None, seize),
        ("stub memory", Means::Stub, None, own),
        ("kernel program", Means::Kernel, Some(Ticker), || bpf(5)),
        ("kernel map", Means::Kernel, None, || bpf(0)),
        ("stops program", Means::Stops, None, || bpf(10)),
        ("kernel counters", Means::Kernel, Some(Sampler), || bpf(10)),
        ("sampler program", Means::Kernel, Some(Sampler), || bpf(2)),
        ("attached much memory", Means::Stops, None, || {
            let (size, flags) = (33 << 30, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
            // SAFETY: the kernel chooses the place of a new mapping, which nothing uses.
            let mapped = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
            check(if mapped == libc::MAP_FAILED { -1 } else { 0 })
        }),
        ("attached signal", Means::Stops, Some(Ticker), || {
            // SAFETY: takes numbers alone; signal 0 is not sent.
            check(unsafe { libc::syscall(libc::SYS_tgkill, 1, 1, 0) })
        }),
        ("attached socket", Means::Stub, None, || TcpListener::bind("127.0.0.1:0").map(drop)),
        ("attached ticker link", Means::Stops, Some(Ticker), || std::fs::read_link("/proc/1/no").map(drop)),
        ("attached program", Means::Stops, None, || Command::new("/bin/true").status().map(drop)),
        ("child memory", Means::Child, Some(Sampler), own),
        ("child end", Means::EndedChild, None, || kill(TRACED, libc::SIGKILL)),
        ("child passwd", Means::Child, None, passwd),
        ("child other end", Means::EndedChild, None, || kill(1, 0)),
        ("child other signal", Means::EndedChild, None, || kill(TRACED, 0)),
        ("child end by a device", Means::EndedChild, Some(Device), || kill(TRACED, libc::SIGKILL)),
        ("child socket", Means::Child, None, || TcpListener::bind("127.0.0.1:0").map(drop)),
        ("child device socket", Means::Child, Some(Device), || TcpListener::bind("127.0.0.1:0").map(drop)),
        ("child seize", Means::Child, Some(Ticker), seize),
        ("stub end", Means::Stub, None, || kill(TRACED, libc::SIGKILL)),
    ]
}

/// A process and thread id that none has (PID_MAX_LIMIT, linux/threads.h).
const TRACED: i32 = 1 << 30;

/// Means by which an attached process samples.
#[derive(Debug, Clone, Copy)]
enum Means {
    Stops,
    Kernel,
    /// The kernel, and stops.
    Mixed,
    Stub,
    Child,
    /// A child that has ended.
    EndedChild,
}

impl Means {
    fn reach(self) -> Reach {
        let process = std::process::id().cast_signed();
        match self {
            Self::Stops => Reach::Stops { process, threads: vec![TRACED - 1, TRACED] },
            Self::Kernel => Reach::Kernel { process, threads: Vec::new() },
            Self::Mixed => Reach::Kernel { process, threads: vec![TRACED - 1, TRACED] },
            Self::Stub => Reach::Stub { process: None },
            Self::Child => Reach::Child { process },
            Self::EndedChild => Reach::Child { process: TRACED },
        }
    }
}

/// Action of a trial inside the sandbox.
type Attempt = fn() -> std::io::Result<()>;

fn check<T: PartialOrd + Default>(result: T) -> std::io::Result<()> {
    if result < T::default() { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn read_memory(process: u32) -> std::io::Result<()> {
    let (from, mut to) = ([7_u8; 8], [0_u8; 8]);
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 8 };
    // SAFETY: both vectors are valid for their length.
    check(unsafe {
        libc::process_vm_readv(process.cast_signed(), &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// A thread that does not exist is not a failure here: the filter has let the call through.
fn ptrace(request: libc::c_uint, thread: i32, data: usize) -> std::io::Result<()> {
    // SAFETY: no thread with these numbers can be traced by this process, so nothing is read or written.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request, thread, 0, data) };
    match check(result) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

fn kill(process: i32, signal: libc::c_int) -> std::io::Result<()> {
    // SAFETY: takes numbers alone.
    check(unsafe { libc::kill(process, signal) })
}

fn bpf(command: libc::c_int) -> std::io::Result<()> {
    // SAFETY: without attributes the call fails.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::null::<u8>(), 0) })
}

/// Makes the attempt of this name inside the sandbox of an attached process, if there is one.
fn try_attached(name: &str) {
    let Some((_, means, kind, run)) = attached_trials().into_iter().find(|(trial, ..)| *trial == name) else {
        return;
    };
    let report = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
    let (policy, reach) = (SyscallPolicy::Refuse, means.reach());
    sandbox::enter_attached(AttachedSandbox { policy, reach, capabilities: 0, report }).expect("a sandbox");
    kind.into_iter().for_each(sandbox::enter_thread);
    std::process::exit(if run().is_err() { DENIED } else { DONE });
}

/// Trials of an agent's worker, which keeps a directory and can read /usr; those with `true` may connect.
fn worker_trials() -> Vec<(&'static str, bool, Attempt)> {
    fn connect() -> std::io::Result<()> {
        let listener = std::env::var(LISTENER).map_err(std::io::Error::other)?;
        TcpStream::connect(listener).map(drop)
    }
    vec![
        ("worker passwd", false, || File::open("/etc/passwd").map(drop)),
        ("worker create", true, || File::create("/tmp/sandbox-was-left").map(drop)),
        ("worker change", true, || File::options().append(true).open("/usr/bin/env").map(drop)),
        ("worker listen", true, || TcpListener::bind("127.0.0.1:0").map(drop)),
        ("worker connect", false, connect),
        ("worker temporary", false, || tempfile::tempfile().map(drop)),
        ("worker system", true, || File::open("/usr/bin/env").map(drop)),
        ("worker sends", true, connect),
    ]
}

/// Makes the attempt of this name inside the sandbox of a worker, if there is one.
fn try_worker(name: &str) {
    let Some((_, connects, run)) = worker_trials().into_iter().find(|(trial, ..)| *trial == name) else {
        return;
    };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory"));
    sandbox::enter_worker(&[std::path::Path::new("/usr")], &[&directory], connects).expect("a sandbox");
    std::process::exit(if run().is_err() { DENIED } else { DONE });
}

/// The child's part: does nothing unless it was started for a trial.
#[test]
fn trial() {
    let Ok(name) = std::env::var(TRIAL) else { return };
    try_attached(&name);
    try_worker(&name);
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory"));
    let (_, kind, run) = trials().into_iter().find(|(trial, ..)| *trial == name).expect("a trial");
    let report = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
    match kind {
        Some(ThreadKind::Reader) => {
            let limits = ResourceLimits { memory_bytes: 1 << 30, file_bytes: 1 << 20, cpu_seconds: 60 };
            sandbox::enter_reader(SyscallPolicy::Refuse, limits, report).expect("a sandbox");
        }
        kind => {
            sandbox::enter(SandboxConfig { policy: SyscallPolicy::Refuse, directory, report })
                .expect("a sandbox");
            kind.into_iter().for_each(sandbox::enter_thread);
        }
    }
    std::process::exit(if run().is_err() { DENIED } else { DONE });
}

/// Returns the exit status of a shell command inside the sandbox of a program that keeps `directory`.
fn in_program_wall(directory: &std::path::Path, command: &str) -> Option<i32> {
    let system = ["/usr", "/lib", "/lib64", "/bin"].map(std::path::Path::new);
    let sandbox = sandbox::ProgramSandbox::new(&system, directory).expect("a sandbox");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).current_dir(directory).stderr(Stdio::null());
    // SAFETY: between fork and exec system calls are made that are async-signal-safe; nothing is allocated.
    unsafe { shell.pre_exec(move || sandbox.enter()) };
    shell.status().expect("a shell").code()
}

#[test]
fn a_program_has_no_rights_and_the_files_that_it_was_given() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = |command: &str| in_program_wall(directory.path(), command);
    assert_eq!(run("echo 7 > own && read own < own && test $own = 7"), Some(0));
    for denied in ["cat /etc/passwd", "touch /tmp/sandbox-was-left"] {
        assert_eq!(run(denied), Some(1), "{denied}");
    }
    for (key, value) in [("NoNewPrivs", "1"), ("CapPrm", "0000000000000000"), ("CapEff", "0000000000000000")]
    {
        let mut status = Command::new("/bin/cat");
        let sandbox =
            sandbox::ProgramSandbox::new(&[std::path::Path::new("/")], directory.path()).expect("a sandbox");
        // SAFETY: as above.
        unsafe { status.arg("/proc/self/status").pre_exec(move || sandbox.enter()) };
        let status = String::from_utf8(status.output().expect("cat").stdout).expect("text");
        assert!(status.contains(&format!("{key}:\t{value}\n")), "{status}");
    }
    assert!(!std::path::Path::new("/tmp/sandbox-was-left").exists());
}

/// Runs a trial; returns its exit status, and the call that a filter has refused.
fn outcome(name: &str) -> (Option<i32>, Option<RefusedCall>) {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", "trial", "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
    let listener =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, _listener) = listener.expect("a port");
    child.env(LISTENER, address.to_string());
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
    for name in
        ["process own", "process temporary", "process thread", "vcpu own", "sampler own", "reader memory"]
    {
        assert_eq!(outcome(name), (Some(DONE), None), "{name}");
    }
}

#[test]
fn a_worker_has_its_files_and_sends_only_if_it_may() {
    for name in ["worker temporary", "worker system", "worker sends"] {
        assert_eq!(outcome(name), (Some(DONE), None), "{name}");
    }
    for name in ["worker passwd", "worker create", "worker change"] {
        assert_eq!(outcome(name), (Some(DENIED), None), "{name}");
    }
    assert!(!std::path::Path::new("/tmp/sandbox-was-left").exists());
    // Landlock knows TCP from Linux 6.7 on.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let is_known = (numbers.next(), numbers.next()) >= (Some(6), Some(7));
    for name in ["worker listen", "worker connect"] {
        assert_eq!(outcome(name).0 == Some(DENIED), is_known, "{name}");
    }
}

#[test]
fn files_of_others_are_denied() {
    assert_eq!(outcome("process passwd"), (Some(DENIED), None));
    for name in ["disk file", "device file", "reader file"] {
        assert_eq!(outcome(name), (Some(DENIED), None), "{name}");
    }
}

#[test]
fn the_process_is_ended_by_a_call_outside_of_its_filter() {
    is_refused("process socket", None, libc::SYS_socket);
    is_refused("process connect", None, libc::SYS_socket);
    is_refused("process create", None, libc::SYS_openat);
    assert_eq!(outcome("process program"), KILLED);
    assert!(!std::path::Path::new("/tmp/sandbox-was-left").exists());
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
    // Made before the sampler starts.
    is_refused("sampler temporary", Some(ThreadKind::Sampler), libc::SYS_openat);
    assert_eq!(outcome("vcpu thread"), KILLED);
    is_refused("reader socket", Some(ThreadKind::Reader), libc::SYS_socket);
    assert_eq!(outcome("reader thread"), KILLED);
}

#[test]
fn an_attached_process_reaches_its_machine() {
    for name in [
        "attached memory",
        "attached memory of sampler",
        "attached memory of ticker",
        "attached memory of watcher",
        "attached thread",
        "attached seize",
        "attached seize of main",
        "mixed seize",
        "child memory",
    ] {
        assert_eq!(outcome(name), (Some(DONE), None), "{name}");
    }
    // There is no such link, program or process, and the call is made.
    for name in ["attached link", "kernel counters", "mixed counters", "child end"] {
        assert_eq!(outcome(name), (Some(DENIED), None), "{name}");
    }
}

#[test]
fn an_attached_process_takes_a_limited_part_of_memory() {
    assert_eq!(outcome("attached much memory"), (Some(DENIED), None));
}

#[test]
fn an_attached_process_opens_no_file() {
    for name in [
        "attached passwd",
        "attached create",
        "attached process",
        "attached passwd by kernel",
        "attached passwd by stub",
        "child passwd",
    ] {
        assert_eq!(outcome(name), (Some(DENIED), None), "{name}");
    }
    assert!(!std::path::Path::new("/tmp/sandbox-was-left").exists());
}

#[test]
fn an_attached_process_reaches_no_other_process_and_changes_nothing() {
    let [ticker, watcher, sampler, device] =
        [ThreadKind::Ticker, ThreadKind::Watcher, ThreadKind::Sampler, ThreadKind::Device].map(Some);
    for (name, kind, call) in [
        ("attached other memory", None, libc::SYS_process_vm_readv),
        ("attached written memory", None, libc::SYS_process_vm_writev),
        ("attached other thread", ticker, libc::SYS_ptrace),
        ("attached poke", ticker, libc::SYS_ptrace),
        ("attached registers", ticker, libc::SYS_ptrace),
        ("attached exit kill", ticker, libc::SYS_ptrace),
        ("attached attach", None, libc::SYS_ptrace),
        ("watcher seize", watcher, libc::SYS_ptrace),
        ("sampler seize", sampler, libc::SYS_ptrace),
        ("kernel seize", None, libc::SYS_ptrace),
        ("mixed seize of sampler", sampler, libc::SYS_ptrace),
        ("mixed other thread", ticker, libc::SYS_ptrace),
        ("stub seize", None, libc::SYS_ptrace),
        ("stub memory", None, libc::SYS_process_vm_readv),
        ("kernel program", ticker, libc::SYS_bpf),
        ("kernel map", None, libc::SYS_bpf),
        ("stops program", None, libc::SYS_bpf),
        ("sampler program", sampler, libc::SYS_bpf),
        ("attached signal", ticker, libc::SYS_tgkill),
        ("attached socket", None, libc::SYS_socket),
        ("attached ticker link", ticker, libc::SYS_readlink),
        ("child other end", None, libc::SYS_kill),
        ("child other signal", None, libc::SYS_kill),
        ("child end by a device", device, libc::SYS_kill),
        ("child socket", None, libc::SYS_socket),
        ("child device socket", device, libc::SYS_socket),
        ("child seize", ticker, libc::SYS_ptrace),
        ("stub end", None, libc::SYS_kill),
    ] {
        is_refused(name, kind, call);
    }
    assert_eq!(outcome("attached program"), KILLED);
}
