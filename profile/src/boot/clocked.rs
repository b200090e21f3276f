//! Reads the clocks of a boot, for the CPU time of its parts.

use rusqlite::Connection;
use statistics::run_part::{ClockTick, GuestSegment, RunClocks};

use crate::numbers::unsigned;
use crate::report::tables::{Segment, read_rates};
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

/// Reads the ticks of a run, and the times by its clocks.
pub(super) fn read(connection: &Connection) -> rusqlite::Result<RunClocks> {
    let flat = flat_condition(connection)?;
    let sql = format!(
        "SELECT s.id, s.vcpu, s.time_ns, s.vcpu_state FROM sample s \
         WHERE NOT (s.vcpu_state = 'guest' AND {}) ORDER BY s.time_ns, s.id",
        flat.as_deref().unwrap_or("FALSE")
    );
    let tick = |row: &rusqlite::Row<'_>| {
        let guest = row.get_ref(3)?.as_str().is_ok_and(|vcpu_state| vcpu_state == VcpuState::Guest.name());
        Ok(ClockTick { id: row.get(0)?, vcpu: row.get(1)?, time_ns: unsigned(row, 2)?, guest })
    };
    let pair = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let guest = |own: Segment| GuestSegment { begin: own.begin, end: own.end, guest: own.states.guest };
    let segments = Segment::read(connection)?.into_iter();
    Ok(RunClocks {
        meta: connection
            .prepare("SELECT key, value FROM meta")?
            .query_map([], pair)?
            .collect::<Result<_, _>>()?,
        ticks: connection.prepare(&sql)?.query_map([], tick)?.collect::<Result<_, _>>()?,
        segments: segments.map(|(vcpu, own)| (vcpu, own.into_iter().map(guest).collect())).collect(),
        rates: read_rates(connection)?,
        thinned: flat.is_some(),
    })
}
