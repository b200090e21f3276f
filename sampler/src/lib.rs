//! Samples vCPUs: the randomized clock, the per-vCPU record path, the collector, the profile file and the estimates.

mod attached;
pub mod batch;
pub mod bench;
pub mod boot;
mod boxes;
mod capacity;
mod census;
pub mod clock;
mod collector;
pub mod conditions;
pub mod diff;
pub mod estimate;
pub mod exact;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod guest_clock;
mod initrd;
pub mod live;
mod memory;
pub mod microstate;
mod naming;
mod pace;
mod presence;
pub mod profile;
pub mod record;
pub mod report;
pub mod rusage;
pub mod session;
pub mod simulate;
pub mod stat;
pub mod symbolize;
mod vcpu;

pub use batch::{Batch, Sink, SinkError};
pub use clock::ClockKind;
pub use initrd::Initrd;
pub use memory::GuestMemory;
pub use profile::{Profile, ProfileError, ProfileWriter};
pub use report::{Filter, Report, Sort};
pub use session::{OpenFiles, Precision, Session, SessionConfig, Status, Totals, VcpuSampler, no_files};
pub use symbols::elf::ReadAt;
pub use symbols::names::GuestFiles;
