//! Sites at which events of the kernel can be seen exactly: its functions that are called once for each, and
//! the meaning of their arguments.
//!
//! ```text
//!  finish_task_switch(prev)      on the stack of the next task, right after each switch
//!  try_to_wake_up(p, state, ..)  before p is woken, if it is in one of the states
//!  wake_up_new_task(p)           before a new task runs for the first time
//!  release_task(p)               before the last that is left of a task goes
//!  irq_enter_rcu, irq_exit_rcu   around the handler of a hard interrupt, before soft interrupts are served
//!  __common_interrupt(regs, vector)
//!                                between the two, for interrupts of devices (out of line since 5.11)
//!  ftrace_arch_code_modify_prepare()
//!                                before the function tracer verifies and changes the beginnings of functions
//!  __text_poke(..)               before the kernel changes its text
//!  read_kcore_iter(..)           before a program is shown it
//! ```
//!
//! (kernel/sched/core.c, kernel/softirq.c, kernel/exit.c, arch/x86/kernel/ftrace.c,
//! arch/x86/kernel/alternative.c, fs/proc/kcore.c, arch/x86/include/asm/idtentry.h, Linux 6.1 and 6.12.)
//!
//! All but one begin with a no-op for the function tracer. The tracer's own code has none, but the first
//! function that it calls is `mutex_lock(&text_mutex)`: the instruction that loads the argument serves as the
//! site. Any other function of the image that begins with the no-op can be watched on request
//! ([`WatchedFunction`]). This module does not know how the calls are observed.

mod sched_state;
mod site;
mod trace;
mod watch;

pub use sched_state::{RunState, SchedState, SchedStateReader};
pub use site::{MAX_WATCHED, ProbeEvent, ProbeSite, ProbeSites};
pub use watch::{CannotWatch, WatchedFunction};
