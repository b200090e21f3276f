//! The processes of `vprof run --host tcg`: the one that reads a guest in QEMU, and QEMU.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{child_of, make_call, meta_of, stdout, thread_of, vprof};
use testkit::eventually;

/// Longest time until a process has started or ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Flags of an open file that allow writes (proc_pid_fdinfo(5), open(2)).
const ACCESS: i32 = libc::O_ACCMODE;

/// A run of a kernel that does nothing but `jmp .`, in QEMU, with a disk that it may write.
struct EndlessRun {
    directory: tempfile::TempDir,
    vprof: Child,
}

impl EndlessRun {
    /// Starts the run; `None` without QEMU. The disk is a qcow2 image, which needs more system calls than a
    /// raw one.
    fn start() -> Option<Self> {
        testkit::tool("qemu-system-x86_64")?;
        let directory = tempfile::tempdir().unwrap();
        let mut kernel = testkit::bz_image(4096);
        // QEMU's firmware jumps to the beginning of the header, in real mode (linuxboot_dma.c).
        kernel[0x200..][..2].copy_from_slice(&[0xeb, 0xfe]);
        let file = |name: &str| directory.path().join(name);
        fs::write(file("vmlinuz"), kernel).unwrap();
        support::ext4_qcow2(directory.path(), &file("disk.qcow2"))?;
        let mut command = vprof(["run", "-q", "--host", "tcg", "--memory", "64M", "--control", "none"]);
        command.arg("--disk").arg(file("disk.qcow2"));
        command.arg("-o").arg(file("p.vprof")).arg(file("vmlinuz"));
        command.env("A_SECRET", "of the user").stdin(Stdio::null()).stdout(Stdio::null());
        Some(Self { vprof: command.stderr(Stdio::piped()).spawn().unwrap(), directory })
    }

    fn profile(&self) -> PathBuf {
        self.directory.path().join("p.vprof")
    }

    /// Returns the process ids of the guest half and of QEMU, once there are samples.
    fn processes(&self) -> (u32, u32) {
        eventually("samples", PATIENCE, || self.samples().filter(|samples| *samples > 0));
        let half = child_of(self.vprof.id());
        (half, child_of(half))
    }

    /// Returns the number of samples that the profile has.
    fn samples(&self) -> Option<u64> {
        let output = vprof(["query"]).arg(self.profile()).arg("SELECT count(*) FROM sample").output();
        stdout(&output.unwrap()).lines().last()?.trim().parse().ok()
    }

    /// Waits for the end; returns the exit status and the message.
    fn end(&mut self) -> (ExitStatus, String) {
        let status = self.vprof.wait().unwrap();
        let mut message = String::new();
        std::io::Read::read_to_string(&mut self.vprof.stderr.take().unwrap(), &mut message).unwrap();
        (status, message)
    }
}

impl Drop for EndlessRun {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ended = self.vprof.kill();
        let _status = self.vprof.wait();
    }
}

fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(process.cast_signed()), signal).unwrap();
}

fn read(process: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/{file}")).unwrap()
}

fn ends(process: u32) {
    // A zombie that no init of a container reaps has no program any more.
    let program = format!("/proc/{process}/exe");
    eventually("its end", PATIENCE, || fs::read_link(&program).is_err().then_some(()));
}

/// Returns the access modes by which the process has the file open.
fn accesses(process: u32, file: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for descriptor in fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten() {
        if fs::read_link(descriptor.path()).is_ok_and(|target| target == file) {
            let info = read(process, &format!("fdinfo/{}", descriptor.file_name().to_str().unwrap()));
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            found.push(i32::from_str_radix(flags.trim(), 8).unwrap() & ACCESS);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn half_and_qemu_have_no_rights_and_nothing_of_the_user() {
    let Some(mut run) = EndlessRun::start() else { return };
    let (half, qemu) = run.processes();
    for process in [half, qemu] {
        for thread in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
                assert!(status.contains(line), "{line} is not in {status}");
            }
            assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
        }
        let environment = read(process, "environ");
        assert!(environment.contains("TMPDIR=") && !environment.contains("A_SECRET"), "{environment}");
    }
    let directory = fs::read_link(format!("/proc/{qemu}/cwd")).unwrap();
    assert!(directory.file_name().unwrap().to_str().unwrap().starts_with("vprof-"), "{directory:?}");
    let disk = run.directory.path().join("disk.qcow2");
    assert_eq!(accesses(half, &disk), [libc::O_RDONLY]);
    assert_eq!(accesses(qemu, &disk), [libc::O_RDONLY, libc::O_RDWR]);
    assert_eq!(accesses(half, &run.profile()), [0_i32; 0]);
    assert_eq!(accesses(qemu, &run.profile()), [0_i32; 0]);
    signal(run.vprof.id(), Signal::SIGINT);
    let (status, message) = run.end();
    assert_eq!(status.code(), Some(0), "{message}");
    ends(qemu);
    let sandbox = meta_of(&run.profile(), "sandbox");
    assert!(sandbox.contains("rights, files, system calls"), "{sandbox}");
}

#[test]
fn a_call_outside_of_a_filter_ends_the_run_and_qemu() {
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return testkit::missing("root, which may trace the half");
    }
    for (name, thread) in [
        ("attached", "a thread that samples vCPUs"),
        ("attach", "the thread that watches the VMM"),
        ("collector", "a sampler's thread"),
        ("vprof-serial", "a device's thread"),
        ("vprof-monitor", "a device's thread"),
        // The first thread has the name of `/proc/self/exe`.
        ("exe", "a thread"),
    ] {
        let Some(mut run) = EndlessRun::start() else { return };
        let (half, qemu) = run.processes();
        make_call(thread_of(half.cast_signed(), name), libc::SYS_socket);
        let (status, message) = run.end();
        assert_eq!(status.code(), Some(1), "{name}: {message}");
        let sentence = format!(
            "the guest's process ended: {thread} made the system call socket, which its filter refuses"
        );
        assert!(message.contains(&sentence), "{name}: {message}");
        assert!(run.samples().is_some_and(|samples| samples > 0), "{name}: {message}");
        ends(qemu);
    }
}

#[test]
fn qemu_ends_with_its_half_and_the_half_with_its_vprof() {
    let Some(mut run) = EndlessRun::start() else { return };
    let (half, qemu) = run.processes();
    signal(half, Signal::SIGKILL);
    let (status, message) = run.end();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains("the guest's process ended: signal: 9 (SIGKILL)"), "{message}");
    assert!(run.samples().is_some_and(|samples| samples > 0), "{message}");
    ends(qemu);

    let Some(mut run) = EndlessRun::start() else { return };
    let (half, qemu) = run.processes();
    run.vprof.kill().unwrap();
    run.vprof.wait().unwrap();
    ends(half);
    ends(qemu);
}

#[test]
fn the_words_of_a_qemu_that_ends_at_once_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (_, bin) = support::fake_host(directory.path(), "echo 'no such machine' >&2; exit 3");
    let kernel = directory.path().join("vmlinuz");
    fs::write(&kernel, testkit::bz_image(4096)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = vprof(["run", "-q", "--host", "tcg", "--memory", "64M", "--control", "none"]);
    command.arg("-o").arg(directory.path().join("p.vprof")).arg(&kernel).env("PATH", path);
    support::refused(&command.output().unwrap(), 4, &["QEMU ended before the guest ran", "no such machine"]);
    assert!(!directory.path().join("p.vprof").exists());
}

#[test]
fn a_command_line_that_the_kernel_would_cut_is_refused_before_qemu_starts() {
    let directory = tempfile::tempdir().unwrap();
    let (bundle, bin) = support::fake_host(
        directory.path(),
        &format!("touch {}", directory.path().join("started").display()),
    );
    let file = |name: &str| directory.path().join(name);
    fs::write(file("vmlinuz"), testkit::bz_image(4096)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for host in ["tcg", "portable"] {
        let mut command = vprof(["run", "-q", "--memory", "64M", "--control", "none", "--host", host]);
        command.arg("--portable-host").arg(&bundle).args(["--append", &"x".repeat(2047)]);
        command.arg("-o").arg(file("p.vprof")).arg(file("vmlinuz")).env("PATH", &path);
        let words = ["the kernel command line has ", " bytes; this kernel takes at most 2047"];
        support::refused(&command.output().unwrap(), 1, &words);
        assert!(!file("p.vprof").exists() && !file("started").exists(), "{host}");
    }
}
