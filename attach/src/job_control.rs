//! Stops of this process by its terminal (Ctrl-Z), taken between two stops of vCPUs.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use crate::capabilities;
use crate::guard::Heartbeat;

/// Time for which stops in progress may delay the stop of this process. The guard ends a process that holds a
/// vCPU for longer.
const LIMIT: Duration = Duration::from_millis(500);

/// Stops of the attachment that is in progress.
static CURRENT: Mutex<Option<Arc<Heartbeat>>> = Mutex::new(None);
/// Descriptor of the event that wakes the thread; -1 before it exists.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Handle on the stops of an attachment, which a stop of this process must not interrupt.
#[derive(Debug, Clone)]
pub struct JobControl(pub(crate) Arc<Heartbeat>);

impl JobControl {
    /// Lets [`stop_process`] wait for this attachment's stops, and calls it on each of `signals`: `SIGTSTP`,
    /// `SIGTTIN`, `SIGTTOU`, or none if the caller handles them.
    ///
    /// # Errors
    /// A descriptor, a thread or a handler could not be made.
    pub fn install(&self, signals: &[libc::c_int]) -> io::Result<()> {
        let before = current().replace(Arc::clone(&self.0));
        if signals.is_empty() {
            return Ok(());
        }
        if before.is_none() {
            let event = EventFd::new(libc::EFD_CLOEXEC)?;
            WAKE.store(event.as_raw_fd(), Ordering::SeqCst);
            thread::Builder::new().name("job control".to_owned()).spawn(move || {
                // A smaller set is always allowed.
                let _allowed = capabilities::drop_all();
                while event.read().is_ok() {
                    stop_process();
                }
            })?;
        }
        signals
            .iter()
            .try_for_each(|signal| set_handler(*signal, on_stop_signal as extern "C" fn(_) as usize))
    }
}

fn current() -> std::sync::MutexGuard<'static, Option<Arc<Heartbeat>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn on_stop_signal(_: libc::c_int) {
    let fd = WAKE.load(Ordering::SeqCst);
    let one = 1_u64.to_ne_bytes();
    // SAFETY: errno is this thread's own, and is valid for as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: write is async-signal-safe; the buffer lives through the call. The interrupted code must not
    // see another error number.
    unsafe {
        let before = *errno;
        libc::write(fd, one.as_ptr().cast(), one.len());
        *errno = before;
    }
}

fn set_handler(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: sigaction is plain data for which all zeroes is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe or a default, and `action` lives through the call.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Stops this process, as SIGTSTP does by default, when no vCPU is held. Returns when it continues.
pub fn stop_process() {
    let heartbeat = current().clone();
    if let Some(heartbeat) = &heartbeat {
        heartbeat.suspend(LIMIT);
    }
    // The default of SIGTSTP and not SIGSTOP: the kernel ignores the former where no shell could continue the
    // process (an orphaned process group, setpgid(2)).
    // SAFETY: sigaction is plain data for which all zeroes is a valid value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are valid for the calls; SIG_DFL is all zeroes (asm-generic/signal-defs.h).
    // `raise` returns after the stop: the signal is delivered to this thread.
    unsafe {
        libc::sigaction(libc::SIGTSTP, &raw const default, &raw mut before);
        libc::raise(libc::SIGTSTP);
        libc::sigaction(libc::SIGTSTP, &raw const before, std::ptr::null_mut());
    }
    if let Some(heartbeat) = &heartbeat {
        heartbeat.resume();
    }
}
