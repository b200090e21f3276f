//! Runs the `vprof` that was just built, and makes input files for it.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use profile::rows::Microstates;
use profile::rows::{
    Batch, EventRow, FrameKind, FrameRow, InstanceRow, Mode, SampleRow, Sink, VcpuRow, VcpuState,
};
use profile::store::ProfileWriter;

/// Makes a command of the program under test, without variables of the environment that affect it.
pub fn vprof<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vprof"));
    command.args(arguments).stdin(Stdio::null());
    command.env_remove("VPROF_PORTABLE_HOST").env_remove("NO_COLOR").env_remove("DEBUGINFOD_URLS");
    command.env("VPROF_CONFIG", "");
    command
}

/// Runs `vprof` to its end.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    vprof(arguments).output().expect("vprof starts")
}

/// Has the kernel know no call that is younger than Linux 5.0, as on a 4.18 (RHEL 8): the numbers are those
/// from `pidfd_send_signal` on (arch/x86/entry/syscalls/syscall_64.tbl).
pub fn on_an_old_kernel(command: &mut Command) -> &mut Command {
    const FIRST: u32 = 424;
    let instruction =
        |code: u32, k, jt, jf| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let filter = [
        // The number is the first word of seccomp_data.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, FIRST, 0, 1),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
            0,
            0,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let install = move || {
        let mut filter = filter;
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: the program and its four instructions outlive the calls, which are async-signal-safe.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: `install` makes two system calls and allocates nothing.
    unsafe { command.pre_exec(install) }
}

/// Returns standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Returns standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Asserts that a command failed as documented: this exit code, nothing on standard output, and one sentence
/// with these words and without debug output.
pub fn refused(output: &Output, code: i32, words: &[&str]) {
    let error = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert_eq!(stdout(output), "", "{error}");
    assert!(error.starts_with("vprof: "), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    for word in words {
        assert!(error.contains(word), "no {word:?} in: {error}");
    }
    for dump in ["panicked", "os error", "Error {", "Error(", "Some(", "None", "RUST_BACKTRACE"] {
        assert!(!error.contains(dump), "{dump:?} in: {error}");
    }
}

/// Makes a cpio archive with one file.
pub fn initrd() -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in [("init", &b"#!/bin/sh\n"[..]), ("TRAILER!!!", b"")] {
        let fields = [1, 0o100_755, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
        archive.extend_from_slice(b"070701");
        archive.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

/// Makes an ext4 image of 4 MiB with the files of this directory.
pub fn ext4(directory: &Path, image: &Path) {
    let made = Command::new("mke2fs")
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .args(["-q", "-F", "-t", "ext4", "-d"])
        .args([directory, image])
        .arg("4M")
        .stdout(Stdio::null())
        .status()
        .expect("mke2fs (Debian package e2fsprogs) is installed");
    assert!(made.success());
}

/// Makes a directory that looks like the portable host's, and one with a `qemu-system-x86_64` that is this
/// script. The script's process id is `$$`.
pub fn fake_host(directory: &Path, script: &str) -> (PathBuf, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let (bundle, bin) = (directory.join("bundle"), directory.join("bin"));
    std::fs::create_dir(&bundle).unwrap();
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bundle.join("vmlinuz"), testkit::bz_image(100)).unwrap();
    std::fs::write(bundle.join("initrd.img"), initrd()).unwrap();
    let qemu = bin.join("qemu-system-x86_64");
    let text = format!(
        "#!/bin/bash\nif [ \"$1\" = -help ]; then echo 'QEMU emulator version 9.9.9 (fake)'; exit; fi\n{script}\n"
    );
    std::fs::write(&qemu, text).unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    (bundle, bin)
}

/// Writes a small profile: two vCPUs, a process with a hostile name and three quarters of the busy samples,
/// and one kernel function.
pub fn write_profile(path: &Path) {
    write_profile_with_quarters(path, 3);
}

/// Writes the same profile; the process has this many quarters of the busy samples.
pub fn write_profile_with_quarters(path: &Path, quarters: u64) {
    write_batch(path, &batch_with_quarters(quarters));
}

/// Writes a profile of these rows.
pub fn write_batch(path: &Path, batch: &Batch) {
    let mut writer = ProfileWriter::create(path, false).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
}

/// Makes the rows of [`write_profile_with_quarters`].
pub fn batch_with_quarters(quarters: u64) -> Batch {
    let instance = |id, pid, comm: &str| InstanceRow {
        id,
        pid,
        start_ns: u64::from(id) * 1000,
        comm: comm.to_owned(),
        ..Default::default()
    };
    let frame = |id, address, symbol: Option<&str>| FrameRow {
        id,
        address,
        kind: if symbol.is_some() { FrameKind::Kernel } else { FrameKind::User },
        instance: symbol.is_none().then_some(1),
        symbol: symbol.map(str::to_owned),
        offset: 0x10,
        ..Default::default()
    };
    let sample = |index: u64, mode, frame, instance| SampleRow {
        vcpu: u8::try_from(index % 2).unwrap(),
        time_ns: index * 1_000_000,
        late_ns: 20_000,
        mode,
        halted: mode == Mode::Idle,
        vcpu_state: if mode == Mode::Idle { VcpuState::Halted } else { VcpuState::Guest },
        frame,
        rsp: 0xffff_8000_0000_0000,
        cpl: if mode == Mode::User { 3 } else { 0 },
        cr3: 0x1000,
        interrupts_on: true,
        preempt_count: Some(0),
        instance: Some(instance),
        tid: Some(100),
        ..Default::default()
    };
    let vcpu = |id| VcpuRow {
        id,
        samples: 400,
        lost: 2,
        exits: 1000,
        states: Microstates {
            guest: 600_000_000,
            halted: 100_000_000,
            waiting: 76_000_000,
            kvm: 0,
            vmm: 20_000_000,
            sampler: 4_000_000,
            paused: 0,
        },
    };
    let samples = (0..800)
        .map(|index| match index % 8 {
            place if place < quarters => sample(index, Mode::User, 1, 1),
            0..4 => sample(index, Mode::Kernel, 2, 2),
            _ => sample(index, Mode::Idle, 2, 2),
        })
        .collect();
    let meta = [
        ("host", "kvm"),
        ("version", "0.1.0"),
        ("kernel", "6.1.0-test"),
        ("rate_hz", "1000"),
        ("clock", "uniform"),
        ("seed", "7"),
        ("duration_ns", "800000000"),
        ("started_unix_ns", "1700000000000000000"),
        ("complete", "1"),
    ];
    Batch {
        meta: meta.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
        vcpus: vec![vcpu(0), vcpu(1)],
        instances: vec![instance(1, 100, "evil\x1b[2J,\"x\""), instance(2, 101, "calm")],
        frames: vec![frame(1, 0x40_1000, None), frame(2, 0xffff_ffff_8100_0000, Some("do_work"))],
        samples,
        events: vec![EventRow {
            time_ns: 5,
            kind: "end".to_owned(),
            text: "the guest powered off".to_owned(),
        }],
        ..Default::default()
    }
}
