//! The process that reads disk images, kernels and initrds.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{refused, vprof};
use testkit::eventually;

/// Longest time until a process has started or ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a kernel of 1.9 GiB, nearly all of it a hole: reading it takes long.
fn long_kernel(directory: &Path) -> PathBuf {
    let path = directory.join("vmlinuz");
    let file = File::create(&path).unwrap();
    file.write_all_at(&testkit::bz_image(10_000), 0).unwrap();
    file.set_len(1900 << 20).unwrap();
    path
}

/// A run of [`long_kernel`] whose reader is stopped while it reads.
struct StoppedReader {
    directory: tempfile::TempDir,
    vprof: Child,
    reader: Pid,
}

impl StoppedReader {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kernel = long_kernel(directory.path());
        let mut command = vprof(["run", "-q", "--control", "none", "-o"]);
        command.arg(directory.path().join("p.vprof")).arg(kernel).env("A_SECRET", "of the user");
        let vprof = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", vprof.id());
        let reader = eventually("a reader inside its sandbox", PATIENCE, || {
            let child: i32 = fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok()?;
            let status = fs::read_to_string(format!("/proc/{child}/status")).ok()?;
            status.contains("\nSeccomp:\t2\n").then(|| Pid::from_raw(child))
        });
        kill(reader, Signal::SIGSTOP).unwrap();
        Self { directory, vprof, reader }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.reader)).unwrap()
    }

    /// Waits for the end of the run; returns its output.
    fn output(self) -> (std::process::Output, tempfile::TempDir) {
        (self.vprof.wait_with_output().unwrap(), self.directory)
    }
}

#[test]
fn a_reader_has_no_rights_and_can_open_nothing() {
    let run = StoppedReader::start();
    assert_eq!(run.read("environ"), "");
    let status = run.read("status");
    for line in [
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "Threads:\t1",
    ] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    let limits = run.read("limits");
    for (name, bound) in
        [("Max address space", "8589934592"), ("Max cpu time", "120"), ("Max core file size", "0")]
    {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.split_whitespace().any(|word| word == bound), "{line}");
    }
    // The image is open for reading alone; nothing else that has a name is open.
    let descriptors = format!("/proc/{}/fd", run.reader);
    let mut images = 0;
    for descriptor in fs::read_dir(&descriptors).unwrap() {
        let name = descriptor.unwrap().file_name().into_string().unwrap();
        let target = fs::read_link(format!("{descriptors}/{name}")).unwrap();
        let target = target.to_string_lossy().into_owned();
        if target.ends_with("/vmlinuz") {
            images += 1;
            let flags = run.read(&format!("fdinfo/{name}"));
            let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
            assert_eq!(u32::from_str_radix(&flags, 8).unwrap() & 3, 0, "{flags}");
        } else {
            let is_open_to_it = |kind: &str| target.starts_with(kind);
            assert!(["pipe:", "/memfd:vprof-", "/dev/null"].into_iter().any(is_open_to_it), "{target}");
        }
    }
    assert!(images >= 1);
    kill(run.reader, Signal::SIGKILL).unwrap();
    let (output, directory) = run.output();
    refused(&output, 1, &["can't read", "vmlinuz", "the process that reads it ended: signal: 9 (SIGKILL)"]);
    assert!(!directory.path().join("p.vprof").exists());
}

#[test]
fn a_reader_ends_with_its_vprof() {
    let mut run = StoppedReader::start();
    run.vprof.kill().unwrap();
    let reader = format!("/proc/{}", run.reader);
    run.output();
    eventually("its end", PATIENCE, || (!Path::new(&reader).exists()).then_some(()));
}

/// Runs vprof with less memory than the image makes its reader take.
fn with_little_memory(arguments: &[&Path]) -> std::process::Output {
    let program = vprof([] as [&str; 0]);
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "ulimit -v 1000000; exec \"$@\"", "sh"]).arg(program.get_program());
    command.args(arguments).env("VPROF_CONFIG", "").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn an_image_that_takes_more_memory_than_there_is_ends_the_command_with_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = long_kernel(directory.path());
    let profile = directory.path().join("p.vprof");
    let output = with_little_memory(&[Path::new("run"), Path::new("-o"), &profile, &kernel]);
    refused(&output, 1, &["can't read", "vmlinuz", "it got no more memory"]);
    assert!(!profile.exists());
    let left = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 1, "only the kernel is there");
}

#[test]
fn an_image_is_inspected_by_a_reader_that_needs_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    fs::create_dir_all(root.join("boot")).unwrap();
    fs::write(root.join("boot/vmlinuz-6.1"), testkit::bz_image(10_000)).unwrap();
    let image = directory.path().join("disk.img");
    support::ext4(&root, &image);
    for policy in ["on", "log", "off"] {
        let arguments =
            ["image".as_ref(), "inspect".as_ref(), "--seccomp".as_ref(), policy.as_ref(), image.as_os_str()];
        let output = support::run(arguments);
        let text = support::stdout(&output);
        assert!(output.status.success(), "{}", support::stderr(&output));
        assert!(text.contains("kernel: /boot/vmlinuz-6.1") && text.contains("root=/dev/vda"), "{text}");
    }
}
