//! Runs of tasks on vCPUs: `vprof report --exact --timehist`. Serializes to the object that docs/json.md
//! describes.

use std::collections::HashMap;
use std::rc::Rc;

use rusqlite::{Connection, params};
use serde::{Serialize, Serializer};

use super::tasks::Names;
use super::{Key, Task, count, key, meta, seconds, span};
use crate::report::filter::Selection;
use crate::report::tables::Tables;
use crate::report::{Filter, ReportError};
use crate::rows::{TaskState, WaitReason};
use crate::store::Profile;

/// A run of a task on a vCPU, from the switch to the task to the switch from it, with the waits before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskRun {
    /// Begin of the run, s since the run's start.
    pub time_s: f64,
    /// vCPU.
    pub vcpu: u8,
    /// The task.
    #[serde(flatten, serialize_with = "shared")]
    pub task: Rc<Task>,
    /// Asleep or stopped since the task's run before, s.
    pub wait_s: f64,
    /// Runnable since then, s.
    pub delay_s: f64,
    /// On the vCPU, without the next two, s.
    pub running_s: f64,
    /// In handlers of hard interrupts, s.
    pub interrupted_s: f64,
    /// Taken by vprof, s.
    pub sampler_s: f64,
    /// Name of the state after the run; `running` if the data ends before it.
    pub state: &'static str,
    /// Wait reason of that state.
    pub wait_reason: &'static str,
}

fn shared<S: Serializer>(task: &Rc<Task>, serializer: S) -> Result<S::Ok, S::Error> {
    task.as_ref().serialize(serializer)
}

/// The runs of tasks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timehist {
    /// Begin of exact data, s since the run's start.
    pub from_s: f64,
    /// Its end, s since the run's start.
    pub to_s: f64,
    /// True if no event was lost.
    pub complete: bool,
    /// Runs that the profile leaves out for its size: the last ones, of all tasks.
    pub left_out: u64,
    /// The chosen ones, by their begin.
    pub runs: Vec<TaskRun>,
}

impl Timehist {
    /// Reads the runs of the tasks that the filter chooses, on the vCPU and with their begins in the time
    /// that it chooses. Modes and functions choose no runs.
    ///
    /// # Errors
    /// [`ReportError::NoExact`] if the profile has no exact data; the filter names something that does not
    /// exist.
    pub fn read(profile: &Profile, filter: &Filter) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts have the same state of a run in progress.
        let _snapshot = crate::store::snapshot(connection).map_err(sql)?;
        let (from_ns, to_ns) = span(connection).map_err(sql)??;
        let tables = Tables::read(connection).map_err(sql)?;
        let chosen = Selection::of_tasks(filter, profile, &tables)?;
        let number = |query: &str| connection.query_row(query, [], |row| count(row, 0)).map_err(sql);
        let recorded = meta(connection, "exact_runs").map_err(sql)?;
        let recorded: u64 = recorded.and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Self {
            from_s: seconds(from_ns),
            to_s: seconds(to_ns),
            complete: number("SELECT coalesce(sum(lost), 0) FROM exact_vcpu")? == 0,
            left_out: recorded.saturating_sub(number("SELECT count(*) FROM task_run")?),
            runs: runs(connection, filter, |key| chosen.has_task(key)).map_err(sql)?,
        })
    }
}

fn runs(
    connection: &Connection,
    filter: &Filter,
    is_chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<Vec<TaskRun>> {
    let names = Names::read(connection)?;
    // Most runs are of few tasks: `None` for a task that is not chosen.
    let mut tasks: HashMap<Key, Option<Rc<Task>>> = HashMap::new();
    let mut task = |key: Key| {
        let named = || is_chosen(key).then(|| Rc::new(names.task(key)));
        tasks.entry(key).or_insert_with(named).clone()
    };
    let mut statement = connection.prepare(
        "SELECT vcpu, instance, tid, from_ns, wait_ns, delay_ns, running_ns, interrupted_ns, sampler_ns, state, \
         wait_reason FROM task_run WHERE from_ns >= ? AND from_ns < ? AND (?3 IS NULL OR vcpu = ?3) \
         ORDER BY from_ns, id",
    )?;
    let stored = |ns: Option<u64>, absent| ns.map_or(absent, |ns| i64::try_from(ns).unwrap_or(i64::MAX));
    let (from, to) = (stored(filter.from_ns, 0), stored(filter.to_ns, i64::MAX));
    let mut rows = statement.query(params![from, to, filter.vcpu])?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(task) = task(key(row, 1)?) else { continue };
        let time = |column| Ok::<_, rusqlite::Error>(seconds(count(row, column)?));
        runs.push(TaskRun {
            time_s: time(3)?,
            vcpu: row.get(0)?,
            task,
            wait_s: time(4)?,
            delay_s: time(5)?,
            running_s: time(6)?,
            interrupted_s: time(7)?,
            sampler_s: time(8)?,
            state: TaskState::from_name(row.get_ref(9)?.as_str()?).name(),
            wait_reason: WaitReason::from_name(row.get_ref(10)?.as_str()?).name(),
        });
    }
    Ok(runs)
}
