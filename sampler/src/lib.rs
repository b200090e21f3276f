//! Samples vCPUs: the randomized clock, the per-vCPU record path, the collector, the profile file and the estimates.

mod attached;
#[cfg(feature = "bench")]
pub mod bench;
mod boxes;
mod capacity;
mod collector;
pub mod conditions;
pub mod exact;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod guest_clock;
mod initrd;
mod memory;
pub mod microstate;
mod pace;
mod presence;
pub mod record;
pub mod session;
mod task_scan;
mod vcpu;

pub use attached::AttachedSampler;
pub use initrd::Initrd;
pub use memory::GuestMemory;
pub use session::{
    Precision, RateOutOfRange, RecordingConfig, Session, SessionConfig, Status, Totals, VcpuSampler,
    checked_rate,
};
