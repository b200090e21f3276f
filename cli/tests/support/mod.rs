//! Runs the `vprof` that was just built, and makes input files for it.

// Each test file uses a part of this.
#![allow(dead_code)]

pub mod made;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
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

/// Returns the rows of a Parquet file, by column.
pub fn parquet_rows(path: &Path) -> Vec<BTreeMap<String, Field>> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(|row| {
        let row = row.unwrap();
        row.get_column_iter().map(|(name, field)| (name.clone(), field.clone())).collect()
    });
    rows.collect()
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

/// Returns the only child of a process.
pub fn child_of(process: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    children.trim().parse().unwrap()
}

/// Returns a row of a profile's table `meta`, after its header.
pub fn meta_of(profile: &Path, key: &str) -> String {
    let sql = format!("SELECT value FROM meta WHERE key = '{key}'");
    stdout(&vprof(["query"]).arg(profile).args([&sql, "--csv"]).output().unwrap())
}

/// Returns the thread of a process with this name.
pub fn thread_of(process: i32, name: &str) -> i32 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let named =
        |path: &Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    let found = threads.map(|entry| entry.path()).find(|path| named(path));
    found.unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Lets a thread that waits in a system call make the call `number` instead, as one does whose code a guest
/// has taken over.
pub fn make_call(thread: i32, number: i64) {
    let done = |result: i64, what: &str| assert!(result >= 0, "{what}: {}", std::io::Error::last_os_error());
    // SAFETY: numbers alone.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) };
    done(seized, "seize");
    for _ in 0..1_000 {
        // SAFETY: numbers, and a place for the status that outlives the call.
        let stopped = unsafe {
            libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
            libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL)
        };
        done(stopped.into(), "wait");
        // SAFETY: registers are numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the place of the registers outlives the call.
        let read = unsafe { libc::ptrace(libc::PTRACE_GETREGS, thread, 0, &raw mut registers) };
        done(read, "registers");
        let in_call = registers.orig_rax.cast_signed() >= 0;
        if in_call {
            // The instruction before is `syscall`, two bytes. -1: the call that was interrupted is not
            // made again (`arch_do_signal_or_restart`, arch/x86/kernel/signal.c).
            (registers.rip, registers.rax, registers.orig_rax) =
                (registers.rip - 2, number.cast_unsigned(), u64::MAX);
            // SAFETY: as above.
            done(unsafe { libc::ptrace(libc::PTRACE_SETREGS, thread, 0, &raw const registers) }, "registers");
            // SAFETY: numbers alone.
            done(unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0) }, "detach");
            return;
        }
        // SAFETY: numbers alone.
        done(unsafe { libc::ptrace(libc::PTRACE_CONT, thread, 0, 0) }, "continue");
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("the thread makes no system call");
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

/// Makes `image`, a qcow2 image with an empty ext4 file system, from a raw one that it leaves in `directory`.
/// Returns the raw image; `None` if `qemu-img` is not there and may be missing.
pub fn ext4_qcow2(directory: &Path, image: &Path) -> Option<PathBuf> {
    let (root, raw) = (directory.join("root"), directory.join("raw.img"));
    std::fs::create_dir(&root).unwrap();
    ext4(&root, &raw);
    let mut convert = testkit::tool("qemu-img")?;
    let status = convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args([&*raw, image]).status().unwrap();
    assert!(status.success());
    Some(raw)
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
        interrupts_on: Some(true),
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
