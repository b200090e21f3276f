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

/// Signal of a stop at a system call, with the option below (ptrace(2)).
const SYSCALL_TRAP: i32 = libc::SIGTRAP | 0x80;
/// `PTRACE_O_TRACESYSGOOD` (include/uapi/linux/ptrace.h).
const TRACE_SYSCALLS: usize = 1;
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

/// Stop of a thread that is traced from one system call to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TracedStop {
    Syscall(SyscallStop),
    /// The requested stop, or a signal, which the thread receives when it continues.
    Other,
    /// The whole process is stopped by a signal.
    GroupStop,
}

/// End of a system call at which a thread is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyscallStop {
    /// Before the call, with the vCPU's descriptor if it is KVM_RUN.
    Entry(Option<i32>),
    /// After the call, with its result.
    Exit(i64),
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
        let registers = self.registers().ok()?;
        let interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
        let fd = run_descriptor(registers.orig_rax, [registers.rdi, registers.rsi]);
        fd.filter(|_| interrupted && registers.rip != 0)
    }

    fn registers(&self) -> io::Result<libc::user_regs_struct> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::uninit();
        ptrace(libc::PTRACE_GETREGS, self.thread, registers.as_mut_ptr().cast())?;
        // SAFETY: the call has filled all of it.
        Ok(unsafe { registers.assume_init() })
    }

    /// Continues the thread until its next system call begins or ends.
    pub(crate) fn continue_to_syscall(&mut self) -> io::Result<()> {
        // ptrace(2) takes numbers instead of pointers here.
        let options = ptr::without_provenance_mut(TRACE_SYSCALLS);
        ptrace(libc::PTRACE_SETOPTIONS, self.thread, options)?;
        let signal = std::mem::take(&mut self.signal);
        let signal = ptr::without_provenance_mut(usize::try_from(signal).unwrap_or(0));
        ptrace(libc::PTRACE_SYSCALL, self.thread, signal)?;
        self.stopped = false;
        Ok(())
    }

    /// Requests a stop of the thread, which was continued.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        ptrace(libc::PTRACE_INTERRUPT, self.thread, ptr::null_mut())
    }

    /// Returns the stop of a thread that was continued; `None` while it runs.
    pub(crate) fn check_stopped(&mut self) -> io::Result<Option<TracedStop>> {
        let mut status = 0;
        // SAFETY: the pointer is valid for the call.
        match unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 => return Ok(None),
            thread if thread == self.thread && libc::WIFSTOPPED(status) => {}
            _ => return Err(io::ErrorKind::NotFound.into()),
        }
        self.stopped = true;
        let signal = libc::WSTOPSIG(status);
        Ok(Some(match (status >> 16, signal) {
            (EVENT_STOP, libc::SIGTRAP) => TracedStop::Other,
            (EVENT_STOP, _) => TracedStop::GroupStop,
            (_, SYSCALL_TRAP) => TracedStop::Syscall(self.syscall_stop()?),
            _ => {
                self.signal = signal;
                TracedStop::Other
            }
        }))
    }

    fn syscall_stop(&self) -> io::Result<SyscallStop> {
        let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
        let size = ptr::without_provenance_mut::<libc::c_void>(size_of_val(&info));
        // SAFETY: `info` is writable for the size that is passed.
        let result =
            unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.thread, size, info.as_mut_ptr()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all zeroes is a valid value, and the call has written a valid one over it.
        let info = unsafe { info.assume_init() };
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => {
                // SAFETY: the kernel has filled this part, by `op`.
                let entry = unsafe { info.u.entry };
                let [first, second, ..] = entry.args;
                Ok(SyscallStop::Entry(run_descriptor(entry.nr, [first, second])))
            }
            // SAFETY: as above.
            libc::PTRACE_SYSCALL_INFO_EXIT => Ok(SyscallStop::Exit(unsafe { info.u.exit.sval })),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Replaces the result of the system call whose end the thread is stopped at.
    pub(crate) fn set_result(&mut self, result: i64) -> io::Result<()> {
        let mut registers = self.registers()?;
        registers.rax = result.cast_unsigned();
        ptrace(libc::PTRACE_SETREGS, self.thread, (&raw mut registers).cast())
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
