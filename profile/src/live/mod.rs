//! Tables of a run in progress: sums of its batches, over the whole run and over its last seconds.
//!
//! ```text
//!  collector ──▶ [`LiveSink`] ──▶ profile
//!                    └──▶ [`Tables`] ◀── [`Tables::snapshot`], for each refresh
//! ```
//!
//! A batch is counted by small numbers; the more expensive work (names, stacks, sorting) is done for a
//! snapshot. All memory is bounded, however long the run is. Shares count samples, those of all vCPUs alike;
//! the report of a profile is more precise.

mod code;
mod console;
mod counts;
mod detail;
mod memory;
mod snapshot;
mod tables;
mod task_scan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use detail::{CallShare, CallsView, Detail, DetailView, SamplePart};
pub use snapshot::{
    ExitRate, FunctionShare, MemoryShare, ModeShares, Note, ProcessShare, ProgramShare, Sampling, Snapshot,
    TaskShare, VcpuShare,
};
pub use tables::{Span, StackFunction, Tables, View};

use crate::rows::{Batch, Sink, SinkError};
use crate::watch::WatchReport;

/// Tables that a sink fills and others read.
#[derive(Clone, Default)]
pub struct SharedTables(Arc<Mutex<Tables>>);

impl fmt::Debug for SharedTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedTables")
    }
}

impl SharedTables {
    /// Locks the tables until the guard is dropped; the sink waits for that, the guest does not.
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        // A batch that could not be counted to its end leaves counts that are too low, and no other damage.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sink that counts what it passes on.
pub struct LiveSink {
    to: Box<dyn Sink>,
    tables: SharedTables,
}

impl fmt::Debug for LiveSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveSink")
    }
}

impl LiveSink {
    /// Creates a sink that passes batches on to `to`, and counts those that `to` has accepted.
    pub fn new(to: Box<dyn Sink>, tables: SharedTables) -> Self {
        Self { to, tables }
    }
}

impl Sink for LiveSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.to.write(batch)?;
        self.tables.lock().add(batch);
        Ok(())
    }

    fn report(&mut self, report: &WatchReport) -> Result<(), SinkError> {
        self.to.report(report)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.to.finish()
    }
}
