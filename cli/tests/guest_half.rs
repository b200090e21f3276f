//! The process in which a guest runs, on this machine's KVM.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::{on_an_old_kernel, run, stdout, vprof};
use testkit::eventually;
use vmm::kvm_check;

/// Longest time until a process has started or ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run of a kernel that does nothing but `jmp .`.
struct EndlessRun {
    directory: tempfile::TempDir,
    vprof: Child,
}

impl EndlessRun {
    /// Starts the run; `None` without KVM.
    fn start() -> Option<Self> {
        Self::start_as(|command| command)
    }

    /// Starts the run after a change of its command; `None` without KVM.
    fn start_as(change: impl FnOnce(&mut Command) -> &mut Command) -> Option<Self> {
        if let Err(error) = kvm_check::open() {
            testkit::missing(&format!("/dev/kvm ({error})"));
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut kernel = testkit::bz_image(4096);
        // The 64-bit entry is 0x200 bytes into the kernel, which follows a setup of 2.5 KiB.
        kernel[5 * 512 + 0x200..][..2].copy_from_slice(&[0xeb, 0xfe]);
        let path = directory.path().join("vmlinuz");
        fs::write(&path, kernel).unwrap();
        let mut command = vprof(["run", "-q", "--host", "kvm", "--memory", "64M", "--control", "none", "-o"]);
        command.arg(directory.path().join("p.vprof")).arg(path);
        command
            .env("A_SECRET", "of the user")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Some(Self { vprof: change(&mut command).spawn().unwrap(), directory })
    }

    fn profile(&self) -> PathBuf {
        self.directory.path().join("p.vprof")
    }

    /// Returns the process id of the guest half, once the guest runs.
    fn half(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.vprof.id());
        eventually("a guest half whose guest runs", PATIENCE, || {
            let child: u32 = fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok()?;
            let threads = fs::read_dir(format!("/proc/{child}/task")).ok()?;
            let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).ok();
            threads.flatten().filter_map(name).any(|name| name.trim() == "vcpu 0").then_some(child)
        })
    }

    /// Returns the number of samples that the profile has.
    fn samples(&self) -> Option<u64> {
        let output = run([Path::new("query"), &self.profile(), Path::new("SELECT count(*) FROM sample")]);
        stdout(&output).lines().last()?.trim().parse().ok()
    }
}

impl Drop for EndlessRun {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ended = self.vprof.kill();
        let _status = self.vprof.wait();
    }
}

#[test]
fn a_guest_half_has_no_rights_and_nothing_of_the_user() {
    let Some(run) = EndlessRun::start() else { return };
    let half = run.half();
    let read = |file: &str| fs::read_to_string(format!("/proc/{half}/{file}")).unwrap();
    let environment = read("environ");
    assert!(environment.starts_with("TMPDIR=") && !environment.contains("A_SECRET"), "{environment}");
    let status = eventually("a filter of system calls", PATIENCE, || {
        Some(read("status")).filter(|status| status.contains("\nSeccomp:\t2\n"))
    });
    for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    for thread in fs::read_dir(format!("/proc/{half}/task")).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
    }
    let directory = run.directory.path().to_str().unwrap();
    for descriptor in fs::read_dir(format!("/proc/{half}/fd")).unwrap() {
        let Ok(target) = fs::read_link(descriptor.unwrap().path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        assert!(!target.starts_with(directory), "{target}");
    }
}

#[test]
fn a_guest_half_that_is_killed_leaves_a_profile_and_a_sentence() {
    let Some(mut run) = EndlessRun::start() else { return };
    let half = run.half();
    eventually("samples", PATIENCE, || run.samples().filter(|samples| *samples > 0));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(half.cast_signed()), nix::sys::signal::SIGKILL)
        .unwrap();
    let status = run.vprof.wait().unwrap();
    let mut message = String::new();
    std::io::Read::read_to_string(&mut run.vprof.stderr.take().unwrap(), &mut message).unwrap();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains("the guest's process ended: signal: 9 (SIGKILL)"), "{message}");
    assert!(run.samples().is_some_and(|samples| samples > 0), "{message}");
}

#[test]
fn a_guest_runs_on_a_kernel_of_2018() {
    let Some(run) = EndlessRun::start_as(on_an_old_kernel) else { return };
    eventually("samples", PATIENCE, || run.samples().filter(|samples| *samples > 0));
    let output = run_of_meta(&run.profile());
    assert!(output.contains("rights") && !output.contains("files"), "no Landlock: {output}");
}

/// Returns the parts of the wall that a profile records.
fn run_of_meta(profile: &Path) -> String {
    let sql = Path::new("SELECT value FROM meta WHERE key = 'wall'");
    stdout(&run([Path::new("query"), profile, sql]))
}

#[test]
fn a_guest_half_ends_with_its_vprof() {
    let Some(mut run) = EndlessRun::start() else { return };
    let half = run.half();
    run.vprof.kill().unwrap();
    run.vprof.wait().unwrap();
    eventually("its end", PATIENCE, || (!Path::new(&format!("/proc/{half}")).exists()).then_some(()));
}
