//! `handler`: a process that works only within a signal handler.
//!
//! The timer's next signal is requested when the handler is done, so it interrupts `sigsuspend` each time:
//! the kernel's signal frame is between the handler and the system call.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_programs::{ProgramArgs, ProgramError, burn_here, main_with, seconds, since_boot, thread_cpu};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

const USAGE: &str = "handler [--seconds N]
works for N seconds (10) in on_alarm, the handler of SIGALRM; prints the number of signals and the CPU time";

/// Rounds of work per signal: some milliseconds.
const ROUNDS: u32 = 2_000_000;

static SIGNALS: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
extern "C" fn on_alarm(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    std::hint::black_box(burn_here(ROUNDS, 1));
}

/// Requests one SIGALRM in a millisecond.
fn ask() -> Result<(), ProgramError> {
    let soon = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: soon };
    // SAFETY: `timer` is valid for the call, and the old value is not requested.
    match unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(ProgramError::system("set the timer")(std::io::Error::last_os_error())),
    }
}

/// Waits for a signal on a stack that has this function on it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn wait_for_signal() {
    // The call always fails with EINTR after a signal was handled.
    let _ = SigSet::empty().suspend();
    std::hint::black_box("wait_for_signal");
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let deadline = since_boot() + seconds(args, 10.0)?;
    let action = SigAction::new(SigHandler::Handler(on_alarm), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler counts in registers and in one atomic, and calls nothing.
    unsafe { sigaction(Signal::SIGALRM, &action) }.map_err(ProgramError::system("handle SIGALRM"))?;
    // The signal is blocked except in `wait_for_signal`, which would wait in vain after an earlier signal.
    SigSet::from(Signal::SIGALRM).thread_block().map_err(ProgramError::system("block SIGALRM"))?;
    while since_boot() < deadline {
        ask()?;
        wait_for_signal();
    }
    println!(
        "on_alarm ran {} times, used {:.6} s",
        SIGNALS.load(Ordering::Relaxed),
        thread_cpu().as_secs_f64()
    );
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds"], run)
}
