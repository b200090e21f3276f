//! Rows of the profile, which the collector passes in batches to a [`Sink`].
//!
//! A batch is serializable: inside the portable host it travels over a byte stream to the `vprof` outside,
//! which writes the same rows into the profile file.

mod accounting;
mod batch;
mod charged;
mod code;
mod column;
mod exact;
mod host;
mod memory;
mod microstates;
mod page_fault;
mod run;
mod sample;
mod task_scan;
mod task_state;
mod trip;
mod vcpu;
mod wait_reason;
mod who;

pub use accounting::*;
pub use batch::Batch;
pub use charged::{Charged, is_ksoftirqd};
pub use code::*;
pub use exact::*;
pub use host::*;
pub use memory::*;
pub use microstates::Microstates;
pub use page_fault::PageFaultKind;
pub use run::*;
pub use sample::*;
pub use task_scan::*;
pub use task_state::TaskState;
pub use trip::*;
pub use vcpu::*;
pub use wait_reason::WaitReason;
pub use who::*;

use crate::watch::WatchReport;

/// Failure to write a batch.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct SinkError(pub String);

/// A receiver of batches: the profile file, or a stream to the `vprof` outside of the portable host.
pub trait Sink: Send + 'static {
    /// Writes all rows or none.
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError>;
    /// Takes a report on the guest, which refers to rows that were written before.
    fn report(&mut self, report: &WatchReport) -> Result<(), SinkError> {
        let _unused = report;
        Ok(())
    }
    /// Ends the rows; called once, after the last batch.
    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}
