//! States of tasks, their sleeps, and wake-ups.

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::Connection;

use super::{
    CpuParts, Delays, Key, OffCpu, Stacks, StateTime, Task, TaskStates, Wakeup, count, key, part, seconds,
};
use crate::report::is_process;
use crate::report::tables::UNKNOWN;

/// Tasks by their keys.
#[derive(Debug)]
pub(super) struct Names(HashMap<Key, Task>);

impl Names {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare(
            "SELECT l.instance, l.tid, i.comm, i.pid, i.number, t.comm, i.kernel_thread FROM task_life l \
             JOIN instance i ON i.id = l.instance LEFT JOIN thread t ON t.instance = l.instance AND t.tid = l.tid",
        )?;
        let rows = statement.query_map([], |row| {
            let key = key(row, 0)?;
            let task = Task {
                comm: row.get(2)?,
                pid: row.get(3)?,
                instance: row.get(4)?,
                tid: key.1,
                thread: row.get(5)?,
                kernel_thread: row.get(6)?,
            };
            Ok((key, task))
        })?;
        Ok(Self(rows.collect::<Result<_, _>>()?))
    }

    /// Returns the task; the idle tasks have no instance.
    pub(super) fn task(&self, (instance, tid): Key) -> Cow<'_, Task> {
        let unknown = || {
            let comm = if instance == 0 { "[idle]" } else { UNKNOWN }.to_owned();
            Cow::Owned(Task { comm, tid, ..Task::default() })
        };
        self.0.get(&(instance, tid)).map_or_else(unknown, Cow::Borrowed)
    }

    /// Returns a thread of each process, the first one if it is known, by instance row id.
    pub(super) fn leaders(&self) -> HashMap<u32, Key> {
        let mut leaders: HashMap<u32, Key> = HashMap::new();
        for (&key, task) in &self.0 {
            let leader = leaders.entry(key.0).or_insert(key);
            if task.tid == task.pid {
                *leader = key;
            }
        }
        leaders
    }

    pub(super) fn is(&self, key: Key, wanted: &str) -> bool {
        self.0.get(&key).is_some_and(|task| is_process((&task.comm, task.pid, task.instance), wanted))
    }
}

/// Reads tasks and their states, longest on a CPU first.
pub(super) fn states(
    connection: &Connection,
    (names, parts, delays): (&Names, &HashMap<Key, CpuParts>, &Delays),
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<TaskStates>> {
    let mut all: HashMap<Key, (u64, TaskStates)> = HashMap::new();
    let mut statement = connection.prepare("SELECT instance, tid, to_ns - from_ns, ended FROM task_life")?;
    let lives = statement.query_map([], |row| Ok((key(row, 0)?, count(row, 2)?, row.get(3)?)))?;
    for life in lives {
        let (key, ns, ended) = life?;
        if chosen(key) {
            let states = TaskStates {
                task: names.task(key).into_owned(),
                life_s: seconds(ns),
                ended,
                running_s: 0.0,
                parts: parts.get(&key).copied(),
                delay: delays.of_task(key),
                states: Vec::new(),
            };
            all.insert(key, (ns, states));
        }
    }
    let mut statement = connection.prepare(
        "SELECT instance, tid, state, wait_reason, sum(ns), sum(count) FROM task_state \
         GROUP BY instance, tid, state, wait_reason ORDER BY sum(ns) DESC",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let Some((life, task)) = all.get_mut(&key(row, 0)?) else { continue };
        let (state, ns) = (row.get::<_, String>(2)?, count(row, 4)?);
        if state == "running" {
            task.running_s = seconds(ns);
        }
        let (wait_reason, s, share) = (row.get(3)?, seconds(ns), part(ns, *life));
        task.states.push(StateTime { state, wait_reason, s, share, count: count(row, 5)? });
    }
    let mut list: Vec<TaskStates> = all.into_values().map(|(_, task)| task).collect();
    list.sort_by(|a, b| {
        let order = |t: &TaskStates| (t.task.comm.clone(), t.task.pid, t.task.tid);
        b.running_s.total_cmp(&a.running_s).then_with(|| order(a).cmp(&order(b)))
    });
    Ok(list)
}

/// Reads sleeps, longest first.
pub(super) fn off_cpu(
    connection: &Connection,
    (names, stacks): (&Names, &Stacks),
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<OffCpu>> {
    let mut statement = connection.prepare(
        "SELECT instance, tid, state, wait_reason, ns, count, stack FROM task_state \
         WHERE state IN ('sleep', 'disk', 'stopped') ORDER BY ns DESC, instance, tid, stack",
    )?;
    let mut rows = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        let key = key(row, 0)?;
        if chosen(key) {
            list.push(OffCpu {
                task: names.task(key).into_owned(),
                state: row.get(2)?,
                wait_reason: row.get(3)?,
                s: seconds(count(row, 4)?),
                count: count(row, 5)?,
                stack: stacks.functions(row.get(6)?),
            });
        }
    }
    Ok(list)
}

/// Reads wake-ups, most first.
pub(super) fn wakeups(
    connection: &Connection,
    names: &Names,
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<Wakeup>> {
    let mut statement = connection.prepare(
        "SELECT \"by\", waker, waker_tid, woken, woken_tid, count FROM wakeup \
         ORDER BY count DESC, waker, waker_tid, woken, woken_tid",
    )?;
    let mut rows = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        let (by, waker, woken) = (row.get::<_, String>(0)?, key(row, 1)?, key(row, 3)?);
        if chosen(woken) || by == "task" && chosen(waker) {
            let waker = (by == "task").then(|| names.task(waker).into_owned());
            list.push(Wakeup { by, waker, woken: names.task(woken).into_owned(), count: count(row, 5)? });
        }
    }
    Ok(list)
}
