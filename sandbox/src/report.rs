//! Report of a refused system call: written by the handler of SIGSYS, read by the process outside of the
//! sandbox.

use std::cell::Cell;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;

use crate::{SandboxError, ThreadKind, names};

/// Length of a report, bytes.
pub const REPORT_BYTES: usize = 8;
/// Meaning of a refused system call for the user. The advice has a condition, because a guest that attacks
/// vprof could provoke the message.
pub const REFUSAL_ADVICE: &str = "this is a fault of vprof, unless the guest or its disk attacks it; \
                                  if you trust both, `--seccomp off` goes around it";
/// Exit status after a report; the report itself says more.
const EXIT_STATUS: libc::c_int = 159;

static REPORT: AtomicI32 = AtomicI32::new(-1);

thread_local! {
    /// Kind of the calling thread as in [`ThreadKind::number`]; 0 for a thread of the whole process.
    static KIND: Cell<u32> = const { Cell::new(0) };
}

/// System call that a filter has refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedCall {
    /// Kind of the thread; `None` for a thread with no filter but the process's.
    pub kind: Option<ThreadKind>,
    /// Number of the system call (arch/x86/entry/syscalls/syscall_64.tbl).
    pub number: u32,
}

impl RefusedCall {
    /// Reads a report.
    pub fn from_report(bytes: [u8; REPORT_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            kind: ThreadKind::from_number(u32::from_le_bytes([a, b, c, d])),
            number: u32::from_le_bytes([e, f, g, h]),
        }
    }

    fn to_report(self) -> [u8; REPORT_BYTES] {
        let [a, b, c, d] = self.kind.map_or(0, ThreadKind::number).to_le_bytes();
        let [e, f, g, h] = self.number.to_le_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

impl std::fmt::Display for RefusedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let thread = self.kind.map_or("a thread", ThreadKind::words);
        let call = names::name(self.number).map_or_else(|| self.number.to_string(), str::to_owned);
        write!(f, "{thread} made the system call {call}, which its filter refuses: {REFUSAL_ADVICE}")
    }
}

/// Has refused system calls reported to `report`.
pub(crate) fn install(report: OwnedFd) -> Result<(), SandboxError> {
    REPORT.store(report.into_raw_fd(), Ordering::Relaxed);
    // SAFETY: all-zero bytes are a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_refusal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler is async-signal-safe: it reads its siginfo and an atomic, and makes two system
    // calls.
    let installed = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    Errno::result(installed)
        .map(drop)
        .map_err(|source| SandboxError::Rights { action: "handle SIGSYS", source })
}

/// Marks the calling thread as one of this kind, and lets SIGSYS reach it: a thread that serves a vCPU or a
/// device blocks all signals but its own.
pub(crate) fn set_kind(kind: ThreadKind) {
    KIND.set(kind.number());
    let mut signals = nix::sys::signal::SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGSYS);
    // Fails for an invalid operation only.
    let _unblocked = signals.thread_unblock();
}

extern "C" fn on_refusal(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    /// `siginfo_t` of SIGSYS (include/uapi/asm-generic/siginfo.h, `_sigsys`), as far as it is read.
    #[repr(C)]
    struct SigsysInfo {
        header: [libc::c_int; 4],
        call_address: *const libc::c_void,
        number: libc::c_int,
    }
    // SAFETY: the kernel passes a siginfo of SIGSYS, which has this layout on 64-bit machines.
    let number = unsafe { (*info.cast::<SigsysInfo>()).number };
    let call = RefusedCall { kind: ThreadKind::from_number(KIND.get()), number: number.cast_unsigned() };
    let bytes = call.to_report();
    let report = REPORT.load(Ordering::Relaxed);
    // SAFETY: the bytes are valid for reads of their length; both calls are async-signal-safe.
    unsafe {
        // Without a reader, the exit status is all that is left.
        libc::write(report, bytes.as_ptr().cast(), bytes.len());
        libc::_exit(EXIT_STATUS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for kind in ThreadKind::ALL.map(Some).into_iter().chain([None]) {
            let call = RefusedCall { kind, number: 41 };
            assert_eq!(RefusedCall::from_report(call.to_report()), call);
        }
    }

    #[test]
    fn a_refused_call_has_its_name_and_what_to_do() {
        for (kind, number, words) in [
            (
                Some(ThreadKind::Sampler),
                295,
                "a sampler's thread made the system call preadv, which its filter",
            ),
            (None, 0, "a thread made the system call read, which its filter"),
            (None, 441, "a thread made the system call epoll_pwait2, which its filter"),
            (Some(ThreadKind::Vcpu), 99_999, "a vCPU's thread made the system call 99999, which its filter"),
        ] {
            let sentence = RefusedCall { kind, number }.to_string();
            assert!(sentence.starts_with(words) && sentence.ends_with(REFUSAL_ADVICE), "{sentence}");
        }
    }
}
