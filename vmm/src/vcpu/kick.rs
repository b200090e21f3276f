//! Kicks, which make a vCPU thread leave KVM_RUN.
//!
//! There are three reasons. The vCPU's sampling timer expired ([`TickTimer`], signal [`tick_signal`]), the
//! machine has to stop, or all vCPUs have to pause ([`send_stop`], signal [`stop_signal`]). One handler
//! serves both signals. It writes 1 into `immediate_exit` of the thread's run page, so that a signal which
//! arrives *before* the ioctl still ends it, and records a tick if the signal came from a timer.
//!
//! No kick is lost, because before each KVM_RUN the vCPU thread first clears `immediate_exit` and then checks
//! the flags ([`Kick::prepare`]):
//!
//! ```text
//! signal before the clear   its flag is seen after it: immediate_exit is set again
//! signal after the clear    the handler has set immediate_exit: KVM_RUN returns EINTR at once
//! signal inside KVM_RUN     it returns EINTR
//! ```

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering, compiler_fence};

use kvm_bindings::kvm_run;
use libc::c_int;

/// Data of the handler; one per thread.
struct KickLocal {
    /// `immediate_exit` in the thread's run page; null on threads that run no vCPU.
    immediate_exit: AtomicPtr<u8>,
    ticked: AtomicBool,
}

thread_local! {
    // Const-initialized and without a destructor, so that the handler may use it at any time.
    static LOCAL: KickLocal = const {
        KickLocal { immediate_exit: AtomicPtr::new(ptr::null_mut()), ticked: AtomicBool::new(false) }
    };
}

/// Returns the signal of sampling timers.
fn tick_signal() -> c_int {
    libc::SIGRTMIN() + 4
}

/// Returns the signal of requests to stop and to pause.
fn stop_signal() -> c_int {
    libc::SIGRTMIN() + 5
}

/// Serves both signals. Async-signal-safe: touches atomics only.
extern "C" fn on_signal(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a pointer to a filled structure.
    let from_timer = unsafe { (*info).si_code } == libc::SI_TIMER;
    LOCAL.with(|local| {
        if from_timer {
            local.ticked.store(true, Ordering::Relaxed);
        }
        let immediate_exit = local.immediate_exit.load(Ordering::Relaxed);
        if !immediate_exit.is_null() {
            // SAFETY: a non-null pointer points into a run page that is mapped until `Kick`,
            // which takes the pointer back, is dropped on this very thread.
            unsafe { AtomicU8::from_ptr(immediate_exit) }.store(1, Ordering::Relaxed);
        }
    });
}

/// Installs the handler, once per process.
pub(crate) fn install_handler() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let install = |signal: c_int| {
        // SAFETY: sigaction is plain data for which all zeroes is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        // Other system calls of the thread, such as a console's write, are restarted.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: `action` is initialized and its handler async-signal-safe.
        match unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    };
    DONE.get_or_init(|| install(tick_signal()).and_then(|()| install(stop_signal())))
        .map_err(io::Error::from_raw_os_error)
}

/// Lets the calling thread take the two signals, and of all others only those that a fault of its
/// own causes: what is sent to the process (SIGINT, SIGCHLD, ...) must not disturb a guest.
pub(crate) fn mask_signals() {
    let own = [tick_signal(), stop_signal()];
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];
    // SAFETY: `blocked` is initialized by sigfillset before it is used, all signal numbers are
    // valid, and the pointers are valid for the calls. None of them can fail then.
    unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut blocked);
        for signal in own.into_iter().chain(faults) {
            libc::sigdelset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, ptr::null_mut());
    }
}

/// Thread that can be kicked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KickTarget(libc::pthread_t);

impl KickTarget {
    /// Returns the calling thread.
    pub(crate) fn current() -> Self {
        // SAFETY: has no preconditions.
        Self(unsafe { libc::pthread_self() })
    }
}

/// Makes a vCPU thread leave KVM_RUN and check its requests.
///
/// # Safety
///
/// The thread must not have been joined or, if detached, ended.
pub(crate) unsafe fn send_stop(target: KickTarget) {
    // SAFETY: the caller vouches for the thread; the handler is installed before any vCPU
    // thread starts.
    unsafe {
        libc::pthread_kill(target.0, stop_signal());
    }
}

/// Kicks of the calling thread while it runs a vCPU.
#[derive(Debug)]
pub(crate) struct Kick {
    immediate_exit: *mut u8,
    /// Belongs to its thread.
    _here: PhantomData<*mut ()>,
}

impl Kick {
    /// Connects this thread's signals to a run page.
    ///
    /// # Safety
    ///
    /// The page must stay mapped until the returned value is dropped.
    pub(crate) unsafe fn connect(run: *mut kvm_run) -> Self {
        // SAFETY: the page is mapped, so the field's address can be formed.
        let immediate_exit = unsafe { &raw mut (*run).immediate_exit };
        LOCAL.with(|local| {
            local.ticked.store(false, Ordering::Relaxed);
            local.immediate_exit.store(immediate_exit, Ordering::Relaxed);
        });
        Self { immediate_exit, _here: PhantomData }
    }

    fn set(&self, value: u8) {
        // SAFETY: the page is mapped as long as `self` lives; KVM and the handler access the
        // same byte.
        unsafe { AtomicU8::from_ptr(self.immediate_exit) }.store(value, Ordering::Relaxed);
    }

    /// Makes the next KVM_RUN return at once if `wanted` returns true or there is a tick to serve. Returns
    /// true if there is a tick. To be called directly before KVM_RUN.
    pub(crate) fn prepare(&self, wanted: impl FnOnce() -> bool) -> bool {
        self.set(0);
        // The handler runs on this thread: the order in the program is all it takes.
        compiler_fence(Ordering::SeqCst);
        let ticked = self.has_ticked();
        if ticked || wanted() {
            self.set(1);
        }
        ticked
    }

    /// Returns true if a tick has come and was not taken.
    pub(crate) fn has_ticked(&self) -> bool {
        LOCAL.with(|local| local.ticked.load(Ordering::Relaxed))
    }

    /// Returns true once per tick.
    pub(crate) fn take_tick(&self) -> bool {
        LOCAL.with(|local| local.ticked.swap(false, Ordering::Relaxed))
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        LOCAL.with(|local| local.immediate_exit.store(ptr::null_mut(), Ordering::Relaxed));
        compiler_fence(Ordering::SeqCst);
    }
}

/// One-shot timer that ticks the thread that made it.
#[derive(Debug)]
pub(crate) struct TickTimer {
    id: libc::timer_t,
    due_ns: u64,
}

impl TickTimer {
    /// Makes a timer for the calling thread, not armed.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: sigevent is plain data for which all zeroes is a valid value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = tick_signal();
        // SAFETY: has no preconditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut id: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut id) };
        if made != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { id, due_ns: 0 })
    }

    /// Returns the time at which the timer expires or last expired, CLOCK_MONOTONIC ns.
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Arms the timer to expire at that time, at once if that has passed.
    pub(crate) fn arm(&mut self, due_ns: u64) {
        // An all-zero time would disarm it.
        self.due_ns = due_ns.max(1);
        let part = |value: u64| libc::c_long::try_from(value).unwrap_or(libc::c_long::MAX);
        let when = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: part(self.due_ns / 1_000_000_000),
                tv_nsec: part(self.due_ns % 1_000_000_000),
            },
        };
        // SAFETY: the timer lives until `self` is dropped, and `when` is valid. With a valid
        // timer and a normalized time the call cannot fail.
        unsafe {
            libc::timer_settime(self.id, libc::TIMER_ABSTIME, &raw const when, ptr::null_mut());
        }
    }
}

impl Drop for TickTimer {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `new` and is deleted once.
        unsafe {
            libc::timer_delete(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic_ns;
    use std::time::{Duration, Instant};

    /// Returns a run page on the heap.
    fn page() -> Box<kvm_run> {
        Box::new(kvm_run::default())
    }

    fn until(mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(5), "waited in vain");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    fn a_tick_sets_immediate_exit_and_is_taken_once() {
        install_handler().unwrap();
        let mut run = page();
        // SAFETY: `run` is dropped after `kick`.
        let kick = unsafe { Kick::connect(&raw mut *run) };
        let mut timer = TickTimer::new().unwrap();
        let due = monotonic_ns() + 1_000_000;
        timer.arm(due);
        assert_eq!(timer.due_ns(), due);
        kick.prepare(|| false);
        // SAFETY: valid as long as `kick`.
        let immediate = || unsafe { AtomicU8::from_ptr(kick.immediate_exit) }.load(Ordering::SeqCst);
        until(|| immediate() == 1);
        assert!(monotonic_ns() >= due);
        // Cleared and checked: the tick is still there, so it is set again.
        kick.prepare(|| false);
        assert_eq!(immediate(), 1);
        assert!(kick.take_tick());
        assert!(!kick.take_tick());
        kick.prepare(|| false);
        assert_eq!(immediate(), 0);
    }

    #[test]
    fn a_stop_is_not_a_tick_and_outlasts_the_clear() {
        install_handler().unwrap();
        let mut run = page();
        // SAFETY: `run` is dropped after `kick`.
        let kick = unsafe { Kick::connect(&raw mut *run) };
        // SAFETY: this thread is alive.
        unsafe { send_stop(KickTarget::current()) };
        kick.prepare(|| true);
        // SAFETY: valid as long as `kick`.
        let immediate = unsafe { AtomicU8::from_ptr(kick.immediate_exit) }.load(Ordering::SeqCst);
        assert_eq!(immediate, 1);
        assert!(!kick.take_tick());
    }

    #[test]
    fn signals_after_the_end_of_a_vcpu_touch_nothing() {
        install_handler().unwrap();
        let mut run = page();
        // SAFETY: `run` is dropped after the temporary.
        drop(unsafe { Kick::connect(&raw mut *run) });
        // SAFETY: this thread is alive.
        unsafe { send_stop(KickTarget::current()) };
        assert_eq!(run.immediate_exit, 0);
    }

    #[test]
    fn a_due_time_in_the_past_expires_at_once() {
        install_handler().unwrap();
        let mut run = page();
        // SAFETY: `run` is dropped after `kick`.
        let kick = unsafe { Kick::connect(&raw mut *run) };
        let mut timer = TickTimer::new().unwrap();
        timer.arm(0);
        until(|| kick.take_tick());
    }
}
