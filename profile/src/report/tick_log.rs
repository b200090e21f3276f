//! Samples as the estimator needs them: all ticks in sequence, and the items of each chosen one.
//!
//! A tally belongs to one row of a table, and rows are known only after the pass over the samples. So that
//! pass keeps 16 bytes per chosen sample, and each table tallies its rows from them.

use display::units::rounded;
use statistics::estimate::{PartTallies, PartTicks, Tallies, Tick, Ticks, Time};

use super::Estimate;
use super::tables::{Span, Tables};
use crate::numbers::seconds;

/// A chosen sample: its tick, and the indexes of its [`super::sums::Leaf`] and
/// [`super::sums::SampleContext`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Hit {
    tick: Tick,
    pub leaf: u32,
    pub context: u32,
}

/// The ticks of a part of a profile.
#[derive(Debug)]
pub(super) struct TickLog {
    /// Timed are the ticks in the guest, inside those of them that are not idle.
    ticks: PartTicks,
    hits: Vec<Hit>,
    /// Exact times of the vCPUs in the guest, ns.
    guest_ns: Vec<(u16, u64)>,
    /// Non-idle part of that time, ns: known from the ticks, not from the clock.
    busy_ns: u64,
}

impl TickLog {
    /// Creates an empty log for the clock of a profile. `spans` are the times by the clocks of states. If the
    /// ticks are `thinned`, others are left out at random.
    pub(super) fn new(tables: &Tables, spans: &[Span], thinned: bool) -> Self {
        let ticks = PartTicks::new(|| ticks(tables, spans, thinned));
        Self { ticks, hits: Vec::new(), guest_ns: Vec::new(), busy_ns: 0 }
    }

    /// Adds the next tick of a vCPU: `guest` if it was in the guest, `busy` if it was not idle.
    pub(super) fn tick(&mut self, vcpu: u16, time_ns: u64, guest: bool, busy: bool) -> Tick {
        self.ticks.tick(vcpu, time_ns, guest, busy)
    }

    /// Assigns the tick to this leaf and context.
    pub(super) fn hit(&mut self, tick: Tick, leaf: u32, context: u32) {
        self.hits.push(Hit { tick, leaf, context });
    }

    /// Returns leaf and context of each chosen sample.
    pub(super) fn hits(&self) -> impl Iterator<Item = (u32, u32)> {
        self.hits.iter().map(|hit| (hit.leaf, hit.context))
    }

    /// Adds a tick in the guest to a tally for [`Self::of_vcpu`].
    pub(super) fn add(&self, tick: Tick, tallies: &mut Tallies) {
        tallies.add(self.ticks.whole(), tick);
    }

    /// Ends the log: all ticks are added. `spans` are the times by the clocks of states.
    pub(super) fn close(&mut self, vcpus: impl Iterator<Item = u16>, spans: &[Span]) {
        self.ticks.close();
        self.guest_ns = vcpus.map(|vcpu| (vcpu, guest_ns(vcpu, spans, self.ticks.whole()))).collect();
        let busy = self.ticks.part_times(&self.guest_ns);
        self.busy_ns = busy.iter().fold(0, |sum, (_, ns)| sum.saturating_add(*ns));
    }

    /// Returns the number of ticks in the guest, not idle.
    pub(super) fn busy(&self) -> u64 {
        self.ticks.part().inside()
    }

    /// Returns the time in the guest that is not idle, all vCPUs, ns.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Tallies the chosen samples: `rows_of` returns the rows of each. Indexes of `rows` and above are
    /// ignored.
    pub(super) fn estimates<'a>(&self, rows: usize, rows_of: impl Fn(&Hit) -> &'a [u32]) -> Vec<Estimate> {
        let mut tallies = vec![PartTallies::default(); rows];
        for hit in &self.hits {
            for &row in rows_of(hit) {
                if let Some(tallies) = tallies.get_mut(row as usize) {
                    tallies.add(&self.ticks, hit.tick);
                }
            }
        }
        let estimate = |tallies| {
            let found = self.ticks.estimate(&self.guest_ns, tallies);
            Estimate::new(found.samples, found.share, found.time)
        };
        tallies.iter().map(estimate).collect()
    }

    /// Returns samples and time of a mode of one vCPU in the guest.
    pub(super) fn of_vcpu(&self, vcpu: u16, tallies: &Tallies) -> (u64, Time) {
        let own = self.guest_ns.iter().copied().filter(|(id, _)| *id == vcpu);
        let estimate = self.ticks.whole().estimate(&own.collect::<Vec<_>>(), tallies);
        (estimate.samples, estimate.time)
    }

    /// Returns the time of a vCPU in the guest, s.
    pub(super) fn guest_s(&self, vcpu: u16) -> f64 {
        seconds(self.guest_ns.iter().find(|(id, _)| *id == vcpu).map_or(0, |(_, ns)| *ns))
    }
}

/// Creates an empty sequence of ticks with the times by the clocks of states. If they are `thinned`, others
/// are left out at random.
pub(super) fn ticks(tables: &Tables, spans: &[Span], thinned: bool) -> Ticks {
    let mut ticks = tables.ticks();
    if thinned {
        ticks.thin();
    }
    ticks.read_meta(&tables.meta);
    for span in spans {
        ticks.divide(span.vcpu, span.segments.iter().copied());
        ticks.change_mean(span.vcpu, span.means.iter().copied());
        ticks.time_lies_within(span.vcpu, span.guest_ns, span.guest_bounds);
    }
    ticks
}

/// Returns the time of a vCPU in the guest, ns: by its clock. For a vCPU with ticks in the guest but without
/// a clock (a damaged profile), returns one mean interval for each tick.
pub(super) fn guest_ns(vcpu: u16, spans: &[Span], ticks: &Ticks) -> u64 {
    match spans.iter().find(|span| span.vcpu == vcpu).map_or(0, |span| span.guest_ns) {
        0 => rounded(ticks.inside_of(vcpu) as f64 * ticks.mean_ns(vcpu)),
        known => known,
    }
}
