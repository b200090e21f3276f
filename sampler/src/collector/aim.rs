//! The precision that a run is to reach: its own tallies of who is charged, as the report's table of processes has them.

use std::collections::HashMap;

use crate::batch::{Fell, SampleRow, VcpuRow};
use crate::clock::ClockKind;
use crate::estimate::{Tallies, Ticks, needed_for, reached};
use crate::report::Charged;
use crate::session::Precision;
use crate::text;

/// What is kept until the precision is reached: two bytes per tick, and one tally per process and vCPU.
#[derive(Debug)]
pub(crate) struct Aim {
    wanted: f64,
    /// Inside are ticks that fell into the guest and did not find it idle.
    ticks: Ticks,
    charged: HashMap<Charged, Charge>,
    vcpus: Vec<Vcpu>,
}

#[derive(Debug, Default)]
struct Charge {
    tallies: Tallies,
    /// Name of the process, and whether it is none but a kernel thread.
    comm: [u8; 16],
    kernel_thread: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Vcpu {
    /// Ticks that fell into the guest.
    guest: u64,
    /// Exact time in the guest, ns.
    guest_ns: u64,
}

impl Aim {
    /// Half an interval of at most `wanted` (0.01 for one per cent of the whole).
    pub(crate) fn new(wanted: f64, clock: ClockKind, rate_hz: f64, vcpus: u8) -> Self {
        Self {
            wanted,
            ticks: Ticks::new(clock, 1e9 / rate_hz),
            charged: HashMap::new(),
            vcpus: vec![Vcpu::default(); usize::from(vcpus)],
        }
    }

    /// Takes a sample with its task: name of the process, and whether it is a kernel thread.
    pub(crate) fn sample(&mut self, sample: &SampleRow, task: Option<([u8; 16], bool)>) {
        let guest = sample.fell == Fell::Guest;
        let charged = Charged::of(sample.mode, sample.instance).filter(|_| guest);
        let tick = self.ticks.tick(sample.vcpu, sample.time_ns, charged.is_some());
        if let Some(vcpu) = self.vcpus.get_mut(usize::from(sample.vcpu)) {
            vcpu.guest += u64::from(guest);
        }
        let Some(charged) = charged else { return };
        let charge = self.charged.entry(charged).or_default();
        charge.tallies.add(&self.ticks, tick);
        (charge.comm, charge.kernel_thread) = task.unwrap_or((charge.comm, charge.kernel_thread));
    }

    /// Takes what the clocks of states say.
    pub(crate) fn clocks(&mut self, rows: &[VcpuRow]) {
        for row in rows {
            if let Some(vcpu) = self.vcpus.get_mut(usize::from(row.id)) {
                vcpu.guest_ns = row.states.guest;
            }
        }
    }

    /// Where the run stands, by the largest share; `None` where nothing was sampled.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "times and counts below 2^53"
    )]
    pub(crate) fn look(&self) -> Option<Precision> {
        let part = |id: u8, vcpu: &Vcpu| match vcpu.guest {
            0 => 1.0,
            guest => self.ticks.inside_of(id) as f64 / guest as f64,
        };
        let times: Vec<(u8, u64)> = (0..)
            .zip(&self.vcpus)
            .map(|(id, vcpu)| (id, (vcpu.guest_ns as f64 * part(id, vcpu)).round() as u64))
            .collect();
        let per_tick: Vec<(u8, f64)> =
            times.iter().map(|&(id, ns)| (id, ns as f64 / self.ticks.inside_of(id).max(1) as f64)).collect();
        let time = |tallies: &Tallies| -> f64 {
            let of = |&(id, ns): &(u8, f64)| tallies.of(id).map_or(0.0, |tally| tally.count() as f64 * ns);
            per_tick.iter().map(of).sum()
        };
        let (charged, charge) =
            self.charged.iter().max_by(|a, b| time(&a.1.tallies).total_cmp(&time(&b.1.tallies)))?;
        let share = self.ticks.estimate(&times, &charge.tallies).share;
        Some(Precision {
            wanted: self.wanted,
            name: match charged {
                Charged::Instance(_) => text::comm(&charge.comm),
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
    use crate::batch::Mode;
    use crate::microstate::States;

    /// A thousand ticks a second on one vCPU: every fourth hits instance 2, the others instance 1.
    fn aim(samples: u64, fell: Fell) -> Aim {
        let mut aim = Aim::new(0.03, ClockKind::Exponential, 1_000.0, 1);
        for n in 0..samples {
            let instance = Some(if n % 4 == 0 { 2 } else { 1 });
            let comm = if n % 4 == 0 { b"calm" } else { b"busy" };
            let mut name = [0; 16];
            name[..4].copy_from_slice(comm);
            let task = Some((name, n % 4 == 0));
            let time_ns = n * 1_000_000;
            let row =
                SampleRow { mode: Mode::User, fell: Fell::Guest, instance, time_ns, ..SampleRow::default() };
            aim.sample(&row, task);
            // Of instance 3, which would have most.
            aim.sample(&SampleRow { instance: Some(3), fell, ..row }, task);
            aim.sample(&SampleRow { instance: Some(3), fell, ..row }, task);
        }
        let states = States { guest: samples * 1_000_000, ..States::default() };
        aim.clocks(&[VcpuRow { id: 0, states, samples, lost: 0, exits: 0 }]);
        aim
    }

    #[test]
    fn more_samples_reach_what_few_do_not() {
        assert_eq!(aim(0, Fell::Vmm).look(), None);
        let few = aim(400, Fell::Vmm).look().expect("samples");
        assert_eq!(
            (few.name.as_str(), few.process, few.share.share, few.reached),
            ("busy", true, 0.75, false)
        );
        let factor = few.needed.expect("a factor");
        assert!((2.1..2.2).contains(&factor), "{factor}");
        let more = aim(900, Fell::Vmm).look().expect("samples");
        assert!(more.reached && more.share.distance() > 0.025, "{more:?}");
    }

    #[test]
    fn ticks_outside_of_the_guest_do_not_count() {
        for fell in [Fell::Vmm, Fell::Waiting, Fell::Halted] {
            assert_eq!(
                aim(400, fell).look().expect("samples").share,
                aim(400, Fell::Vmm).look().expect("samples").share
            );
        }
        assert!(aim(400, Fell::Guest).look().expect("samples").share.share < 0.7);
    }
}
