//! Mode of a sample: user code, a task in the kernel, an interrupt, idleness or a kernel that is still
//! starting.

use guest_linux::IrqContext;

use super::entry::{self, CodeOwner};
use crate::record::SampleRecord;
use profile::rows::Mode;

/// Classifier of samples in the order in which they were drained.
#[derive(Debug, Default)]
pub(crate) struct ModeClassifier {
    seen_tasks: bool,
}

impl ModeClassifier {
    /// Notes that a task with a pid was seen outside of samples: the kernel has set up its tasks.
    pub(crate) fn tasks_exist(&mut self) {
        self.seen_tasks = true;
    }

    /// Returns the mode of `record`. CPL 3 is user code even if the counts disagree: they may be stale at the
    /// time of entry. Until the first program or task is seen, kernel code that belongs to no task is the
    /// kernel booting; so is the very first task, which has pid 0 and becomes the idle task only at the end
    /// of the kernel's start.
    pub(crate) fn classify(&mut self, record: &SampleRecord) -> Mode {
        let task = record.current.and_then(|current| current.task);
        if record.cpl == 3 {
            self.seen_tasks = true;
            return Mode::User;
        }
        if task.is_some_and(|task| task.pid != 0) {
            self.seen_tasks = true;
        }
        if record.halted {
            return Mode::Idle;
        }
        let Some(current) = record.current else {
            return if self.seen_tasks { Mode::Unknown } else { Mode::Boot };
        };
        match (current.serving, task) {
            (IrqContext::Nmi, _) => Mode::Nmi,
            (IrqContext::HardIrq, _) => Mode::HardIrq,
            (IrqContext::SoftIrq, _) => Mode::SoftIrq,
            (IrqContext::Task, Some(task)) if task.pid == 0 && self.seen_tasks => Mode::Idle,
            (IrqContext::Task, Some(task)) if task.pid == 0 => Mode::Boot,
            (IrqContext::Task, _) => Mode::Kernel,
        }
    }
}

/// Corrects the mode of a kernel sample, which the preempt count puts into `mode`, by the functions at its
/// top: [`entry::interrupt`].
pub(crate) fn refined(
    mode: Mode,
    record: &SampleRecord,
    functions: impl Iterator<Item = CodeOwner>,
    returned: impl FnOnce() -> Option<CodeOwner>,
) -> Mode {
    let counted = matches!(mode, Mode::User | Mode::HardIrq | Mode::Nmi);
    if counted || record.halted || record.current.is_none() {
        return mode;
    }
    entry::interrupt(functions, returned).unwrap_or(mode)
}

#[cfg(test)]
mod tests {
    use guest_linux::{CurrentContext, TaskSnapshot};

    use super::*;

    fn record(cpl: u8, serving: IrqContext, pid: Option<i32>) -> SampleRecord {
        let task = pid.map(|pid| TaskSnapshot { pid, tid: pid, ..Default::default() });
        SampleRecord {
            cpl,
            current: Some(CurrentContext { serving, task, ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn what_is_served_is_the_mode() {
        let mut classifier = ModeClassifier::default();
        let mut mode = |serving| classifier.classify(&record(0, serving, Some(7)));
        assert_eq!(mode(IrqContext::Task), Mode::Kernel);
        assert_eq!(mode(IrqContext::SoftIrq), Mode::SoftIrq);
        assert_eq!(mode(IrqContext::HardIrq), Mode::HardIrq);
        assert_eq!(mode(IrqContext::Nmi), Mode::Nmi);
    }

    #[test]
    fn cpl_3_is_user_whatever_the_counts_say() {
        assert_eq!(ModeClassifier::default().classify(&record(3, IrqContext::Nmi, Some(0))), Mode::User);
        assert_eq!(
            ModeClassifier::default().classify(&SampleRecord { cpl: 3, ..Default::default() }),
            Mode::User
        );
    }

    #[test]
    fn idle_is_halted_or_the_idle_task_outside_of_interrupts() {
        let mut classifier = ModeClassifier::default();
        classifier.tasks_exist();
        assert_eq!(classifier.classify(&record(0, IrqContext::Task, Some(0))), Mode::Idle);
        assert_eq!(classifier.classify(&record(0, IrqContext::HardIrq, Some(0))), Mode::HardIrq);
        let halted = SampleRecord { halted: true, ..Default::default() };
        assert_eq!(ModeClassifier::default().classify(&halted), Mode::Idle);
    }

    #[test]
    fn boot_ends_with_the_first_task() {
        let mut classifier = ModeClassifier::default();
        let nothing = SampleRecord::default();
        assert_eq!(classifier.classify(&nothing), Mode::Boot);
        assert_eq!(classifier.classify(&record(0, IrqContext::Task, Some(0))), Mode::Boot);
        assert_eq!(classifier.classify(&record(0, IrqContext::Task, Some(1))), Mode::Kernel);
        assert_eq!(classifier.classify(&nothing), Mode::Unknown);
        assert_eq!(classifier.classify(&record(0, IrqContext::Task, Some(0))), Mode::Idle);
        let mut without_kernel = ModeClassifier::default();
        assert_eq!(without_kernel.classify(&nothing), Mode::Boot);
        without_kernel.classify(&SampleRecord { cpl: 3, ..nothing });
        assert_eq!(without_kernel.classify(&nothing), Mode::Unknown);
        assert_eq!(
            without_kernel.classify(&record(0, IrqContext::Task, None)),
            Mode::Kernel,
            "the interrupt depth is known"
        );
    }
}
