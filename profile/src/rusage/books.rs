//! The guest's books as the profile has them: first and last readings.

use std::collections::{BTreeMap, HashMap, HashSet};

use linux::{ChildCpuTimes, CpuTime};
use rusqlite::{Connection, Row};

use super::children::Families;
use super::{CpuTimes, chance};
use crate::estimate::Time;
use crate::numbers::unsigned;
use crate::report::tables::vcpus;
use crate::rows::VcpuRow;
use crate::rows::is_ksoftirqd;

/// Who an instance is: name, pid, number.
type Who = (String, i32, u32);

/// The books of a process or of a thread, ns and counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    pub user_ns: u64,
    pub system_ns: u64,
    pub runtime_ns: u64,
    pub run_delay_ns: u64,
    pub switches: u64,
    /// Of a process.
    pub children: ChildCpuTimes,
}

/// What children have added.
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

/// What was kept of one thing when it was first read, if it was there then, and when it was last read.
#[derive(Debug)]
pub(super) struct Kept<T> {
    pub first: Option<(u64, T)>,
    pub last: (u64, T),
}

impl<T> Kept<T> {
    /// Whether a moment of the run lies between the two readings; without a first one, before the last.
    pub fn covers(&self, time_ns: u64) -> bool {
        self.since_ns().is_none_or(|since| since < time_ns) && time_ns <= self.last.0
    }

    pub fn since_ns(&self) -> Option<u64> {
        self.first.as_ref().map(|(time_ns, _)| *time_ns)
    }
}

impl Kept<Told> {
    /// What was told between the two readings. How the kernel divides the sum changes in hindsight, the sum does not.
    pub fn grown(&self) -> Told {
        let Some((_, first)) = self.first else { return self.last.1 };
        let last = self.last.1;
        let sum = |told: &Told| told.user_ns.saturating_add(told.system_ns);
        let all = sum(&last).saturating_sub(sum(&first));
        let user_ns = last.user_ns.saturating_sub(first.user_ns).min(all);
        Told {
            user_ns,
            system_ns: all - user_ns,
            runtime_ns: last.runtime_ns.saturating_sub(first.runtime_ns),
            run_delay_ns: last.run_delay_ns.saturating_sub(first.run_delay_ns),
            switches: last.switches.saturating_sub(first.switches),
            children: since(&last.children, &first.children),
        }
    }

    /// User and system time that was told at the first reading.
    pub fn before(&self) -> (u64, u64) {
        self.first.map_or((0, 0), |(_, first)| (first.user_ns, first.system_ns))
    }

    /// Chance that what is told is this far from the truth where it is right.
    pub fn chance(&self, truth: &Time) -> f64 {
        let grown = self.grown();
        chance(grown.user_ns.saturating_add(grown.system_ns), self.first.is_some(), truth)
    }
}

impl Kept<CpuTimes> {
    /// What was told between the two readings.
    pub fn grown(&self) -> CpuTimes {
        self.last.1.since(&self.before())
    }

    /// What was told at the first reading.
    pub fn before(&self) -> CpuTimes {
        self.first.map_or_else(CpuTimes::default, |(_, first)| first)
    }
}

/// What the profile holds of the guest's books.
pub(super) struct Books {
    pub meta: BTreeMap<String, String>,
    pub vcpus: Vec<VcpuRow>,
    pub instances: HashMap<u32, Who>,
    /// Instances that serve soft interrupts.
    pub ksoftirqds: HashSet<u32>,
    pub processes: BTreeMap<u32, Kept<Told>>,
    pub threads: BTreeMap<(u32, i32), Kept<Told>>,
    pub thread_names: HashMap<(u32, i32), String>,
    pub cpus: BTreeMap<u32, Kept<CpuTimes>>,
    /// Who was waited for by whom.
    pub families: Families,
}

/// What was read later than at the first reading, with that. A first reading of more than the last is another's: of a
/// thread whose id was given again.
fn kept<K: Ord, T>(
    rows: impl IntoIterator<Item = (K, (bool, u64, T))>,
    grew: impl Fn(&T, &T) -> bool,
) -> BTreeMap<K, Kept<T>> {
    let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
    for (key, (is_first, time_ns, row)) in rows {
        let side = if is_first { &mut first } else { &mut last };
        side.insert(key, (time_ns, row));
    }
    let join = |(key, last): (K, (u64, T))| {
        let first = first.remove(&key).filter(|first: &(u64, T)| grew(&first.1, &last.1));
        (key, Kept { first, last })
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

/// `column` and the next together. They are what a guest says, so SQL, where sums may overflow, must not add them.
fn both(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(unsigned(row, column)?.saturating_add(unsigned(row, column + 1)?))
}

impl Books {
    pub fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let meta = rows(connection, "SELECT key, value FROM meta", |row| Ok((row.get(0)?, row.get(1)?)))?;
        let serving = rows(connection, "SELECT id, comm, kernel_thread FROM instance", |row| {
            let comm: String = row.get(1)?;
            Ok(is_ksoftirqd(&comm, row.get(2)?).then_some(row.get(0)?))
        })?;
        let instances = rows(connection, "SELECT id, comm, pid, number FROM instance", |row| {
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))
        })?;
        let sql = "SELECT instance, first, time_ns, user_ns, system_ns, runtime_ns, run_delay_ns, \
                   voluntary, involuntary, children_user_ns, children_system_ns, children_voluntary, \
                   children_involuntary, children_minor_faults, children_major_faults FROM rusage";
        let processes = rows(connection, sql, |row| {
            let told = Told {
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
            Ok((row.get(0)?, (row.get(1)?, unsigned(row, 2)?, told)))
        })?;
        let sql =
            "SELECT instance, tid, first, time_ns, tick_user_ns, tick_system_ns, runtime_ns FROM thread_time";
        let threads = rows(connection, sql, |row| {
            let ticks = CpuTime {
                user_ns: unsigned(row, 4)?,
                system_ns: unsigned(row, 5)?,
                runtime_ns: unsigned(row, 6)?,
                ..CpuTime::default()
            };
            // As `/proc/PID/task/TID/stat` and getrusage do (`task_cputime_adjusted`, kernel/sched/cputime.c).
            let (user_ns, system_ns) = ticks.reported((0, 0));
            let told = Told { user_ns, system_ns, runtime_ns: ticks.runtime_ns, ..Told::default() };
            Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, unsigned(row, 3)?, told)))
        })?;
        let names = rows(connection, "SELECT instance, tid, comm FROM thread", |row| {
            Ok(((row.get(0)?, row.get(1)?), row.get(2)?))
        })?;
        let sql = "SELECT cpu, first, time_ns, user_ns, nice_ns, system_ns, irq_ns, softirq_ns, \
                   idle_ns, iowait_ns, steal_ns FROM cpu_time";
        let cpus = rows(connection, sql, |row| {
            let times = CpuTimes {
                user_ns: both(row, 3)?,
                system_ns: unsigned(row, 5)?,
                irq_ns: unsigned(row, 6)?,
                softirq_ns: unsigned(row, 7)?,
                idle_ns: both(row, 8)?,
                steal_ns: unsigned(row, 10)?,
            };
            Ok((row.get(0)?, (row.get(1)?, unsigned(row, 2)?, times)))
        })?;
        let grew = |first: &Told, last: &Told| first.runtime_ns <= last.runtime_ns;
        let processes = kept(processes, grew);
        let cpus = kept(cpus, |_, _| true);
        let last_ns = cpus.values().map(|kept: &Kept<CpuTimes>| kept.last.0).max();
        Ok(Self {
            meta: meta.into_iter().collect(),
            vcpus: vcpus(connection)?,
            instances: instances.into_iter().collect(),
            ksoftirqds: serving.into_iter().flatten().collect(),
            families: Families::read(connection, &processes, last_ns)?,
            processes,
            threads: kept(threads, grew),
            thread_names: names.into_iter().collect(),
            cpus,
        })
    }
}
