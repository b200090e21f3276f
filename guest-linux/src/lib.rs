//! Reads a Linux guest from outside: from its physical memory and registers alone.
//!
//! The crate does not use KVM, so all of it is testable on a RAM dump, on an array, or on a fuzzer's bytes.
//! Everything that is read here belongs to the guest and may be hostile: every list, table and length is
//! bounded, nothing panics, and a part that cannot be read is a reason ([`Missing`]), not an abort.
//!
//! ```text
//! CR3 -> page tables -> kernel image -> kallsyms -> BTF -> offsets of members
//!        (paging)       (image)         (kallsyms)  (btf)  (layout)
//!                                          |                  |
//!                        functions by address        current task, tasks, modules, stacks,
//!                                                    mappings, files, page cache, interrupts
//!
//! RSP -> copy of the stacks -> ORC -> kernel frames -> user registers -> CFI -> frames of the program
//!        (stack)               (unwind)                                  (symbols::cfi, elf and names)
//! ```
//!
//! [`Kernel::find`] does the upper line once; the questions below it are asked of the [`Kernel`] while
//! the guest runs on. Only [`CurrentReader::read`] and [`StackReader::copy`] are made for the moment of a
//! sample.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod accounting;
mod btf;
mod clock;
mod current;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod frame;
mod gather;
mod generated;
mod image;
mod interrupt;
mod iomem;
pub mod journal;
mod kallsyms;
mod kernel;
mod kernel_identity;
mod layout;
pub mod memory;
mod memory_use;
mod missing;
mod module;
mod pagecache;
pub mod paging;
mod per_cpu;
mod preempt;
mod probe;
mod process;
mod progress;
mod pt_regs;
mod sample_reads;
mod stack;
mod symbol;
mod task;
mod task_scan;
#[cfg(test)]
mod tests;
mod tree;
mod unwind;
mod view;

pub use accounting::{ExitAccounting, ExitAccountingReader, ProcessCpuTimes, ThreadCpuTimes};
pub use btf::{ArgumentKind, FunctionArgument, HostLayouts, HostTypes};
pub use clock::GuestClock;
pub use current::{CurrentContext, CurrentReader};
pub use frame::{KernelWalkError, UserRegisters, WalkEnd};
pub use generated::GeneratedCode;
pub use interrupt::{InterruptAction, InterruptLine, InterruptTables, InterruptVector, Softirq};
pub use kernel::{FindStep, Kernel};
pub use kernel_identity::KernelIdentity;
pub use memory::{FlatMemory, PhysicalMemory};
pub use memory_use::{
    FileMemory, FilesystemMemory, GroupMemory, GroupStat, Holders, MemoryCounters, MemoryPart, MemoryReader,
    MemoryUse, ProcessMemory, SlabMemory,
};
pub use missing::Missing;
pub use module::Modules;
pub use pagecache::PageCache;
pub use paging::{AddressSpace, Translation};
pub use preempt::IrqContext;
pub use probe::{
    CannotWatch, MAX_WATCHED, ProbeEvent, ProbeSite, ProbeSites, RunState, SchedState, SchedStateReader,
    WatchedFunction,
};
pub use process::{
    FileRef, Mapping, MappingKind, Process, RootDirectory, StackedFile, container, systemd_unit,
};
pub use progress::GracePeriod;
pub use pt_regs::{WORDS as PT_REGS_WORDS, saved_registers};
pub use sample_reads::{SampleReads, StructurePart};
pub use stack::{RED_ZONE, SleepingTask, StackCopy, StackGaps, StackReader, StackSample};
pub use symbol::SymbolAt;
pub use symbols::{AddressKind, CodeAddr, FileOffset, PhysAddr, VirtAddr};
pub use task::TaskSnapshot;
pub use task_scan::{ScanResult, TaskListReader, TaskObservation};
pub use unwind::KernelUnwinder;
