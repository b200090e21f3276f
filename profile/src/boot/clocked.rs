//! CPU time of a part of a boot, by the estimator that reports use: ticks of the part in sequence, and the exact time of
//! its vCPUs in the guest.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::Estimated;
use crate::clock::{ClockKind, mean_ns};
use crate::estimate::{Tallies, Tick, Ticks};
use crate::numbers::{part, unsigned};
use crate::paces::{Paces, scaled};
use crate::report::tables::Stretch;
use crate::rows::VcpuState;

/// A tick of any kind: those outside of the guest and those that found it idle are part of the sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub vcpu: u8,
    pub time_ns: u64,
    pub guest: bool,
}

/// The ticks of a run, and what its clocks say.
#[derive(Debug)]
pub(crate) struct Clocks {
    meta: BTreeMap<String, String>,
    /// By the ids of their samples, in the order of time.
    moments: Vec<(i64, Moment)>,
    stretches: HashMap<u8, Vec<Stretch>>,
    paces: Paces,
}

impl Clocks {
    /// Of a profile's `meta`, ticks, exact times and rates.
    pub fn new(
        meta: BTreeMap<String, String>,
        moments: Vec<(i64, Moment)>,
        stretches: HashMap<u8, Vec<Stretch>>,
        paces: Paces,
    ) -> Self {
        Self { meta, moments, stretches, paces }
    }

    pub fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let sql = "SELECT id, vcpu, time_ns, vcpu_state FROM sample ORDER BY time_ns, id";
        let moment = |row: &rusqlite::Row<'_>| {
            let guest =
                row.get_ref(3)?.as_str().is_ok_and(|vcpu_state| vcpu_state == VcpuState::Guest.name());
            Ok((row.get(0)?, Moment { vcpu: row.get(1)?, time_ns: unsigned(row, 2)?, guest }))
        };
        let pair = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let meta = connection
            .prepare("SELECT key, value FROM meta")?
            .query_map([], pair)?
            .collect::<Result<_, _>>()?;
        let moments = connection.prepare(sql)?.query_map([], moment)?.collect::<Result<_, _>>()?;
        Ok(Self::new(meta, moments, Stretch::read(connection)?, Paces::read(connection)?))
    }

    /// What the clocks say of the time from one moment to another, ns since the run's start. Of a stretch that a moment cuts
    /// it is taken that its time in the guest is spread evenly.
    pub fn within(&self, (from, to): (u64, u64)) -> Clocked {
        let clock = ClockKind::told(self.meta.get("clock").map(String::as_str));
        let rate_hz = self.meta.get("rate_hz").and_then(|rate| rate.parse().ok()).unwrap_or(0.0);
        let mut ticks = Ticks::new(clock, mean_ns(rate_hz));
        ticks.tell(&self.meta);
        let mut times = BTreeMap::new();
        for (&vcpu, stretches) in &self.stretches {
            let cut = |own: &Stretch| {
                let (begin, end) = (own.begin.max(from), own.end.min(to));
                let inside = part(end.saturating_sub(begin), own.end.saturating_sub(own.begin));
                self.paces.divide(vcpu, (begin, end.max(begin)), scaled(own.states.guest, inside))
            };
            let own: Vec<(u64, u64)> = stretches.iter().flat_map(cut).collect();
            times.insert(vcpu, own.iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns)));
            ticks.divide(vcpu, own);
            ticks.change_mean(vcpu, self.paces.of(vcpu).iter().map(|(since, hz)| (*since, mean_ns(*hz))));
        }
        let inside = self.moments.iter().filter(|(_, moment)| (from..to).contains(&moment.time_ns));
        let tick =
            |(id, moment): &(i64, Moment)| (*id, ticks.tick(moment.vcpu, moment.time_ns, moment.guest));
        let by_sample = inside.map(tick).collect();
        Clocked { ticks, by_sample, times: times.into_iter().collect() }
    }
}

/// The ticks of a part of a run.
#[derive(Debug)]
pub(crate) struct Clocked {
    ticks: Ticks,
    by_sample: HashMap<i64, Tick>,
    /// Exact times in the guest, ns.
    times: Vec<(u8, u64)>,
}

impl Clocked {
    /// Counts a sample of this id, each vCPU's in the order of time.
    pub fn count(&self, sample: i64, tallies: &mut Tallies) {
        if let Some(tick) = self.by_sample.get(&sample) {
            tallies.add(&self.ticks, *tick);
        }
    }

    /// The time of what was counted.
    pub fn estimate(&self, tallies: &Tallies) -> Estimated {
        let found = self.ticks.estimate(&self.times, tallies);
        let [s, low_s, high_s] = [found.time.ns, found.time.low_ns, found.time.high_ns].map(|ns| ns / 1e9);
        Estimated { samples: found.samples, s, low_s, high_s }
    }
}
