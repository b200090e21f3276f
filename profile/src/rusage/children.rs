//! Processes by the process that waited for them.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::accounting::{AccountedTimes, ReadingPair};
use crate::numbers::unsigned;
use crate::report::subtree::{Birth, parents};

/// Limit of generations: a profile may be damaged.
const DEEPEST: usize = 64;

/// Processes that were reaped, and those that waited for them, by instance row id.
#[derive(Debug, Default)]
pub(super) struct ReapedProcesses {
    /// For each reaped process, the processes whose accounting includes it: the one that waited, the one that
    /// waited for that, and so on.
    above: HashMap<u32, Vec<u32>>,
    /// Number of processes that the accounting of a process includes.
    below: HashMap<u32, u64>,
    seen: bool,
}

impl ReapedProcesses {
    /// Reads the processes that waited, if exact mode has recorded them. Otherwise the processes that had
    /// ended at the last reading, at `last_ns`, are assigned to their parents.
    pub fn read(
        connection: &Connection,
        accounting: &BTreeMap<u32, ReadingPair<AccountedTimes>>,
        last_ns: Option<u64>,
    ) -> rusqlite::Result<Self> {
        let exact = "SELECT EXISTS (SELECT 1 FROM meta WHERE key = 'exact_from_ns')";
        let seen = connection.query_row(exact, [], |row| row.get(0))?;
        let waited: HashMap<u32, (u32, u64)> = if seen {
            let mut statement = connection.prepare("SELECT child, parent, time_ns FROM reaped")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, unsigned(row, 2)?))))?;
            rows.collect::<rusqlite::Result<_>>()?
        } else {
            ended(connection, accounting, last_ns.unwrap_or(0))?
        };
        // Children that were waited for before the first reading are not part of the difference.
        let counts = |by: u32, time_ns: u64| {
            accounting.get(&by).is_some_and(|kept| kept.since_ns().is_none_or(|since| since < time_ns))
        };
        let mut reaped = Self { seen, ..Self::default() };
        for (&child, &(by, time_ns)) in &waited {
            let (mut by, mut time_ns) = (by, time_ns);
            let mut above = Vec::new();
            while above.len() < DEEPEST && by != child && !above.contains(&by) {
                if counts(by, time_ns) {
                    above.push(by);
                    *reaped.below.entry(by).or_default() += 1;
                }
                let Some(next) = waited.get(&by) else { break };
                (by, time_ns) = *next;
            }
            reaped.above.insert(child, above);
        }
        Ok(reaped)
    }

    /// Returns the processes whose accounting includes this one.
    pub fn above(&self, process: u32) -> &[u32] {
        self.above.get(&process).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of processes that the accounting of this one includes.
    pub fn below(&self, process: u32) -> u64 {
        self.below.get(&process).copied().unwrap_or(0)
    }

    /// True if exact mode has recorded which process waited for which.
    pub fn seen(&self) -> bool {
        self.seen
    }
}

/// Returns processes that existed before `last_ns` but not then, with their parents, and the time at which
/// they last existed.
fn ended(
    connection: &Connection,
    accounting: &BTreeMap<u32, ReadingPair<AccountedTimes>>,
    last_ns: u64,
) -> rusqlite::Result<HashMap<u32, (u32, u64)>> {
    let mut statement = connection.prepare("SELECT id, pid, parent_pid, start_ns, vm FROM instance")?;
    let births = statement.query_map([], |row| {
        let start_ns = unsigned(row, 3)?;
        Ok(Birth { id: row.get(0)?, vm: row.get(4)?, pid: row.get(1)?, parent_pid: row.get(2)?, start_ns })
    })?;
    let parents = parents(&births.collect::<rusqlite::Result<Vec<_>>>()?);
    let sql = "SELECT instance, max(time_ns) FROM sample WHERE instance IS NOT NULL GROUP BY instance";
    let mut statement = connection.prepare(sql)?;
    let sampled = statement.query_map([], |row| Ok((row.get(0)?, unsigned(row, 1)?)))?;
    let mut sights: HashMap<u32, u64> = accounting.iter().map(|(&id, kept)| (id, kept.last.0)).collect();
    for sampled in sampled {
        let (id, time_ns) = sampled?;
        let sight = sights.entry(id).or_default();
        *sight = time_ns.max(*sight);
    }
    let gone = sights.into_iter().filter(|(_, sight_ns)| *sight_ns < last_ns);
    Ok(gone.filter_map(|(id, sight_ns)| Some((id, (*parents.get(&id)?, sight_ns)))).collect())
}
