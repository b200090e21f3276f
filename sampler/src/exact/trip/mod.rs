//! Calls of functions that are watched on request (`--trip`): recorded on the vCPU's own thread, made rows by
//! the collector.
//!
//! The probes, the way in which they are set and removed, and the cost of their exits are those of exact
//! mode. Calls have separate rings: a function that is called too often loses no event of exact mode.

mod collect;
mod record;
#[cfg(test)]
mod tests;
mod thinning;

pub(crate) use collect::TripCollector;
pub(crate) use record::{TripCall, TripRecorder};
