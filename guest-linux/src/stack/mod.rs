//! Copies of a guest's stacks at a sample, made with the guest CPU stopped, to be unwound later.
//!
//! ```text
//! user mode   user stack: from RSP - 128 (red zone) up, to a limit, without pages that are not present
//! kernel mode the stack that RSP is on, from RSP (in entry code from 136 bytes below) to its top, then the
//!             stack that it interrupted, and so on:
//!               interrupt stack   its topmost word is the RSP that was left   (hardirq_stack_ptr)
//!               exception stack,  its topmost words are the iret frame        (TSS: sp0, ist)
//!               entry stack
//!               task's stack      its topmost words are the user's registers  (task_pt_regs)
//!             then the user stack, for a task that has one
//! ```
//!
//! Pages are found by the kernel's own tables (`init_top_pgt`) for its stacks and by CR3 for the user's. A
//! copy allocates nothing, takes no lock, and is bounded: four kernel stacks of at most their size, one user
//! stack, together no more than [`StackCopy::BYTES`].
//!
//! Sources: arch/x86/include/asm/irq_stack.h, arch/x86/kernel/dumpstack_64.c,
//! arch/x86/include/asm/cpu_entry_area.h, arch/x86/include/asm/processor.h (`task_pt_regs`) of Linux 5.10,
//! 6.1 and 6.12.

mod copy;
mod reader;
#[cfg(test)]
pub(crate) mod tests;

pub use copy::{StackCopy, StackGaps};
pub(crate) use reader::entry_code;
pub use reader::{RED_ZONE, SleepingTask, StackReader, StackSample};
