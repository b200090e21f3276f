//! State of a vCPU's thread, as /proc shows it without stopping the thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use vmm::{AttachedThread, ThreadId, ThreadStatistics, ThreadTimes};

use crate::process::thread_file;
use crate::process_stat::StatFields;

/// `ioctl` (arch/x86/entry/syscalls/syscall_64.tbl).
const IOCTL: u64 = 16;
/// `KVM_RUN`, `_IO(KVMIO, 0x80)` (include/uapi/linux/kvm.h).
const KVM_RUN: u64 = 0xae80;

/// Functions of KVM that block a halted vCPU, and those into which compilers inline them
/// (virt/kvm/kvm_main.c, arch/x86/kvm/x86.c, Linux 4.19 to 6.18).
const HALTS: [&str; 6] = [
    "kvm_vcpu_block",
    "kvm_vcpu_halt",
    "vcpu_block",
    "vcpu_run",
    "kvm_arch_vcpu_ioctl_run",
    "kvm_emulate_halt",
];

/// Activity of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadActivity {
    /// On a CPU, or waiting for one.
    Running,
    /// Blocked by KVM in KVM_RUN on this descriptor.
    BlockedInRun(i32),
    /// Blocked in KVM_RUN on this descriptor by something else than KVM: the host has to get a page of the
    /// guest's memory first (swap, userfaultfd, a control group's limit).
    BlockedOnPage(i32),
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
    schedstat: ScheduleFile,
    stat: File,
    /// Not in every kernel.
    wchan: Option<File>,
}

impl ThreadFiles {
    pub(crate) fn open(id: ThreadId) -> io::Result<Self> {
        let open = |name| File::open(thread_file(id.process, id.thread, name));
        let schedstat = ScheduleFile(Arc::new(open("schedstat")?));
        Ok(Self { syscall: open("syscall")?, schedstat, stat: open("stat")?, wchan: open("wchan").ok() })
    }

    /// Returns the thread for an observer of the vCPU with this KVM number.
    pub(crate) fn attached(&self, id: ThreadId, number: u32) -> AttachedThread {
        let cpu = usize::try_from(number).unwrap_or(usize::MAX);
        AttachedThread { id, cpu, statistics: Some(Arc::new(self.schedstat.clone())) }
    }

    /// Returns the thread's present activity.
    pub(crate) fn activity(&self) -> io::Result<ThreadActivity> {
        judge_activity(self)
    }

    /// Returns the thread's CPU time so far, ns. It is exact while the thread does not run.
    pub(crate) fn run_ns(&self) -> Option<u64> {
        self.schedstat.read().map(|times| times.run_ns)
    }
}

impl ThreadView for ThreadFiles {
    fn call(&self) -> io::Result<ThreadActivity> {
        let mut text = [0; 256];
        let length = self.syscall.read_at(&mut text, 0)?;
        Ok(text.get(..length).map_or(ThreadActivity::Running, parse))
    }

    fn is_halt(&self) -> Option<bool> {
        let mut text = [0; 64];
        let length = self.wchan.as_ref()?.read_at(&mut text, 0).ok()?;
        is_halt(text.get(..length)?)
    }

    fn state(&self) -> io::Result<u8> {
        let mut text = [0; 512];
        let length = self.stat.read_at(&mut text, 0)?;
        // The name of a thread may be any bytes.
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
        Ok(StatFields::new(&text).and_then(|fields| fields.get(3)?.bytes().next()).unwrap_or(b'?'))
    }
}

/// A thread as /proc shows it. Each reading is of another moment.
trait ThreadView {
    /// Activity by the system call: a thread in KVM_RUN that is not on a CPU is blocked there.
    fn call(&self) -> io::Result<ThreadActivity>;
    /// True if the thread is blocked where KVM blocks a halted vCPU; `None` if the kernel does not show
    /// where, or if the thread is not blocked.
    fn is_halt(&self) -> Option<bool>;
    /// State by `stat`, such as `S` (proc_pid_stat(5)).
    fn state(&self) -> io::Result<u8>;
}

/// Returns the activity of a thread.
///
/// You cannot recognize a halted vCPU by the system call alone, because the kernel also shows it of a thread
/// that another CPU has woken (`TASK_WAKING`), for example after our own stop, until its CPU takes notice. So
/// the function decides in which the thread is blocked. Where the kernel does not show it, the state does:
/// KVM blocks a halted vCPU so that a signal ends the wait (`S`).
fn judge_activity(thread: &impl ThreadView) -> io::Result<ThreadActivity> {
    let fd = match thread.call()? {
        ThreadActivity::BlockedInRun(fd) => fd,
        other => return Ok(other),
    };
    let is_halt = match thread.is_halt() {
        Some(is_halt) => is_halt,
        None => match thread.state()? {
            // It may have continued and be blocked again since.
            b'S' => thread.is_halt().unwrap_or(true),
            b'D' => false,
            b'R' => return Ok(ThreadActivity::Running),
            _ => return Ok(ThreadActivity::Blocked),
        },
    };
    Ok(if is_halt { ThreadActivity::BlockedInRun(fd) } else { ThreadActivity::BlockedOnPage(fd) })
}

/// File `schedstat` of a thread.
#[derive(Debug, Clone)]
struct ScheduleFile(Arc<File>);

impl ThreadStatistics for ScheduleFile {
    fn read(&self) -> Option<ThreadTimes> {
        ThreadTimes::read(&self.0)
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

/// Returns true if a thread in KVM_RUN that is blocked in this function (/proc/PID/wchan, proc_pid_wchan(5))
/// runs a halted vCPU. The kernel shows `0` to those who may not know, and for a thread that is not blocked.
fn is_halt(function: &[u8]) -> Option<bool> {
    let name = function.split(|byte| *byte == b'.').next().unwrap_or_default();
    let known = !name.is_empty() && name != b"0";
    known.then(|| HALTS.iter().any(|halt| name == halt.as_bytes()))
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
    fn only_kvm_halts_a_vcpu() {
        for halt in ["kvm_vcpu_block", "kvm_vcpu_halt", "kvm_vcpu_block.isra.0"] {
            assert_eq!(is_halt(halt.as_bytes()), Some(true), "{halt}");
        }
        assert_eq!([is_halt(b"0"), is_halt(b"")], [None; 2]);
        for page in
            ["handle_userfault", "folio_wait_bit_common", "mem_cgroup_handle_over_high", "kvm_vcpu_ioctl"]
        {
            assert_eq!(is_halt(page.as_bytes()), Some(false), "{page}");
        }
    }

    /// Call of a thread in KVM_RUN, whether it is blocked as a halted vCPU is, and its state.
    type Shown = (ThreadActivity, Option<bool>, u8);

    const RUNNING: Shown = (ThreadActivity::Running, None, b'R');
    /// Woken by another CPU: the kernel shows the call of a thread that is blocked.
    const WOKEN: Shown = (ThreadActivity::BlockedInRun(5), None, b'R');
    const HALTED: Shown = (ThreadActivity::BlockedInRun(5), Some(true), b'S');
    const ON_PAGE: Shown = (ThreadActivity::BlockedInRun(5), Some(false), b'D');
    const STOPPED: Shown = (ThreadActivity::BlockedInRun(5), Some(false), b't');

    /// Thread that is as the first of these for some readings, and as the second one from then on.
    struct ChangingThread {
        shown: [Shown; 2],
        readings_left: std::cell::Cell<u32>,
    }

    impl ChangingThread {
        fn read(&self) -> Shown {
            let left = self.readings_left.get();
            self.readings_left.set(left.saturating_sub(1));
            self.shown[usize::from(left == 0)]
        }
    }

    impl ThreadView for ChangingThread {
        fn call(&self) -> io::Result<ThreadActivity> {
            Ok(self.read().0)
        }

        fn is_halt(&self) -> Option<bool> {
            self.read().1
        }

        fn state(&self) -> io::Result<u8> {
            Ok(self.read().2)
        }
    }

    fn judge(shown: [Shown; 2], readings: u32) -> ThreadActivity {
        judge_activity(&ChangingThread { shown, readings_left: readings.into() }).unwrap()
    }

    #[test]
    fn a_thread_is_halted_only_if_it_was_when_it_was_read() {
        assert_eq!(judge([HALTED; 2], 0), ThreadActivity::BlockedInRun(5));
        assert_eq!(judge([WOKEN; 2], 0), ThreadActivity::Running);
        assert_eq!(judge([ON_PAGE; 2], 0), ThreadActivity::BlockedOnPage(5));
        let all = [RUNNING, WOKEN, ON_PAGE, STOPPED];
        for shown in all.iter().flat_map(|one| all.map(|other| [*one, other])) {
            for readings in 0..4 {
                let found = judge(shown, readings);
                assert!(!matches!(found, ThreadActivity::BlockedInRun(_)), "{shown:?} {readings} {found:?}");
            }
        }
    }

    #[test]
    fn a_kernel_that_hides_functions_still_shows_states() {
        let hidden = |(call, _, state): Shown| judge([(call, None, state); 2], 0);
        assert_eq!(hidden(HALTED), ThreadActivity::BlockedInRun(5));
        assert_eq!(hidden(ON_PAGE), ThreadActivity::BlockedOnPage(5));
        assert_eq!(hidden(STOPPED), ThreadActivity::Blocked);
        assert_eq!(hidden(WOKEN), ThreadActivity::Running);
    }

    #[test]
    fn own_threads_can_be_read() {
        let own = i32::try_from(std::process::id()).unwrap();
        // SAFETY: has no preconditions.
        let gone = std::thread::spawn(|| unsafe { libc::gettid() }).join().unwrap();
        let files = ThreadFiles::open(ThreadId { process: own, thread: own }).unwrap();
        assert!(files.activity().is_ok() && files.run_ns().is_some());
        // The kernel takes a moment to reap a thread that was joined.
        testkit::eventually("end of the thread", std::time::Duration::from_secs(20), || {
            ThreadFiles::open(ThreadId { process: own, thread: gone }).err()
        });
    }
}
