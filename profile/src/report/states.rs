//! What tasks did: `vprof report --states`. Exact where exact mode has measured it, else estimated by task-state sampling.
//! Serializes to the object that docs/json.md describes.

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::exact::Task;
use super::filter::Selection;
use super::tables::{Instance, Tables, UNKNOWN, hardirq_bits};
use super::task_scan::{Spent, Stay, TaskScan, TaskScans};
use super::{Filter, ReportError};
use crate::estimate::{Share, share};
use crate::numbers::{seconds, unsigned};
use crate::store::Profile;

/// Where times in states are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Exact mode, else task-state sampling.
    #[default]
    Best,
    /// Exact mode.
    Exact,
    /// Task-state sampling.
    Sampled,
}

/// What times in states were taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Known {
    /// Exact mode: all times are exact, but how time on a CPU divides.
    Exact,
    /// Task-state sampling: all times are estimates.
    Sampled,
}

/// Time that a task spent in a state, with the ends of its 95 % interval; both are the time itself where that is exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimeIn {
    /// `user`, `system` and `interrupted` (`running` where no sample tells them apart), `queue`, `sleep`, `disk`,
    /// `stopped`, `zombie` or `unknown`.
    pub state: String,
    /// What a sleep is for, like `futex`; empty otherwise, and for all causes together.
    pub wait_reason: String,
    /// Scans, or exact beginnings; `None` where samples divide a time.
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

/// A task and what it did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpent {
    /// Which.
    #[serde(flatten)]
    pub task: Task,
    /// How long it was there, s.
    pub life_s: f64,
    /// Time on a CPU.
    pub running: TimeIn,
    /// By state, in the order of [`TimeIn::state`].
    pub states: Vec<TimeIn>,
    /// By what was waited for, most time first.
    pub waits: Vec<TimeIn>,
    /// Samples that tell how time on a CPU divides.
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

/// What tasks did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    /// What the times were taken from.
    pub source: Known,
    /// From when on, since the run's start, s.
    pub from_s: f64,
    /// Until when, s.
    pub to_s: f64,
    /// Counters of the scans; `None` for exact times.
    pub scans: Option<ScanStatistics>,
    /// Most time on a CPU first.
    pub tasks: Vec<TaskSpent>,
}

/// By instance row id and thread id.
type Key = (u32, i32);
/// Time and count by state and wait_reason.
type Sums = BTreeMap<(String, String), (u64, u64)>;

/// In the order of reports.
const STATES: [&str; 7] = ["running", "runnable", "sleep", "disk", "stopped", "zombie", "unknown"];
/// States in which something is waited for.
const WAITS: [&str; 3] = ["sleep", "disk", "stopped"];

impl StateReport {
    /// Reads what the chosen tasks did in the chosen time. Modes, vCPU and functions choose no tasks.
    ///
    /// # Errors
    /// [`ReportError::NoStates`] where the profile does not tell; the filter names something that is not there.
    pub fn read(profile: &Profile, filter: &Filter, source: Source) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts are of the same moment of a run that goes on.
        let _snapshot = crate::store::snapshot(connection).map_err(sql)?;
        let tables = Tables::read(connection).map_err(sql)?;
        let chosen = Selection::of_tasks(filter, profile, &tables)?;
        let part_of_run = filter.from_ns.is_some() || filter.to_ns.is_some();
        let has_exact = tables.meta.contains_key("exact_from_ns");
        let exact = match source {
            Source::Best => has_exact && !part_of_run,
            Source::Exact => true,
            Source::Sampled => false,
        };
        let mut report = if exact {
            if !has_exact {
                return Err(ReportError::NoStates("it has no exact data".to_owned()));
            }
            if part_of_run {
                return Err(ReportError::NoStates("exact times are of the whole run only".to_owned()));
            }
            exact_states(connection, &tables, |key| chosen.has_task(key)).map_err(sql)?
        } else {
            let scans = scans(connection, &tables, filter).map_err(sql)?;
            if scans.len() == 0 {
                return Err(ReportError::NoStates(why_no_task_scans(&tables)));
            }
            let ticks = Parts::read(connection, scans.span()).map_err(sql)?;
            estimated(connection, &tables, &ticks, &scans, |key| chosen.has_task(key)).map_err(sql)?
        };
        report.tasks.sort_by(|a, b| {
            let order = |t: &TaskSpent| (t.task.comm.clone(), t.task.pid, t.task.tid);
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

fn task((instance, tid): Key, tables: &Tables) -> Task {
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

/// How time on a CPU divides, by the samples of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    user: u64,
    system: u64,
    /// Between begin and end of a hard interrupt's event.
    interrupted: u64,
    /// Before and after: how it enters and leaves the kernel.
    around: u64,
}

#[derive(Debug, Default)]
struct Parts(HashMap<Key, Part>);

impl Parts {
    /// By the samples of a span, ns since the run's start: the one that the times are of.
    fn read(connection: &Connection, (from_ns, to_ns): (u64, u64)) -> rusqlite::Result<Self> {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let span = (signed(from_ns), signed(to_ns), hardirq_bits(connection)?);
        let mut statement = connection.prepare(
            "SELECT s.instance, s.tid, sum(m.name = 'user'), sum(m.name IN ('kernel', 'softirq')), \
             sum(m.name IN ('hardirq', 'nmi')), sum(m.name = 'hardirq' AND coalesce(s.preempt_count & ?3 = 0, 0)) \
             FROM sample s JOIN mode m ON m.id = s.mode \
             WHERE s.instance IS NOT NULL AND s.tid IS NOT NULL AND s.vcpu_state = 'guest' AND m.name <> 'idle' \
             AND s.time_ns >= ?1 AND s.time_ns < ?2 GROUP BY s.instance, s.tid",
        )?;
        let rows = statement.query_map(span, |row| {
            let around = unsigned(row, 5)?;
            let interrupted = unsigned(row, 4)?.saturating_sub(around);
            let part = Part { user: unsigned(row, 2)?, system: unsigned(row, 3)?, interrupted, around };
            Ok(((row.get(0)?, row.get(1)?), part))
        })?;
        Ok(Self(rows.collect::<Result<_, _>>()?))
    }

    /// `running` as user, system and (where the time holds it) interrupted time; as it is without samples. Time that events
    /// limit holds what a hard interrupt takes before and after them: as system time.
    fn divide(&self, key: Key, running: &TimeIn, with_interrupts: bool) -> (Vec<TimeIn>, u64) {
        let Part { user, system, interrupted, around } = self.0.get(&key).copied().unwrap_or_default();
        let (system, interrupted) =
            if with_interrupts { (system, interrupted + around) } else { (system + around, 0) };
        let all = user + system + interrupted;
        if all == 0 {
            return (vec![running.clone()], 0);
        }
        let mut parts =
            vec![running.part("user", share(user, all)), running.part("system", share(system, all))];
        if with_interrupts {
            parts.push(running.part("interrupted", share(interrupted, all)));
        }
        (parts, all)
    }
}

impl TimeIn {
    fn exact(state: &str, wait_reason: &str, (ns, count): (u64, u64), life_ns: u64) -> Self {
        let (s, share) = (seconds(ns), crate::numbers::part(ns, life_ns));
        Self {
            state: state.to_owned(),
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

    fn estimated(state: &str, wait_reason: &str, Spent { time, life }: &Spent) -> Self {
        Self {
            state: state.to_owned(),
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

    /// A part of it that is itself estimated: the interval holds if both do.
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

fn by_time(list: &mut [TimeIn]) {
    list.sort_by(|a, b| {
        b.s.total_cmp(&a.s).then_with(|| (&a.state, &a.wait_reason).cmp(&(&b.state, &b.wait_reason)))
    });
}

/// Exact times.
fn exact_states(
    connection: &Connection,
    tables: &Tables,
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<StateReport> {
    let from_ns: u64 = tables.parsed("exact_from_ns");
    let to_ns = tables.meta.get("exact_to_ns").and_then(|ns| ns.parse().ok());
    let to_ns = to_ns.unwrap_or_else(|| tables.parsed("duration_ns"));
    let ticks = Parts::read(connection, (from_ns, to_ns))?;
    let mut lives: HashMap<Key, u64> = HashMap::new();
    let mut statement = connection.prepare("SELECT instance, tid, to_ns - from_ns FROM task_life")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        lives.insert((row.get(0)?, row.get(1)?), unsigned(row, 2)?);
    }
    let mut spent: HashMap<Key, Sums> = HashMap::new();
    let mut statement = connection.prepare(
        "SELECT instance, tid, state, wait_reason, sum(ns), sum(count) FROM task_state GROUP BY instance, tid, state, wait_reason",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let sum = (unsigned(row, 4)?, unsigned(row, 5)?);
        spent.entry((row.get(0)?, row.get(1)?)).or_default().insert((row.get(2)?, row.get(3)?), sum);
    }
    let one = |(&key, &life): (&Key, &u64)| {
        let own = spent.get(&key);
        let sum = |state: &str| {
            let of = own.into_iter().flatten().filter(|((name, _), _)| name == state);
            of.fold((0_u64, 0_u64), |sum, (_, more)| {
                (sum.0.saturating_add(more.0), sum.1.saturating_add(more.1))
            })
        };
        let (on, interrupted) = (sum("running"), sum("interrupted"));
        let sampler = sum("sampler");
        let with_cpu = [interrupted.0, sampler.0].into_iter().fold(on.0, u64::saturating_add);
        let (mut states, samples) = ticks.divide(key, &TimeIn::exact("running", "", on, life), false);
        states.push(TimeIn::exact("interrupted", "", interrupted, life));
        states.push(TimeIn::exact("sampler", "", sampler, life));
        states.extend(STATES.iter().skip(1).map(|state| TimeIn::exact(state, "", sum(state), life)));
        let waits = own.into_iter().flatten().filter(|((state, _), _)| WAITS.contains(&state.as_str()));
        let mut waits: Vec<TimeIn> =
            waits.map(|((state, wait_reason), &sum)| TimeIn::exact(state, wait_reason, sum, life)).collect();
        by_time(&mut waits);
        TaskSpent {
            task: task(key, tables),
            life_s: seconds(life),
            running: TimeIn::exact("running", "", (with_cpu, on.1), life),
            states,
            waits,
            samples,
        }
    };
    Ok(StateReport {
        source: Known::Exact,
        from_s: seconds(from_ns),
        to_s: seconds(to_ns),
        scans: None,
        tasks: lives.iter().filter(|(key, _)| chosen(**key)).map(one).collect(),
    })
}

/// The scans in the chosen time.
fn scans(connection: &Connection, tables: &Tables, filter: &Filter) -> rusqlite::Result<TaskScans> {
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
    let before = all.iter().take_while(|moment| moment.time_ns < from).last().map(|moment| moment.time_ns);
    let begin = before.unwrap_or_else(|| tables.parsed("task_scan_from_ns"));
    let chosen = all.into_iter().filter(|moment| (from..to).contains(&moment.time_ns)).collect();
    Ok(TaskScans::new(chosen, begin, tables.parsed("task_scan_hz")))
}

/// Times by task-state sampling.
fn estimated(
    connection: &Connection,
    tables: &Tables,
    ticks: &Parts,
    scans: &TaskScans,
    chosen: impl Fn(Key) -> bool,
) -> rusqlite::Result<StateReport> {
    let mut tasks = Vec::new();
    let mut statement = connection.prepare(
        "SELECT instance, tid, scan, state, wait_reason FROM task_scan_state ORDER BY instance, tid, scan",
    )?;
    let mut rows = statement.query([])?;
    let (mut key, mut stays) = (None, Vec::<Stay>::new());
    let mut end = |key: Option<Key>, stays: &mut Vec<Stay>| {
        stays.retain(|stay| stay.state != "gone" && stay.from < stay.to);
        if let Some(key) = key.filter(|_| !stays.is_empty()) {
            tasks.push(one(key, stays, (tables, ticks, scans)));
        }
        stays.clear();
    };
    while let Some(row) = rows.next()? {
        let of: Key = (row.get(0)?, row.get(1)?);
        if !chosen(of) {
            continue;
        }
        if key != Some(of) {
            end(key.replace(of), &mut stays);
        }
        let from = scans.place(unsigned(row, 2)?);
        if let Some(last) = stays.last_mut() {
            last.to = from;
        }
        stays.push(Stay { from, to: scans.len(), state: row.get(3)?, wait_reason: row.get(4)? });
    }
    end(key, &mut stays);
    let (from_ns, to_ns) = scans.span();
    let facts = ScanStatistics {
        hz: tables.parsed("task_scan_hz"),
        scans: scans.len() as u64,
        late_s: scans.late_s(),
        missed: tables.parsed("task_scan_missed"),
        tasks: tables.parsed("task_scan_tasks"),
        inconsistent: tables.parsed("task_scan_inconsistent"),
        cost_s: seconds(tables.parsed("task_scan_cost_ns")),
    };
    Ok(StateReport {
        source: Known::Sampled,
        from_s: seconds(from_ns),
        to_s: seconds(to_ns),
        scans: Some(facts),
        tasks,
    })
}

/// One task by task-state sampling.
fn one(key: Key, stays: &[Stay], (tables, ticks, scans): (&Tables, &Parts, &TaskScans)) -> TaskSpent {
    let mut causes: Vec<(&str, &str)> = stays
        .iter()
        .filter(|stay| WAITS.contains(&stay.state.as_str()))
        .map(|stay| (stay.state.as_str(), stay.wait_reason.as_str()))
        .collect();
    causes.sort_unstable();
    causes.dedup();
    let of_state = STATES.map(|state| move |stay: &Stay| stay.state == state);
    let of_cause: Vec<_> = causes
        .iter()
        .map(|&(state, wait_reason)| {
            move |stay: &Stay| (stay.state == state) && stay.wait_reason == wait_reason
        })
        .collect();
    let keys: Vec<&dyn Fn(&Stay) -> bool> = of_state
        .iter()
        .map(|is| is as &dyn Fn(&Stay) -> bool)
        .chain(of_cause.iter().map(|is| is as &dyn Fn(&Stay) -> bool))
        .collect();
    let (life, spent) = scans.spent(stays, &keys);
    let mut spent = spent.iter();
    let mut states: Vec<TimeIn> =
        STATES.iter().zip(&mut spent).map(|(state, spent)| TimeIn::estimated(state, "", spent)).collect();
    let mut waits: Vec<TimeIn> = causes
        .iter()
        .zip(spent)
        .map(|((state, wait_reason), spent)| TimeIn::estimated(state, wait_reason, spent))
        .collect();
    by_time(&mut waits);
    let running = states.remove(0);
    let (mut divided, samples) = ticks.divide(key, &running, true);
    divided.append(&mut states);
    TaskSpent {
        task: task(key, tables),
        life_s: life.time.time.ns / 1e9,
        running,
        states: divided,
        waits,
        samples,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::TaskState;
    use crate::rows::{Batch, InstanceRow, Mode, SampleRow, Sink, TaskLifeRow, TaskStateRow, VcpuState};
    use crate::store::ProfileWriter;

    /// Exact data of the first 5 s of a minute: the thread runs user code then, and the kernel's for the rest.
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
        let report = StateReport::read(&profile, &Filter::default(), Source::Exact).expect("states");
        let task = &report.tasks[0];
        let user = task.states.iter().find(|time| time.state == "user").expect("user time");
        assert!((user.s - 5.0).abs() < 0.2 && user.high_s >= 5.0, "{user:?}");
        assert_eq!(task.samples, 50);
    }
}
