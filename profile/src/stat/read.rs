//! Reads the figures from a profile.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, Row};

use super::{CounterStat, ExitStat, HostWaitStat, InterruptStat, ServedStat, Stat, VcpuStat};
use crate::numbers::{seconds, unsigned};
use crate::report::tables::{VcpuTotals, vcpus};
use crate::store::{Profile, ProfileError, snapshot};

impl Stat {
    /// Reads the present figures of a profile, also while its run is in progress.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn read(profile: &Profile) -> Result<Self, ProfileError> {
        read(profile.connection()).map_err(|error| profile.error(&error))
    }
}

fn read(connection: &Connection) -> rusqlite::Result<Stat> {
    // One transaction, so that all parts have the same state.
    let _snapshot = snapshot(connection)?;
    let meta: BTreeMap<String, String> = connection
        .prepare("SELECT key, value FROM meta")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let text = |key: &str| meta.get(key).cloned();
    let duration_ns = meta.get("duration_ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
    let vms: HashMap<u32, String> = connection
        .prepare("SELECT id, name FROM vm")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let exits = exits(connection)?;
    let mut stat = Stat {
        version: text("version").unwrap_or_default(),
        host: text("host").unwrap_or_else(|| "unknown".to_owned()),
        unavailable: text("unavailable"),
        kernel: text("kernel"),
        complete: text("complete").is_some_and(|value| value == "1"),
        from_s: 0.0,
        to_s: seconds(duration_ns),
        vcpus: vcpus(connection)?.iter().map(|row| vcpu(row, &vms)).collect(),
        exit_sites: super::sites::read(connection, &exits)?,
        exits: exits.into_iter().map(|(_, exit)| exit).collect(),
        interrupts: interrupts(connection)?,
        served: served(connection)?,
        kvm_counters: counters(connection)?,
        host_waits: host_waits(connection)?,
    };
    stat.sort();
    Ok(stat)
}

fn vcpu(row: &VcpuTotals, vms: &HashMap<u32, String>) -> VcpuStat {
    VcpuStat {
        id: row.id,
        vm: row.vm.and_then(|vm| vms.get(&vm).cloned()),
        number: row.number,
        wall_ns: row.states.wall(),
        states: row.states.named().map(|(name, ns)| (name.to_owned(), ns)).into(),
        exits: row.exits,
        samples: row.samples,
        lost: row.lost,
    }
}

/// Reads the exits, with their row ids.
fn exits(connection: &Connection) -> rusqlite::Result<Vec<(u32, ExitStat)>> {
    let sql =
        "SELECT vcpu, reason, address, device, count, total_ns, max_ns, times, id FROM exit ORDER BY id";
    let exit = |row: &Row<'_>| {
        let times: String = row.get(7)?;
        let mut exit = ExitStat {
            vcpu: row.get(0)?,
            reason: row.get(1)?,
            address: row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned),
            device: row.get(3)?,
            count: unsigned(row, 4)?,
            total_ns: unsigned(row, 5)?,
            max_ns: unsigned(row, 6)?,
            // Text that is not a list of times, from another program, counts as no times.
            times: serde_json::from_str(&times).unwrap_or_default(),
            mean_ns: 0,
            p50_ns: 0,
            p99_ns: 0,
        };
        exit.derive();
        Ok((row.get(8)?, exit))
    };
    connection.prepare(sql)?.query_map([], exit)?.collect()
}

fn interrupts(connection: &Connection) -> rusqlite::Result<Vec<InterruptStat>> {
    let sql = "SELECT device, vector, count FROM injected ORDER BY device, vector";
    let interrupt = |row: &Row<'_>| {
        Ok(InterruptStat { device: row.get(0)?, vector: row.get(1)?, count: unsigned(row, 2)? })
    };
    connection.prepare(sql)?.query_map([], interrupt)?.collect()
}

fn served(connection: &Connection) -> rusqlite::Result<Vec<ServedStat>> {
    let sql = "SELECT s.vcpu, coalesce(i.name, '[unknown]'), s.vector, s.count, s.ns, s.max_ns \
               FROM interrupt_source s LEFT JOIN interrupt i ON i.id = s.interrupt ORDER BY s.vcpu, 2";
    let served = |row: &Row<'_>| {
        let (count, total_ns) = (unsigned(row, 3)?, unsigned(row, 4)?);
        Ok(ServedStat {
            vcpu: row.get(0)?,
            name: row.get(1)?,
            vector: Some(row.get(2)?).filter(|vector| *vector != 0),
            count,
            total_ns,
            mean_ns: total_ns.checked_div(count).unwrap_or(0),
            max_ns: unsigned(row, 5)?,
        })
    };
    connection.prepare(sql)?.query_map([], served)?.collect()
}

fn counters(connection: &Connection) -> rusqlite::Result<Vec<CounterStat>> {
    let sql = "SELECT vcpu, name, value, grows FROM kvm_counter ORDER BY name, vcpu";
    let counter = |row: &Row<'_>| {
        Ok(CounterStat { vcpu: row.get(0)?, name: row.get(1)?, value: unsigned(row, 2)?, grows: row.get(3)? })
    };
    connection.prepare(sql)?.query_map([], counter)?.collect()
}

fn host_waits(connection: &Connection) -> rusqlite::Result<Vec<HostWaitStat>> {
    let sql = "SELECT vcpu, pid, name, count, total_ns FROM host_wait ORDER BY pid, vcpu";
    let wait = |row: &Row<'_>| {
        let (count, total_ns) = (unsigned(row, 3)?, unsigned(row, 4)?);
        Ok(HostWaitStat {
            vcpu: row.get(0)?,
            pid: Some(row.get(1)?).filter(|pid| *pid != 0),
            name: row.get(2)?,
            count,
            total_ns,
            mean_ns: total_ns.checked_div(count).unwrap_or(0),
        })
    };
    connection.prepare(sql)?.query_map([], wait)?.collect()
}
