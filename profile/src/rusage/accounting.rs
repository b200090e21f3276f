//! The guest's CPU accounting in a profile: first and last readings.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::{Connection, Row};
use statistics::cpu_accounting::{ChildCpuTimes, CpuTime};
use statistics::estimate::Time;

use super::children::ReapedProcesses;
use super::{CpuTimes, chance};
use crate::numbers::unsigned;
use crate::report::tables::{VcpuTotals, vcpus};
use crate::rows::is_ksoftirqd;

/// Name, pid and instance number.
type Who = (String, i32, u32);

/// Times of a process or of a thread by the guest's accounting, ns and counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AccountedTimes {
    pub user_ns: u64,
    pub system_ns: u64,
    pub runtime_ns: u64,
    pub run_delay_ns: u64,
    pub switches: u64,
    /// Times of its children, for a process.
    pub children: ChildCpuTimes,
}

/// Returns the times that children have added.
fn since(last: &ChildCpuTimes, first: &ChildCpuTimes) -> ChildCpuTimes {
    ChildCpuTimes {
        user_ns: last.user_ns.saturating_sub(first.user_ns),
        system_ns: last.system_ns.saturating_sub(first.system_ns),
        voluntary: last.voluntary.saturating_sub(first.voluntary),
        involuntary: last.involuntary.saturating_sub(first.involuntary),
        minor_faults: last.minor_faults.saturating_sub(first.minor_faults),
        major_faults: last.major_faults.saturating_sub(first.major_faults),
    }
}

/// First reading, if the thing existed then, and last reading of one thing.
#[derive(Debug)]
pub(super) struct ReadingPair<T> {
    pub first: Option<(u64, T)>,
    pub last: (u64, T),
}

impl<T> ReadingPair<T> {
    /// True if a point of time of the run is between the two readings; without a first one, before the last.
    pub fn covers(&self, time_ns: u64) -> bool {
        self.since_ns().is_none_or(|since| since < time_ns) && time_ns <= self.last.0
    }

    pub fn since_ns(&self) -> Option<u64> {
        self.first.as_ref().map(|(time_ns, _)| *time_ns)
    }
}

impl ReadingPair<AccountedTimes> {
    /// Returns the times between the two readings. The kernel may divide the sum differently in hindsight,
    /// but the sum does not change.
    pub fn grown(&self) -> AccountedTimes {
        let Some((_, first)) = self.first else { return self.last.1 };
        let last = self.last.1;
        let sum = |reported: &AccountedTimes| reported.user_ns.saturating_add(reported.system_ns);
        let all = sum(&last).saturating_sub(sum(&first));
        let user_ns = last.user_ns.saturating_sub(first.user_ns).min(all);
        AccountedTimes {
            user_ns,
            system_ns: all - user_ns,
            runtime_ns: last.runtime_ns.saturating_sub(first.runtime_ns),
            run_delay_ns: last.run_delay_ns.saturating_sub(first.run_delay_ns),
            switches: last.switches.saturating_sub(first.switches),
            children: since(&last.children, &first.children),
        }
    }

    /// Returns user and system time at the first reading.
    pub fn before(&self) -> (u64, u64) {
        self.first.map_or((0, 0), |(_, first)| (first.user_ns, first.system_ns))
    }

    /// Returns the chance of a reported time as far from the measured one as this, if it is right.
    pub fn chance(&self, measured: &Time) -> f64 {
        let grown = self.grown();
        chance(grown.user_ns.saturating_add(grown.system_ns), self.first.is_some(), measured)
    }
}

impl ReadingPair<CpuTimes> {
    /// Returns the times between the two readings.
    pub fn grown(&self) -> CpuTimes {
        self.last.1.since(&self.before())
    }

    /// Returns the times at the first reading.
    pub fn before(&self) -> CpuTimes {
        self.first.map_or_else(CpuTimes::default, |(_, first)| first)
    }
}

/// The guest's CPU accounting, as far as the profile has it.
pub(super) struct GuestAccounting {
    pub meta: BTreeMap<String, String>,
    pub vcpus: Vec<VcpuTotals>,
    pub instances: HashMap<u32, Who>,
    /// Instances that serve soft interrupts.
    pub ksoftirqds: HashSet<u32>,
    pub processes: BTreeMap<u32, ReadingPair<AccountedTimes>>,
    pub threads: BTreeMap<(u32, i32), ReadingPair<AccountedTimes>>,
    pub thread_names: HashMap<(u32, i32), String>,
    pub cpus: BTreeMap<u32, ReadingPair<CpuTimes>>,
    /// Processes by those that waited for them.
    pub reaped: ReapedProcesses,
}

/// Joins last readings with first ones. A first reading with more time than the last belongs to another
/// thread whose id was reused.
fn kept<K: Ord, T>(
    rows: impl IntoIterator<Item = Reading<K, T>>,
    grew: impl Fn(&T, &T) -> bool,
) -> BTreeMap<K, ReadingPair<T>> {
    let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
    for (key, (is_first, time_ns, row)) in rows {
        let side = if is_first { &mut first } else { &mut last };
        side.insert(key, (time_ns, row));
    }
    let join = |(key, last): (K, (u64, T))| {
        let first = first.remove(&key).filter(|first: &(u64, T)| grew(&first.1, &last.1));
        (key, ReadingPair { first, last })
    };
    last.into_iter().map(join).collect()
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map([], row)?.collect()
}

/// Returns the sum of `column` and the next. The guest chooses the values, so SQL must not add them: its sums
/// may overflow.
fn both(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(unsigned(row, column)?.saturating_add(unsigned(row, column + 1)?))
}

/// A reading of a thing: its key, true for the first reading, the time, and the values.
type Reading<K, T> = (K, (bool, u64, T));

/// Reads table `rusage` by instance.
fn processes(connection: &Connection) -> rusqlite::Result<Vec<Reading<u32, AccountedTimes>>> {
    let sql = "SELECT instance, first, time_ns, user_ns, system_ns, runtime_ns, run_delay_ns, \
               voluntary, involuntary, children_user_ns, children_system_ns, children_voluntary, \
               children_involuntary, children_minor_faults, children_major_faults FROM rusage";
    rows(connection, sql, |row| {
        let reported = AccountedTimes {
            user_ns: unsigned(row, 3)?,
            system_ns: unsigned(row, 4)?,
            runtime_ns: unsigned(row, 5)?,
            run_delay_ns: unsigned(row, 6)?,
            switches: both(row, 7)?,
            children: ChildCpuTimes {
                user_ns: unsigned(row, 9)?,
                system_ns: unsigned(row, 10)?,
                voluntary: unsigned(row, 11)?,
                involuntary: unsigned(row, 12)?,
                minor_faults: unsigned(row, 13)?,
                major_faults: unsigned(row, 14)?,
            },
        };
        Ok((row.get(0)?, (row.get(1)?, unsigned(row, 2)?, reported)))
    })
}

/// Reads table `thread_time` by instance and thread id.
fn threads(connection: &Connection) -> rusqlite::Result<Vec<Reading<(u32, i32), AccountedTimes>>> {
    let sql =
        "SELECT instance, tid, first, time_ns, tick_user_ns, tick_system_ns, runtime_ns FROM thread_time";
    rows(connection, sql, |row| {
        let ticks = CpuTime {
            user_ns: unsigned(row, 4)?,
            system_ns: unsigned(row, 5)?,
            runtime_ns: unsigned(row, 6)?,
            ..CpuTime::default()
        };
        // Same as in `/proc/PID/task/TID/stat` and getrusage (`task_cputime_adjusted`,
        // kernel/sched/cputime.c).
        let (user_ns, system_ns) = ticks.reported((0, 0));
        let reported =
            AccountedTimes { user_ns, system_ns, runtime_ns: ticks.runtime_ns, ..AccountedTimes::default() };
        Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, unsigned(row, 3)?, reported)))
    })
}

/// Reads table `cpu_time` by CPU.
fn cpus(connection: &Connection) -> rusqlite::Result<Vec<Reading<u32, CpuTimes>>> {
    let sql = "SELECT cpu, first, time_ns, user_ns, nice_ns, system_ns, irq_ns, softirq_ns, \
               idle_ns, iowait_ns, steal_ns FROM cpu_time";
    rows(connection, sql, |row| {
        let times = CpuTimes {
            user_ns: both(row, 3)?,
            system_ns: unsigned(row, 5)?,
            irq_ns: unsigned(row, 6)?,
            softirq_ns: unsigned(row, 7)?,
            idle_ns: both(row, 8)?,
            steal_ns: unsigned(row, 10)?,
        };
        Ok((row.get(0)?, (row.get(1)?, unsigned(row, 2)?, times)))
    })
}

impl GuestAccounting {
    pub fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let meta = rows(connection, "SELECT key, value FROM meta", |row| Ok((row.get(0)?, row.get(1)?)))?;
        let serving = rows(connection, "SELECT id, comm, kernel_thread FROM instance", |row| {
            let comm: String = row.get(1)?;
            Ok(is_ksoftirqd(&comm, row.get(2)?).then_some(row.get(0)?))
        })?;
        let instances = rows(connection, "SELECT id, comm, pid, number FROM instance", |row| {
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))
        })?;
        let names = rows(connection, "SELECT instance, tid, comm FROM thread", |row| {
            Ok(((row.get(0)?, row.get(1)?), row.get(2)?))
        })?;
        let grew = |first: &AccountedTimes, last: &AccountedTimes| first.runtime_ns <= last.runtime_ns;
        let processes = kept(processes(connection)?, grew);
        let cpus = kept(cpus(connection)?, |_, _| true);
        let last_ns = cpus.values().map(|kept: &ReadingPair<CpuTimes>| kept.last.0).max();
        Ok(Self {
            meta: meta.into_iter().collect(),
            vcpus: vcpus(connection)?,
            instances: instances.into_iter().collect(),
            ksoftirqds: serving.into_iter().flatten().collect(),
            reaped: ReapedProcesses::read(connection, &processes, last_ns)?,
            processes,
            threads: kept(threads(connection)?, grew),
            thread_names: names.into_iter().collect(),
            cpus,
        })
    }
}
