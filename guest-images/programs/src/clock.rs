//! Clocks with which workloads measure themselves.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::ProgramError;

fn read(clock: ClockId) -> Duration {
    // All clocks exist in every Linux since 2.6, and none needs a privilege.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// Returns the CPU time of this process so far, user and kernel, as the scheduler counts it (exact, not by
/// ticks).
pub fn process_cpu() -> Duration {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of the calling thread so far, counted like [`process_cpu`].
pub fn thread_cpu() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the time since boot. The vDSO reads it without a system call.
pub fn since_boot() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns the option `--seconds` as a duration.
///
/// # Errors
/// The value is not a number, is negative, or is too large for a clock.
pub fn seconds(args: &crate::ProgramArgs, default: f64) -> Result<Duration, ProgramError> {
    let given = args.number::<f64>("seconds")?.unwrap_or(default);
    Duration::try_from_secs_f64(given)
        .map_err(|_| ProgramError::Usage(format!("--seconds {given} is not a duration")))
}
