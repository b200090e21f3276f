//! Ticks of a virtual machine that runs under another VMM: QEMU, Firecracker, Cloud Hypervisor, crosvm, vprof itself.
//!
//! Nothing is asked of the VMM and nothing is put into it. A vCPU's thread is known by what it does, its registers come
//! through the page that KVM shares with the VMM, and the guest's memory is read out of the VMM's.
//!
//! ```text
//!  /proc/PID/fd ──▶ descriptors of vCPUs ──▶ their threads, by the KVM_RUN that they are in   ([`Target::look`])
//!                                    └─────▶ kvm_run, mapped here
//!  due: thread blocked in KVM_RUN?  yes ──▶ halted: counted, not stopped
//!                                   no  ──▶ PTRACE_SEIZE, PTRACE_INTERRUPT ── registers in kvm_run, memory ── PTRACE_DETACH
//!  /proc/PID/maps ──▶ layouts that may be ──▶ one that the guest's own kernel proves          ([`ForeignMemory`])
//! ```
//!
//! Between two ticks nothing is attached, so that a vprof that dies leaves nothing behind: within a stop the kernel lets the
//! thread go by itself.
//!
//! # Signals
//!
//! The process' `SIGRTMIN + 6` belongs to this crate: it gets a thread that waits for a stop out of its wait.

mod error;
pub mod gdb;
mod lock;
mod machine;
mod memory;
mod observer;
mod process;
mod run_page;
mod stop;
mod target;
mod thread;
mod vcpu;
mod watch;

pub use error::AttachError;
pub use machine::{Attached, End, Ended, News, Standing};
pub use memory::{ForeignMemory, Layout, Piece};
pub use observer::{Missed, Observer, Tick};
pub use process::{Process, named};
pub use target::Target;
pub use thread::ThreadId;
