//! Times in states by task-state sampling.

use rusqlite::Connection;
use statistics::task_scan::{StateSpan, TaskScan, TaskScans};

use super::cpu_parts::CpuTimeParts;
use super::{
    STATES, ScanStatistics, StateReport, StateSource, TaskKey, TaskStateTimes, TimeInState, sort_by_time,
    task,
};
use crate::numbers::{seconds, unsigned};
use crate::report::Filter;
use crate::report::tables::Tables;
use crate::rows::TaskState;

/// Reads the scans in the chosen time.
pub(super) fn scans(
    connection: &Connection,
    tables: &Tables,
    filter: &Filter,
) -> rusqlite::Result<TaskScans> {
    let mut statement =
        connection.prepare("SELECT id, time_ns, backoff, late_ns FROM task_scan ORDER BY id")?;
    let rows = statement.query_map([], |row| {
        let backoff = u8::try_from(unsigned(row, 2)?).unwrap_or(u8::MAX);
        Ok(TaskScan {
            id: unsigned(row, 0)?,
            time_ns: unsigned(row, 1)?,
            backoff,
            late_ns: unsigned(row, 3)?,
        })
    })?;
    let all = rows.collect::<rusqlite::Result<Vec<TaskScan>>>()?;
    let (from, to) = (filter.from_ns.unwrap_or(0), filter.to_ns.unwrap_or(u64::MAX));
    let before = all.iter().take_while(|scan| scan.time_ns < from).last().map(|scan| scan.time_ns);
    let begin = before.unwrap_or_else(|| tables.parsed("task_scan_from_ns"));
    let chosen = all.into_iter().filter(|scan| (from..to).contains(&scan.time_ns)).collect();
    Ok(TaskScans::new(chosen, begin, tables.parsed("task_scan_hz")))
}

/// Reads the times of the tasks that `is_chosen` accepts.
pub(super) fn read(
    connection: &Connection,
    tables: &Tables,
    parts: &CpuTimeParts,
    scans: &TaskScans,
    is_chosen: impl Fn(TaskKey) -> bool,
) -> rusqlite::Result<StateReport> {
    let mut tasks = Vec::new();
    let mut statement = connection.prepare(
        "SELECT instance, tid, scan, state, wait_reason FROM task_scan_state ORDER BY instance, tid, scan",
    )?;
    let mut rows = statement.query([])?;
    let (mut key, mut spans) = (None, Vec::<ObservedSpan>::new());
    let mut end = |key: Option<TaskKey>, observed: &mut Vec<ObservedSpan>| {
        // A task that had exited, or that changed again before the first chosen scan, has no time in that
        // state.
        let spans =
            observed.drain(..).filter(|span| span.from < span.to).filter_map(ObservedSpan::state_span);
        let spans: Vec<StateSpan<ObservedState>> = spans.collect();
        if let Some(key) = key.filter(|_| !spans.is_empty()) {
            tasks.push(task_times(key, &spans, (tables, parts, scans)));
        }
    };
    // Rows of a task follow each other: each ends the span of the row before.
    while let Some(row) = rows.next()? {
        let own: TaskKey = (row.get(0)?, row.get(1)?);
        if !is_chosen(own) {
            continue;
        }
        if key != Some(own) {
            end(key.replace(own), &mut spans);
        }
        let from = scans.place(unsigned(row, 2)?);
        if let Some(last) = spans.last_mut() {
            last.to = from;
        }
        let name = row.get_ref(3)?.as_str()?;
        let state = (name != TaskState::GONE).then(|| TaskState::from_name(name));
        spans.push(ObservedSpan { from, to: scans.count(), state, wait_reason: row.get(4)? });
    }
    end(key, &mut spans);
    let (from_ns, to_ns) = scans.span();
    let statistics = ScanStatistics {
        hz: tables.parsed("task_scan_hz"),
        scans: scans.count() as u64,
        late_s: scans.late_s(),
        missed: tables.parsed("task_scan_missed"),
        tasks: tables.parsed("task_scan_tasks"),
        inconsistent: tables.parsed("task_scan_inconsistent"),
        cost_s: seconds(tables.parsed("task_scan_cost_ns")),
    };
    Ok(StateReport {
        source: StateSource::Sampled,
        from_s: seconds(from_ns),
        to_s: seconds(to_ns),
        scans: Some(statistics),
        tasks,
    })
}

/// Scans from a change of a task to its next one.
struct ObservedSpan {
    from: usize,
    to: usize,
    /// `None`: the task has exited.
    state: Option<TaskState>,
    wait_reason: String,
}

impl ObservedSpan {
    fn state_span(self) -> Option<StateSpan<ObservedState>> {
        let Self { from, to, state, wait_reason } = self;
        Some(StateSpan { from, to, state: ObservedState { state: state?, wait_reason } })
    }
}

/// State of a task at a scan.
struct ObservedState {
    state: TaskState,
    wait_reason: String,
}

/// Returns the times of one task.
fn task_times(
    key: TaskKey,
    spans: &[StateSpan<ObservedState>],
    (tables, parts, scans): (&Tables, &CpuTimeParts, &TaskScans),
) -> TaskStateTimes {
    let waits = spans.iter().map(|span| &span.state).filter(|own| own.state.is_waiting());
    let mut reasons: Vec<_> = waits.map(|own| (own.state, own.wait_reason.as_str())).collect();
    reasons.sort_unstable();
    reasons.dedup();
    // All times are estimated in one pass: first those of the states, then those of the wait reasons.
    let of_state = STATES.map(|state| move |own: &ObservedState| own.state == state);
    let of_reason: Vec<_> = reasons
        .iter()
        .map(|&(state, reason)| move |own: &ObservedState| own.state == state && own.wait_reason == reason)
        .collect();
    let keys: Vec<&dyn Fn(&ObservedState) -> bool> = of_state
        .iter()
        .map(|is| is as &dyn Fn(&ObservedState) -> bool)
        .chain(of_reason.iter().map(|is| is as &dyn Fn(&ObservedState) -> bool))
        .collect();
    let (life, times) = scans.times(spans, &keys);
    let mut times = times.iter();
    let mut states: Vec<TimeInState> =
        STATES.iter().zip(&mut times).map(|(&state, time)| TimeInState::estimated(state, "", time)).collect();
    let mut waits: Vec<TimeInState> = reasons
        .iter()
        .zip(times)
        .map(|(&(state, reason), time)| TimeInState::estimated(state, reason, time))
        .collect();
    sort_by_time(&mut waits);
    let running = states.remove(0);
    let (mut divided, samples) = parts.divide(key, &running, true);
    divided.append(&mut states);
    TaskStateTimes {
        task: task(key, tables),
        life_s: life.time.time.ns / 1e9,
        running,
        states: divided,
        waits,
        samples,
    }
}
