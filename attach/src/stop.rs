//! Stop of one thread of another process, for a short time.
//!
//! Nothing is attached before [`ThreadStop::new`] and after the stop's end. If the thread that holds a
//! [`ThreadStop`] ends, for any reason, the kernel detaches and resumes the other thread (`exit_ptrace`,
//! kernel/ptrace.c). So no cleanup is needed.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use crate::guard::StopSlot;
use crate::thread::run_descriptor;

/// `PTRACE_EVENT_STOP` (include/uapi/linux/ptrace.h).
const EVENT_STOP: i32 = 128;

/// Reason why a thread is not stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopError {
    /// The thread has ended.
    Gone,
    /// The thread has another tracer, or may no longer be traced.
    NotAllowed,
    /// The wait for the stop was interrupted: the caller has to check whether it must end.
    Interrupted,
    /// This process is about to be stopped, and must hold no thread.
    Suspended,
}

/// Stopped thread; dropping this resumes it.
#[derive(Debug)]
pub(crate) struct ThreadStop {
    thread: i32,
    slot: StopSlot,
    /// Signal that the thread was about to receive; 0 for none.
    signal: i32,
    /// False once the thread is gone.
    stopped: bool,
}

fn ptrace(request: libc::c_uint, thread: i32, data: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: `data` is a valid target of what the request writes, or is not dereferenced; the callers ensure
    // that.
    let result = unsafe { libc::ptrace(request, thread, ptr::null_mut::<libc::c_void>(), data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn stop_error(error: &io::Error) -> StopError {
    if error.raw_os_error() == Some(libc::ESRCH) { StopError::Gone } else { StopError::NotAllowed }
}

impl ThreadStop {
    /// Stops a thread, and records that in `slot`. If the wait is interrupted, `keep_waiting` decides whether
    /// it continues.
    pub(crate) fn new(
        thread: i32,
        slot: &StopSlot,
        keep_waiting: impl Fn() -> bool,
    ) -> Result<Self, StopError> {
        if !slot.begin(thread) {
            return Err(StopError::Suspended);
        }
        // From here on dropping it ends the record.
        let mut stop = Self { thread, slot: slot.clone(), signal: 0, stopped: false };
        ptrace(libc::PTRACE_SEIZE, thread, ptr::null_mut()).map_err(|error| stop_error(&error))?;
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
        // Anything other than the requested stop, and than a stop of the whole process, is a signal on its
        // way.
        if status >> 16 != EVENT_STOP {
            stop.signal = libc::WSTOPSIG(status);
        }
        Ok(stop)
    }

    /// Returns the descriptor of the vCPU whose KVM_RUN the stop has interrupted. `None` if the VMM has an
    /// exit of the guest to serve, or the thread was not in KVM_RUN.
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
            // ptrace(2) takes a number instead of a pointer here.
            let signal = ptr::without_provenance_mut(usize::try_from(self.signal).unwrap_or(0));
            // At worst the thread was killed meanwhile.
            let _gone = ptrace(libc::PTRACE_DETACH, self.thread, signal);
        }
        self.slot.end();
    }
}
