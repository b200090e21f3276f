//! Capabilities that the program's file gives to users who have none (`setcap`, capabilities(7)).
//!
//! They are for attaching only: a user who can read any file or any process's memory through another command
//! would be a hole. [`confine_process`] drops all others first, and makes none effective; an attachment
//! raises them where it needs them, thread by thread:
//!
//! | capability | where it is effective |
//! |---|---|
//! | `CAP_SYS_PTRACE`, `CAP_PERFMON`, `CAP_BPF` | from [`raise_tracing`] on, and in all threads that are started later |
//! | `CAP_DAC_READ_SEARCH` | while files of the VMM in /proc are opened ([`SearchRight`]) |

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of `CAP_DAC_READ_SEARCH` (include/uapi/linux/capability.h).
const CAP_DAC_READ_SEARCH: u32 = 2;
/// Number of `CAP_SYS_PTRACE`.
const CAP_SYS_PTRACE: u32 = 19;
/// Numbers of `CAP_PERFMON` and `CAP_BPF`, by which samples are taken in the kernel.
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
const TRACING: u64 = 1 << CAP_SYS_PTRACE | 1 << CAP_PERFMON | 1 << CAP_BPF;
const SEARCH: u64 = 1 << CAP_DAC_READ_SEARCH;
/// `_LINUX_CAPABILITY_VERSION_3`: two words per set.
const VERSION: u32 = 0x2008_0522;

/// The process has capabilities by its file.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// Header of capget(2) and capset(2).
#[repr(C)]
struct Header {
    version: u32,
    /// 0 for the calling thread.
    thread: i32,
}

/// Half of the sets of a thread.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn permitted() -> io::Result<u64> {
    let mut header = Header { version: VERSION, thread: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: both are as large as the version says, and live through the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) };
    let [low, high] = halves;
    if result == 0 {
        Ok(u64::from(low.permitted) | u64::from(high.permitted) << 32)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets the sets of the calling thread; nothing is inheritable.
fn set(permitted: u64, effective: u64) -> io::Result<()> {
    let mut header = Header { version: VERSION, thread: 0 };
    let low = |set: u64| u32::try_from(set & 0xffff_ffff).unwrap_or(0);
    let half = |shift: u32| Half {
        effective: low(effective >> shift),
        permitted: low(permitted >> shift),
        inheritable: 0,
    };
    let halves = [half(0), half(32)];
    // SAFETY: as in `permitted`.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Drops all capabilities that the program's file has given, except those for attaching, and makes none
/// effective. Must be called before there are other threads. Does nothing for root, and for capabilities that
/// the caller has itself.
///
/// # Errors
/// The capabilities could not be dropped.
pub fn confine_process() -> io::Result<()> {
    // SAFETY: has no preconditions. AT_SECURE is set if the file has given rights (getauxval(3)).
    let given = unsafe { libc::getauxval(libc::AT_SECURE) != 0 && libc::getuid() != 0 };
    if given && permitted()? != 0 {
        set(permitted()? & (TRACING | SEARCH), 0)?;
        CONFINED.store(true, Ordering::SeqCst);
    }
    Ok(())
}

/// Drops what [`confine_process`] or the sandbox has kept from this thread: the command, or the thread, does
/// not attach.
///
/// # Errors
/// The capabilities could not be dropped.
pub fn drop_all() -> io::Result<()> {
    if CONFINED.load(Ordering::SeqCst) { set(0, 0) } else { Ok(()) }
}

/// Returns the set that an attached process keeps inside its sandbox. `sampled` is true if the host's kernel
/// takes the samples.
pub fn kept(sampled: bool) -> u64 {
    let by_kernel = 1 << CAP_PERFMON | 1 << CAP_BPF;
    SEARCH | if sampled { TRACING } else { TRACING & !by_kernel }
}

/// Lets each thread drop what it does not need from here on, also if the rights are root's: the process is
/// inside its sandbox.
pub fn limit_threads() {
    CONFINED.store(true, Ordering::SeqCst);
}

/// Makes the capability to trace effective in this thread, and in those that it starts.
///
/// # Errors
/// The capability could not be raised.
pub fn raise_tracing() -> io::Result<()> {
    if !CONFINED.load(Ordering::SeqCst) {
        return Ok(());
    }
    let permitted = permitted()?;
    set(permitted, permitted & TRACING)
}

/// Drops the capability to search directories from this thread for good.
pub(crate) fn drop_search() {
    if CONFINED.load(Ordering::SeqCst)
        && let Ok(permitted) = permitted()
    {
        // A smaller set is always allowed.
        let _allowed = set(permitted & TRACING, permitted & TRACING);
    }
}

/// Capability to open files of other users in /proc, in this thread for as long as this lives.
#[derive(Debug)]
pub struct SearchRight(());

impl SearchRight {
    /// Makes the capability effective.
    pub fn raise() -> Self {
        if CONFINED.load(Ordering::SeqCst)
            && let Ok(permitted) = permitted()
        {
            // Without it, opening fails and names the reason.
            let _denied = set(permitted, permitted & (TRACING | SEARCH));
        }
        Self(())
    }
}

impl Drop for SearchRight {
    fn drop(&mut self) {
        // As before: the right to trace was effective.
        let _allowed = raise_tracing();
    }
}
