//! Where events of the kernel can be seen exactly: its functions that are called once for each, and what their
//! arguments mean.
//!
//! ```text
//!  finish_task_switch(prev)      on the stack of the next task, right after each switch
//!  try_to_wake_up(p, state, ..)  before p is woken, if it is in one of the states
//!  wake_up_new_task(p)           before a new task runs for the first time
//!  release_task(p)               before the last that is left of a task goes
//!  irq_enter_rcu, irq_exit_rcu   around the handler of a hard interrupt, before soft interrupts are served
//!  __common_interrupt(regs, vector)
//!                                between the two, for interrupts of devices (out of line since 5.11)
//!  copy_from_kernel_nofault(dst, src, size), __text_poke(..)
//!                                before the kernel reads its own text to verify it, and before it changes it
//! ```
//!
//! (kernel/sched/core.c, kernel/softirq.c, kernel/exit.c, mm/maccess.c, arch/x86/kernel/alternative.c,
//! arch/x86/include/asm/idtentry.h, Linux 6.1 and 6.12.)
//! Knows nothing of how the calls are seen.

mod site;
mod state;

pub use site::{Event, TripSite, TripSites};
pub(crate) use state::StateLayout;
pub use state::{Rest, TaskState, TaskStates};
