//! CPU time of a part of a boot, by the estimator of reports: ticks of the part in sequence, and the exact
//! time of its vCPUs in the guest.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::CpuEstimate;
use crate::clock::{ClockKind, mean_ns};
use crate::estimate::{Tallies, Tick, Ticks};
use crate::numbers::{part, unsigned};
use crate::rate_history::{RateHistory, scaled};
use crate::report::tables::Segment;
use crate::rows::{FLAT, VcpuState};

/// Returns the condition of SQL that no stack was taken of a sample `s` because of how it was taken. `None`
/// in a profile without such samples, so that nothing is searched for each of the others.
pub(super) fn flat_condition(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let reason = format!("n.kind = 'reason' AND n.module = '{FLAT}'");
    let exists = format!("SELECT EXISTS (SELECT 1 FROM frame n WHERE {reason})");
    let condition = format!(
        "EXISTS (SELECT 1 FROM stack k JOIN stack r ON r.id = k.parent JOIN frame n ON n.id = r.frame \
         WHERE k.id = s.stack AND {reason})"
    );
    Ok(connection.query_row(&exists, [], |row| row.get::<_, bool>(0))?.then_some(condition))
}

/// A tick of any kind: ticks outside of the guest and in idle time are part of the sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockTick {
    pub vcpu: u16,
    pub time_ns: u64,
    pub guest: bool,
}

/// The ticks of a run, and the times by its clocks.
#[derive(Debug)]
pub(crate) struct BootClocks {
    meta: BTreeMap<String, String>,
    /// Ticks with the ids of their samples, in the order of time.
    ticks: Vec<(i64, ClockTick)>,
    segments: HashMap<u16, Vec<Segment>>,
    rates: RateHistory,
    /// Ticks are left out at random.
    thinned: bool,
}

impl BootClocks {
    /// Creates the clocks of a profile's `meta`, ticks, exact times and rates.
    pub fn new(
        meta: BTreeMap<String, String>,
        ticks: Vec<(i64, ClockTick)>,
        segments: HashMap<u16, Vec<Segment>>,
        rates: RateHistory,
    ) -> Self {
        Self { meta, ticks, segments, rates, thinned: false }
    }

    pub fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let flat = flat_condition(connection)?;
        let sql = format!(
            "SELECT s.id, s.vcpu, s.time_ns, s.vcpu_state FROM sample s \
             WHERE NOT (s.vcpu_state = 'guest' AND {}) ORDER BY s.time_ns, s.id",
            flat.as_deref().unwrap_or("FALSE")
        );
        let moment = |row: &rusqlite::Row<'_>| {
            let guest =
                row.get_ref(3)?.as_str().is_ok_and(|vcpu_state| vcpu_state == VcpuState::Guest.name());
            Ok((row.get(0)?, ClockTick { vcpu: row.get(1)?, time_ns: unsigned(row, 2)?, guest }))
        };
        let pair = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let meta = connection
            .prepare("SELECT key, value FROM meta")?
            .query_map([], pair)?
            .collect::<Result<_, _>>()?;
        let ticks = connection.prepare(&sql)?.query_map([], moment)?.collect::<Result<_, _>>()?;
        let clocks = Self::new(meta, ticks, Segment::read(connection)?, RateHistory::read(connection)?);
        Ok(Self { thinned: flat.is_some(), ..clocks })
    }

    /// Returns the start of sampling of the vCPU that boots, ns since the run's start.
    pub fn sampled_from(&self) -> Option<u64> {
        self.rates.sampled_from(0)
    }

    /// Returns the ticks and times of a part of the run, ns since its start. The time in the guest is assumed
    /// to be evenly spread over a segment that an end of the part cuts.
    pub fn within(&self, (from, to): (u64, u64)) -> ClockedPart {
        let clock = ClockKind::from_meta(self.meta.get("clock").map(String::as_str));
        let rate_hz = self.meta.get("rate_hz").and_then(|rate| rate.parse().ok()).unwrap_or(0.0);
        let mut ticks = Ticks::new(clock, mean_ns(rate_hz));
        if self.thinned {
            ticks.thin();
        }
        ticks.read_meta(&self.meta);
        let mut times = BTreeMap::new();
        for (&vcpu, segments) in &self.segments {
            let cut = |own: &Segment| {
                let (begin, end) = (own.begin.max(from), own.end.min(to));
                let inside = part(end.saturating_sub(begin), own.end.saturating_sub(own.begin));
                self.rates.divide(vcpu, (begin, end.max(begin)), scaled(own.states.guest, inside))
            };
            let own: Vec<(u64, u64)> = segments.iter().flat_map(cut).collect();
            times.insert(vcpu, own.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns)));
            ticks.divide(vcpu, own);
            ticks
                .change_mean(vcpu, self.rates.changes(vcpu).iter().map(|(since, hz)| (*since, mean_ns(*hz))));
        }
        let inside = self.ticks.iter().filter(|(_, moment)| (from..to).contains(&moment.time_ns));
        let tick =
            |(id, moment): &(i64, ClockTick)| (*id, ticks.tick(moment.vcpu, moment.time_ns, moment.guest));
        let by_sample = inside.map(tick).collect();
        ClockedPart { ticks, by_sample, times: times.into_iter().collect() }
    }
}

/// The ticks of a part of a run.
#[derive(Debug)]
pub(crate) struct ClockedPart {
    ticks: Ticks,
    by_sample: HashMap<i64, Tick>,
    /// Exact times in the guest, ns.
    times: Vec<(u16, u64)>,
}

impl ClockedPart {
    /// Counts a sample by its id; those of each vCPU in the order of time.
    pub fn count(&self, sample: i64, tallies: &mut Tallies) {
        if let Some(tick) = self.by_sample.get(&sample) {
            tallies.add(&self.ticks, *tick);
        }
    }

    /// Estimates the time of the counted samples.
    pub fn estimate(&self, tallies: &Tallies) -> CpuEstimate {
        let found = self.ticks.estimate(&self.times, tallies);
        let [s, low_s, high_s] = [found.time.ns, found.time.low_ns, found.time.high_ns].map(|ns| ns / 1e9);
        CpuEstimate { samples: found.samples, s, low_s, high_s }
    }
}
