//! Reads a Linux guest from outside: from its physical memory and registers alone.
//!
//! Knows no KVM, so all of it is testable on a RAM dump, on an array, or on a fuzzer's bytes.
//! Whatever is read here belongs to the guest and may be hostile: every list, table and length is
//! bounded, nothing panics, and what cannot be read is a reason ([`Missing`]), not an abort.
//!
//! ```text
//! CR3 -> page tables -> kernel image -> kallsyms -> BTF -> offsets of members
//!        (paging)       (image)         (kallsyms)  (btf)  (layout)
//!                                          |                  |
//!                        functions by address        current task, tasks, modules, stacks,
//!                                                    mappings, files, page cache, interrupts
//!
//! RSP -> copy of the stacks -> ORC -> frames of the kernel -> registers of the user -> CFI -> frames of the program
//!        (stack)               (unwind)                                                (cfi, with elf and names)
//! ```
//!
//! [`Kernel::find`] does the upper line once; the questions below it are asked of the [`Kernel`] while
//! the guest runs on. Only [`CurrentReader::read`] and [`StackReader::copy`] are made for the moment of a
//! sample.

pub mod address;
mod books;
mod btf;
mod clock;
mod current;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod gather;
mod generated;
mod image;
mod interrupt;
mod iomem;
pub mod journal;
mod kallsyms;
mod kernel;
mod layout;
pub mod memory;
mod missing;
mod module;
mod pagecache;
pub mod paging;
mod place;
mod preempt;
mod process;
mod pt_regs;
mod stack;
mod symbol;
mod task;
mod task_scan;
#[cfg(test)]
mod tests;
mod tree;
mod tripwire;
mod unwind;
mod view;

pub use address::{PhysAddr, VirtAddr};
pub use books::{
    ChildCpuTimes, CpuStat, CpuTime, ExitAccounting, ExitAccountingReader, ProcessCpuTimes, ThreadCpuTimes,
};
pub use clock::GuestClock;
pub use current::{Current, CurrentReader};
pub use generated::GeneratedCode;
pub use interrupt::{InterruptAction, InterruptLine, Interrupts, Softirq, Vector};
pub use kernel::{FindStep, Kernel};
pub use memory::{FlatMemory, PhysicalMemory};
pub use missing::Missing;
pub use module::Modules;
pub use pagecache::PageCache;
pub use paging::{AddressSpace, Translation};
pub use place::KernelIdentity;
pub use preempt::IrqContext;
pub use process::{
    FileRef, Mapping, MappingKind, Process, RootDirectory, StackedFile, container, systemd_unit,
};
pub use stack::{StackCopy, StackGaps, StackReader, StackSample};
pub use symbol::SymbolAt;
pub use task::TaskSnapshot;
pub use task_scan::{ScanResult, TaskListReader, TaskObservation};
pub use tripwire::{Event, ProbeSite, ProbeSites, RunState, SchedState, SchedStateReader};
pub use unwind::{Broken, FrameKind, KernelFrame, KernelUnwinder, UserRegisters, WalkEnd};
