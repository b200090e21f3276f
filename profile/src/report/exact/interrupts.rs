//! Contributions of each vCPU, and its hard interrupts.

use rusqlite::Connection;

use super::{ExactVcpu, InterruptSource, InterruptTime, Key, Names, count, key, part, seconds};

/// Reads the vCPUs in order.
pub(super) fn vcpus(connection: &Connection) -> rusqlite::Result<Vec<ExactVcpu>> {
    let mut statement = connection.prepare(
        "SELECT v.vcpu, v.probe_exits, v.lost, v.switches, v.guest_switches, v.idle_ns, v.stacks_missed, v.cost_ns, \
         coalesce(sum(i.ns), 0), coalesce(sum(i.count), 0) FROM exact_vcpu v \
         LEFT JOIN interrupt_time i ON i.vcpu = v.vcpu GROUP BY v.vcpu ORDER BY v.vcpu",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(ExactVcpu {
            id: row.get(0)?,
            probe_exits: count(row, 1)?,
            lost: count(row, 2)?,
            switches: count(row, 3)?,
            guest_switches: row.get::<_, Option<i64>>(4)?.map(i64::unsigned_abs),
            idle_s: seconds(count(row, 5)?),
            stacks_missed: count(row, 6)?,
            cost_s: seconds(count(row, 7)?),
            interrupt_s: seconds(count(row, 8)?),
            interrupts: count(row, 9)?,
        })
    })?;
    rows.collect()
}

/// Reads hard interrupts by the task that they interrupted, most time first.
pub(super) fn interrupts(
    connection: &Connection,
    names: &Names,
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<InterruptTime>> {
    let mut statement = connection.prepare(
        "SELECT vcpu, instance, tid, ns, count FROM interrupt_time ORDER BY ns DESC, vcpu, instance, tid",
    )?;
    let mut rows = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        let key = key(row, 1)?;
        if chosen(key) {
            list.push(InterruptTime {
                vcpu: row.get(0)?,
                task: names.task(key).into_owned(),
                s: seconds(count(row, 3)?),
                count: count(row, 4)?,
            });
        }
    }
    Ok(list)
}

/// Reads hard interrupts by their source, most time first.
pub(super) fn sources(connection: &Connection) -> rusqlite::Result<Vec<InterruptSource>> {
    let mut statement = connection.prepare(
        "SELECT coalesce(i.name, '[unknown]'), s.vector, sum(s.count), sum(s.ns), max(s.max_ns) \
         FROM interrupt_source s LEFT JOIN interrupt i ON i.id = s.interrupt \
         GROUP BY 1, 2 ORDER BY sum(s.ns) DESC, 1, 2",
    )?;
    let rows = statement.query_map([], |row| {
        let (number, ns) = (count(row, 2)?, count(row, 3)?);
        Ok(InterruptSource {
            name: row.get(0)?,
            vector: Some(row.get(1)?).filter(|vector| *vector != 0),
            count: number,
            s: seconds(ns),
            mean_s: part(ns, number) / 1e9,
            max_s: seconds(count(row, 4)?),
        })
    })?;
    rows.collect()
}
