//! Time on a CPU, divided by samples.

use std::collections::HashMap;

use rusqlite::Connection;
use statistics::estimate::share;

use super::{TaskKey, TimeInState};
use crate::numbers::unsigned;
use crate::report::tables::hardirq_bits;

/// Samples of a thread on a CPU by activity.
#[derive(Debug, Clone, Copy, Default)]
struct CpuTimeCounts {
    user: u64,
    system: u64,
    /// Between begin and end of a hard interrupt's event.
    interrupted: u64,
    /// In the entry and exit of a hard interrupt, before and after its events.
    around: u64,
}

/// Samples of each thread on a CPU.
#[derive(Debug, Default)]
pub(super) struct CpuTimeParts(HashMap<TaskKey, CpuTimeCounts>);

impl CpuTimeParts {
    /// Counts the samples of a span, ns since the run's start: the one that the times are of.
    pub(super) fn read(connection: &Connection, (from_ns, to_ns): (u64, u64)) -> rusqlite::Result<Self> {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let span = (signed(from_ns), signed(to_ns), hardirq_bits(connection)?);
        let mut statement = connection.prepare(
            "SELECT s.instance, s.tid, sum(m.name = 'user'), sum(m.name IN ('kernel', 'softirq')), \
             sum(m.name IN ('hardirq', 'nmi')), sum(m.name = 'hardirq' AND coalesce(s.preempt_count & ?3 = 0, 0)) \
             FROM sample s JOIN mode m ON m.id = s.mode \
             WHERE s.instance IS NOT NULL AND s.tid IS NOT NULL AND s.vcpu_state = 'guest' AND m.name <> 'idle' \
             AND s.time_ns >= ?1 AND s.time_ns < ?2 GROUP BY s.instance, s.tid",
        )?;
        let rows = statement.query_map(span, |row| {
            let around = unsigned(row, 5)?;
            let interrupted = unsigned(row, 4)?.saturating_sub(around);
            let part =
                CpuTimeCounts { user: unsigned(row, 2)?, system: unsigned(row, 3)?, interrupted, around };
            Ok(((row.get(0)?, row.get(1)?), part))
        })?;
        Ok(Self(rows.collect::<Result<_, _>>()?))
    }

    /// Divides `running` into user, system and, if the time includes it, interrupted time; returns it as it
    /// is without samples. A time that events limit includes the entry and exit of hard interrupts, as system
    /// time.
    pub(super) fn divide(
        &self,
        key: TaskKey,
        running: &TimeInState,
        with_interrupts: bool,
    ) -> (Vec<TimeInState>, u64) {
        let CpuTimeCounts { user, system, interrupted, around } =
            self.0.get(&key).copied().unwrap_or_default();
        let (system, interrupted) =
            if with_interrupts { (system, interrupted + around) } else { (system + around, 0) };
        let all = user + system + interrupted;
        if all == 0 {
            return (vec![running.clone()], 0);
        }
        let mut parts =
            vec![running.part("user", share(user, all)), running.part("system", share(system, all))];
        if with_interrupts {
            parts.push(running.part("interrupted", share(interrupted, all)));
        }
        (parts, all)
    }
}
