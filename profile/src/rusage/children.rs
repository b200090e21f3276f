//! Which processes have waited for which.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::books::{Kept, Told};
use crate::numbers::unsigned;
use crate::report::family::{Birth, parents};

/// Generations that are followed, at most: a profile may be damaged.
const DEEPEST: usize = 64;

/// Processes by those that waited for them, by instance row id.
#[derive(Debug, Default)]
pub(super) struct Families {
    /// Those that were waited for, and whose books hold the process: the one that waited, the one that waited for that, ...
    above: HashMap<u32, Vec<u32>>,
    /// How many processes the books of a process hold.
    below: HashMap<u32, u64>,
    seen: bool,
}

impl Families {
    /// Exact mode has seen who waited; else the processes that had ended when the books were last read, at `last_ns`, are
    /// their parents'.
    pub fn read(
        connection: &Connection,
        books: &BTreeMap<u32, Kept<Told>>,
        last_ns: Option<u64>,
    ) -> rusqlite::Result<Self> {
        let exact = "SELECT EXISTS (SELECT 1 FROM meta WHERE key = 'exact_from_ns')";
        let seen = connection.query_row(exact, [], |row| row.get(0))?;
        let waited: HashMap<u32, (u32, u64)> = if seen {
            let mut statement = connection.prepare("SELECT child, parent, time_ns FROM reaped")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, unsigned(row, 2)?))))?;
            rows.collect::<rusqlite::Result<_>>()?
        } else {
            ended(connection, books, last_ns.unwrap_or(0))?
        };
        // What was waited for before the first reading of the books is no part of what they have grown by.
        let counts = |by: u32, time_ns: u64| {
            books.get(&by).is_some_and(|kept| kept.since_ns().is_none_or(|since| since < time_ns))
        };
        let mut families = Self { seen, ..Self::default() };
        for (&child, &(by, time_ns)) in &waited {
            let (mut by, mut time_ns) = (by, time_ns);
            let mut above = Vec::new();
            while above.len() < DEEPEST && by != child && !above.contains(&by) {
                if counts(by, time_ns) {
                    above.push(by);
                    *families.below.entry(by).or_default() += 1;
                }
                let Some(next) = waited.get(&by) else { break };
                (by, time_ns) = *next;
            }
            families.above.insert(child, above);
        }
        Ok(families)
    }

    /// Whose books hold this process.
    pub fn above(&self, process: u32) -> &[u32] {
        self.above.get(&process).map_or(&[], Vec::as_slice)
    }

    /// How many processes the books of this one hold.
    pub fn below(&self, process: u32) -> u64 {
        self.below.get(&process).copied().unwrap_or(0)
    }

    /// Whether exact mode has seen who waited.
    pub fn seen(&self) -> bool {
        self.seen
    }
}

/// Processes that were there before `last_ns` and not any more then, with their parents, and when they were last there.
fn ended(
    connection: &Connection,
    books: &BTreeMap<u32, Kept<Told>>,
    last_ns: u64,
) -> rusqlite::Result<HashMap<u32, (u32, u64)>> {
    let mut statement = connection.prepare("SELECT id, pid, parent_pid, start_ns FROM instance")?;
    let births = statement.query_map([], |row| {
        let start_ns = unsigned(row, 3)?;
        Ok(Birth { id: row.get(0)?, pid: row.get(1)?, parent_pid: row.get(2)?, start_ns })
    })?;
    let parents = parents(&births.collect::<rusqlite::Result<Vec<_>>>()?);
    let sql = "SELECT instance, max(time_ns) FROM sample WHERE instance IS NOT NULL GROUP BY instance";
    let mut statement = connection.prepare(sql)?;
    let sampled = statement.query_map([], |row| Ok((row.get(0)?, unsigned(row, 1)?)))?;
    let mut sights: HashMap<u32, u64> = books.iter().map(|(&id, kept)| (id, kept.last.0)).collect();
    for sampled in sampled {
        let (id, time_ns) = sampled?;
        let sight = sights.entry(id).or_default();
        *sight = time_ns.max(*sight);
    }
    let gone = sights.into_iter().filter(|(_, sight_ns)| *sight_ns < last_ns);
    Ok(gone.filter_map(|(id, sight_ns)| Some((id, (*parents.get(&id)?, sight_ns)))).collect())
}
