//! Turns ticks into shares and times with intervals: pure calculation, without rows, files or a guest.
//!
//! ```text
//!  [`clock`] draws ticks ──▶ [`estimate`]: share or time, with interval ──▶ [`significance`] of a change
//!                                ▲
//!                 [`run_part`] [`task_scan`] [`RateHistory`]
//! ```
//!
//! For example, if 300 of 1,000 ticks hit a function while a vCPU spent 1 s in the guest, [`estimate`] gives
//! the function 0.3 s with a 95 % interval around it. [`simulate`] proves such intervals: it profiles made-up
//! machines, whose times are known, with the code of this crate. docs/statistics.md derives the methods.
//!
//! The crate is separate from the profile because its tests repeat thousands of profilings. They are compiled
//! with optimization, which tests of rows and reports do not need (docs/testing.md).

pub mod clock;
pub mod cpu_accounting;
pub mod estimate;
mod rate_history;
pub mod run_part;
pub mod significance;
pub mod simulate;
pub mod spread;
pub mod task_scan;

pub use rate_history::{RateHistory, part, scaled};
