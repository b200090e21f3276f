//! Evaluates the conditions that a run waits for.
//!
//! ```text
//!  armed ──▶ [`SamplingGate`] ◀── console, marks, tasks, control groups, as the collector gets them
//!              └── closed: samples are taken, but none is kept; the time counts as not sampled
//! ```
//!
//! The collector evaluates conditions every 10 ms. It lists tasks every 20 ms while a process or a unit is
//! awaited, because a process that lives for less would be missed by the usual list of each second.

mod gate;
mod progress;
mod trigger;

pub(crate) use gate::{GateAction, SamplingGate};
pub(crate) use progress::ProgressDetector;
pub(crate) use trigger::ConditionState;

#[cfg(test)]
mod tests;
