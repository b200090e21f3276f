//! Measurement of the duration of a round.

use std::time::Duration;

use guest_programs::{ProgramError, since_boot};

/// Parts of each measurement. The least of their means is the result, as in lmbench, so that other activity
/// disturbs it little.
const PARTS: u32 = 10;
/// Calls between two readings of the clock.
pub const CALLS: u32 = 64;

/// Returns the mean duration of one round, ns: the least of ten parts of `length`.
pub fn least(
    length: Duration,
    mut round: impl FnMut() -> Result<(), ProgramError>,
) -> Result<f64, ProgramError> {
    least_of(length, || {
        let start = since_boot();
        round()?;
        Ok(since_boot() - start)
    })
}

/// Does the same for rounds that measure themselves, because their preparation does not count.
pub fn least_of(
    length: Duration,
    mut round: impl FnMut() -> Result<Duration, ProgramError>,
) -> Result<f64, ProgramError> {
    let mut least = f64::INFINITY;
    for _ in 0..PARTS {
        let start = since_boot();
        let (mut rounds, mut sum) = (0.0, Duration::ZERO);
        while rounds < 1.0 || since_boot() - start < length / PARTS {
            sum += round()?;
            rounds += 1.0;
        }
        least = least.min(sum.as_secs_f64() * 1e9 / rounds);
    }
    Ok(least)
}

/// Returns the mean duration of one call of many in a round, ns.
pub fn least_call(
    length: Duration,
    mut call: impl FnMut() -> Result<(), ProgramError>,
) -> Result<f64, ProgramError> {
    let round = least(length, || (0..CALLS).try_for_each(|_| call()))?;
    Ok(round / f64::from(CALLS))
}

/// Prints a time.
pub fn print(name: &str, ns: f64) {
    println!("{name} {ns:.1} ns");
}

/// Prints the rate of so many bytes in a time.
pub fn print_rate(name: &str, bytes: usize, ns: f64) {
    println!("{name} {:.2} MB/s", bytes as f64 * 1e3 / ns);
}
