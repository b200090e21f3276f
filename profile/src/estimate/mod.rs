//! Shares and times estimated from samples, each with a 95 % interval for the truth of this very run.
//!
//! `T_k = p_k * T_e`: a state clock gives `T_e` exactly, the samples give the share `p_k`. What the interval speaks of is
//! the part of *this run's* time, not what another run of the same programs would give. docs/statistics.md derives
//! what is used here, and says when it does not hold.
//!
//! ```
//! use profile::ClockKind;
//! use profile::estimate::{Tallies, Ticks};
//!
//! // In one pass over the samples, each vCPU's in the order of time; a tick counts as inside if it found the vCPU in
//! // the time that `T_e` measures. Ticks outside are told too: they are part of the sequence.
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
//! A tally belongs to one thing that is shown: the tally of a function is not the sum of the tallies of its
//! instructions, since a pair of samples may lie in two of them.

mod correlation;
mod design;
mod interval;
mod part;
mod plan;
mod strata;
mod stretches;
mod tally;
#[cfg(test)]
mod tests;

pub use interval::{Share, Z_95, share};
pub use part::{PartTallies, PartTicks};
pub use plan::{needed, needed_for, reached};
pub use strata::{Estimate, Time};
pub use tally::{ONE_CLOCK, Tallies, Tally, Tick, Ticks, guest_error_key};

use crate::clock::ClockKind;

/// Whether intervals can be trusted under this clock: not under a fixed one, which a program can be in step with.
/// Under it they are computed as if its samples were independent, which shows what goes wrong.
pub fn trustworthy(clock: ClockKind) -> bool {
    clock != ClockKind::Fixed
}
