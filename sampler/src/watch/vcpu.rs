//! Runs of alike samples of a vCPU.

use profile::rows::{Mode, SampleRow, VcpuState};
use vmm::KnownRegisters;

use super::Verdict;
use crate::record::SampleRecord;
use crate::task_state::TaskKey;

/// Samples of a condition that has to hold at each one, at least: a kernel that has interrupts off for three
/// tenths of its time has them off in 20 random samples in a row once in 10^10 times.
const LEAST_SAMPLES: u32 = 20;
/// Longest time between two samples of a run, ns, and its length in mean intervals: what a vCPU did in
/// between is not known.
const LONGEST_GAP_NS: u64 = 2_000_000_000;
const LONGEST_GAP_INTERVALS: f64 = 5.0;

/// The latest samples, as far as all of them show the same.
#[derive(Debug, Clone, Copy, Default)]
struct SampleRun {
    /// The latest one shows it.
    holds: bool,
    /// Times of the first and the last one, CLOCK_MONOTONIC ns.
    first_ns: u64,
    last_ns: u64,
    count: u32,
}

impl SampleRun {
    fn note(&mut self, holds: bool, time_ns: u64, gap_ns: u64) {
        let continues = holds && self.holds && time_ns.saturating_sub(self.last_ns) <= gap_ns;
        if !continues {
            *self = Self { holds, first_ns: time_ns, ..Self::default() };
        }
        self.last_ns = time_ns;
        self.count = self.count.saturating_add(1);
    }

    /// Returns the length, ns; `None` for too few samples.
    fn length_ns(&self) -> Option<u64> {
        let enough = self.holds && self.count >= LEAST_SAMPLES;
        enough.then(|| self.last_ns.saturating_sub(self.first_ns))
    }

    /// Judges the run, of whose length at most `limit_ns` counts; `None`: that limit is not known.
    fn verdict(
        &self,
        threshold_ns: u64,
        limit_ns: Option<u64>,
        sentence: impl FnOnce(u64) -> String,
    ) -> Verdict {
        if !self.holds {
            return if self.count > 0 { Verdict::Over } else { Verdict::Unknown };
        }
        match self.length_ns().zip(limit_ns).map(|(length, limit)| length.min(limit)) {
            Some(length_ns) if length_ns >= threshold_ns => {
                Verdict::Holds { length_ns, sentence: sentence(length_ns) }
            }
            _ => Verdict::Unknown,
        }
    }
}

/// Course of a vCPU by its samples.
#[derive(Debug, Clone, Default)]
pub(super) struct VcpuCourse {
    /// In the kernel with interrupts off.
    off: SampleRun,
    /// In the kernel, for the same task.
    kernel: SampleRun,
    task: Option<TaskKey>,
    /// Running with interrupts on, since the guest's clock has last advanced.
    on: SampleRun,
    /// Idle until an interrupt.
    idle: bool,
    latest: Option<SampleRow>,
    rate_hz: f64,
}

impl VcpuCourse {
    /// Sets the rate of the samples that the vCPU is to have, Hz; 0 for none.
    pub(super) fn set_rate(&mut self, rate_hz: f64) {
        self.rate_hz = rate_hz;
    }

    /// Notes a sample.
    pub(super) fn note(&mut self, record: &SampleRecord, row: &SampleRow) {
        self.latest = Some(row.clone());
        // Registers of a vCPU that waits for a CPU of the host are those of its last moment on one.
        if matches!(row.vcpu_state, VcpuState::Waiting | VcpuState::Vmm) {
            return;
        }
        let gap_ns = self.gap_ns();
        let known = !record.nested && !record.halted && row.vcpu_state == VcpuState::Guest;
        // An idle CPU may wait for an interrupt with interrupts off (MWAIT), and firmware may have them off.
        let kernel = known
            && record.cpl == 0
            && matches!(row.mode, Mode::Kernel | Mode::HardIrq | Mode::SoftIrq | Mode::Nmi);
        let task = row.instance.zip(row.tid).map(|(instance, tid)| TaskKey { instance, tid });
        let shows_flags = record.registers == KnownRegisters::All;
        if shows_flags {
            self.off.note(kernel && !record.interrupts_on, record.time_ns, gap_ns);
        }
        if task != self.task {
            self.kernel = SampleRun::default();
            self.task = task;
            // The task before has left the vCPU.
            self.kernel.note(false, record.time_ns, gap_ns);
        }
        if record.registers != KnownRegisters::Task {
            self.kernel.note(kernel, record.time_ns, gap_ns);
        }
        let idle = record.halted || row.vcpu_state == VcpuState::Halted || row.mode == Mode::Idle;
        self.idle = idle && !record.is_halted_for_good();
        if shows_flags {
            self.on.note(known && record.interrupts_on && row.mode != Mode::Idle, record.time_ns, gap_ns);
        }
    }

    fn gap_ns(&self) -> u64 {
        if self.rate_hz <= 0.0 {
            return LONGEST_GAP_NS;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a minute")]
        let intervals_ns = (LONGEST_GAP_INTERVALS / self.rate_hz * 1e9) as u64;
        intervals_ns.max(LONGEST_GAP_NS)
    }

    /// Forgets the samples since the guest's clock has advanced: it has just done so.
    pub(super) fn restart_clock(&mut self) {
        self.on = SampleRun::default();
    }

    /// Returns the time for which it has run with interrupts on since then, ns; `None` if it has not, or if
    /// samples are too few.
    pub(super) fn interruptible_ns(&self) -> Option<u64> {
        self.on.length_ns()
    }

    /// Returns true if the latest sample found it idle, and an interrupt would wake it.
    pub(super) fn is_idle(&self) -> bool {
        self.idle
    }

    /// Returns true if the latest samples found interrupts off.
    pub(super) fn has_irqs_off(&self) -> bool {
        self.off.length_ns().is_some_and(|ns| ns >= LONGEST_GAP_NS)
    }

    /// Returns the task of the latest sample.
    pub(super) fn task(&self) -> Option<TaskKey> {
        self.task
    }

    /// Returns the latest sample.
    pub(super) fn latest(&self) -> Option<&SampleRow> {
        self.latest.as_ref()
    }

    /// Judges interrupts that stay off.
    pub(super) fn irqs_off(&self, threshold_ns: u64, sentence: impl FnOnce(u64) -> String) -> Verdict {
        self.off.verdict(threshold_ns, Some(u64::MAX), sentence)
    }

    /// Judges a task that keeps the vCPU in the kernel; `unchanged_ns` is the time for which the kernel has
    /// counted no switch of it, ns.
    pub(super) fn locked_up(
        &self,
        threshold_ns: u64,
        unchanged_ns: Option<u64>,
        sentence: impl FnOnce(u64) -> String,
    ) -> Verdict {
        match unchanged_ns {
            Some(0) => Verdict::Over,
            _ => self.kernel.verdict(threshold_ns, unchanged_ns, sentence),
        }
    }
}
