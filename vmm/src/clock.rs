//! The clock of ticks.

/// Returns CLOCK_MONOTONIC, ns: the clock of [`crate::Tick`]. The vDSO reads it, without entering the kernel.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writes; the clock exists on every Linux, so the call
    // cannot fail.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    // Neither part is ever negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
