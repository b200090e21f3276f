//! CPU time of a part of a run, such as a phase of a boot: from the ticks in the part, in sequence, and from
//! the exact time that the vCPUs spent in the guest during it.

use std::collections::{BTreeMap, HashMap};

use crate::clock::{ClockKind, mean_ns};
use crate::estimate::{Estimate, Tallies, Tick, Ticks};
use crate::{RateHistory, part, scaled};

/// A tick of any kind: ticks outside of the guest and in idle time are part of the sequence.
#[derive(Debug, Clone, Copy)]
pub struct ClockTick {
    /// Number of the sample.
    pub id: i64,
    /// The vCPU.
    pub vcpu: u16,
    /// Since the run's start.
    pub time_ns: u64,
    /// True if it found the vCPU in the guest.
    pub guest: bool,
}

/// A segment of a vCPU's time, for which the time in the guest is known.
#[derive(Debug, Clone, Copy)]
pub struct GuestSegment {
    /// Start, ns since the run's start.
    pub begin: u64,
    /// End, ns since the run's start.
    pub end: u64,
    /// Time in the guest, ns.
    pub guest: u64,
}

/// The ticks of a run, and the times by its clocks.
#[derive(Debug)]
pub struct RunClocks {
    /// The profile's table `meta`.
    pub meta: BTreeMap<String, String>,
    /// In the order of time.
    pub ticks: Vec<ClockTick>,
    /// By vCPU, in the order of time.
    pub segments: HashMap<u16, Vec<GuestSegment>>,
    /// Changes of the sampling rate.
    pub rates: RateHistory,
    /// True if ticks are left out at random.
    pub thinned: bool,
}

impl RunClocks {
    /// Returns the ticks and times of a part of the run, ns since its start. The time in the guest is assumed
    /// to be evenly spread over a segment that an end of the part cuts.
    pub fn within(&self, (from, to): (u64, u64)) -> RunPart {
        let clock = ClockKind::from_meta(self.meta.get("clock").map(String::as_str));
        let rate_hz = self.meta.get("rate_hz").and_then(|rate| rate.parse().ok()).unwrap_or(0.0);
        let mut ticks = Ticks::new(clock, mean_ns(rate_hz));
        if self.thinned {
            ticks.thin();
        }
        ticks.read_meta(&self.meta);
        let mut times = BTreeMap::new();
        for (&vcpu, segments) in &self.segments {
            let cut = |own: &GuestSegment| {
                let (begin, end) = (own.begin.max(from), own.end.min(to));
                let inside = part(end.saturating_sub(begin), own.end.saturating_sub(own.begin));
                self.rates.divide(vcpu, (begin, end.max(begin)), scaled(own.guest, inside))
            };
            let own: Vec<(u64, u64)> = segments.iter().flat_map(cut).collect();
            times.insert(vcpu, own.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns)));
            ticks.divide(vcpu, own);
            ticks
                .change_mean(vcpu, self.rates.changes(vcpu).iter().map(|(since, hz)| (*since, mean_ns(*hz))));
        }
        let inside = self.ticks.iter().filter(|tick| (from..to).contains(&tick.time_ns));
        let by_sample = inside.map(|own| (own.id, ticks.tick(own.vcpu, own.time_ns, own.guest))).collect();
        RunPart { ticks, by_sample, times: times.into_iter().collect() }
    }
}

/// The ticks of a part of a run.
#[derive(Debug)]
pub struct RunPart {
    ticks: Ticks,
    by_sample: HashMap<i64, Tick>,
    /// Exact times in the guest, ns.
    times: Vec<(u16, u64)>,
}

impl RunPart {
    /// Counts a sample by its number; the samples of each vCPU in the order of time.
    pub fn count(&self, sample: i64, tallies: &mut Tallies) {
        if let Some(tick) = self.by_sample.get(&sample) {
            tallies.add(&self.ticks, *tick);
        }
    }

    /// Estimates the time of the counted samples.
    pub fn estimate(&self, tallies: &Tallies) -> Estimate {
        self.ticks.estimate(&self.times, tallies)
    }
}
