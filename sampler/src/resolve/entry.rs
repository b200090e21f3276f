//! Code of the kernel's entry and exit that belongs to an interrupt.
//!
//! The preempt count shows a hard interrupt from `irq_enter_rcu` to `irq_exit_rcu` only. Before and after,
//! the functions between the sample and the registers of the interrupted code show it:
//!
//! ```text
//!                                      preempt count
//!   asm_sysvec_X  error_entry              -          entry: the interrupt's
//!   sysvec_X  irqentry_enter               -
//!   irq_enter_rcu ... irq_exit_rcu     hard interrupt
//!     __do_softirq                     soft interrupt
//!   irqentry_exit                          -          exit: the interrupt's
//!     schedule, signals, task work         -          the task's, which runs on or gives its CPU away
//!   error_return ... iretq                 -          shared by all ways out: by what returned to it
//! ```
//!
//! Sources: arch/x86/entry/entry_64.S, arch/x86/include/asm/idtentry.h and kernel/entry/common.c of Linux
//! 5.10, 6.1, 6.12 and 7.3.

use super::interrupts::{is_hard_entry, is_soft_entry};
use profile::rows::Mode;

/// Functions that hard interrupts call before and after their handlers (kernel/softirq.c).
const AROUND_HANDLERS: [&str; 5] =
    ["irq_enter_rcu", "irq_exit_rcu", "__irq_exit_rcu", "irq_enter", "irq_exit"];
/// Entry functions of non-maskable interrupts.
const NMI_ENTRIES: [&str; 3] = ["asm_exc_nmi", "exc_nmi", "fred_exc_nmi"];
/// Work of the kernel for a task before the task runs on, after any entry.
const TASK_WORK: [&str; 7] = [
    "schedule",
    "__schedule",
    "preempt_schedule_irq",
    "exit_to_user_mode_loop",
    "arch_do_signal_or_restart",
    "task_work_run",
    "switch_fpu_return",
];
/// Function that checks for such work and calls it (until 6.8; inlined since).
const WORK_CALLER: &str = "exit_to_user_mode_prepare";
/// Labels in the code that restores the registers.
const WAYS_OUT: [&str; 8] = [
    "error_return",
    "common_interrupt_return",
    "swapgs_restore_regs_and_return_to_usermode",
    "restore_regs_and_return_to_kernel",
    "native_iret",
    "native_irq_return_iret",
    "native_irq_return_ldt",
    "paranoid_exit",
];

/// Owner of the code that a function of the kernel is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CodeOwner {
    /// The function shows no owner.
    #[default]
    Other,
    /// A hard interrupt.
    HardIrq,
    /// A non-maskable interrupt.
    Nmi,
    /// A soft interrupt.
    SoftIrq,
    /// The task.
    Task,
    /// The task, if the function has called another.
    WorkCaller,
    /// The entry that has returned to it.
    WayOut,
}

impl CodeOwner {
    /// Returns the owner by the function's symbol.
    pub(crate) fn from_symbol(symbol: &str) -> Self {
        if is_hard_entry(symbol) || AROUND_HANDLERS.contains(&symbol) {
            Self::HardIrq
        } else if NMI_ENTRIES.contains(&symbol) {
            Self::Nmi
        } else if is_soft_entry(symbol) {
            Self::SoftIrq
        } else if TASK_WORK.contains(&symbol) {
            Self::Task
        } else if symbol == WORK_CALLER {
            Self::WorkCaller
        } else if WAYS_OUT.contains(&symbol) {
            Self::WayOut
        } else {
            Self::Other
        }
    }
}

/// Returns the interrupt that code belongs to although the preempt count does not show it. `functions` were
/// called since registers were last saved, innermost first. `returned` is the function that returned to code
/// which restores registers.
pub(crate) fn interrupt(
    functions: impl Iterator<Item = CodeOwner>,
    returned: impl FnOnce() -> Option<CodeOwner>,
) -> Option<Mode> {
    let mode = |part| match part {
        CodeOwner::HardIrq => Some(Mode::HardIrq),
        CodeOwner::Nmi => Some(Mode::Nmi),
        _ => None,
    };
    for (depth, part) in functions.enumerate() {
        match part {
            CodeOwner::WayOut if depth == 0 => return mode(returned()?),
            CodeOwner::WorkCaller if depth == 0 => {}
            CodeOwner::Other => {}
            part => return mode(part),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Classifies functions by their names, innermost first.
    fn by(functions: &[&str]) -> Option<Mode> {
        interrupt(functions.iter().map(|symbol| CodeOwner::from_symbol(symbol)), || None)
    }

    #[test]
    fn entry_and_exit_are_the_interrupts() {
        let hard = Some(Mode::HardIrq);
        assert_eq!(by(&["asm_sysvec_apic_timer_interrupt"]), hard);
        assert_eq!(by(&["error_entry", "asm_sysvec_call_function_single"]), hard);
        assert_eq!(by(&["irq_entries_start"]), hard);
        assert_eq!(
            by(&["rcu_irq_enter", "irqentry_enter", "common_interrupt", "asm_common_interrupt"]),
            hard
        );
        assert_eq!(by(&["irqentry_exit", "fred_sysvec_reboot", "fred_entry_from_user"]), hard);
        // Linux 5.10 checks for the task's work in a separate function.
        assert_eq!(by(&["exit_to_user_mode_prepare", "irqentry_exit", "sysvec_reboot"]), hard);
        assert_eq!(by(&["irq_exit_rcu"]), hard, "all that is known without a stack");
        assert_eq!(by(&["exc_nmi", "asm_exc_nmi"]), Some(Mode::Nmi));
    }

    #[test]
    fn what_a_task_does_before_it_runs_on_is_the_tasks() {
        let entered = ["irqentry_exit", "sysvec_apic_timer_interrupt", "asm_sysvec_apic_timer_interrupt"];
        for inner in [
            &["finish_task_switch", "__schedule", "preempt_schedule_irq"][..],
            &["task_work_add", "task_work_run"],
            &["get_signal", "arch_do_signal_or_restart", "exit_to_user_mode_prepare"],
            &["blkcg_maybe_throttle_current", "exit_to_user_mode_prepare"],
            &["exit_to_user_mode_loop"],
        ] {
            assert_eq!(by(&[inner, &entered].concat()), None, "{inner:?}");
        }
    }

    #[test]
    fn exceptions_system_calls_and_what_interrupts_raise_are_none() {
        assert_eq!(by(&["error_entry", "asm_exc_page_fault"]), None);
        assert_eq!(by(&["irqentry_enter", "exc_page_fault", "asm_exc_page_fault"]), None);
        assert_eq!(by(&["do_syscall_64", "entry_SYSCALL_64_after_hwframe"]), None);
        assert_eq!(
            by(&["net_rx_action", "handle_softirqs", "irq_exit_rcu", "sysvec_apic_timer_interrupt"]),
            None
        );
        assert_eq!(by(&["error_entry"]), None, "of an exception or of an interrupt");
        assert_eq!(by(&[]), None);
    }

    #[test]
    fn the_way_out_belongs_to_what_has_returned() {
        let out = |returned: Option<&str>| {
            let part = returned.map(CodeOwner::from_symbol);
            interrupt([CodeOwner::from_symbol("native_irq_return_iret")].into_iter(), || part)
        };
        assert_eq!(out(Some("asm_sysvec_reschedule_ipi")), Some(Mode::HardIrq));
        assert_eq!(out(Some("asm_exc_nmi")), Some(Mode::Nmi));
        assert_eq!(out(Some("asm_exc_page_fault")), None);
        assert_eq!(out(None), None);
    }
}
