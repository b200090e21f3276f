//! Work with a known CPU time, the clocks that measure it, and processes that do it.

use std::ffi::CString;
use std::hint::black_box;
use std::io;
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Rounds of [`burn`] between two readings of a clock: about 20 us on a 3 GHz CPU, below 1 ms on an emulated
/// one.
const ROUNDS: u32 = 20_000;

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one timespec, and `time` outlives the call.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    if failed {
        // All clocks used here exist in every Linux since 2.6.
        return Duration::ZERO;
    }
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

/// Returns the CPU time of this process so far, user and kernel, as the scheduler counts it.
pub fn process_cpu() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of the calling thread so far.
pub fn thread_cpu() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the time since boot.
pub fn since_boot() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the number of context switches of this process because it waited.
///
/// # Errors
/// The kernel fails the call, which no Linux does.
pub fn voluntary_switches() -> io::Result<i64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes one rusage, and `usage` outlives the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was all zero bytes, which are a valid rusage, before the kernel filled it.
    Ok(unsafe { usage.assume_init() }.ru_nvcsw)
}

/// Works in registers alone. Inlined, so that samples hit the calling function.
#[inline(always)]
pub fn burn(mut state: u64) -> u64 {
    for _ in 0..ROUNDS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state = black_box(state);
    }
    state
}

/// Work of a function in turns, each turn until all of them together have taken a multiple of a slice of CPU
/// time. The next turn is shorter by the excess of the one before.
#[derive(Debug, Clone, Copy)]
pub struct WorkTurns {
    slice: Duration,
    due: Duration,
    /// CPU time of all turns so far.
    pub used: Duration,
}

impl WorkTurns {
    /// Makes turns of `slice` each.
    pub fn new(slice: Duration) -> Self {
        Self { slice, due: Duration::ZERO, used: Duration::ZERO }
    }

    /// Works for one turn, by the clock of the calling thread. Inlined, so that samples hit the calling
    /// function.
    #[inline(always)]
    pub fn take(&mut self) {
        self.due += self.slice;
        let start = thread_cpu();
        let (mut state, mut used) = (1, Duration::ZERO);
        while self.used + used < self.due {
            state = burn(state);
            used = thread_cpu().saturating_sub(start);
        }
        black_box(state);
        self.used += used;
    }
}

/// Runs `body` in a child process named `name`, which exits with 0, or prints its error and exits with 1.
///
/// # Errors
/// The process can't be created.
pub fn start_child(name: &str, body: impl FnOnce() -> io::Result<()>) -> io::Result<Pid> {
    let name = CString::new(name)?;
    // SAFETY: the init of a guest has a single thread, so the child's copy of every lock is free and it may
    // run any code.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            // SAFETY: PR_SET_NAME reads a string of at most 16 bytes up to its NUL, and `name` outlives the
            // call.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            let code = match body() {
                Ok(()) => 0,
                Err(error) => {
                    display::stderr_line!("{}: {error}", name.to_string_lossy());
                    1
                }
            };
            std::process::exit(code)
        }
    }
}

/// Waits for a child.
///
/// # Errors
/// The child failed, or was killed.
pub fn wait_for(child: Pid) -> io::Result<()> {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => return Ok(()),
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => {
                return Err(io::Error::other("a process of the guest failed or was killed"));
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_keep_to_their_sum() {
        let mut turns = WorkTurns::new(Duration::from_millis(2));
        for n in 1..=3_u32 {
            turns.take();
            assert!(turns.used >= n * Duration::from_millis(2), "{turns:?}");
        }
        assert!(process_cpu() >= turns.used && thread_cpu() >= turns.used);
    }

    #[test]
    fn a_wait_is_a_voluntary_switch() {
        let before = voluntary_switches().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(voluntary_switches().unwrap() > before);
    }
}
