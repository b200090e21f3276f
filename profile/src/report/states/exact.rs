//! Times in states by exact mode.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::cpu_parts::CpuTimeParts;
use super::{STATES, StateReport, StateSource, TaskKey, TaskStateTimes, TimeInState, sort_by_time, task};
use crate::numbers::{seconds, unsigned};
use crate::report::tables::Tables;
use crate::rows::TaskState;

/// Time in ns and count of beginnings.
type TimeAndCount = (u64, u64);

/// Time and count of a task by state and wait reason.
type StateSums = BTreeMap<(TaskState, String), TimeAndCount>;

/// Reads the times of the tasks that `is_chosen` accepts.
pub(super) fn read(
    connection: &Connection,
    tables: &Tables,
    is_chosen: impl Fn(TaskKey) -> bool,
) -> rusqlite::Result<StateReport> {
    let from_ns: u64 = tables.parsed("exact_from_ns");
    let to_ns = tables.meta.get("exact_to_ns").and_then(|ns| ns.parse().ok());
    let to_ns = to_ns.unwrap_or_else(|| tables.parsed("duration_ns"));
    let parts = CpuTimeParts::read(connection, (from_ns, to_ns))?;
    let lengths = lengths(connection)?;
    let sums = sums(connection)?;
    let none = StateSums::new();
    let chosen = lengths.into_iter().filter(|(key, _)| is_chosen(*key));
    let tasks = chosen.map(|(key, life_ns)| {
        let times = TaskTimes { sums: sums.get(&key).unwrap_or(&none), life_ns };
        let (states, samples) = times.states(key, &parts);
        TaskStateTimes {
            task: task(key, tables),
            life_s: seconds(life_ns),
            running: times.on_cpu(),
            states,
            waits: times.waits(),
            samples,
        }
    });
    Ok(StateReport {
        source: StateSource::Exact,
        from_s: seconds(from_ns),
        to_s: seconds(to_ns),
        scans: None,
        tasks: tasks.collect(),
    })
}

/// Returns the time for which each task was followed, ns.
fn lengths(connection: &Connection) -> rusqlite::Result<HashMap<TaskKey, u64>> {
    let mut statement = connection.prepare("SELECT instance, tid, to_ns - from_ns FROM task_life")?;
    let rows = statement.query_map([], |row| Ok(((row.get(0)?, row.get(1)?), unsigned(row, 2)?)))?;
    rows.collect()
}

fn sums(connection: &Connection) -> rusqlite::Result<HashMap<TaskKey, StateSums>> {
    let mut sums: HashMap<TaskKey, StateSums> = HashMap::new();
    let mut statement = connection.prepare(
        "SELECT instance, tid, state, wait_reason, sum(ns), sum(count) FROM task_state \
         GROUP BY instance, tid, state, wait_reason",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let state = TaskState::from_name(row.get_ref(2)?.as_str()?);
        let sum =
            sums.entry((row.get(0)?, row.get(1)?)).or_default().entry((state, row.get(3)?)).or_default();
        *sum = plus(*sum, (unsigned(row, 4)?, unsigned(row, 5)?));
    }
    Ok(sums)
}

fn plus(a: TimeAndCount, b: TimeAndCount) -> TimeAndCount {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}

/// Times of one task.
struct TaskTimes<'a> {
    sums: &'a StateSums,
    life_ns: u64,
}

impl TaskTimes<'_> {
    /// Returns time and count of a state, for all wait reasons together.
    fn sum(&self, wanted: TaskState) -> TimeAndCount {
        let of_state = self.sums.iter().filter(|((state, _), _)| *state == wanted);
        of_state.fold((0, 0), |sum, (_, more)| plus(sum, *more))
    }

    fn time(&self, state: TaskState) -> TimeInState {
        TimeInState::exact(state, "", self.sum(state), self.life_ns)
    }

    /// Returns the time on a CPU, with that of interrupts and of vprof there; the count is that of the task's
    /// own.
    fn on_cpu(&self) -> TimeInState {
        let (running_ns, count) = self.sum(TaskState::Running);
        let others = [TaskState::Interrupted, TaskState::Sampler].map(|state| self.sum(state).0);
        let ns = others.into_iter().fold(running_ns, u64::saturating_add);
        TimeInState::exact(TaskState::Running, "", (ns, count), self.life_ns)
    }

    /// Returns the times of all states in the order of reports, with the running time divided by samples, and
    /// the number of those.
    fn states(&self, key: TaskKey, parts: &CpuTimeParts) -> (Vec<TimeInState>, u64) {
        let (mut states, samples) = parts.divide(key, &self.time(TaskState::Running), false);
        states.push(self.time(TaskState::Interrupted));
        states.push(self.time(TaskState::Sampler));
        states.extend(STATES.iter().skip(1).map(|&state| self.time(state)));
        (states, samples)
    }

    /// Returns the times by wait reason, most first.
    fn waits(&self) -> Vec<TimeInState> {
        let waits = self.sums.iter().filter(|((state, _), _)| state.is_waiting());
        let mut waits: Vec<TimeInState> = waits
            .map(|((state, reason), sum)| TimeInState::exact(*state, reason, *sum, self.life_ns))
            .collect();
        sort_by_time(&mut waits);
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Filter, SourceChoice};
    use crate::rows::{Batch, InstanceRow, Mode, SampleRow, Sink, TaskLifeRow, TaskStateRow, VcpuState};
    use crate::store::{Profile, ProfileWriter};

    /// Exact data of the first 5 s of a minute: the thread runs user code then, and the kernel's for the
    /// rest.
    #[test]
    fn exact_time_divides_by_the_samples_of_its_own_span() {
        const SECOND: u64 = 1_000_000_000;
        let meta = [("duration_ns", 60), ("exact_from_ns", 0), ("exact_to_ns", 5)];
        let mut batch = Batch {
            meta: meta.map(|(key, s)| (key.to_owned(), (s * SECOND).to_string())).to_vec(),
            instances: vec![InstanceRow { id: 1, pid: 7, comm: "work".to_owned(), ..InstanceRow::default() }],
            ..Batch::default()
        };
        let (instance, tid) = (1, 7);
        let to_ns = 5 * SECOND;
        batch.task_lives.push(TaskLifeRow { instance, tid, to_ns, ..TaskLifeRow::default() });
        let ran = TaskStateRow {
            instance,
            tid,
            state: TaskState::Running,
            ns: to_ns,
            count: 1,
            ..TaskStateRow::default()
        };
        batch.task_states.push(ran);
        batch.samples.extend((0..600).map(|n| SampleRow {
            time_ns: n * SECOND / 10,
            mode: if n < 50 { Mode::User } else { Mode::Kernel },
            instance: Some(instance),
            tid: Some(tid),
            vcpu_state: VcpuState::Guest,
            ..SampleRow::default()
        }));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("exact.vprof");
        let mut writer = ProfileWriter::create(&path, false).expect("a profile");
        writer.write(&batch).expect("rows that fit");
        writer.finish().expect("a profile");
        let profile = Profile::open(&path).expect("a profile");
        let report = StateReport::read(&profile, &Filter::default(), SourceChoice::Exact).expect("states");
        let task = &report.tasks[0];
        let user = task.states.iter().find(|time| time.state == "user").expect("user time");
        assert!((user.s - 5.0).abs() < 0.2 && user.high_s >= 5.0, "{user:?}");
        assert_eq!(task.samples, 50);
    }
}
