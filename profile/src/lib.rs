//! The profile: its rows, its file, and everything that is computed from it.
//!
//! ```text
//!  sampler ──▶ [`rows::Batch`] ──▶ [`rows::Sink`] ─┬─▶ [`ProfileWriter`] ──▶ file ──▶ [`Profile`]
//!                                                  └─▶ [`live`]                          │
//!                                            [`report`] [`diff`] [`rusage`] [`stat`] [`boot`]
//!                                                                      │
//!                                                            [`statistics::estimate`]
//! ```
//!
//! No KVM, no guest and no other process is needed here: profiles are read on any Linux machine.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod boot;
mod calls;
pub mod conditions;
pub mod diff;
pub mod histogram;
pub mod live;
#[cfg(feature = "fixture")]
pub mod made_up;
pub mod merge;
pub mod naming;
mod numbers;
pub mod report;
pub mod rows;
pub mod rusage;
pub mod session;
pub mod stat;
pub mod store;
pub mod symbolize;
pub mod watch;

pub use report::{Filter, Report, Sort};
pub use rows::{Batch, Sink, SinkError};
pub use store::{Profile, ProfileError, ProfileWriter};
