//! Stops one thread of another process for a moment.
//!
//! Nothing is attached before [`ThreadStop::thread`] and after its end. If the thread that holds a
//! [`ThreadStop`] ends, in whatever way, the kernel detaches and lets the other run on (`exit_ptrace`,
//! kernel/ptrace.c): nothing has to be cleaned up.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use crate::thread::run_descriptor;

/// `PTRACE_EVENT_STOP` (include/uapi/linux/ptrace.h).
const EVENT_STOP: i32 = 128;

/// Why a thread is not stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopError {
    /// It is gone.
    Gone,
    /// Someone else traces it, or it may not be traced any more.
    NotAllowed,
    /// The wait for it was interrupted: the caller is to look whether it has to end.
    Interrupted,
}

/// A stopped thread; it runs on when this is dropped.
#[derive(Debug)]
pub(crate) struct ThreadStop {
    thread: i32,
    /// The signal that it was about to get.
    signal: i32,
    /// False once it is gone.
    stopped: bool,
}

fn ptrace(request: libc::c_uint, thread: i32, data: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: `data` is a valid target of what the request writes, or not written through; the callers see to
    // it.
    let result = unsafe { libc::ptrace(request, thread, ptr::null_mut::<libc::c_void>(), data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn stop_error(error: &io::Error) -> StopError {
    if error.raw_os_error() == Some(libc::ESRCH) { StopError::Gone } else { StopError::NotAllowed }
}

impl ThreadStop {
    /// Stops `thread`. Where the wait is interrupted, `go_on` says whether to wait on.
    pub(crate) fn new(thread: i32, keep_waiting: impl Fn() -> bool) -> Result<Self, StopError> {
        ptrace(libc::PTRACE_SEIZE, thread, ptr::null_mut()).map_err(|error| stop_error(&error))?;
        let mut stop = Self { thread, signal: 0, stopped: false };
        ptrace(libc::PTRACE_INTERRUPT, thread, ptr::null_mut()).map_err(|error| stop_error(&error))?;
        let status = loop {
            let mut status = 0;
            // SAFETY: the pointer is valid for the call.
            if unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } == thread {
                break status;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) if keep_waiting() => {}
                Some(libc::EINTR) => return Err(StopError::Interrupted),
                _ => return Err(StopError::Gone),
            }
        };
        if !libc::WIFSTOPPED(status) {
            return Err(StopError::Gone);
        }
        stop.stopped = true;
        // Anything but the stop that was asked for, and but a stop of the whole process, is a signal on its
        // way.
        if status >> 16 != EVENT_STOP {
            stop.signal = libc::WSTOPSIG(status);
        }
        Ok(stop)
    }

    /// The descriptor of the vCPU whose KVM_RUN the stop has ended: interrupted, and with nothing of the
    /// guest's for the VMM to serve.
    pub(crate) fn interrupted_run(&self) -> Option<i32> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::uninit();
        ptrace(libc::PTRACE_GETREGS, self.thread, registers.as_mut_ptr().cast()).ok()?;
        // SAFETY: the call has filled all of it.
        let registers = unsafe { registers.assume_init() };
        let interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
        let fd = run_descriptor(registers.orig_rax, [registers.rdi, registers.rsi]);
        fd.filter(|_| interrupted && registers.rip != 0)
    }
}

impl Drop for ThreadStop {
    fn drop(&mut self) {
        if self.stopped {
            // A number in the place of a pointer, as ptrace(2) has it.
            let signal = ptr::without_provenance_mut(usize::try_from(self.signal).unwrap_or(0));
            // Killed meanwhile, at worst.
            let _gone = ptrace(libc::PTRACE_DETACH, self.thread, signal);
        }
    }
}
