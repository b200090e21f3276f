//! Results of exact mode: `vprof report --exact`. Serializes to the object that docs/json.md describes.

mod children;
mod delays;
mod interrupts;
mod parts;
mod stacks;
mod tasks;
mod timehist;

use std::collections::HashMap;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use statistics::estimate::sampled;
use statistics::part;

use super::{By, Estimate, Filter, ModeGroup, Report, ReportError, Request};
use crate::numbers::seconds;
use crate::report::is_process;
use crate::store::Profile;
pub(super) use delays::DelaySum;
use delays::Delays;
pub use delays::{DelayBucket, DurationSummary, TaskDelay};
pub use parts::{CpuPart, CpuParts};
pub(super) use stacks::Stacks;
use tasks::Names;
pub use timehist::{TaskRun, Timehist};

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
    /// `running`, `interrupted`, `runnable`, `sleep`, `disk`, `stopped`, `zombie` or `unknown`.
    pub state: String,
    /// Wait reason, like `futex`; empty for other states than sleeps.
    pub wait_reason: String,
    /// Exact time, s.
    pub s: f64,
    /// Its part of the task's life.
    pub share: f64,
    /// Number of times that the state began.
    pub count: u64,
}

/// A task and its states, whose times add up to `life_s`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskStates {
    /// The task.
    #[serde(flatten)]
    pub task: Task,
    /// Time for which it was followed, s.
    pub life_s: f64,
    /// True if it has exited and is reaped.
    pub ended: bool,
    /// Exact time on a CPU, handlers of hard interrupts left out, s.
    pub running_s: f64,
    /// Division of that time, estimated by samples; `None` without samples.
    pub parts: Option<CpuParts>,
    /// Waits for a CPU; `None` if it never waited.
    pub delay: Option<TaskDelay>,
    /// Most time first.
    pub states: Vec<StateTime>,
}

/// States of the children that a process has waited for, and of theirs: Chubb's `MSA_CHILDREN`. A child that
/// nobody waits for, because its parent ignores its end, is in no sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildrenStates {
    /// Program name of the process.
    pub comm: String,
    /// Process id.
    pub pid: i32,
    /// Instance number.
    pub instance: u32,
    /// Children that it has waited for.
    pub waited_for: u64,
    /// Processes in the sums: these children, and the children that those had waited for.
    pub processes: u64,
    /// Time for which their threads were followed, in total, s.
    pub life_s: f64,
    /// Exact time on a CPU, handlers of hard interrupts left out, s.
    pub running_s: f64,
    /// Most time first; the times add up to `life_s`.
    pub states: Vec<StateTime>,
}

/// Time that a task was asleep at one place of the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OffCpu {
    /// The task.
    #[serde(flatten)]
    pub task: Task,
    /// `sleep`, `disk` or `stopped`.
    pub state: String,
    /// Wait reason.
    pub wait_reason: String,
    /// Exact time until it was woken, s.
    pub s: f64,
    /// Number of sleeps.
    pub count: u64,
    /// Functions, innermost first, those of the kernel and then of the program; empty if the stack was not
    /// read.
    pub stack: Vec<String>,
}

/// Wake-ups of one task by one waker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wakeup {
    /// `task`, or an interrupt: `hard` or `soft`.
    pub by: String,
    /// The waker; `None` for an interrupt.
    pub waker: Option<Task>,
    /// The task that was woken.
    pub woken: Task,
    /// Number of wake-ups.
    pub count: u64,
}

/// Time in handlers of hard interrupts that interrupted one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InterruptTime {
    /// vCPU.
    pub vcpu: u16,
    /// The interrupted task.
    #[serde(flatten)]
    pub task: Task,
    /// Exact time, s.
    pub s: f64,
    /// Number of interrupts.
    pub count: u64,
}

/// Time in handlers of hard interrupts by source, over all vCPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InterruptSource {
    /// Name of the handler: a device, or the kernel's name of one of the machine's own vectors.
    pub name: String,
    /// The vector of a device; `None` for the machine's own, whose names identify them.
    pub vector: Option<u8>,
    /// Number of interrupts.
    pub count: u64,
    /// Exact time, s.
    pub s: f64,
    /// `s / count`.
    pub mean_s: f64,
    /// The longest, s.
    pub max_s: f64,
}

/// Time in soft interrupts of one kind, estimated by samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoftInterrupt {
    /// Name as in `/proc/softirqs`.
    pub name: String,
    /// Samples in it, its share of non-idle time, and its time.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// Contribution of one vCPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExactVcpu {
    /// 0 and up.
    pub id: u16,
    /// Exits for events.
    pub probe_exits: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Switches among the events.
    pub switches: u64,
    /// Switches by the kernel's own count, if it could be read.
    pub guest_switches: Option<u64>,
    /// Nothing to run, s.
    pub idle_s: f64,
    /// In handlers of hard interrupts, s.
    pub interrupt_s: f64,
    /// Hard interrupts.
    pub interrupts: u64,
    /// Sleeps whose stack was not read.
    pub stacks_missed: u64,
    /// Time from the events' exits to the next entries, s: vprof's own part of the cost of exact mode.
    pub cost_s: f64,
}

/// Cost of exact mode itself, in time of the vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExactCost {
    /// Both parts, s.
    pub whole_s: f64,
    /// Time of the vCPUs while there was exact data, s.
    pub of_s: f64,
    /// From the events' exits to the next entries, s: measured.
    pub served_s: f64,
    /// Switches from the guest to the host and back, s: estimated by the samples at watched functions' first
    /// instructions.
    pub switching_s: f64,
    /// Lower end of its 95 % interval, s.
    pub switching_low_s: f64,
    /// Upper end, s.
    pub switching_high_s: f64,
    /// Number of those samples.
    pub switching_samples: u64,
}

impl ExactCost {
    /// Keys of table `meta` with the cost.
    const KEYS: [&str; 6] = [
        "exact_from_ns",
        "exact_to_ns",
        "duration_ns",
        "exact_cost_ns",
        "exact_switching_ns",
        "exact_switching_samples",
    ];

    /// Returns the cost of `vcpus` vCPUs from table `meta`; `None` if there is no exact data, or no cost in
    /// this profile.
    #[expect(clippy::cast_precision_loss, reason = "a few vCPUs")]
    pub fn from_meta<'a>(meta: impl Fn(&str) -> Option<&'a str>, vcpus: usize) -> Option<Self> {
        let number = |key: &str| meta(key).and_then(|value| value.parse::<u64>().ok());
        let from_ns = number("exact_from_ns")?;
        let to_ns = number("exact_to_ns").or_else(|| number("duration_ns")).unwrap_or(from_ns);
        let served_s = seconds(number("exact_cost_ns")?);
        let switching_s = seconds(number("exact_switching_ns")?);
        let samples = number("exact_switching_samples")?;
        let (switching_low_s, switching_high_s) = sampled(switching_s, samples);
        Some(Self {
            whole_s: served_s + switching_s,
            of_s: seconds(to_ns.saturating_sub(from_ns)) * vcpus as f64,
            served_s,
            switching_s,
            switching_low_s,
            switching_high_s,
            switching_samples: samples,
        })
    }
}

/// The exact part of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExactReport {
    /// Start, s since the run's start.
    pub from_s: f64,
    /// End, s since the run's start; the end of the run if nothing ended the exact data before.
    pub to_s: f64,
    /// Reason of the end; `None` in a run that was cut short or is in progress.
    pub end: Option<String>,
    /// True if no event was lost: all times are exact.
    pub complete: bool,
    /// Tasks that ran although their wake-up was not observed; their wait for a CPU counts as sleep.
    pub unseen_wakes: u64,
    /// Cost of exact mode itself; `None` in a profile without it.
    pub cost: Option<ExactCost>,
    /// One row per vCPU.
    pub vcpus: Vec<ExactVcpu>,
    /// Tasks, longest on a CPU first.
    pub tasks: Vec<TaskStates>,
    /// Wake-up latencies of these tasks; `None` without wake-ups.
    pub wakeup_latency: Option<DurationSummary>,
    /// Sums over children that were waited for, most time on a CPU first.
    pub children: Vec<ChildrenStates>,
    /// Sleeps by task and place, longest first.
    pub off_cpu: Vec<OffCpu>,
    /// Most wakes first.
    pub wakeups: Vec<Wakeup>,
    /// Hard interrupts by the task that they interrupted; most time first.
    pub interrupts: Vec<InterruptTime>,
    /// Hard interrupts by source; most time first. Empty if one process is chosen.
    pub sources: Vec<InterruptSource>,
    /// Soft interrupts; most time first. Empty if one process is chosen.
    pub soft_interrupts: Vec<SoftInterrupt>,
}

/// Instance row id and thread id.
type Key = (u32, i32);

impl ExactReport {
    /// Reads the exact part of a profile; only of the processes that are named, as in
    /// [`Filter::process`](super::Filter::process).
    ///
    /// # Errors
    /// [`ReportError::NoExact`] if there is none, [`ReportError::NoSuch`] for a process that is not among the
    /// tasks.
    pub fn read(profile: &Profile, processes: &[String]) -> Result<Self, ReportError> {
        let mut report = Self::read_exact(profile, processes)?;
        if processes.is_empty() {
            report.soft_interrupts = soft_interrupts(profile)?;
        }
        Ok(report)
    }

    /// Reads everything except what is estimated for the whole guest.
    fn read_exact(profile: &Profile, processes: &[String]) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts have the same state of a run in progress.
        let _snapshot = crate::store::snapshot(connection).map_err(sql)?;
        let meta = |key: &str| meta(connection, key).map_err(sql);
        let (from_ns, end_ns) = span(connection).map_err(sql)??;
        let names = Names::read(connection).map_err(sql)?;
        let stacks = Stacks::read(connection).map_err(sql)?;
        let chosen = |key: Key| processes.is_empty() || processes.iter().any(|wanted| names.is(key, wanted));
        let vcpus = interrupts::vcpus(connection).map_err(sql)?;
        let parts = parts::read(connection, &stacks, (from_ns, end_ns)).map_err(sql)?;
        let delays = Delays::read(connection, chosen).map_err(sql)?;
        let tasks = tasks::states(connection, (&names, &parts, &delays), chosen).map_err(sql)?;
        let has_task = |wanted: &&String| {
            tasks
                .iter()
                .any(|TaskStates { task, .. }| is_process((&task.comm, task.pid, task.instance), wanted))
        };
        if let Some(wanted) = processes.iter().find(|wanted| !has_task(wanted)) {
            let advice = "`--exact` without --process lists all".to_owned();
            return Err(ReportError::NoSuch { what: "task of", wanted: wanted.clone(), advice });
        }
        let mut values = HashMap::new();
        for key in ExactCost::KEYS {
            values.extend(meta(key)?.map(|value| (key, value)));
        }
        Ok(Self {
            cost: ExactCost::from_meta(|key| values.get(key).map(String::as_str), vcpus.len()),
            from_s: seconds(from_ns),
            to_s: seconds(end_ns),
            end: meta("exact_end")?,
            complete: vcpus.iter().all(|vcpu| vcpu.lost == 0),
            unseen_wakes: meta("exact_unseen_wakes")?.and_then(|text| text.parse().ok()).unwrap_or(0),
            vcpus,
            tasks,
            wakeup_latency: delays.wakeup_latency(),
            children: children::read(connection, &names, chosen).map_err(sql)?,
            off_cpu: tasks::off_cpu(connection, (&names, &stacks), chosen).map_err(sql)?,
            wakeups: tasks::wakeups(connection, &names, chosen).map_err(sql)?,
            interrupts: interrupts::interrupts(connection, &names, chosen).map_err(sql)?,
            sources: if processes.is_empty() {
                interrupts::sources(connection).map_err(sql)?
            } else {
                Vec::new()
            },
            soft_interrupts: Vec::new(),
        })
    }
}

/// Returns start and end of the exact data, ns since the run's start.
fn span(connection: &Connection) -> rusqlite::Result<Result<(u64, u64), ReportError>> {
    let number = |key: &str| meta(connection, key).map(|text| text?.parse::<u64>().ok());
    if let Some(from_ns) = number("exact_from_ns")? {
        let end_ns = number("exact_to_ns")?.or(number("duration_ns")?).unwrap_or(from_ns);
        return Ok(Ok((from_ns, end_ns)));
    }
    let reason = match (meta(connection, "exact_missing")?, meta(connection, "exact")?.as_deref()) {
        (Some(reason), _) => reason,
        (None, Some("1")) => "the run was cut short before the guest's kernel had booted".to_owned(),
        _ => "it was made without `vprof run --exact`".to_owned(),
    };
    Ok(Err(ReportError::NoExact(reason)))
}

/// Estimates soft interrupts by samples. The kernel calls no function at their end, so that events cannot
/// give their time.
fn soft_interrupts(profile: &Profile) -> Result<Vec<SoftInterrupt>, ReportError> {
    let sql = |error: rusqlite::Error| profile.error(&error);
    let (from_ns, to_ns) = span(profile.connection()).map_err(sql)??;
    let filter = Filter {
        modes: vec![ModeGroup::Irq],
        from_ns: Some(from_ns),
        to_ns: Some(to_ns),
        ..Filter::default()
    };
    let report = match Report::read_with(profile, &filter, &Request::By(vec![By::Irq])) {
        // The last part of a run that was killed may be missing.
        Err(ReportError::AfterEnd(_)) => return Ok(Vec::new()),
        report => report?,
    };
    let rows = report.by.map(|breakdown| breakdown.rows).unwrap_or_default();
    let mut soft: Vec<SoftInterrupt> = rows
        .into_iter()
        .filter(|row| row.kind.as_deref() == Some("soft"))
        .map(|row| SoftInterrupt { name: row.name, estimate: row.own })
        .collect();
    soft.sort_by(|a, b| b.estimate.time_s.total_cmp(&a.estimate.time_s).then_with(|| a.name.cmp(&b.name)));
    Ok(soft)
}

pub(super) fn meta(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE key = ?")?;
    let mut rows = statement.query(params![key])?;
    rows.next()?.map(|row| row.get(0)).transpose()
}

fn key(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Key> {
    Ok((row.get(first)?, row.get(first + 1)?))
}

/// Reads a count or time.
pub(super) fn count(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_cost_is_the_measured_and_the_sampled_part() {
        let all = [1_000_000_000, 76_000_000_000, 90_000_000_000, 6_000_000_000, 16_000_000_000, 400];
        let read = |known: usize| {
            let meta: HashMap<_, _> = ExactCost::KEYS
                .into_iter()
                .zip(all.map(|value: u64| value.to_string()))
                .take(known)
                .collect();
            ExactCost::from_meta(|key| meta.get(key).map(String::as_str), 2)
        };
        let cost = read(6).expect("all keys");
        let times = [cost.served_s, cost.switching_s, cost.whole_s, cost.of_s];
        assert!(times.iter().zip([6.0, 16.0, 22.0, 150.0]).all(|(is, should)| (is - should).abs() < 1e-9));
        // 400 samples: 5 % to either side, twice that for 95 %.
        assert!((cost.switching_low_s - 14.5).abs() < 0.1 && (cost.switching_high_s - 17.7).abs() < 0.1);
        assert_eq!(read(4), None, "a profile that has no switches between guest and host");
    }
}
