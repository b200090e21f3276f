//! Watch of a running guest for stalls: conditions that hold for a long time ([`WatchCondition`]).
//!
//! ```text
//!  samples ───────────────▶ [`VcpuCourse`] of each vCPU: runs of alike samples ──┐
//!  clocks, host's waits ──▶ [`HostShare`] ────────────────────────────────────────┤
//!  counters in memory ────▶ [`KernelCourse`]: values that stay the same ──────────┼─▶ [`Verdict`]s ─▶ alerts
//!  scans of tasks ────────▶ tasks in the same uninterruptible sleep ──────────────┤
//!  standstills ───────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A condition begins when it has held for its threshold, and is over only when something contradicts it:
//! without samples, or without the guest's memory, nothing is known, and nothing begins or ends. Times for
//! which the machine was paused count for no condition of the guest.

mod host;
mod kernel;
mod vcpu;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use display::units::{counted, duration};
use profile::rows::{HostWaitRow, MicrostateRow, SampleRow};
use profile::watch::{Alert, AlertStep, BlockedTask, WatchCondition, WatchThreshold, WatchedTask};
use serde::{Deserialize, Serialize};

use crate::record::SampleRecord;
use crate::task_state::{TaskActivity, TaskKey};
use host::{HostShare, PauseClock, Taker};
pub(crate) use kernel::KernelCounters;
use kernel::KernelCourse;
use vcpu::VcpuCourse;

/// Alerts of a run, at most: a guest may stall and continue any number of times.
const MOST_ALERTS: u32 = 10_000;
/// Alerts of blocked tasks that are open at one time, at most.
const MOST_TASKS: usize = 16;
/// Blocked tasks that an alert shows, at most.
const SHOWN_TASKS: usize = 32;
/// Shortest uninterruptible sleep that an alert shows, ns: tasks that wait for a disk are seen all the time.
const SHOWN_SLEEP_NS: u64 = 1_000_000_000;

/// Configuration of a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchConfig {
    /// Conditions and their thresholds.
    pub conditions: Vec<WatchThreshold>,
    /// The run ends with the first alert.
    pub exit: bool,
    /// Conditions that cannot be judged by the means of this recording, and the reasons.
    pub unjudged: Vec<(WatchCondition, String)>,
}

impl WatchConfig {
    /// Returns the threshold of a condition, ns; `None` if it is not watched for.
    pub(crate) fn threshold_ns(&self, condition: WatchCondition) -> Option<u64> {
        if self.unjudged.iter().any(|(unjudged, _)| *unjudged == condition) {
            return None;
        }
        let wanted = self.conditions.iter().rev().find(|wanted| wanted.condition == condition)?;
        Some(u64::try_from(wanted.threshold.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Subject of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Guest,
    Vcpu(u8),
    Task(TaskKey),
}

/// Result of judging a condition of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// It has held for its threshold.
    Holds {
        /// Its length so far, ns.
        length_ns: u64,
        /// A sentence about it.
        sentence: String,
    },
    /// Something contradicts it.
    Over,
    /// Neither is known.
    Unknown,
}

/// A task in uninterruptible sleep, as scans have found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sleeper {
    pub who: TaskKey,
    /// Time of the scan that found the sleep first, CLOCK_MONOTONIC ns.
    pub since_ns: u64,
    pub activity: TaskActivity,
}

/// Standstill of the guest, by the latest check for one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum StandstillFinding {
    /// Nothing is known.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// There is one.
    Present {
        /// Its length so far, ns.
        length_ns: u64,
        /// A sentence about it.
        sentence: String,
    },
}

/// Inputs of a check besides the samples and rows that were noted before.
pub(crate) struct WatchInputs<'a> {
    /// CLOCK_MONOTONIC ns.
    pub now_ns: u64,
    /// Rate of the samples that each vCPU is to have, Hz.
    pub rates_hz: &'a [f64],
    /// Counters in the guest's memory, if it was read.
    pub kernel: Option<KernelCounters>,
    /// Tasks in uninterruptible sleep; `None` if no scan was made since the last check.
    pub sleepers: Option<&'a [Sleeper]>,
    pub standstill: StandstillFinding,
}

/// An alert that has begun and is not over.
#[derive(Debug, Clone, Copy)]
struct OpenAlert {
    number: u32,
    /// Start of the condition, CLOCK_MONOTONIC ns.
    since_ns: u64,
}

/// State of a watch.
#[derive(Debug)]
pub(crate) struct Watch {
    config: WatchConfig,
    /// CLOCK_MONOTONIC ns at the start of the run.
    zero_ns: u64,
    vcpus: Vec<VcpuCourse>,
    host: Vec<HostShare>,
    pauses: PauseClock,
    kernel: KernelCourse,
    /// Time for which the machine had been paused when a sleep began, and that time of the scan, ns.
    asleep: HashMap<TaskKey, (u64, u64)>,
    /// Tasks in uninterruptible sleep as of the last scan, the longest first.
    blocked: Vec<BlockedTask>,
    open: BTreeMap<(WatchCondition, Subject), OpenAlert>,
    count: u32,
}

impl Watch {
    /// Creates a watch. `zero_ns` is CLOCK_MONOTONIC at the start of the run.
    pub(crate) fn new(config: WatchConfig, zero_ns: u64) -> Self {
        Self {
            config,
            zero_ns,
            vcpus: Vec::new(),
            host: Vec::new(),
            pauses: PauseClock::default(),
            kernel: KernelCourse::default(),
            asleep: HashMap::new(),
            blocked: Vec::new(),
            open: BTreeMap::new(),
            count: 0,
        }
    }

    /// Returns the configuration.
    pub(crate) fn config(&self) -> &WatchConfig {
        &self.config
    }

    /// Returns the number of alerts so far.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Forgets everything so far but the alerts that are open: the host had stopped the whole process, or the
    /// guest has started another kernel.
    pub(crate) fn forget(&mut self) {
        self.vcpus.clear();
        self.host.clear();
        self.pauses = PauseClock::default();
        self.kernel = KernelCourse::default();
        self.asleep.clear();
        self.blocked.clear();
    }

    /// Notes a sample: the record, and its row.
    pub(crate) fn sample(&mut self, vcpu: usize, record: &SampleRecord, row: &SampleRow) {
        if self.vcpus.len() <= vcpu {
            self.vcpus.resize_with(vcpu + 1, VcpuCourse::default);
        }
        self.vcpus[vcpu].note(record, row);
    }

    /// Notes how the time of vCPUs was spent, and which processes of the host had their CPUs.
    pub(crate) fn rows(&mut self, windows: &[MicrostateRow], waits: &[HostWaitRow]) {
        for window in windows {
            self.host_of(window.vcpu).window(&window.states);
        }
        for wait in waits {
            self.host_of(wait.vcpu).taken(wait);
        }
        self.pauses.windows(windows);
    }

    fn host_of(&mut self, vcpu: u8) -> &mut HostShare {
        let vcpu = usize::from(vcpu);
        if self.host.len() <= vcpu {
            self.host.resize_with(vcpu + 1, HostShare::default);
        }
        &mut self.host[vcpu]
    }

    /// Judges all conditions. `name` is that of a thread. Returns the alerts that begin or end.
    pub(crate) fn check(&mut self, inputs: &WatchInputs<'_>, name: impl Fn(TaskKey) -> String) -> Vec<Alert> {
        let paused_ns = self.pauses.total_ns();
        let run_ns = inputs.now_ns.saturating_sub(paused_ns);
        for (vcpu, rate_hz) in self.vcpus.iter_mut().zip(inputs.rates_hz) {
            vcpu.set_rate(*rate_hz);
        }
        let clock_moves = self.kernel.note(inputs.kernel.as_ref(), run_ns);
        if clock_moves {
            self.vcpus.iter_mut().for_each(VcpuCourse::restart_clock);
        }
        if let Some(sleepers) = inputs.sleepers {
            self.note_sleepers(sleepers, inputs.now_ns);
        }
        let mut verdicts = Vec::new();
        self.judge_vcpus(&name, &mut verdicts);
        self.judge_guest(inputs, &mut verdicts);
        self.judge_host(inputs.now_ns, &mut verdicts);
        if inputs.sleepers.is_some() {
            self.judge_tasks(&name, &mut verdicts);
        }
        let alerts = verdicts.into_iter().filter_map(|(condition, subject, verdict)| {
            self.settle((condition, subject), verdict, inputs.now_ns, &name)
        });
        alerts.collect()
    }

    fn judge_vcpus(
        &self,
        name: &impl Fn(TaskKey) -> String,
        verdicts: &mut Vec<(WatchCondition, Subject, Verdict)>,
    ) {
        let task = |who: Option<TaskKey>| {
            who.map_or_else(|| "no known task".to_owned(), |who| format!("{} ({})", name(who), who.tid))
        };
        for (id, vcpu) in (0_u8..).zip(&self.vcpus) {
            if let Some(threshold) = self.config.threshold_ns(WatchCondition::IrqsOff) {
                let sentence = |ns| {
                    format!("vCPU {id} has had interrupts off for {}, in {}", time(ns), task(vcpu.task()))
                };
                let verdict = vcpu.irqs_off(threshold, sentence);
                verdicts.push((WatchCondition::IrqsOff, Subject::Vcpu(id), verdict));
            }
            if let Some(threshold) = self.config.threshold_ns(WatchCondition::SoftLockup) {
                let key = (WatchCondition::IrqsOff, Subject::Vcpu(id));
                // Interrupts that stay off keep the task, too: one cause has one alert.
                let explained = self.open.contains_key(&key) || vcpu.has_irqs_off();
                let unchanged = self.kernel.without_switch_ns(usize::from(id));
                let sentence = |ns| {
                    format!(
                        "vCPU {id} has run kernel code of {} for {} without a switch to another task",
                        task(vcpu.task()),
                        time(ns)
                    )
                };
                let verdict = match vcpu.locked_up(threshold, unchanged, sentence) {
                    Verdict::Holds { .. } if explained => Verdict::Unknown,
                    verdict => verdict,
                };
                verdicts.push((WatchCondition::SoftLockup, Subject::Vcpu(id), verdict));
            }
        }
    }

    fn judge_guest(
        &mut self,
        inputs: &WatchInputs<'_>,
        verdicts: &mut Vec<(WatchCondition, Subject, Verdict)>,
    ) {
        if let Some(threshold) = self.config.threshold_ns(WatchCondition::RcuStall) {
            let verdict = self.kernel.rcu_stall(threshold);
            verdicts.push((WatchCondition::RcuStall, Subject::Guest, verdict));
        }
        if let Some(threshold) = self.config.threshold_ns(WatchCondition::LostTimer) {
            let verdict = match &inputs.standstill {
                StandstillFinding::Present { length_ns, sentence } if *length_ns >= threshold => {
                    Verdict::Holds { length_ns: *length_ns, sentence: sentence.clone() }
                }
                StandstillFinding::Present { .. } => Verdict::Unknown,
                StandstillFinding::Absent => self.clock_stopped(threshold, true),
                StandstillFinding::Unknown => self.clock_stopped(threshold, false),
            };
            verdicts.push((WatchCondition::LostTimer, Subject::Guest, verdict));
        }
        if self.config.threshold_ns(WatchCondition::Oom).is_some() {
            let kills = self.kernel.take_kills();
            if kills > 0 {
                let sentence =
                    format!("the guest's kernel has killed {} for lack of memory", processes(kills));
                let verdict = Verdict::Holds { length_ns: 0, sentence };
                verdicts.push((WatchCondition::Oom, Subject::Guest, verdict));
            }
        }
    }

    /// Judges a clock that does not advance although vCPUs run with interrupts on. `no_standstill`: the guest
    /// has no standstill.
    fn clock_stopped(&self, threshold_ns: u64, no_standstill: bool) -> Verdict {
        let unchanged_ns = self.kernel.without_tick_ns().unwrap_or(0);
        if unchanged_ns == 0 {
            return if no_standstill { Verdict::Over } else { Verdict::Unknown };
        }
        // The CPU that keeps the clock may be any one, so none may be known to have interrupts off.
        let all_served = self.vcpus.iter().all(|vcpu| vcpu.is_idle() || vcpu.interruptible_ns().is_some());
        let served = self.vcpus.iter().filter_map(VcpuCourse::interruptible_ns).max();
        match served.map(|ns| ns.min(unchanged_ns)).filter(|_| all_served) {
            Some(length_ns) if length_ns >= threshold_ns => Verdict::Holds {
                length_ns,
                sentence: format!(
                    "the guest's clock has not advanced for {} while vCPUs ran with interrupts on: its timer is lost",
                    time(length_ns)
                ),
            },
            _ => Verdict::Unknown,
        }
    }

    fn judge_host(&mut self, now_ns: u64, verdicts: &mut Vec<(WatchCondition, Subject, Verdict)>) {
        if let Some(threshold) = self.config.threshold_ns(WatchCondition::Paused) {
            let verdict = self.pauses.verdict(threshold);
            verdicts.push((WatchCondition::Paused, Subject::Guest, verdict));
        }
        let Some(threshold) = self.config.threshold_ns(WatchCondition::Starved) else { return };
        for (id, host) in (0_u8..).zip(&mut self.host) {
            let sentence = |waited: u64, of: u64, taker: Option<Taker>| {
                let who = taker.map_or_else(String::new, |Taker { pid, name, total_ns }| {
                    let name =
                        if pid == 0 { "several processes".to_owned() } else { format!("{name} ({pid})") };
                    format!("; {name} took it at the begin of waits of {}", time(total_ns))
                });
                format!(
                    "vCPU {id} has waited for a CPU of the host for {} of {}{who}",
                    time(waited),
                    time(of)
                )
            };
            let verdict = host.verdict(threshold, now_ns, sentence);
            verdicts.push((WatchCondition::Starved, Subject::Vcpu(id), verdict));
        }
    }

    /// Remembers when each sleep began, and the order of the longest.
    fn note_sleepers(&mut self, sleepers: &[Sleeper], now_ns: u64) {
        let paused_ns = self.pauses.total_ns();
        let mut asleep = HashMap::with_capacity(sleepers.len());
        self.blocked.clear();
        for &Sleeper { who, since_ns, activity } in sleepers {
            let same = self.asleep.get(&who).filter(|(since, _)| *since == since_ns);
            let (_, before_ns) =
                *asleep.entry(who).or_insert_with(|| *same.unwrap_or(&(since_ns, paused_ns)));
            let slept_ns = now_ns.saturating_sub(since_ns);
            self.blocked.push(BlockedTask {
                task: WatchedTask { instance: who.instance, tid: who.tid },
                blocked_ns: slept_ns.saturating_sub(paused_ns.saturating_sub(before_ns)),
                wait_reason: activity.wait_reason,
                stack: activity.stack,
            });
        }
        self.asleep = asleep;
        self.blocked.sort_unstable_by_key(|task| (std::cmp::Reverse(task.blocked_ns), task.task.tid));
    }

    fn judge_tasks(
        &self,
        name: &impl Fn(TaskKey) -> String,
        verdicts: &mut Vec<(WatchCondition, Subject, Verdict)>,
    ) {
        let condition = WatchCondition::BlockedTask;
        let Some(threshold) = self.config.threshold_ns(condition) else { return };
        let long = self.blocked.iter().take_while(|task| task.blocked_ns >= threshold);
        let long: Vec<(TaskKey, u64)> = long.map(|task| (key(task.task), task.blocked_ns)).collect();
        let open = self.open.keys().filter_map(|key| match key {
            (WatchCondition::BlockedTask, Subject::Task(who)) => Some(*who),
            _ => None,
        });
        let over: Vec<TaskKey> = open.filter(|who| !long.iter().any(|(other, _)| other == who)).collect();
        let others = long.len().saturating_sub(MOST_TASKS);
        verdicts.extend(over.into_iter().map(|who| (condition, Subject::Task(who), Verdict::Over)));
        for (who, length_ns) in long.into_iter().take(MOST_TASKS) {
            let more = if others == 0 { String::new() } else { format!(" ({others} more tasks, too)") };
            let sentence = format!(
                "thread {} ({}) has been in uninterruptible sleep for {}{more}",
                who.tid,
                name(who),
                time(length_ns)
            );
            verdicts.push((condition, Subject::Task(who), Verdict::Holds { length_ns, sentence }));
        }
    }

    /// Begins or ends the alert of a condition.
    fn settle(
        &mut self,
        key: (WatchCondition, Subject),
        verdict: Verdict,
        now_ns: u64,
        name: &impl Fn(TaskKey) -> String,
    ) -> Option<Alert> {
        match (self.open.get(&key).copied(), verdict) {
            (None, Verdict::Holds { length_ns, sentence }) if self.count < MOST_ALERTS => {
                self.count += 1;
                let open = OpenAlert { number: self.count, since_ns: now_ns.saturating_sub(length_ns) };
                // A killed process has no end.
                if key.0 != WatchCondition::Oom {
                    self.open.insert(key, open);
                }
                Some(self.alert(key, open, AlertStep::Begin, (now_ns, sentence)))
            }
            (Some(open), Verdict::Over) => {
                self.open.remove(&key);
                let length = time(now_ns.saturating_sub(open.since_ns));
                let what = match key.1 {
                    Subject::Guest => "the guest".to_owned(),
                    Subject::Vcpu(id) => format!("vCPU {id}"),
                    Subject::Task(who) => format!("thread {} ({})", who.tid, name(who)),
                };
                let sentence = format!("over after {length}: {} of {what}", key.0);
                Some(self.alert(key, open, AlertStep::End, (now_ns, sentence)))
            }
            _ => None,
        }
    }

    fn alert(
        &self,
        (condition, subject): (WatchCondition, Subject),
        open: OpenAlert,
        step: AlertStep,
        (now_ns, sentence): (u64, String),
    ) -> Alert {
        let shown = step == AlertStep::Begin;
        let (vcpu, task) = match subject {
            Subject::Guest => (None, None),
            Subject::Vcpu(id) => (Some(id), None),
            Subject::Task(TaskKey { instance, tid }) => (None, Some(WatchedTask { instance, tid })),
        };
        let samples = self.vcpus.iter().filter_map(VcpuCourse::latest).filter(|_| shown);
        let long = |task: &&BlockedTask| task.blocked_ns >= SHOWN_SLEEP_NS;
        let blocked = self.blocked.iter().filter(|_| shown).take_while(long).take(SHOWN_TASKS);
        Alert {
            number: open.number,
            step,
            condition,
            since_ns: open.since_ns.saturating_sub(self.zero_ns),
            time_ns: now_ns.saturating_sub(self.zero_ns),
            vcpu,
            task,
            sentence,
            vcpus: samples.cloned().collect(),
            blocked: blocked.copied().collect(),
        }
    }
}

fn key(WatchedTask { instance, tid }: WatchedTask) -> TaskKey {
    TaskKey { instance, tid }
}

/// Formats a time for a sentence.
fn time(ns: u64) -> String {
    duration(std::time::Duration::from_nanos(ns))
}

fn processes(count: u64) -> String {
    if count == 1 { counted(count, "process") } else { format!("{} processes", display::units::count(count)) }
}
