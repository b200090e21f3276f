//! States of children that processes have waited for.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::Connection;

use super::tasks::Names;
use super::{ChildrenStates, Key, StateTime, count, part, seconds};

/// Limit of generations: a profile may be damaged.
const DEEPEST: usize = 64;

/// Sums of processes.
#[derive(Default)]
struct Sums {
    processes: u64,
    life_ns: u64,
    states: BTreeMap<(String, String), (u64, u64)>,
}

impl Sums {
    fn children(self, task: super::Task, waited_for: u64) -> ChildrenStates {
        let state = |((state, wait_reason), (ns, count)): ((String, String), (u64, u64))| StateTime {
            state,
            wait_reason,
            s: seconds(ns),
            share: part(ns, self.life_ns),
            count,
        };
        let mut states: Vec<StateTime> = self.states.into_iter().map(state).collect();
        states.sort_by(|a, b| b.s.total_cmp(&a.s));
        let running = states.iter().filter(|state| state.state == "running");
        ChildrenStates {
            comm: task.comm,
            pid: task.pid,
            instance: task.instance,
            waited_for,
            processes: self.processes,
            life_s: seconds(self.life_ns),
            running_s: running.fold(0.0, |sum, state| sum + state.s),
            states,
        }
    }
}

/// Reads the sums over the children that each process has waited for and their descendants, most time on a
/// CPU first, as getrusage(RUSAGE_CHILDREN) has them.
pub(super) fn read(
    connection: &Connection,
    names: &Names,
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<ChildrenStates>> {
    let mut statement = connection.prepare("SELECT child, parent FROM reaped")?;
    let waited = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let waited: HashMap<u32, u32> = waited.collect::<rusqlite::Result<_>>()?;
    let mut sums: HashMap<u32, Sums> = HashMap::new();
    let mut direct: HashMap<u32, u64> = HashMap::new();
    // As in the kernel, a child counts for the process that waited for it, and through it for the one that
    // waited for that process.
    for (&child, &by) in &waited {
        *direct.entry(by).or_default() += 1;
        for above in above(&waited, child) {
            sums.entry(above).or_default().processes += 1;
        }
    }
    let mut statement = connection.prepare("SELECT instance, to_ns - from_ns FROM task_life")?;
    let lives = statement.query_map([], |row| Ok((row.get(0)?, count(row, 1)?)))?;
    for life in lives {
        let (child, ns) = life?;
        for above in above(&waited, child) {
            let sum = sums.entry(above).or_default();
            sum.life_ns = sum.life_ns.saturating_add(ns);
        }
    }
    let mut statement = connection.prepare(
        "SELECT instance, state, wait_reason, sum(ns), sum(count) FROM task_state GROUP BY instance, state, wait_reason",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (key, ns, times) = ((row.get(1)?, row.get(2)?), count(row, 3)?, count(row, 4)?);
        for above in above(&waited, row.get(0)?) {
            let state = sums.entry(above).or_default().states.entry(key.clone()).or_default();
            *state = (state.0.saturating_add(ns), state.1.saturating_add(times));
        }
    }
    // Rows are of processes, but tasks are known by thread: any thread of a process gives its name.
    let leaders = names.leaders();
    let mut list: Vec<ChildrenStates> = sums
        .into_iter()
        .filter_map(|(id, sums)| {
            let key = leaders.get(&id).copied().filter(|&key| chosen(key))?;
            Some(sums.children(names.task(key).into_owned(), direct.get(&id).copied().unwrap_or(0)))
        })
        .collect();
    list.sort_by(|a, b| b.running_s.total_cmp(&a.running_s).then_with(|| a.pid.cmp(&b.pid)));
    Ok(list)
}

/// Returns the process that waited for a child, the one that waited for that, and so on.
fn above(waited: &HashMap<u32, u32>, child: u32) -> Vec<u32> {
    let mut seen = HashSet::from([child]);
    let next = |process: &u32| waited.get(process).copied();
    std::iter::successors(next(&child), next)
        .take(DEEPEST)
        .take_while(|process| seen.insert(*process))
        .collect()
}
