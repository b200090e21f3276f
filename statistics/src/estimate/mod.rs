//! Shares and times estimated from samples, each with a 95 % interval for the true value of this very run.
//!
//! `T_k = p_k * T_e`: a state clock gives `T_e` exactly, the samples give the share `p_k`. The interval is
//! for the part of *this run's* time, not for another run of the same programs. docs/statistics.md derives
//! the methods and lists their limits.
//!
//! ```
//! use statistics::clock::ClockKind;
//! use statistics::estimate::{Tallies, Ticks};
//!
//! // In one pass over the samples, those of each vCPU in the order of time. A tick counts as inside if the
//! // vCPU was in the time that `T_e` measures. Ticks outside are added too: they are part of the sequence.
//! let mut ticks = Ticks::new(ClockKind::Uniform, 1_000_000.0);
//! let mut key = Tallies::default();
//! for n in 1..=1_000_u64 {
//!     let tick = ticks.tick(0, n * 1_000_000, true);
//!     if n <= 300 {
//!         key.add(&ticks, tick);
//!     }
//! }
//! // With the exact time of every vCPU, ns.
//! let estimate = ticks.estimate(&[(0, 1_000_000_000)], &key);
//! assert_eq!(estimate.samples, 300);
//! assert!(estimate.share.low < 0.3 && 0.3 < estimate.share.high);
//! assert!((estimate.time.ns - 0.3e9).abs() < 1.0);
//! ```
//!
//! A tally belongs to one row of a table: the tally of a function is not the sum of the tallies of its
//! instructions, since the samples of a pair may be in two of them.

mod correlation;
mod design;
mod interval;
mod part;
mod plan;
mod segments;
mod strata;
mod tally;
#[cfg(test)]
mod tests;

pub use interval::{Share, Z_95, sampled, share};
pub use part::{PartTallies, PartTicks};
pub use plan::{needed, needed_for, reached};
pub use strata::{Estimate, Time};
pub use tally::{ONE_CLOCK, Tallies, Tally, Tick, Ticks, VcpuClock, guest_error_key};

use crate::clock::ClockKind;

/// True if intervals are valid under this clock: not under a fixed one, which a program can be in step with.
/// Under a fixed clock they are computed as if its samples were independent, which shows the error.
pub fn trustworthy(clock: ClockKind) -> bool {
    clock != ClockKind::Fixed
}
