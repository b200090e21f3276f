//! Sampling of vCPUs: the randomized clock, the per-vCPU record path, and the collector that writes the
//! profile's rows.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod attached;
#[cfg(feature = "bench")]
pub mod bench;
mod buffer_pool;
mod capacity;
mod collector;
mod conditions;
mod console;
mod event_thread;
mod exact;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod guest_clock;
mod guest_cpu;
mod initrd;
mod kexec;
mod managed;
mod memory;
mod memory_use;
pub mod microstate;
pub mod record;
mod resolve;
mod sampling_rate;
pub mod session;
mod shared;
mod task_scan;
mod task_state;
mod vcpu;
mod watch;

pub use attached::AttachedSampler;
pub use collector::standstill::STANDSTILL;
/// Functions of the guest's kernel that a session records calls of, at most.
pub use guest_linux::MAX_WATCHED as MAX_TRIPS;
pub use initrd::Initrd;
pub use memory::GuestMemory;
pub use session::{PrecisionStatus, RecordingConfig, Session, SessionConfig, SessionTotals, VcpuSampler};
pub use watch::WatchConfig;
