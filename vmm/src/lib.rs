//! Boots an unmodified Linux on KVM and lets an [`Observer`] watch its vCPUs.
//!
//! The crate knows neither Linux internals nor profiling nor image formats. [`Machine::start`] takes a
//! [`VmConfig`] and makes
//!
//! - memory with a hole below 4 GiB, page tables, the kernel, its initrd and command line,
//! - ACPI tables for a hardware-reduced platform,
//! - COM1, and on a PCI bus virtio disks, a random number generator and, if configured, a network card, a
//!   console and ports,
//! - vCPUs, each on its own thread with a timer that ticks its observer.
//!
//! [`observer`] is also the interface to profilers of foreign vCPUs, of other VMMs.
//!
//! # Signals
//!
//! The process's `SIGRTMIN + 4` and `SIGRTMIN + 5` belong to this crate. The first is the signal of the vCPU
//! timers. The second makes vCPUs leave KVM_RUN when the machine ends or is paused.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod acpi;
mod boot;
mod bus;
mod clock;
pub mod config;
mod control;
pub mod counters;
mod cpuid;
mod devices;
mod end;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod host_kernel;
mod injected;
mod kvm;
pub mod kvm_check;
mod machine;
mod memory;
pub mod net;
pub mod observer;
mod pci;
mod probe;
mod regions;
mod resident;
mod serial;
mod vcpu;
mod virtio;
pub mod x86;

pub use boot::{check_command_line, check_kernel, longest_command_line};
pub use clock::monotonic_ns;
pub use config::{
    Console, CpuFeatures, Disk, DiskFile, DiskFormat, DiskMode, Extra, FLAT_ENTRY, Network, OUTPUT_PORTS,
    OutputPorts, Payload, PortReader, VmConfig,
};
pub use counters::{CounterSum, Counters};
pub use end::{MachineEnd, TRIPLE_FAULT};
pub use error::{DiskError, KernelError, KvmError, StartError, WaitError};
pub use injected::{InjectionCount, Injections};
pub use machine::{COMMAND_PORT, EXIT_PORT, EndedMachine, Machine};
pub use observer::{
    Activity, ActivitySource, AttachedThread, Exit, KnownRegisters, MissReason, Observer, ProbeHit,
    ProbeVerdict, ThreadId, ThreadStatistics, ThreadTimes, Tick, TickContext, Unobserved, is_at_reset,
};
pub use probe::{
    MAX_PROBES, PROBE_KINDS, PROBE_NOP, PROBE_PORT, PROBE_PORTS, ProbeError, ProbePoint, ProbeSet,
    WithdrawReason, Withdrawal, WithdrawalHandler,
};
pub use regions::{Region, Space};
pub use vm_memory::{GuestAddress, GuestMemoryMmap};
