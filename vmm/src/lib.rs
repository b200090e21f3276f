//! Boots an unmodified Linux on KVM and lets an [`Observer`] watch its vCPUs.
//!
//! Knows nothing of Linux internals, of profiling or of image formats. [`Machine::start`] takes a
//! [`VmConfig`] and makes
//!
//! - memory with a hole below 4 GiB, page tables, the kernel, its initrd and command line,
//! - ACPI tables for a hardware-reduced platform,
//! - COM1, and virtio disks, a random number generator and, where wanted, a network card, a
//!   console and sockets on a PCI bus,
//! - vCPUs, each on a thread of its own with a timer that ticks its observer.
//!
//! # Signals
//!
//! The process' `SIGRTMIN + 4` and `SIGRTMIN + 5` belong to this crate: the first is the vCPU
//! timers', the second gets vCPUs out of KVM_RUN when the machine ends or is to stand still.

mod acpi;
mod boot;
mod bus;
mod clock;
pub mod config;
mod control;
pub mod counters;
mod cpuid;
mod devices;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod injected;
mod kvm;
mod machine;
mod memory;
pub mod net;
pub mod observer;
mod pci;
pub mod probe;
mod regions;
mod resident;
mod serial;
mod tripwire;
mod vcpu;
mod virtio;
pub mod vsock;

pub use boot::check_kernel;
pub use clock::monotonic_ns;
pub use config::{
    Console, Disk, DiskFile, DiskFormat, DiskMode, Extra, FLAT_ENTRY, Network, Payload, VmConfig, Vsock,
};
pub use counters::{CounterSum, Counters};
pub use error::{DiskError, KernelError, KvmError, StartError, WaitError};
pub use injected::{Injected, Injections};
pub use machine::{COMMAND_PORT, EXIT_PORT, End, Ended, Machine};
pub use observer::{Activity, Exit, Observer, Tick, Trip, Unobserved, Verdict, stands_at_reset};
pub use regions::{Region, Space};
pub use tripwire::{
    AtWithdrawal, MAX_SITES, Site, TRIP_KINDS, TRIP_NOP, TRIP_PORT, TRIP_PORTS, TripwireError, Tripwires,
    WithdrawReason, Withdrawn,
};
pub use vm_memory::GuestMemoryMmap;
