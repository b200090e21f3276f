//! Ticks of a virtual machine that runs under another VMM: QEMU, Firecracker, Cloud Hypervisor, crosvm, vprof
//! itself.
//!
//! The VMM needs no cooperation and is not modified. Three engines take a sample; [`Attachment`] is their one
//! interface, and `auto` takes the first that works, because the cheapest one needs most from the host:
//!
//! ```text
//!  bpf (the default)   BPF_PROG_TEST_RUN on the vCPU's CPU ──▶ interrupt ──▶ the program `tick` copies
//!                      registers and memory into an array that this process maps; no thread is stopped
//!  ptrace              thread blocked in KVM_RUN?  yes ──▶ halted: counted, not stopped
//!                                                  no  ──▶ PTRACE_SEIZE, PTRACE_INTERRUPT, registers in
//!                                                          kvm_run, memory, PTRACE_DETACH
//!  gdb                 stop and registers of all vCPUs through QEMU's GDB stub
//!
//!  /proc/PID/fd ──▶ descriptors of vCPUs ──▶ their threads, by their KVM_RUN ([`Target::find`])
//!                                    └─────▶ kvm_run, mapped here
//!  /proc/PID/maps ──▶ possible layouts ──▶ the one that the guest's own kernel proves ([`ForeignMemory`])
//! ```
//!
//! A vprof that is killed leaves the VMM as it was: the kernel detaches the programs of `bpf`, and resumes a
//! thread that `ptrace` holds. A vprof that is stopped within a stop is killed by its guard ([`keep_guard`]).
//!
//! # Modules
//!
//! ```text
//! attachment                        all engines, one interface
//! bpf                               samples of the host's kernel; the largest folder
//! ticker  gdb  watch                threads: ticks by ptrace, ticks by a stub, the watcher
//! job_control                       Ctrl-Z
//! target                            a process with vCPUs
//! shared  activity  memory          state of an attachment, halts, guest memory and its layout
//! host_names                        functions of the host's kernel and of the VMM
//! trial                             the first request for registers
//! lock  run_page  stop
//! capabilities                      of the program's file
//! guard                             the process that watches this one
//! process  thread  rsp  maps
//! descriptors  process_stat
//! error
//! ```
//!
//! # Signals
//!
//! The process's `SIGRTMIN + 6` belongs to this crate: it ends a thread's wait for a stop.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod activity;
mod attachment;
mod bpf;
pub mod capabilities;
mod descriptors;
mod error;
pub mod gdb;
mod guard;
mod host_names;
mod job_control;
mod lock;
mod maps;
mod memory;
mod process;
mod process_stat;
mod rsp;
mod run_page;
mod shared;
mod stack;
mod stop;
mod target;
mod thread;
mod ticker;
mod trial;
mod watch;

pub use attachment::{Attachment, EndedAttachment, RateLimit};
pub use bpf::{
    BpfRefusal, CourseExit, CpuTaker, ExitNote, HostStack, HostState, HostTick, KernelCounter,
    KernelRegisters, ProcessCopies, VcpuCourse, VmList, VmSummary, VmmStack, VmmTimes, look_up_host_kernel,
};
pub use error::{AttachError, HostStacksRefusal};
pub use guard::{HELD_LIMIT_MS, keep_guard};
pub use host_names::{HostFrame, HostFrameKind, HostName, HostNames, MissingFrames, NamesRefusal};
pub use job_control::{JobControl, stop_process};
pub use memory::{
    AttachedMemory, ForeignMemory, HostAddr, MemoryLayout, MemoryPiece, StopMemory, StopSource,
};
pub use process::{Process, RunningMachine, find_by_name, find_holder, running_machines};
pub use process_stat::StatFields;
pub use shared::{AttachEvent, AttachmentEnd, PauseCause, PluggedVcpu};
pub use stack::give_back_stack;
pub use target::{EngineChoice, ExitDetail, Target, TargetChoice, VcpuCounts, VcpuRoom};
