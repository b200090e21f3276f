//! Runs of tasks on vCPUs: `vprof report --exact --timehist`. Serializes to the object that docs/json.md
//! describes.

use std::borrow::Cow;

use rusqlite::{Row, Statement, params};
use serde::ser::{Error as _, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use super::tasks::Names;
use super::{Key, Task, count, key, meta, seconds, span};
use crate::report::filter::Selection;
use crate::report::tables::Tables;
use crate::report::{Filter, ReportError};
use crate::rows::{TaskState, WaitReason};
use crate::store::{Profile, Snapshot};

/// A run of a task on a vCPU, from the switch to the task to the switch from it, with the waits before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskRun<'a> {
    /// Begin of the run, s since the run's start.
    pub time_s: f64,
    /// vCPU.
    pub vcpu: u16,
    /// The task.
    #[serde(flatten)]
    pub task: Cow<'a, Task>,
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

/// The runs of tasks. They are up to 4,194,304, so they are read one by one ([`Timehist::for_each`]), also to
/// serialize them.
#[derive(Debug)]
pub struct Timehist<'a> {
    /// Begin of exact data, s since the run's start.
    pub from_s: f64,
    /// Its end, s since the run's start.
    pub to_s: f64,
    /// True if no event was lost.
    pub complete: bool,
    /// Runs that the profile leaves out for its size: the last ones, of all tasks.
    pub left_out: u64,
    /// Number of chosen runs.
    pub count: u64,
    profile: &'a Profile,
    names: Names,
    chosen: Selection,
    part: RunsPart,
    /// One transaction, so that all parts have the same state of a run in progress.
    _snapshot: Snapshot<'a>,
}

/// Begins and vCPU of the chosen runs.
#[derive(Debug)]
struct RunsPart {
    from_ns: i64,
    to_ns: i64,
    vcpu: Option<u16>,
}

impl RunsPart {
    /// Condition of a query with the parameters of [`Self::query`].
    const CONDITION: &'static str = "from_ns >= ?1 AND from_ns < ?2 AND (?3 IS NULL OR vcpu = ?3)";

    fn new(filter: &Filter) -> Self {
        let stored = |ns: Option<u64>, absent| ns.map_or(absent, |ns| i64::try_from(ns).unwrap_or(i64::MAX));
        let (from_ns, to_ns) = (stored(filter.from_ns, 0), stored(filter.to_ns, i64::MAX));
        Self { from_ns, to_ns, vcpu: filter.vcpu }
    }

    fn query<'s>(&self, statement: &'s mut Statement<'_>) -> rusqlite::Result<rusqlite::Rows<'s>> {
        statement.query(params![self.from_ns, self.to_ns, self.vcpu])
    }
}

impl<'a> Timehist<'a> {
    /// Chooses the runs of the tasks that the filter chooses, on the vCPU and with their begins in the time
    /// that it chooses. Modes and functions choose no runs.
    ///
    /// # Errors
    /// [`ReportError::NoExact`] if the profile has no exact data; the filter names something that does not
    /// exist.
    pub fn new(profile: &'a Profile, filter: &Filter) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        let snapshot = crate::store::snapshot(connection).map_err(sql)?;
        let (from_ns, to_ns) = span(connection).map_err(sql)??;
        let tables = Tables::read(connection).map_err(sql)?;
        let chosen = Selection::of_tasks(filter, profile, &tables)?;
        let number = |query: &str| connection.query_row(query, [], |row| count(row, 0)).map_err(sql);
        let recorded = meta(connection, "exact_runs").map_err(sql)?;
        let recorded: u64 = recorded.and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut history = Self {
            from_s: seconds(from_ns),
            to_s: seconds(to_ns),
            complete: number("SELECT coalesce(sum(lost), 0) FROM exact_vcpu")? == 0,
            left_out: recorded.saturating_sub(number("SELECT count(*) FROM task_run")?),
            count: 0,
            profile,
            names: Names::read(connection).map_err(sql)?,
            chosen,
            part: RunsPart::new(filter),
            _snapshot: snapshot,
        };
        history.count = history.counted().map_err(sql)?;
        Ok(history)
    }

    fn counted(&self) -> rusqlite::Result<u64> {
        let query = format!("SELECT instance, tid FROM task_run WHERE {}", RunsPart::CONDITION);
        let mut statement = self.profile.connection().prepare(&query)?;
        let mut rows = self.part.query(&mut statement)?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            count += u64::from(self.chosen.has_task(key(row, 0)?));
        }
        Ok(count)
    }

    /// Calls `each` with the chosen runs, at most `most`, by their begin. They are not kept in memory.
    ///
    /// # Errors
    /// The profile cannot be read, or `each` fails.
    pub fn for_each<'s, E: From<ReportError>>(
        &'s self,
        most: usize,
        mut each: impl FnMut(TaskRun<'s>) -> Result<(), E>,
    ) -> Result<(), E> {
        let sql = |error: rusqlite::Error| E::from(self.profile.error(&error).into());
        let query = format!(
            "SELECT instance, tid, vcpu, from_ns, wait_ns, delay_ns, running_ns, interrupted_ns, sampler_ns, state, \
             wait_reason FROM task_run WHERE {} ORDER BY from_ns, id",
            RunsPart::CONDITION
        );
        let mut statement = self.profile.connection().prepare(&query).map_err(sql)?;
        let mut rows = self.part.query(&mut statement).map_err(sql)?;
        let mut left = most;
        while let Some(row) = rows.next().map_err(sql)?.filter(|_| left > 0) {
            let task = key(row, 0).map_err(sql)?;
            if self.chosen.has_task(task) {
                each(self.run(task, row).map_err(sql)?)?;
                left -= 1;
            }
        }
        Ok(())
    }

    fn run(&self, task: Key, row: &Row<'_>) -> rusqlite::Result<TaskRun<'_>> {
        let time = |column| Ok::<_, rusqlite::Error>(seconds(count(row, column)?));
        Ok(TaskRun {
            time_s: time(3)?,
            vcpu: row.get(2)?,
            task: self.names.task(task),
            wait_s: time(4)?,
            delay_s: time(5)?,
            running_s: time(6)?,
            interrupted_s: time(7)?,
            sampler_s: time(8)?,
            state: TaskState::from_name(row.get_ref(9)?.as_str()?).name(),
            wait_reason: WaitReason::from_name(row.get_ref(10)?.as_str()?).name(),
        })
    }
}

impl Serialize for Timehist<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Timehist", 5)?;
        fields.serialize_field("from_s", &self.from_s)?;
        fields.serialize_field("to_s", &self.to_s)?;
        fields.serialize_field("complete", &self.complete)?;
        fields.serialize_field("left_out", &self.left_out)?;
        fields.serialize_field("runs", &SerializedRuns(self))?;
        fields.end()
    }
}

/// The runs as a list.
struct SerializedRuns<'a>(&'a Timehist<'a>);

impl Serialize for SerializedRuns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let written =
            self.0.for_each(usize::MAX, |run| list.serialize_element(&run).map_err(SerializeFailure::Output));
        match written {
            Ok(()) => list.end(),
            Err(SerializeFailure::Output(error)) => Err(error),
            Err(SerializeFailure::Read(error)) => Err(S::Error::custom(error)),
        }
    }
}

/// Why runs are not serialized.
enum SerializeFailure<E> {
    Read(ReportError),
    Output(E),
}

impl<E> From<ReportError> for SerializeFailure<E> {
    fn from(error: ReportError) -> Self {
        Self::Read(error)
    }
}
