//! Precision target of a run: tallies of the charged parties, as in the report's table of processes.

use std::collections::{HashMap, VecDeque};

use crate::shared::PrecisionStatus;
use display::clean;
use profile::rows::{Batch, SampleRow, VcpuState};
use profile::rows::{Charged, is_ksoftirqd};
use statistics::RateHistory;
use statistics::clock::{ClockKind, mean_ns};
use statistics::estimate::{PartTallies, PartTicks, Ticks, needed_for, reached};

/// Ticks of a vCPU that wait for the clocks' report on their period, at most; more count without it.
const MOST_PENDING: usize = 65_536;

/// Precision target and the tallies that it needs: four bytes per tick, and two tallies per process and vCPU.
#[derive(Debug)]
pub(crate) struct PrecisionTarget {
    wanted: f64,
    /// `PartTicks` of the guest: ticks in the guest are timed, those that did not find it idle are inside.
    ticks: PartTicks,
    charged: HashMap<Charged, ChargedTicks>,
    vcpus: Vec<VcpuTicks>,
    paces: RateHistory,
}

#[derive(Debug, Default)]
struct ChargedTicks {
    tallies: PartTallies,
    /// Name of the process, and true for a kernel thread.
    comm: [u8; 16],
    kernel_thread: bool,
}

/// A tick: its time, true if it fell into the guest, and the charged party.
#[derive(Debug, Clone, Copy)]
struct PendingTick {
    time_ns: u64,
    guest: bool,
    charged: Option<Charged>,
}

#[derive(Debug, Clone, Default)]
struct VcpuTicks {
    /// Exact time in the guest while it was sampled, ns.
    guest_ns: u64,
    pending: VecDeque<PendingTick>,
}

impl PrecisionTarget {
    /// Creates a target: half an interval of at most `wanted` (0.01 for one per cent of the whole).
    pub(crate) fn new(wanted: f64, clock: ClockKind, rate_hz: f64, one_clock: bool) -> Self {
        let ticks = || {
            let mut ticks = Ticks::new(clock, mean_ns(rate_hz));
            if one_clock {
                ticks.tick_at_once();
            }
            ticks
        };
        Self {
            wanted,
            ticks: PartTicks::new(ticks),
            charged: HashMap::new(),
            vcpus: Vec::new(),
            paces: RateHistory::default(),
        }
    }

    /// Adds a sample with its task: name of the process, and true for a kernel thread.
    pub(crate) fn sample(&mut self, sample: &SampleRow, task: Option<([u8; 16], bool)>) {
        let guest = sample.vcpu_state == VcpuState::Guest;
        let serves = |_| task.is_some_and(|(comm, kernel)| is_ksoftirqd(&clean::comm(&comm), kernel));
        let charged = Charged::from_mode(sample.mode, sample.instance, serves).filter(|_| guest);
        if let (Some(charged), Some((comm, kernel_thread))) = (charged, task) {
            let charge = self.charged.entry(charged).or_default();
            (charge.comm, charge.kernel_thread) = (comm, kernel_thread);
        }
        let vcpu = self.vcpu(sample.vcpu);
        vcpu.pending.push_back(PendingTick { time_ns: sample.time_ns, guest, charged });
        if vcpu.pending.len() > MOST_PENDING {
            self.count(sample.vcpu, u64::MAX);
        }
    }

    /// Adds the state clocks' report on the time since the last call, and counts the ticks in it; at the end
    /// all.
    pub(crate) fn add_clocks(&mut self, batch: &Batch, ended: bool) {
        for row in &batch.rates {
            self.paces.push(row.vcpu.into(), row.time_ns, row.rate_hz);
            self.ticks.change_mean(row.vcpu.into(), [(row.time_ns, mean_ns(row.rate_hz))]);
        }
        for row in &batch.microstates {
            let begin_ns = row.time_ns.saturating_sub(row.states.wall());
            let parts: Vec<_> =
                self.paces.divide(row.vcpu.into(), (begin_ns, row.time_ns), row.states.guest).collect();
            let vcpu = self.vcpu(row.vcpu);
            vcpu.guest_ns = parts.iter().fold(vcpu.guest_ns, |sum, (_, ns)| sum.saturating_add(*ns));
            self.ticks.divide(row.vcpu.into(), parts);
            self.count(row.vcpu, row.time_ns);
        }
        if ended {
            for row in &batch.vcpus {
                self.count(row.id, u64::MAX);
            }
        }
    }

    fn vcpu(&mut self, id: u8) -> &mut VcpuTicks {
        let index = usize::from(id);
        if self.vcpus.len() <= index {
            self.vcpus.resize(index + 1, VcpuTicks::default());
        }
        &mut self.vcpus[index]
    }

    /// Counts the ticks up to this time.
    fn count(&mut self, id: u8, until_ns: u64) {
        let Some(vcpu) = self.vcpus.get_mut(usize::from(id)) else { return };
        while let Some(pending) = vcpu.pending.pop_front_if(|pending| pending.time_ns <= until_ns) {
            let tick = self.ticks.tick(id.into(), pending.time_ns, pending.guest, pending.charged.is_some());
            if let Some(charged) = pending.charged {
                self.charged.entry(charged).or_default().tallies.add(&self.ticks, tick);
            }
        }
    }

    /// Returns the precision of the largest share; `None` if nothing was sampled.
    pub(crate) fn largest_share(&self) -> Option<PrecisionStatus> {
        let times: Vec<(u16, u64)> = (0..).zip(&self.vcpus).map(|(id, vcpu)| (id, vcpu.guest_ns)).collect();
        let estimates = self.charged.iter().map(|(charged, charge)| {
            let estimate = self.ticks.estimate(&times, &charge.tallies);
            (charged, charge, estimate)
        });
        let sampled = estimates.filter(|(_, _, estimate)| estimate.samples > 0);
        let (charged, charge, largest) = sampled.max_by(|a, b| a.2.time.ns.total_cmp(&b.2.time.ns))?;
        let share = largest.share;
        Some(PrecisionStatus {
            wanted: self.wanted,
            name: match charged {
                Charged::Instance(_) => clean::comm(&charge.comm),
                other => other.name().to_owned(),
            },
            process: matches!(charged, Charged::Instance(_)) && !charge.kernel_thread,
            share,
            reached: reached(&share, self.wanted),
            needed: needed_for(&share, self.wanted),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::rows::Microstates;
    use profile::rows::{MicrostateRow, Mode, RateRow};

    /// Returns intervals of vCPU 0: end, and length, all of it in the guest.
    fn intervals(list: impl IntoIterator<Item = (u64, u64)>) -> Batch {
        let row = |(time_ns, guest)| {
            let states = Microstates { guest, ..Microstates::default() };
            MicrostateRow { vcpu: 0, time_ns, states }
        };
        Batch { microstates: list.into_iter().map(row).collect(), ..Batch::default() }
    }

    /// Returns the target after a thousand ticks a second on one vCPU: every fourth hits instance 2, the
    /// others instance 1.
    fn target(samples: u64, vcpu_state: VcpuState) -> PrecisionTarget {
        let mut target = PrecisionTarget::new(0.03, ClockKind::Exponential, 1_000.0, false);
        for n in 0..samples {
            let instance = Some(if n % 4 == 0 { 2 } else { 1 });
            let comm = if n % 4 == 0 { b"calm" } else { b"busy" };
            let mut name = [0; 16];
            name[..4].copy_from_slice(comm);
            let task = Some((name, n % 4 == 0));
            let time_ns = n * 1_000_000;
            let row = SampleRow {
                mode: Mode::User,
                vcpu_state: VcpuState::Guest,
                instance,
                time_ns,
                ..SampleRow::default()
            };
            target.sample(&row, task);
            // Of instance 3, which would have most.
            target.sample(&SampleRow { instance: Some(3), vcpu_state, ..row }, task);
            target.sample(&SampleRow { instance: Some(3), vcpu_state, ..row }, task);
        }
        target.add_clocks(&intervals([(samples * 1_000_000, samples * 1_000_000)]), false);
        target
    }

    #[test]
    fn more_samples_reach_what_few_do_not() {
        assert_eq!(target(0, VcpuState::Vmm).largest_share(), None);
        let few = target(400, VcpuState::Vmm).largest_share().expect("samples");
        assert_eq!(
            (few.name.as_str(), few.process, few.share.share, few.reached),
            ("busy", true, 0.75, false)
        );
        let factor = few.needed.expect("a factor");
        assert!((2.1..2.2).contains(&factor), "{factor}");
        let more = target(900, VcpuState::Vmm).largest_share().expect("samples");
        assert!(more.reached && more.share.distance() > 0.025, "{more:?}");
    }

    #[test]
    fn ticks_outside_of_the_guest_do_not_count() {
        for vcpu_state in [VcpuState::Vmm, VcpuState::Waiting, VcpuState::Halted] {
            assert_eq!(
                target(400, vcpu_state).largest_share().expect("samples").share,
                target(400, VcpuState::Vmm).largest_share().expect("samples").share
            );
        }
        assert!(target(400, VcpuState::Guest).largest_share().expect("samples").share.share < 0.7);
    }

    #[test]
    fn a_phase_that_lost_ticks_counts_for_its_time() {
        const SECOND: u64 = 1_000_000_000;
        let mut target = PrecisionTarget::new(0.03, ClockKind::Exponential, 1_000.0, false);
        // Two seconds of instance 1 with all ticks, then two of instance 2 with a quarter of them.
        for n in 0..4_000_u64 {
            let instance = Some(if n < 2_000 { 1 } else { 2 });
            if n < 2_000 || n % 4 == 0 {
                let time_ns = n * 1_000_000;
                let row = SampleRow {
                    mode: Mode::User,
                    vcpu_state: VcpuState::Guest,
                    instance,
                    time_ns,
                    ..SampleRow::default()
                };
                target.sample(&row, Some((*b"work\0\0\0\0\0\0\0\0\0\0\0\0", false)));
            }
            // The clocks report later than the samples.
            if n % 500 == 499 {
                let end = (n + 1) / 500 * SECOND / 2;
                target.add_clocks(&intervals([(end, SECOND / 2)]), n == 3_999);
            }
        }
        let share = target.largest_share().expect("samples").share;
        assert!((share.share - 0.5).abs() < 0.01, "{share:?}");
    }

    /// Two vCPUs, each busy with its own process for half of the time that it is in the guest.
    #[test]
    fn what_a_vcpu_is_busy_for_is_an_estimate() {
        let mut target = PrecisionTarget::new(0.01, ClockKind::Exponential, 1_000.0, false);
        for n in 0..10_000_u64 {
            for vcpu in 0..2_u8 {
                // Out of step, as random ticks are.
                let busy = (n * 7 + n / 3) % 2 == u64::from(vcpu);
                let (mode, instance) =
                    if busy { (Mode::User, Some(vcpu.into())) } else { (Mode::Idle, None) };
                let time_ns = n * 1_000_000;
                let row = SampleRow {
                    vcpu,
                    mode,
                    vcpu_state: VcpuState::Guest,
                    instance,
                    time_ns,
                    ..SampleRow::default()
                };
                target.sample(&row, Some((*b"work\0\0\0\0\0\0\0\0\0\0\0\0", false)));
            }
        }
        let states = Microstates { guest: 10_000_000_000, ..Microstates::default() };
        let row = |vcpu| MicrostateRow { vcpu, time_ns: 10_000_000_000, states };
        target.add_clocks(&Batch { microstates: vec![row(0), row(1)], ..Batch::default() }, true);
        let found = target.largest_share().expect("samples");
        // The standard error of a ratio of two halves of 10,000 samples: sqrt(2 * 0.25^2 * 0.25 / 10,000) /
        // 0.5^2 / 2.
        let half = found.share.distance();
        assert!((half / (1.96 * 0.003_535) - 1.0).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn time_without_sampling_counts_for_nothing() {
        const SECOND: u64 = 1_000_000_000;
        let mut target = target(1_000, VcpuState::Vmm);
        let rates = [(0.0, SECOND), (1_000.0, 9 * SECOND)];
        let rates = rates.map(|(rate_hz, time_ns)| RateRow { vcpu: 0, time_ns, rate_hz });
        target.add_clocks(&Batch { rates: rates.into(), ..intervals([(9 * SECOND, 8 * SECOND)]) }, false);
        let before = target.largest_share().expect("samples").share;
        assert!((before.share - 0.75).abs() < 0.01, "{before:?}");
    }
}
