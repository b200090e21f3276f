//! States of tasks: `vprof report --states`. Exact if exact mode has measured them, otherwise estimated by
//! task-state sampling. Serializes to the object that docs/json.md describes.

mod cpu_parts;
mod exact;
mod sampled;

use serde::{Deserialize, Serialize};
use statistics::estimate::Share;
use statistics::task_scan::EstimatedTime;

use self::cpu_parts::CpuTimeParts;
use super::exact::Task;
use super::filter::Selection;
use super::tables::{Instance, Tables, UNKNOWN};
use super::{Filter, ReportError};
use crate::numbers::seconds;
use crate::rows::TaskState;
use crate::store::Profile;

/// Requested source of times in states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceChoice {
    /// Exact mode, else task-state sampling.
    #[default]
    Best,
    /// Exact mode.
    Exact,
    /// Task-state sampling.
    Sampled,
}

/// Source of times in states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateSource {
    /// Exact mode: all times are exact, except the division of time on a CPU.
    Exact,
    /// Task-state sampling: all times are estimates.
    Sampled,
}

/// Time that a task spent in a state, with the ends of its 95 % interval; both equal the time if it is exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimeInState {
    /// `user`, `system` and `interrupted` (`running` if no sample divides it), `sampler`, `runnable`,
    /// `sleep`, `disk`, `stopped`, `zombie` or `unknown`.
    pub state: String,
    /// Wait reason, like `futex`; empty for other states than waits, and for the sum of all reasons.
    pub wait_reason: String,
    /// Scans, or exact beginnings; `None` if samples divide a time.
    pub count: Option<u64>,
    /// Time, s.
    pub s: f64,
    /// Lower end, s.
    pub low_s: f64,
    /// Upper end, s.
    pub high_s: f64,
    /// Part of the task's life.
    pub share: f64,
    /// Lower end of the part.
    pub share_low: f64,
    /// Upper end of the part.
    pub share_high: f64,
}

/// A task and its states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskStateTimes {
    /// The task.
    #[serde(flatten)]
    pub task: Task,
    /// Time for which it existed, s.
    pub life_s: f64,
    /// Time on a CPU.
    pub running: TimeInState,
    /// By state, in the order of [`TimeInState::state`].
    pub states: Vec<TimeInState>,
    /// By wait reason, most time first.
    pub waits: Vec<TimeInState>,
    /// Samples that divide the time on a CPU.
    pub samples: u64,
}

/// Counters of the scans of all tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScanStatistics {
    /// Mean scans per second that were requested.
    pub hz: f64,
    /// Scans in the chosen time.
    pub scans: u64,
    /// Mean lateness of a scan, s: its thread waited for a CPU of the host.
    pub late_s: f64,
    /// Scans of the whole run that do not count: the list of tasks could not be followed to its end.
    pub missed: u64,
    /// Tasks that were read, over all scans of the run.
    pub tasks: u64,
    /// Tasks that were switched while they were read; their state is `unknown`.
    pub inconsistent: u64,
    /// CPU time of the scans of the run, s.
    pub cost_s: f64,
}

/// States of all chosen tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    /// Source of the times.
    pub source: StateSource,
    /// Start, s since the run's start.
    pub from_s: f64,
    /// End, s since the run's start.
    pub to_s: f64,
    /// Counters of the scans; `None` for exact times.
    pub scans: Option<ScanStatistics>,
    /// Most time on a CPU first.
    pub tasks: Vec<TaskStateTimes>,
}

/// Instance row id and thread id.
type TaskKey = (u32, i32);

/// States in the order of reports.
const STATES: [TaskState; 7] = [
    TaskState::Running,
    TaskState::Runnable,
    TaskState::Sleep,
    TaskState::Disk,
    TaskState::Stopped,
    TaskState::Zombie,
    TaskState::Unknown,
];

impl StateReport {
    /// Reads the states of the chosen tasks in the chosen time. Modes, vCPU and functions choose no tasks.
    ///
    /// # Errors
    /// [`ReportError::NoStates`] if the profile does not have them; the filter names something that does not
    /// exist.
    pub fn read(profile: &Profile, filter: &Filter, source: SourceChoice) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts have the same state of a run in progress.
        let _snapshot = crate::store::snapshot(connection).map_err(sql)?;
        let tables = Tables::read(connection).map_err(sql)?;
        let chosen = Selection::of_tasks(filter, profile, &tables)?;
        let part_of_run = filter.from_ns.is_some() || filter.to_ns.is_some();
        let has_exact = tables.meta.contains_key("exact_from_ns");
        let exact = match source {
            SourceChoice::Best => has_exact && !part_of_run,
            SourceChoice::Exact => true,
            SourceChoice::Sampled => false,
        };
        let mut report = if exact {
            if !has_exact {
                return Err(ReportError::NoStates("it has no exact data".to_owned()));
            }
            if part_of_run {
                return Err(ReportError::NoStates(
                    "exact times cover the whole run: leave --time out".to_owned(),
                ));
            }
            exact::read(connection, &tables, |key| chosen.has_task(key)).map_err(sql)?
        } else {
            let scans = sampled::scans(connection, &tables, filter).map_err(sql)?;
            if scans.count() == 0 {
                return Err(ReportError::NoStates(why_no_task_scans(&tables)));
            }
            let parts = CpuTimeParts::read(connection, scans.span()).map_err(sql)?;
            sampled::read(connection, &tables, &parts, &scans, |key| chosen.has_task(key)).map_err(sql)?
        };
        report.tasks.sort_by(|a, b| {
            let order = |t: &TaskStateTimes| (t.task.comm.clone(), t.task.pid, t.task.tid);
            b.running.s.total_cmp(&a.running.s).then_with(|| order(a).cmp(&order(b)))
        });
        Ok(report)
    }
}

fn why_no_task_scans(tables: &Tables) -> String {
    match (tables.meta.get("task_scan_missing"), tables.parsed::<f64>("task_scan_hz")) {
        (Some(reason), _) => reason.clone(),
        (None, hz) if hz > 0.0 => "the chosen time is too short: it has fewer than two scans".to_owned(),
        _ => "it was made with `vprof run --task-rate 0`, and without `--exact`".to_owned(),
    }
}

fn task((instance, tid): TaskKey, tables: &Tables) -> Task {
    let unknown = || Task { comm: UNKNOWN.to_owned(), tid, ..Task::default() };
    let known = |of: &Instance| Task {
        comm: of.comm.clone(),
        pid: of.pid,
        instance: of.number,
        tid,
        thread: tables.threads.get(&(instance, tid)).cloned(),
        kernel_thread: of.kernel_thread,
    };
    tables.instances.get(&instance).map_or_else(unknown, known)
}

impl TimeInState {
    fn exact(state: TaskState, wait_reason: &str, (ns, count): (u64, u64), life_ns: u64) -> Self {
        let (s, share) = (seconds(ns), statistics::part(ns, life_ns));
        Self {
            state: state.name().to_owned(),
            wait_reason: wait_reason.to_owned(),
            count: Some(count),
            s,
            low_s: s,
            high_s: s,
            share,
            share_low: share,
            share_high: share,
        }
    }

    fn estimated(state: TaskState, wait_reason: &str, EstimatedTime { time, life }: &EstimatedTime) -> Self {
        Self {
            state: state.name().to_owned(),
            wait_reason: wait_reason.to_owned(),
            count: Some(time.samples),
            s: time.time.ns / 1e9,
            low_s: time.time.low_ns / 1e9,
            high_s: time.time.high_ns / 1e9,
            share: life.share.share,
            share_low: life.share.low,
            share_high: life.share.high,
        }
    }

    /// Returns a part of it that is itself estimated: the interval is valid if both are.
    fn part(&self, state: &str, part: Share) -> Self {
        Self {
            state: state.to_owned(),
            wait_reason: String::new(),
            count: None,
            s: self.s * part.share,
            low_s: self.low_s * part.low,
            high_s: self.high_s * part.high,
            share: self.share * part.share,
            share_low: self.share_low * part.low,
            share_high: self.share_high * part.high,
        }
    }
}

fn sort_by_time(list: &mut [TimeInState]) {
    list.sort_by(|a, b| {
        b.s.total_cmp(&a.s).then_with(|| (&a.state, &a.wait_reason).cmp(&(&b.state, &b.wait_reason)))
    });
}
