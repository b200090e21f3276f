//! What a sample hit: user code, a task in the kernel, an interrupt, idleness or a kernel that is still starting.

use crate::batch::Mode;
use crate::record::Record;

/// `NMI_MASK`, `HARDIRQ_MASK` and `SOFTIRQ_OFFSET` of the preempt count (linux/preempt.h, 6.1 and 6.12). The softirq
/// field counts in steps of two for `local_bh_disable`, so only its lowest bit says that a soft interrupt is served.
const NMI: u32 = 0x00f0_0000;
const HARDIRQ: u32 = 0x000f_0000;
const SERVING_SOFTIRQ: u32 = 0x0000_0100;

/// Classifies samples in the order in which they were drained.
#[derive(Debug, Default)]
pub(crate) struct Classifier {
    seen_tasks: bool,
}

impl Classifier {
    /// A task with a pid was seen outside of samples: the kernel has set up its tasks.
    pub(crate) fn tasks_exist(&mut self) {
        self.seen_tasks = true;
    }

    /// Where `record` hit. CPL 3 is user code whatever the counts say: they may be stale in the moment of entry.
    /// Until the first program or task has been seen, kernel code that belongs to no task is the kernel booting; so
    /// is the very first task, which has pid 0 and becomes the idle task only at the end of the kernel's start.
    pub(crate) fn classify(&mut self, record: &Record) -> Mode {
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
        let count = current.preempt_count;
        if count & NMI != 0 {
            return Mode::Nmi;
        }
        if count & HARDIRQ != 0 {
            return Mode::HardIrq;
        }
        if count & SERVING_SOFTIRQ != 0 {
            return Mode::SoftIrq;
        }
        match task {
            Some(task) if task.pid == 0 && self.seen_tasks => Mode::Idle,
            Some(task) if task.pid == 0 => Mode::Boot,
            _ => Mode::Kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use symbols::{Current, TaskSnapshot};

    use super::*;

    fn record(cpl: u8, preempt_count: u32, pid: Option<i32>) -> Record {
        let task = pid.map(|pid| TaskSnapshot { pid, tid: pid, ..Default::default() });
        Record { cpl, current: Some(Current { preempt_count, task }), ..Default::default() }
    }

    #[test]
    fn the_preempt_count_tells_interrupts() {
        let mut classifier = Classifier::default();
        let mut mode = |count| classifier.classify(&record(0, count, Some(7)));
        assert_eq!(mode(0x8000_0000), Mode::Kernel);
        assert_eq!(mode(0x8000_0003), Mode::Kernel);
        assert_eq!(mode(0x0000_0200), Mode::Kernel, "bottom halves off is not serving one");
        assert_eq!(mode(0x0000_0100), Mode::SoftIrq);
        assert_eq!(mode(0x0000_0301), Mode::SoftIrq);
        assert_eq!(mode(0x0001_0100), Mode::HardIrq);
        assert_eq!(mode(0x0011_0000), Mode::Nmi);
    }

    #[test]
    fn cpl_3_is_user_whatever_the_counts_say() {
        assert_eq!(Classifier::default().classify(&record(3, 0x0011_0100, Some(0))), Mode::User);
        assert_eq!(Classifier::default().classify(&Record { cpl: 3, ..Default::default() }), Mode::User);
    }

    #[test]
    fn idle_is_halted_or_the_idle_task_outside_of_interrupts() {
        let mut classifier = Classifier::default();
        classifier.tasks_exist();
        assert_eq!(classifier.classify(&record(0, 0, Some(0))), Mode::Idle);
        assert_eq!(classifier.classify(&record(0, 0x1_0000, Some(0))), Mode::HardIrq);
        let halted = Record { halted: true, ..Default::default() };
        assert_eq!(Classifier::default().classify(&halted), Mode::Idle);
    }

    #[test]
    fn boot_ends_with_the_first_task() {
        let mut classifier = Classifier::default();
        let nothing = Record::default();
        assert_eq!(classifier.classify(&nothing), Mode::Boot);
        assert_eq!(classifier.classify(&record(0, 1, Some(0))), Mode::Boot);
        assert_eq!(classifier.classify(&record(0, 0, Some(1))), Mode::Kernel);
        assert_eq!(classifier.classify(&nothing), Mode::Unknown);
        assert_eq!(classifier.classify(&record(0, 1, Some(0))), Mode::Idle);
        let mut without_kernel = Classifier::default();
        assert_eq!(without_kernel.classify(&nothing), Mode::Boot);
        without_kernel.classify(&Record { cpl: 3, ..nothing });
        assert_eq!(without_kernel.classify(&nothing), Mode::Unknown);
        assert_eq!(
            without_kernel.classify(&record(0, 0, None)),
            Mode::Kernel,
            "the interrupt depth is known"
        );
    }
}
