//! Tables that are filled from batches and read as snapshots.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::code::Code;
use super::console;
use super::counts::{Counts, SampleKind};
use super::detail::{self, BusySamples, Detail, DetailView, SamplePart};
use super::memory::LiveMemory;
use super::snapshot::{
    ExitRate, ModeShares, Note, ProcessShare, ProgramShare, Sampling, Snapshot, TaskShare, VcpuShare,
};
use super::task_scan::{SampledStates, StateCounts};
use crate::numbers::seconds;
use crate::report::is_serial_driver;
use crate::rows::Microstates;
use crate::rows::TaskState;
use crate::rows::{Batch, ExitRow, InstanceRow, MicrostateRow, Mode, TaskStateRow, VcpuRow};
use crate::rows::{Charged, is_ksoftirqd};
use display::units::rounded;
use statistics::estimate::{Share, share};
use statistics::part;

/// The longest span of the last seconds, ns; older data is dropped.
const LONGEST_NS: u64 = 60_000_000_000;
/// The span of bars over time, ns: longer than a batch takes.
const NOW_NS: u64 = 450_000_000;
/// The shortest column of a history, ns.
const SHORTEST_COLUMN_NS: u64 = 100_000_000;
/// Limit of events.
const EVENTS: usize = 200;
/// Limit of the console's end, bytes.
const CONSOLE: usize = 32 << 10;
/// Limit of the console's lines in a snapshot.
const LINES: usize = 200;
/// Newest instances, which are never forgotten.
const NEWEST: u32 = 1 << 16;
/// Number of new instances after which those that nothing refers to are forgotten.
const NEW_INSTANCES: usize = 1 << 17;
/// Limit of rows of task states of the last seconds.
const TASK_ROWS: usize = 1 << 16;

/// Time that tables cover.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// The whole run up to now.
    Run,
    /// The last seconds, at most 60.
    Last(f64),
}

/// Options of a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct View {
    /// Time that its tables cover.
    pub span: Span,
    /// Rows per table, at most.
    pub rows: usize,
    /// Table of a part of the samples, in addition to the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<DetailView>,
    /// Also the vCPUs' states over the last 60 s, in columns of this length, s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_s: Option<f64>,
}

impl Default for View {
    fn default() -> Self {
        Self { span: Span::Last(5.0), rows: 50, detail: None, history_s: None }
    }
}

/// A function on a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFunction {
    /// Name.
    pub symbol: String,
    /// Kernel module, or the program or library; `None` for the kernel image.
    pub module: Option<String>,
}

/// An exit's row, and its figures about a second before.
#[derive(Debug)]
struct ExitHistory {
    row: ExitRow,
    count: u64,
    total_ns: u64,
    seconds: f64,
    reported_ns: u64,
}

/// Instance row id and thread id.
pub(super) type TaskKey = (u32, i32);

/// Reason, address and device of exits.
type ExitKey = (String, Option<u64>, Option<String>);

/// Tables of a run in progress.
#[derive(Debug, Default)]
pub struct Tables {
    /// Time of the latest batch since the run's start, ns.
    now_ns: u64,
    meta: HashMap<String, String>,
    vcpus: BTreeMap<u8, VcpuRow>,
    rates: HashMap<u8, f64>,
    segments: VecDeque<MicrostateRow>,
    instances: HashMap<u32, InstanceRow>,
    /// Number of instances after the last ones were forgotten.
    instances_kept: usize,
    code: Code,
    counts: Counts,
    exits: HashMap<u32, ExitHistory>,
    tasks: VecDeque<(u64, TaskStateRow)>,
    task_scans: SampledStates,
    memory: LiveMemory,
    events: VecDeque<Note>,
    console: VecDeque<u8>,
}

impl Tables {
    /// Counts the rows of a batch.
    pub fn add(&mut self, batch: &Batch) {
        for (key, value) in &batch.meta {
            if key == "duration_ns" {
                self.now_ns = value.parse().unwrap_or(self.now_ns).max(self.now_ns);
            } else {
                self.meta.insert(key.clone(), value.clone());
            }
        }
        self.instances.extend(batch.instances.iter().map(|row| (row.id, row.clone())));
        batch.frames.iter().for_each(|row| self.code.frame(row));
        batch.inlined.iter().for_each(|row| self.code.inlined(row));
        batch.stacks.iter().for_each(|row| self.code.stack(row));
        for row in &batch.samples {
            let serves =
                |id| self.instances.get(&id).is_some_and(|own| is_ksoftirqd(&own.comm, own.kernel_thread));
            self.counts.add(row, serves);
        }
        self.vcpus.extend(batch.vcpus.iter().map(|row| (row.id, *row)));
        self.rates.extend(batch.rates.iter().map(|row| (row.vcpu, row.rate_hz)));
        self.segments.extend(&batch.microstates);
        batch.exits.iter().for_each(|row| self.exit(row));
        let now_ns = self.now_ns;
        self.tasks.extend(batch.task_states.iter().map(|row| (now_ns, *row)));
        batch.task_scans.iter().for_each(|row| self.task_scans.scan(row));
        batch.task_scan_states.iter().for_each(|row| self.task_scans.change(row));
        self.memory.add(batch);
        for row in &batch.events {
            let time_s = seconds(row.time_ns);
            self.events.push_back(Note { time_s, kind: row.kind.clone(), text: row.text.clone() });
        }
        batch.console.iter().for_each(|row| self.console.extend(&row.bytes));
        self.forget();
    }

    fn forget(&mut self) {
        let before = self.now_ns.saturating_sub(LONGEST_NS);
        self.counts.forget(before);
        while self.segments.front().is_some_and(|row| row.time_ns < before) {
            self.segments.pop_front();
        }
        while self.tasks.len() > TASK_ROWS || self.tasks.front().is_some_and(|(time, _)| *time < before) {
            self.tasks.pop_front();
        }
        if self.instances.len() >= self.instances_kept + NEW_INSTANCES {
            self.forget_instances();
        }
        let excess = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..excess);
        let excess = self.console.len().saturating_sub(CONSOLE);
        self.console.drain(..excess);
    }

    #[cfg(test)]
    pub(super) fn instance_count(&self) -> usize {
        self.instances.len()
    }

    /// Forgets instances without samples and living tasks: a guest that starts programs for days must not
    /// exhaust the host's memory. The newest may still get some.
    fn forget_instances(&mut self) {
        let newest = self.instances.keys().max().map_or(0, |id| id.saturating_sub(NEWEST));
        let referred: HashSet<u32> = self.counts.instances().chain(self.task_scans.instances()).collect();
        self.instances.retain(|id, _| *id > newest || referred.contains(id));
        self.instances_kept = self.instances.len();
    }

    fn exit(&mut self, row: &ExitRow) {
        let now_ns = self.now_ns;
        let history = self.exits.entry(row.id).or_insert_with(|| ExitHistory {
            row: ExitRow::default(),
            count: 0,
            total_ns: 0,
            seconds: 0.0,
            reported_ns: 0,
        });
        history.count = row.count.saturating_sub(history.row.count);
        history.total_ns = row.total_ns.saturating_sub(history.row.total_ns);
        history.seconds = seconds(now_ns.saturating_sub(history.reported_ns));
        history.reported_ns = now_ns;
        // The buckets are the largest part, and a snapshot does not need them.
        history.row = ExitRow { times: Vec::new(), ..row.clone() };
    }

    /// Returns the time of the latest batch since the run's start, ns.
    pub fn time_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the functions of a stack, innermost first; `stack` 0: those at `frame`. Frames that are
    /// missing are left out.
    pub fn stack(&self, frame: u32, stack: u32) -> Vec<StackFunction> {
        let mut functions = Vec::new();
        self.code.functions(frame, stack, |number| {
            let function = self.code.function(number);
            functions.extend(function.map(|function| StackFunction {
                symbol: function.symbol.clone(),
                module: function.module.clone(),
            }));
        });
        functions
    }

    /// Returns the part of the guest's CPU time of the last seconds with the driver of a serial port on the
    /// stack; `None` while the run is shorter.
    pub fn serial_share(&self, last: Duration) -> Option<Share> {
        let from_ns = self.now_ns.checked_sub(u64::try_from(last.as_nanos()).unwrap_or(u64::MAX))?;
        let mut kinds = busy_kinds(&self.counts.since(from_ns, None));
        kinds.retain(|(kind, _)| !self.code.is_flat(kind.stack));
        let is_driver = |number| {
            let function = self.code.function(number);
            // A program may have a function of that name.
            function.is_some_and(|f| {
                f.module.as_deref().is_none_or(|name| name.starts_with("8250")) && is_serial_driver(&f.symbol)
            })
        };
        let on_stack = |kind: &SampleKind| {
            let mut found = false;
            self.code.functions(kind.frame, kind.stack, |function| found = found || is_driver(function));
            found
        };
        let sum = |kinds: &mut dyn Iterator<Item = &(SampleKind, u64)>| kinds.map(|(_, count)| count).sum();
        let serial = sum(&mut kinds.iter().filter(|(kind, _)| on_stack(kind)));
        Some(share(serial, sum(&mut kinds.iter())))
    }

    /// Returns the instance with this row id.
    pub fn instance_row(&self, id: u32) -> Option<&InstanceRow> {
        self.instances.get(&id)
    }

    /// Returns a snapshot.
    pub fn snapshot(&self, view: &View) -> Snapshot {
        let from_ns = match view.span {
            Span::Run => 0,
            Span::Last(s) => self.now_ns.saturating_sub(ns(s.clamp(0.1, 60.0))),
        };
        let from_ns = from_ns.max(self.counts.kept_from().filter(|_| view.span != Span::Run).unwrap_or(0));
        let counts = match view.span {
            Span::Run => self.counts.whole(),
            Span::Last(_) => self.counts.since(from_ns, None),
        };
        let kinds = busy_kinds(&counts);
        let busy = BusySamples::new(&self.code, &kinds);
        Snapshot {
            time_s: seconds(self.now_ns),
            span_s: seconds(self.now_ns.saturating_sub(from_ns)),
            kernel: self.meta.get("kernel").cloned(),
            host: self.meta.get("host").cloned().unwrap_or_else(|| "unknown".to_owned()),
            sampling: self.sampling(counts.values().sum()),
            vcpus: self.vcpus(from_ns, view),
            modes: modes(&counts),
            programs: self.programs(&counts, busy.all, view.rows),
            processes: self.processes(&counts, busy.all, view.rows),
            functions: detail::functions(&self.code, &kinds, busy, view.rows),
            tasks: self.tasks(from_ns, view.rows),
            exact: self.meta.get("exact").is_some_and(|exact| exact == "1"),
            exits: self.exits(view.rows),
            memory: self.memory.shares(view.rows),
            events: self.events.iter().cloned().collect(),
            console: console::lines(&self.console.iter().copied().collect::<Vec<_>>(), LINES),
            detail: view.detail.as_ref().map(|detail| self.detail(kinds, (busy, view.rows), detail)),
        }
    }

    fn detail(
        &self,
        mut kinds: Vec<(SampleKind, u64)>,
        (busy, rows): (BusySamples, usize),
        view: &DetailView,
    ) -> Detail {
        kinds.retain(|(kind, _)| self.has_kind(&view.part, kind));
        Detail::new(&self.code, &kinds, (busy, rows), view)
    }

    /// Returns true if these samples belong to the part.
    fn has_kind(&self, part: &SamplePart, kind: &SampleKind) -> bool {
        match part {
            SamplePart::All => true,
            SamplePart::Program { comm, kernel_thread } => {
                self.program(kind) == (comm.as_str(), *kernel_thread)
            }
            SamplePart::Process { comm, instance } => self
                .instance(kind)
                .is_some_and(|row| (row.comm.as_str(), row.number) == (comm.as_str(), *instance)),
        }
    }

    /// Returns the instance that these samples are charged to.
    fn instance(&self, kind: &SampleKind) -> Option<&InstanceRow> {
        match kind.charged {
            Charged::Instance(id) => self.instances.get(&id),
            _ => None,
        }
    }

    /// Returns the program, or the name of another owner, of these samples; true for a kernel thread.
    fn program(&self, kind: &SampleKind) -> (&str, bool) {
        self.instance(kind).map_or((kind.charged.name(), false), |row| (row.comm.as_str(), row.kernel_thread))
    }

    fn sampling(&self, counted: u64) -> Sampling {
        let requested = self.meta.get("rate_hz").and_then(|rate| rate.parse().ok()).unwrap_or(0.0);
        // All vCPUs have one rate, except while it changes.
        let rate_hz = self.rates.values().copied().reduce(f64::max);
        let sum = |of: fn(&VcpuRow) -> u64| self.vcpus.values().map(of).sum();
        Sampling {
            on: rate_hz.is_none_or(|rate| rate > 0.0),
            rate_hz: rate_hz.filter(|rate| *rate > 0.0).unwrap_or(requested),
            clock: self.meta.get("clock").cloned().unwrap_or_default(),
            samples: sum(|row| row.samples),
            lost: sum(|row| row.lost),
            counted,
        }
    }

    fn vcpus(&self, from_ns: u64, view: &View) -> Vec<VcpuShare> {
        let since = |vcpu: u8, from_ns: u64| {
            let own = self.segments.iter().filter(|row| row.vcpu == vcpu && row.time_ns > from_ns);
            own.fold(Microstates::default(), |sum, row| sum.plus(&row.states))
        };
        let share = |row: &VcpuRow| VcpuShare {
            id: row.id,
            states: parts(&if view.span == Span::Run { row.states } else { since(row.id, from_ns) }),
            now: parts(&since(row.id, self.now_ns.saturating_sub(NOW_NS))),
            modes: modes(&self.counts.since(from_ns, Some(row.id))),
            history: view.history_s.map_or_else(Vec::new, |length_s| self.history(row.id, length_s)),
        };
        self.vcpus.values().map(share).collect()
    }

    /// Returns parts by state of columns of `length_s`, at least 0.1 s, up to now; the latest last.
    fn history(&self, vcpu: u8, length_s: f64) -> Vec<Vec<f64>> {
        let length_ns = ns(length_s.min(60.0)).max(SHORTEST_COLUMN_NS);
        let known_ns = self.now_ns.min(LONGEST_NS);
        let mut columns = vec![Microstates::default(); usize::try_from(known_ns / length_ns).unwrap_or(0)];
        for row in self.segments.iter().filter(|row| row.vcpu == vcpu) {
            let wall = row.states.wall();
            // Times before now, in which later ones are smaller.
            let end = self.now_ns.saturating_sub(row.time_ns);
            let begin = end.saturating_add(wall);
            let first = usize::try_from(end / length_ns).unwrap_or(usize::MAX);
            for (column, low) in columns.iter_mut().zip((0_u64..).map(|place| place * length_ns)).skip(first)
            {
                if low >= begin {
                    break;
                }
                let within = part(begin.min(low + length_ns).saturating_sub(end.max(low)), wall);
                *column = column.plus(&row.states.map(|ns| rounded(ns as f64 * within)));
            }
        }
        // Four digits: a long history of many vCPUs fits into a line.
        let short = |(_, part): (String, f64)| (part * 1e4).round() / 1e4;
        columns.iter().rev().map(|states| parts(states).into_iter().map(short).collect()).collect()
    }

    fn programs(
        &self,
        counts: &HashMap<Option<SampleKind>, u64>,
        busy: u64,
        rows: usize,
    ) -> Vec<ProgramShare> {
        #[derive(Default)]
        struct Sum {
            samples: u64,
            user: u64,
            instances: BTreeSet<u32>,
        }
        let mut sums: HashMap<(&str, bool), Sum> = HashMap::new();
        for (kind, count) in counts {
            let Some(kind) = kind else { continue };
            let sum = sums.entry(self.program(kind)).or_default();
            sum.samples += count;
            sum.user += if kind.mode == Mode::User { *count } else { 0 };
            sum.instances.extend(self.instance(kind).map(|row| row.id));
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|(name, sum)| (Reverse(sum.samples), *name));
        sums.truncate(rows);
        let row = |((comm, kernel_thread), Sum { samples, user, instances }): ((&str, bool), Sum)| {
            let only = instances.first().filter(|_| instances.len() == 1);
            ProgramShare {
                comm: comm.to_owned(),
                kernel_thread,
                instances: instances.len() as u64,
                pid: only.and_then(|id| self.instances.get(id)).map(|row| row.pid),
                samples,
                share: share(samples, busy),
                user: part(user, samples),
            }
        };
        sums.into_iter().map(row).collect()
    }

    fn processes(
        &self,
        counts: &HashMap<Option<SampleKind>, u64>,
        busy: u64,
        rows: usize,
    ) -> Vec<ProcessShare> {
        let mut sums: HashMap<Charged, (u64, u64)> = HashMap::new();
        for (kind, count) in counts {
            let Some(kind) = kind else { continue };
            let (all, user) = sums.entry(kind.charged).or_default();
            *all += count;
            *user += if kind.mode == Mode::User { *count } else { 0 };
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|(charged, (all, _))| (Reverse(*all), *charged));
        sums.truncate(rows);
        let row = |(charged, (samples, user)): (Charged, (u64, u64))| {
            let instance = match charged {
                Charged::Instance(id) => self.instances.get(&id),
                _ => None,
            };
            ProcessShare {
                comm: instance.map_or_else(|| charged.name().to_owned(), |row| row.comm.clone()),
                pid: instance.map_or(0, |row| row.pid),
                instance: instance.map_or(0, |row| row.number),
                kernel_thread: instance.is_some_and(|row| row.kernel_thread),
                samples,
                share: share(samples, busy),
                user: part(user, samples),
            }
        };
        sums.into_iter().map(row).collect()
    }

    fn tasks(&self, from_ns: u64, rows: usize) -> Vec<TaskShare> {
        let mut sums: HashMap<TaskKey, StateCounts> = HashMap::new();
        for (_, row) in self.tasks.iter().filter(|(time, _)| *time > from_ns) {
            let place = TaskState::ALL.iter().position(|state| *state == row.state).unwrap_or(0);
            sums.entry((row.instance, row.tid)).or_default()[place] += row.ns;
        }
        if sums.is_empty() {
            let (seen, step_ns) = self.task_scans.since(from_ns);
            sums =
                seen.into_iter().map(|(task, seen)| (task, seen.map(|moments| moments * step_ns))).collect();
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        // Running, runnable, waiting for a disk.
        sums.sort_unstable_by_key(|(key, states)| (Reverse(states[0]), Reverse(states[2] + states[4]), *key));
        sums.truncate(rows);
        let row = |((instance, tid), states): (TaskKey, StateCounts)| {
            let instance = self.instances.get(&instance);
            let all = states.iter().sum();
            let parts = TaskState::ALL.iter().zip(states);
            TaskShare {
                comm: instance.map_or_else(|| Charged::Unknown.name().to_owned(), |row| row.comm.clone()),
                pid: instance.map_or(0, |row| row.pid),
                instance: instance.map_or(0, |row| row.number),
                tid,
                time_s: seconds(all),
                states: parts.map(|(state, ns)| (state.name().to_owned(), part(ns, all))).collect(),
            }
        };
        sums.into_iter().map(row).collect()
    }

    fn exits(&self, rows: usize) -> Vec<ExitRate> {
        // Exits without a new row have not grown.
        let latest = self.exits.values().map(|history| history.reported_ns).max().unwrap_or(0);
        let mut sums: BTreeMap<ExitKey, (u64, u64, f64)> = BTreeMap::new();
        for history in
            self.exits.values().filter(|history| history.reported_ns == latest && history.count > 0)
        {
            let key = (history.row.reason.clone(), history.row.address, history.row.device.clone());
            let (count, total_ns, s) = sums.entry(key).or_default();
            (*count, *total_ns, *s) = (*count + history.count, *total_ns + history.total_ns, history.seconds);
        }
        let rate = |((reason, address, device), (count, total_ns, s)): (_, (u64, u64, f64))| ExitRate {
            reason,
            device,
            address,
            per_s: if s > 0.0 { count as f64 / s } else { 0.0 },
            mean_ns: part(total_ns, count),
            share: if s > 0.0 { seconds(total_ns) / s } else { 0.0 },
        };
        let mut rates: Vec<_> = sums.into_iter().map(rate).collect();
        rates.sort_by(|a, b| b.share.total_cmp(&a.share));
        rates.truncate(rows);
        rates
    }
}

/// Returns parts of the wall time by state.
fn parts(states: &Microstates) -> Vec<(String, f64)> {
    let wall = states.wall();
    states.named().iter().map(|(name, ns)| ((*name).to_owned(), part(*ns, wall))).collect()
}

/// Returns the samples that were not idle.
fn busy_kinds(counts: &HashMap<Option<SampleKind>, u64>) -> Vec<(SampleKind, u64)> {
    counts.iter().filter_map(|(kind, count)| Some(((*kind)?, *count))).collect()
}

fn modes(counts: &HashMap<Option<SampleKind>, u64>) -> ModeShares {
    let mut shares = ModeShares::default();
    let all = counts.values().sum();
    for (kind, count) in counts {
        let of = match kind.map(|kind| kind.mode) {
            None | Some(Mode::Idle) => &mut shares.idle,
            Some(Mode::User) => &mut shares.user,
            Some(Mode::Kernel | Mode::Boot | Mode::Unknown) => &mut shares.kernel,
            Some(Mode::HardIrq | Mode::Nmi) => &mut shares.hardirq,
            Some(Mode::SoftIrq) => &mut shares.softirq,
        };
        *of += part(*count, all);
    }
    shares
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few seconds")]
fn ns(s: f64) -> u64 {
    (s * 1e9) as u64
}
