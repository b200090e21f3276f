//! What exact mode has found: `vprof report --exact`. Serializes to the object that docs/json.md describes.

use std::collections::HashMap;

use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};

use super::{ReportError, is_process};
use crate::profile::{Profile, snapshot};

/// Frames of a stack, at most: a profile may be damaged.
const MOST_FRAMES: usize = 1024;

/// A task of the guest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Program name; `[idle]` for the idle tasks.
    pub comm: String,
    /// Process id; 0 for the idle tasks.
    pub pid: i32,
    /// Instance number.
    pub instance: u32,
    /// Thread id.
    pub tid: i32,
    /// The thread's own name.
    pub thread: Option<String>,
    /// A kernel thread.
    pub kernel_thread: bool,
}

/// Time in one state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateTime {
    /// `running`, `interrupted`, `queue`, `sleep`, `disk`, `stopped`, `zombie` or `unknown`.
    pub state: String,
    /// What a sleep is for, like `futex`; empty otherwise.
    pub cause: String,
    /// Exact time, s.
    pub s: f64,
    /// Its part of the task's life.
    pub share: f64,
    /// How often the state began.
    pub count: u64,
}

/// A task and what it did. The times of its states add up to `life_s`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskStates {
    /// Which.
    #[serde(flatten)]
    pub task: Task,
    /// How long it was followed, s.
    pub life_s: f64,
    /// It has ended, and nothing is left of it.
    pub ended: bool,
    /// Exact time on a CPU, handlers of hard interrupts left out, s.
    pub running_s: f64,
    /// Estimate: the part of it in user code, by the thread's samples; `None` without samples.
    pub user_part: Option<f64>,
    /// Samples that the estimate rests on.
    pub samples: u64,
    /// Most time first.
    pub states: Vec<StateTime>,
}

/// Time that a task was asleep in one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OffCpu {
    /// Which.
    #[serde(flatten)]
    pub task: Task,
    /// `sleep`, `disk` or `stopped`.
    pub state: String,
    /// What for.
    pub cause: String,
    /// Exact time until it was woken, s.
    pub s: f64,
    /// How often.
    pub count: u64,
    /// Kernel functions, innermost first; empty where the stack was not read.
    pub stack: Vec<String>,
}

/// How often somebody was woken by somebody.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wakeup {
    /// `task`, or an interrupt: `hard` or `soft`.
    pub by: String,
    /// Who; `None` for an interrupt.
    pub waker: Option<Task>,
    /// Who was woken.
    pub woken: Task,
    /// How often.
    pub count: u64,
}

/// Time in handlers of hard interrupts that interrupted one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InterruptTime {
    /// vCPU.
    pub vcpu: u8,
    /// The interrupted task.
    #[serde(flatten)]
    pub task: Task,
    /// Exact time, s.
    pub s: f64,
    /// How many.
    pub count: u64,
}

/// What one vCPU contributed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExactVcpu {
    /// 0 and up.
    pub id: u8,
    /// Exits for events.
    pub trips: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Switches that were seen.
    pub switches: u64,
    /// Switches by the kernel's own count, where it could be read.
    pub guest_switches: Option<u64>,
    /// Nothing to run, s.
    pub idle_s: f64,
    /// In handlers of hard interrupts, s.
    pub interrupt_s: f64,
    /// Hard interrupts.
    pub interrupts: u64,
    /// Sleeps whose stack was not read.
    pub stacks_missed: u64,
    /// From the events' exits to the next entries, s: what exact mode itself cost.
    pub cost_s: f64,
}

/// The exact part of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExactReport {
    /// Since the run's start, s.
    pub from_s: f64,
    /// Since the run's start, s; the end of the run where nothing ended it before.
    pub to_s: f64,
    /// Why it ended there; `None` in a run that was cut short or goes on.
    pub end: Option<String>,
    /// No event was lost: all times are exact.
    pub complete: bool,
    /// Tasks that ran although their wake had not been seen; their wait for a CPU counts as sleep.
    pub unseen_wakes: u64,
    /// One row per vCPU.
    pub vcpus: Vec<ExactVcpu>,
    /// Tasks, longest on a CPU first.
    pub tasks: Vec<TaskStates>,
    /// Sleeps by task and place, longest first.
    pub off_cpu: Vec<OffCpu>,
    /// Most wakes first.
    pub wakeups: Vec<Wakeup>,
    /// Most time first.
    pub interrupts: Vec<InterruptTime>,
}

/// By instance row id and thread id.
type Key = (u32, i32);

impl ExactReport {
    /// Reads the exact part of a profile; of `process` only, if one is named (a program name, a process id or name#instance).
    ///
    /// # Errors
    /// [`ReportError::NoExact`] where there is none, [`ReportError::NoSuch`] for a process that is not among the tasks.
    pub fn read(profile: &Profile, process: Option<&str>) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts are of the same moment of a run that goes on.
        let _snapshot = snapshot(connection).map_err(sql)?;
        let meta = |key: &str| meta(connection, key).map_err(sql);
        let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
        let Some(from_ns) = number(meta("exact_from_ns")?) else {
            let reason = match (meta("exact_missing")?, meta("exact")?.as_deref()) {
                (Some(reason), _) => reason,
                (None, Some("1")) => "the run was cut short before the guest's kernel had booted".to_owned(),
                _ => "it was made without `vprof run --exact`".to_owned(),
            };
            return Err(ReportError::NoExact(reason));
        };
        let end_ns = number(meta("exact_to_ns")?).or(number(meta("duration_ns")?)).unwrap_or(from_ns);
        let names = Names(tasks(connection).map_err(sql)?);
        let chosen = |key: Key| process.is_none_or(|wanted| names.is(key, wanted));
        let vcpus = vcpus(connection).map_err(sql)?;
        let tasks = states(connection, &names, chosen).map_err(sql)?;
        if let Some(wanted) = process.filter(|_| tasks.is_empty()) {
            let advice = "`--exact` without --process lists all".to_owned();
            return Err(ReportError::NoSuch { what: "task of", wanted: wanted.to_owned(), advice });
        }
        Ok(Self {
            from_s: seconds(from_ns),
            to_s: seconds(end_ns),
            end: meta("exact_end")?,
            complete: vcpus.iter().all(|vcpu| vcpu.lost == 0),
            unseen_wakes: number(meta("exact_unseen_wakes")?).unwrap_or(0),
            vcpus,
            tasks,
            off_cpu: off_cpu(connection, &names, chosen).map_err(sql)?,
            wakeups: wakeups(connection, &names, chosen).map_err(sql)?,
            interrupts: interrupts(connection, &names, chosen).map_err(sql)?,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time in ns below 2^53")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "times and counts below 2^53")]
fn part(of: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { of as f64 / all as f64 }
}

fn meta(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE key = ?")?;
    let mut rows = statement.query(params![key])?;
    rows.next()?.map(|row| row.get(0)).transpose()
}

/// Tasks by their keys.
struct Names(HashMap<Key, Task>);

impl Names {
    /// The task; the idle tasks have no instance.
    fn of(&self, (instance, tid): Key) -> Task {
        let unknown = || Task {
            comm: if instance == 0 { "[idle]" } else { "[unknown]" }.to_owned(),
            tid,
            ..Task::default()
        };
        self.0.get(&(instance, tid)).cloned().unwrap_or_else(unknown)
    }

    fn is(&self, key: Key, wanted: &str) -> bool {
        self.0.get(&key).is_some_and(|task| is_process((&task.comm, task.pid, task.instance), wanted))
    }
}

fn key(row: &Row<'_>, first: usize) -> rusqlite::Result<Key> {
    Ok((row.get(first)?, row.get(first + 1)?))
}

/// A count or time that was written as one.
fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}

fn tasks(connection: &Connection) -> rusqlite::Result<HashMap<Key, Task>> {
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
    rows.collect()
}

fn vcpus(connection: &Connection) -> rusqlite::Result<Vec<ExactVcpu>> {
    let mut statement = connection.prepare(
        "SELECT v.vcpu, v.trips, v.lost, v.switches, v.guest_switches, v.idle_ns, v.stacks_missed, v.cost_ns, \
         coalesce(sum(i.ns), 0), coalesce(sum(i.count), 0) FROM exact_vcpu v \
         LEFT JOIN interrupt_time i ON i.vcpu = v.vcpu GROUP BY v.vcpu ORDER BY v.vcpu",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(ExactVcpu {
            id: row.get(0)?,
            trips: count(row, 1)?,
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

fn states(
    connection: &Connection,
    names: &Names,
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<TaskStates>> {
    let samples = user_samples(connection)?;
    let mut all: HashMap<Key, (u64, TaskStates)> = HashMap::new();
    let mut statement = connection.prepare("SELECT instance, tid, to_ns - from_ns, ended FROM task_life")?;
    let lives = statement.query_map([], |row| Ok((key(row, 0)?, count(row, 2)?, row.get(3)?)))?;
    for life in lives {
        let (key, ns, ended) = life?;
        if chosen(key) {
            let (samples, user) = samples.get(&key).copied().unwrap_or_default();
            let states = TaskStates {
                task: names.of(key),
                life_s: seconds(ns),
                ended,
                running_s: 0.0,
                user_part: (samples > 0).then(|| part(user, samples)),
                samples,
                states: Vec::new(),
            };
            all.insert(key, (ns, states));
        }
    }
    let mut statement = connection.prepare(
        "SELECT instance, tid, state, cause, sum(ns), sum(count) FROM task_state \
         GROUP BY instance, tid, state, cause ORDER BY sum(ns) DESC",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let Some((life, task)) = all.get_mut(&key(row, 0)?) else { continue };
        let (state, ns) = (row.get::<_, String>(2)?, count(row, 4)?);
        if state == "running" {
            task.running_s = seconds(ns);
        }
        let (cause, s, share) = (row.get(3)?, seconds(ns), part(ns, *life));
        task.states.push(StateTime { state, cause, s, share, count: count(row, 5)? });
    }
    let mut list: Vec<TaskStates> = all.into_values().map(|(_, task)| task).collect();
    list.sort_by(|a, b| {
        let order = |t: &TaskStates| (t.task.comm.clone(), t.task.pid, t.task.tid);
        b.running_s.total_cmp(&a.running_s).then_with(|| order(a).cmp(&order(b)))
    });
    Ok(list)
}

/// Samples of each thread in user code and in the kernel, and those in user code.
fn user_samples(connection: &Connection) -> rusqlite::Result<HashMap<Key, (u64, u64)>> {
    let mut statement = connection.prepare(
        "SELECT s.instance, s.tid, count(*), sum(m.name = 'user') FROM sample s JOIN mode m ON m.id = s.mode \
         WHERE m.name IN ('user', 'kernel') AND s.instance IS NOT NULL AND s.tid IS NOT NULL \
         GROUP BY s.instance, s.tid",
    )?;
    let rows = statement.query_map([], |row| Ok((key(row, 0)?, (count(row, 2)?, count(row, 3)?))))?;
    rows.collect()
}

fn off_cpu(
    connection: &Connection,
    names: &Names,
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<OffCpu>> {
    let stacks = Stacks::read(connection)?;
    let mut statement = connection.prepare(
        "SELECT instance, tid, state, cause, ns, count, stack FROM task_state \
         WHERE state IN ('sleep', 'disk', 'stopped') ORDER BY ns DESC, instance, tid, stack",
    )?;
    let mut rows = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        let key = key(row, 0)?;
        if chosen(key) {
            list.push(OffCpu {
                task: names.of(key),
                state: row.get(2)?,
                cause: row.get(3)?,
                s: seconds(count(row, 4)?),
                count: count(row, 5)?,
                stack: stacks.functions(row.get(6)?),
            });
        }
    }
    Ok(list)
}

/// The tree of stacks, and what its frames are called.
struct Stacks(HashMap<i64, (Option<i64>, String)>);

impl Stacks {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare(
            "SELECT s.id, s.parent, coalesce(f.symbol, f.module, printf('0x%x', f.address)) \
             FROM stack s JOIN frame f ON f.id = s.frame",
        )?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
        Ok(Self(rows.collect::<Result<_, _>>()?))
    }

    fn functions(&self, stack: i64) -> Vec<String> {
        let mut list = Vec::new();
        let mut at = self.0.get(&stack);
        while let Some((parent, name)) = at.filter(|_| list.len() < MOST_FRAMES) {
            list.push(name.clone());
            at = parent.and_then(|parent| self.0.get(&parent));
        }
        list
    }
}

fn wakeups(
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
            let waker = (by == "task").then(|| names.of(waker));
            list.push(Wakeup { by, waker, woken: names.of(woken), count: count(row, 5)? });
        }
    }
    Ok(list)
}

fn interrupts(
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
                task: names.of(key),
                s: seconds(count(row, 3)?),
                count: count(row, 4)?,
            });
        }
    }
    Ok(list)
}
