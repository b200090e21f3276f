//! The tables of a run that goes on: what its batches add up to, over the whole run and over its last seconds.
//!
//! ```text
//!  collector ──▶ [`LiveSink`] ──▶ profile
//!                    └──▶ [`Tables`] ◀── [`Tables::snapshot`], whenever somebody looks
//! ```
//!
//! A batch is counted by small numbers; what costs more (names, stacks, sorting) is done when somebody looks. All of it is
//! bounded, however long the run is. Shares count samples, each vCPU's alike; the report of a profile knows more.

mod code;
mod console;
mod counts;
mod snapshot;
mod tables;
mod task_scan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use snapshot::{
    ExitRate, FunctionShare, ModeShares, Note, ProcessShare, Sampling, Snapshot, TaskShare, VcpuShare,
};
pub use tables::{Span, Tables, View};

use crate::rows::{Batch, Sink, SinkError};

/// Tables that a sink fills and others look at.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Tables>>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    /// The tables, for as long as the guard lives; the sink waits meanwhile, the guest does not.
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        // A batch that could not be counted to its end leaves counts that are too low, and nothing worse.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sink that counts what it passes on.
pub struct LiveSink {
    to: Box<dyn Sink>,
    tables: Shared,
}

impl fmt::Debug for LiveSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveSink")
    }
}

impl LiveSink {
    /// Passes batches on to `to`, and counts those that it has taken.
    pub fn new(to: Box<dyn Sink>, tables: Shared) -> Self {
        Self { to, tables }
    }
}

impl Sink for LiveSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.to.write(batch)?;
        self.tables.lock().add(batch);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.to.finish()
    }
}
