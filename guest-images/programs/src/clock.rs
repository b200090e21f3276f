//! The clocks that workloads measure themselves by.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::Error;

fn read(clock: ClockId) -> Duration {
    // All of them exist in every Linux since 2.6, and none needs a right.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// CPU time of this process so far, user and kernel, as the scheduler counts it (exact, not by ticks).
pub fn process_cpu() -> Duration {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far, counted like [`process_cpu`].
pub fn thread_cpu() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Time since boot. Read through the vDSO: no system call.
pub fn since_boot() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// The option `--seconds` as a length of time.
///
/// # Errors
/// Not a number, negative, or beyond what a clock can hold.
pub fn seconds(args: &crate::Args, default: f64) -> Result<Duration, Error> {
    let given = args.number::<f64>("seconds")?.unwrap_or(default);
    Duration::try_from_secs_f64(given)
        .map_err(|_| Error::Usage(format!("--seconds {given} is no length of time")))
}
