//! Samples that the host's kernel takes, without a stop of the vCPU.
//!
//! ```text
//!  due ──▶ BPF_PROG_TEST_RUN on the CPU where the vCPU's thread was last
//!            └▶ interrupt: the CPU leaves the guest ──▶ program `tick` ──▶ record: registers, and the memory
//!                                                                          that a sample reads
//!          finding: in the guest, in the VMM, halted, elsewhere ◀── returned
//! ```
//!
//! The interrupt is one that the kernel's scheduler uses as well; the thread is not stopped, gets no signal,
//! and the VMM sees nothing. Exits and waits are counted by programs at trace points of the kernel, which
//! detaches them when this process ends, however it ends.
//!
//! The record is in an array that this process maps. The thread that asks for a sample waits for its end, so
//! the record is complete then, and no queue between the two can be full. A sample's code reads the record by
//! guest physical addresses ([`crate::StopMemory`]), as it reads the memory of a vCPU that is stopped.
//!
//! # Modules
//!
//! ```text
//! ticker  mixed          ticks of one vCPU; stops that give some of them stacks
//! vm  target             machine and vCPUs; what the programs know of a vCPU
//! course                 what the kernel counts of a vCPU
//! plans                  what samples copy of processes besides stacks
//! notes                  exits that the kernel has noted with the guest's code
//! host_stack             stacks of vCPUs' threads in the host
//! finder                 vCPUs, threads and memory in the kernel's data
//! program  test_run      the programs; running one
//! area                   the memory that they share with this process
//! partial                registers of a KVM that does not have all of them in its memory
//! host_kernel            offsets in the host's kernel by its types, looked up once
//! offsets  shared        names of these offsets; structures of the programs
//! refusal                reasons why this is not available
//! ```

mod area;
mod course;
mod finder;
mod host_kernel;
mod host_stack;
mod mixed;
mod notes;
mod offsets;
mod partial;
mod plans;
mod program;
mod refusal;
mod shared;
mod target;
mod test_run;
#[cfg(test)]
mod tests;
mod ticker;
mod vm;

pub(crate) use area::registers;
pub use course::{CourseExit, CpuTaker, KernelCounter, VcpuCourse, VmmTimes};
pub(crate) use finder::{KernelThread, KernelVcpu};
pub use host_kernel::look_up_host_kernel;
pub use host_stack::{HostStack, HostState, HostTick, VmmStack};
pub(crate) use mixed::{MixedStops, STACKS_HZ};
pub use notes::ExitNote;
pub use plans::ProcessCopies;
pub use refusal::{BpfRefusal, VmList, VmSummary};
pub(crate) use ticker::SampledTicker;
pub use vm::KernelRegisters;
pub(crate) use vm::{FoundVm, SampledVm, VmSearch};
