//! What a watcher sees of a recording in progress, and the rates that it may ask for.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Status of a running session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Time since start.
    pub elapsed: Duration,
    /// Samples so far.
    pub samples: u64,
    /// Lost so far.
    pub lost: u64,
    /// Samples per second of all vCPUs, over the last second or so.
    pub rate_hz: f64,
    /// Process with the most non-idle samples over the last second or so, and its share.
    pub top: Option<(String, f64)>,
    /// The guest's kernel release, once the kernel is found.
    pub kernel: Option<String>,
    /// Reason why the machine is stopped, as a sentence; `None` while it runs.
    pub stopped: Option<String>,
    /// True while the vCPUs are sampled; false while sampling is off.
    pub sampling: bool,
    /// True while a condition is awaited with which sampling begins.
    pub awaits_start: bool,
    /// Mean rate while sampling is on, ticks per second and vCPU.
    pub wanted_hz: f64,
}

/// Sampling rates that a session accepts, ticks per second and vCPU.
pub const RATES_HZ: RangeInclusive<f64> = 0.1..=50_000.0;

/// A sampling rate out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has to be from {} to {} samples per second", RATES_HZ.start(), RATES_HZ.end())]
pub struct RateOutOfRange;

/// Checks that a session accepts the rate, and returns it.
///
/// # Errors
/// Returns an error if the rate is too low, too high, or not a number.
pub fn checked_rate(rate_hz: f64) -> Result<f64, RateOutOfRange> {
    if RATES_HZ.contains(&rate_hz) { Ok(rate_hz) } else { Err(RateOutOfRange) }
}
