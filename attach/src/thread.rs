//! State of a vCPU's thread, as /proc shows it without stopping the thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vmm::ThreadId;

use crate::process::thread_file;

/// `ioctl` (arch/x86/entry/syscalls/syscall_64.tbl).
const IOCTL: u64 = 16;
/// `KVM_RUN`, `_IO(KVMIO, 0x80)` (include/uapi/linux/kvm.h).
const KVM_RUN: u64 = 0xae80;

/// Activity of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadActivity {
    /// On a CPU, or waiting for one.
    Running,
    /// Blocked in KVM_RUN on this descriptor.
    BlockedInRun(i32),
    /// Blocked elsewhere.
    Blocked,
}

/// Returns the descriptor of a KVM_RUN, given a system call's number and first two arguments; `None` for
/// other calls.
pub(crate) fn run_descriptor(number: u64, arguments: [u64; 2]) -> Option<i32> {
    let [fd, request] = arguments;
    // The kernel uses the lower half of both.
    (number == IOCTL && request & 0xffff_ffff == KVM_RUN).then(|| i32::try_from(fd & 0xffff_ffff).ok())?
}

/// Files of a thread in /proc, kept open.
#[derive(Debug)]
pub(crate) struct ThreadFiles {
    syscall: File,
    schedstat: File,
}

impl ThreadFiles {
    pub(crate) fn open(id: ThreadId) -> io::Result<Self> {
        let open = |name| File::open(thread_file(id.process, id.thread, name));
        Ok(Self { syscall: open("syscall")?, schedstat: open("schedstat")? })
    }

    /// Returns the thread's present activity.
    pub(crate) fn activity(&self) -> io::Result<ThreadActivity> {
        let mut text = [0; 256];
        let length = self.syscall.read_at(&mut text, 0)?;
        Ok(text.get(..length).map_or(ThreadActivity::Running, parse))
    }

    /// Returns the thread's CPU time so far, ns. It is exact while the thread does not run.
    pub(crate) fn run_ns(&self) -> Option<u64> {
        let mut text = [0; 96];
        let length = self.schedstat.read_at(&mut text, 0).ok()?;
        str::from_utf8(text.get(..length)?).ok()?.split_ascii_whitespace().next()?.parse().ok()
    }
}

/// Parses a line of /proc/PID/syscall (proc_pid_syscall(5)). It is `running`, or the number, six arguments,
/// stack pointer and program counter, or -1 and the last two.
fn parse(line: &[u8]) -> ThreadActivity {
    let Ok(line) = str::from_utf8(line) else { return ThreadActivity::Blocked };
    let mut words = line.split_ascii_whitespace();
    let Some(first) = words.next() else { return ThreadActivity::Running };
    if first == "running" {
        return ThreadActivity::Running;
    }
    let Ok(number) = first.parse() else { return ThreadActivity::Blocked };
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let arguments = [hex().unwrap_or(0), hex().unwrap_or(0)];
    let counter = line.split_ascii_whitespace().next_back();
    // KVM's helper threads inherit the registers of the thread that made them, but run no code of the
    // process.
    let helper = counter.is_none_or(|counter| counter == "0x0");
    match run_descriptor(number, arguments) {
        Some(fd) if !helper => ThreadActivity::BlockedInRun(fd),
        _ => ThreadActivity::Blocked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_kvm_run_is_recognized_by_its_call() {
        let halted = b"16 0x1d 0xae80 0x0 0x0 0x7f10 0x0 0x7f10a8ff4f28 0x7f10aa1c5c5b\n";
        assert_eq!(parse(halted), ThreadActivity::BlockedInRun(29));
        assert_eq!(parse(b"running\n"), ThreadActivity::Running);
        assert_eq!(parse(b"202 0x1d 0xae80 0x0 0x0 0x0 0x0 0x1 0x2\n"), ThreadActivity::Blocked);
        assert_eq!(parse(b"16 0x1d 0xae41 0x0 0x0 0x0 0x0 0x1 0x2\n"), ThreadActivity::Blocked);
        assert_eq!(parse(b"-1 0x7f10a8ff4f28 0x7f10aa1c5c5b\n"), ThreadActivity::Blocked);
        // kvm-nx-lpage-recovery.
        assert_eq!(parse(b"16 0x1d 0xae80 0x0 0x0 0x0 0x0 0x0 0x0\n"), ThreadActivity::Blocked);
        assert_eq!(parse(b"\xff"), ThreadActivity::Blocked);
        assert_eq!(run_descriptor(16, [0xdead_0000_0000_001d, 0xae80]), Some(29));
    }

    #[test]
    fn own_threads_can_be_read() {
        let own = i32::try_from(std::process::id()).unwrap();
        let sleeper = std::thread::spawn(|| {
            // SAFETY: has no preconditions.
            let id = unsafe { libc::gettid() };
            (id, std::thread::sleep(std::time::Duration::from_millis(1)))
        });
        let (gone, ()) = sleeper.join().unwrap();
        let files = ThreadFiles::open(ThreadId { process: own, thread: own }).unwrap();
        assert!(files.activity().is_ok() && files.run_ns().is_some());
        assert!(ThreadFiles::open(ThreadId { process: own, thread: gone }).is_err());
    }
}
