//! The task scanner, on its own thread so that no vCPU waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use guest_linux::{
    Kernel, PhysicalMemory, RunState, ScanResult, StackCopy, TaskListReader, TaskObservation, TaskSnapshot,
};
use vmm::monotonic_ns;

use super::{MAX_BACKOFF, MOST_COST, ScanConfig, ScanCost, ScanEvent, TaskChange, TaskScan, TaskSighting};
use crate::event_thread::StopFlag;
use crate::exact::record::STACK_BYTES;
use crate::microstate::host::own_cpu_time;
use profile::rows::TaskState;
use statistics::clock::{ClockKind, Intervals};

/// Stream of the random intervals: after those of all vCPUs.
const STREAM: u8 = u8::MAX;
/// Time between two attempts to read the guest's tasks at the start.
const PAUSE: Duration = Duration::from_millis(50);
/// Walks per scan, at most: a list that changes during each of them makes a missed scan.
const WALKS: usize = 3;
/// Reads of a task whose stack is copied, at most: a task that changes each time has an inconsistent read.
const READS: usize = 3;
/// Stacks that are copied per scan, at most: 2 MiB. The other tasks' wait reasons are read at the next scans.
const STACKS: usize = 256;

/// New tasks that are reported per scan, at most: the collector reads the process of each, while samples
/// wait. The other tasks follow at the next scans.
const NEW: usize = 4096;

/// A task as remembered from one scan to the next.
#[derive(Debug)]
struct KnownTask {
    task: TaskSnapshot,
    state: TaskState,
    switches: u64,
    saved_sp: u64,
    /// The wait reason of its sleep was reported.
    reason_reported: bool,
    /// Number of the walk that saw the task last.
    seen: u64,
}

/// A task found during a walk.
#[derive(Debug)]
struct FoundTask {
    observation: TaskObservation,
    state: TaskState,
    stack: Option<Box<StackCopy>>,
}

/// The scanner of tasks.
pub(super) struct TaskScanner<M> {
    plan: ScanConfig,
    kernel: Arc<Kernel>,
    memory: M,
    stop: StopFlag,
    sender: SyncSender<ScanEvent>,
    known: HashMap<u64, KnownTask>,
    walks: u64,
    cost: ScanCost,
}

impl<M: PhysicalMemory> TaskScanner<M> {
    pub(super) fn new(
        plan: ScanConfig,
        kernel: Arc<Kernel>,
        memory: M,
        stop: StopFlag,
        sender: SyncSender<ScanEvent>,
    ) -> Self {
        Self {
            plan,
            kernel,
            memory,
            stop,
            sender,
            known: HashMap::new(),
            walks: 0,
            cost: ScanCost::default(),
        }
    }

    /// Runs until it is stopped, or the receiver is gone.
    pub(super) fn run(mut self) {
        let Some(reader) = self.begin() else { return };
        let plan = &self.plan;
        let Some(mut intervals) = Intervals::new(ClockKind::Uniform, plan.hz, plan.seed, STREAM) else {
            return;
        };
        let from_ns = monotonic_ns();
        if self.sender.send(ScanEvent::Begins(from_ns)).is_err() {
            return;
        }
        let mut pace = ScanBackoff::new(self.plan.hz);
        let mut before_ns = None;
        loop {
            let backoff = pace.backoff;
            intervals.set_rate(self.plan.hz / f64::from(1_u32 << backoff));
            // Scans are due at the sums of the intervals, however late they come: lateness depends on the
            // guest's activity, and must not move the clock. Overdue scans are left out.
            let due_ns = match before_ns {
                Some(before_ns) => intervals.next_due(before_ns, monotonic_ns()),
                None => from_ns.saturating_add(intervals.first_ns()),
            };
            before_ns = Some(due_ns);
            if !self.stop.wait_until(due_ns) {
                return;
            }
            let (time_ns, before) = (monotonic_ns(), own_cpu_time().unwrap_or(0));
            let changes = self.scan(&reader);
            let cost = own_cpu_time().unwrap_or(0).saturating_sub(before);
            pace.note(cost);
            self.cost.cost_ns += cost;
            let Some(changes) = changes else {
                self.cost.missed += 1;
                continue;
            };
            let late = Duration::from_nanos(time_ns.saturating_sub(due_ns));
            let scan = TaskScan { time_ns, late, backoff, changes, cost: self.cost };
            // The collector takes several scans per round; if it stops, scans come later.
            if self.sender.send(ScanEvent::TaskScan(scan)).is_err() {
                return;
            }
        }
    }

    /// Waits until the tasks can be read.
    fn begin(&self) -> Option<TaskListReader> {
        loop {
            if self.stop.is_set() {
                return None;
            }
            // Published once the kernel has set up the vCPUs' current tasks, which is when tasks exist.
            if self.plan.readers.get().is_some() {
                match self.kernel.task_list_reader(&self.memory) {
                    Ok(reader) => return Some(reader),
                    Err(reason) if reason.may_come() => {}
                    Err(reason) => {
                        // The receiver is gone only when the run is over.
                        drop(self.sender.send(ScanEvent::Missing(reason.to_string())));
                        return None;
                    }
                }
            }
            thread::park_timeout(PAUSE);
        }
    }

    /// Returns the changes up to now; `None` if no walk reached the end of the list of tasks.
    fn scan(&mut self, reader: &TaskListReader) -> Option<Vec<TaskChange>> {
        let mut found = Vec::with_capacity(self.known.len());
        for _ in 0..WALKS {
            found.clear();
            let (mut stacks, mut tasks) = (STACKS, 0);
            let way = reader.walk(&self.memory, |observation| {
                tasks += 1;
                found.extend(self.observe(reader, observation, &mut stacks));
            });
            self.cost.tasks += tasks;
            self.cost.truncated += u64::from(way == ScanResult::Truncated);
            if way != ScanResult::Inconsistent {
                return Some(self.compare(found));
            }
        }
        None
    }

    /// Returns the state of a task, with the stack of a new sleep; `None` for a dead task.
    fn observe(
        &self,
        tasks: &TaskListReader,
        observation: &TaskObservation,
        stacks: &mut usize,
    ) -> Option<FoundTask> {
        let mut observation = *observation;
        for _ in 0..READS {
            let state = state(&observation, self.runs(&observation))?;
            let task = observation.state.task;
            let known = self
                .known
                .get(&task.task)
                .is_some_and(|known| known.reason_reported && known.sleeps_as(&observation));
            let reader = self.plan.readers.get().and_then(|readers| readers.stacks.as_ref());
            let Some((reader, _)) = reader.filter(|_| sleeps(state) && !known && *stacks > 0) else {
                return Some(FoundTask { observation, state, stack: None });
            };
            *stacks -= 1;
            let mut copy = StackCopy::with_room(STACK_BYTES);
            let copied = reader.copy_sleeping(&self.memory, task.sleeping(), 0, &mut copy);
            let after = tasks.read(&self.memory, task.task)?;
            if same_sleep(&observation, &after) && !self.runs(&after) {
                return Some(FoundTask { observation, state, stack: copied.map(|()| Box::new(copy)) });
            }
            observation = after;
        }
        Some(FoundTask { observation, state: TaskState::Unknown, stack: None })
    }

    /// Returns true if a CPU runs the task. A task being switched out is no longer current, but its `on_cpu`
    /// stays set until its CPU has left its stack (`finish_task`, kernel/sched/core.c).
    fn runs(&self, observation: &TaskObservation) -> bool {
        let Some(readers) = self.plan.readers.get().filter(|_| observation.on_cpu) else { return false };
        let current = |cpu| readers.current.read(&self.memory, cpu)?.task;
        let mut cpus = readers.current.cpus();
        cpus.any(|cpu| current(cpu).is_some_and(|task| task.task == observation.state.task.task))
    }

    /// Remembers the tasks of a walk, and returns the differences from the last scan.
    fn compare(&mut self, found: Vec<FoundTask>) -> Vec<TaskChange> {
        self.walks += 1;
        let (mut changes, mut new) = (Vec::new(), 0);
        for FoundTask { observation, state, stack } in found {
            if !self.known.contains_key(&observation.state.task.task) {
                new += 1;
                if new > NEW {
                    continue;
                }
            }
            self.cost.inconsistent += u64::from(state == TaskState::Unknown);
            let task = observation.state.task;
            // An address is used again by another task: the earlier one has exited.
            let before = self.known.get(&task.task);
            if let Some(other) = before.filter(|known| !is_same(&known.task, &task)) {
                changes.push(TaskChange { task: other.task, seen: None });
            }
            let before = before.filter(|known| is_same(&known.task, &task));
            let same_sleep =
                before.is_some_and(|known| known.sleeps_as(&observation) && known.state == state);
            let same = before.is_some_and(|known| known.state == state && known.task == task);
            let reason_reported =
                stack.is_some() || same_sleep && before.is_some_and(|known| known.reason_reported);
            if !same || sleeps(state) && !same_sleep || stack.is_some() {
                changes.push(TaskChange { task, seen: Some(TaskSighting { state, same_sleep, stack }) });
            }
            let TaskObservation { switches, saved_sp, .. } = observation;
            self.known.insert(
                task.task,
                KnownTask { task, state, switches, saved_sp, reason_reported, seen: self.walks },
            );
        }
        self.cost.truncated += u64::from(new > NEW);
        // Tasks that this walk did not see have exited.
        let walk = self.walks;
        self.known.retain(|_, known| {
            let here = known.seen == walk;
            if !here {
                changes.push(TaskChange { task: known.task, seen: None });
            }
            here
        });
        changes
    }
}

impl KnownTask {
    /// Returns true if a sleeping task has not run since.
    fn sleeps_as(&self, observation: &TaskObservation) -> bool {
        self.switches == observation.switches && self.saved_sp == observation.saved_sp
    }
}

/// Returns true if both are the same thread, under any name.
fn is_same(a: &TaskSnapshot, b: &TaskSnapshot) -> bool {
    (a.pid, a.tid, a.start_ns) == (b.pid, b.tid, b.start_ns)
}

/// Returns true if a sleeping task was not switched in between.
fn same_sleep(before: &TaskObservation, after: &TaskObservation) -> bool {
    let same = |of: fn(&TaskObservation) -> (u64, u64, u32)| of(before) == of(after);
    same(|observation| (observation.switches, observation.saved_sp, observation.state.state))
        && !after.inconsistent
}

fn sleeps(state: TaskState) -> bool {
    matches!(state, TaskState::Sleep | TaskState::Disk | TaskState::Stopped)
}

/// Returns the state of a task; `None` for a dead one.
fn state(observation: &TaskObservation, runs: bool) -> Option<TaskState> {
    Some(match observation.state.run_state() {
        RunState::Gone => return None,
        _ if observation.inconsistent => TaskState::Unknown,
        _ if runs => TaskState::Running,
        _ if observation.state.is_new() => TaskState::Runnable,
        RunState::Runnable => TaskState::Runnable,
        RunState::Interruptible => TaskState::Sleep,
        RunState::Uninterruptible => TaskState::Disk,
        RunState::Stopped => TaskState::Stopped,
        RunState::Zombie => TaskState::Zombie,
    })
}

/// Back-off of the scans: spreads them so that the scanner stays cheap.
#[derive(Debug)]
struct ScanBackoff {
    /// Time that a scan may cost at the configured rate, ns.
    budget: f64,
    /// Recent cost of a scan, ns.
    cost: f64,
    backoff: u8,
}

impl ScanBackoff {
    fn new(hz: f64) -> Self {
        Self { budget: 1e9 / hz * MOST_COST, cost: 0.0, backoff: 0 }
    }

    #[expect(clippy::cast_precision_loss, reason = "a time far below 2^53 ns")]
    fn note(&mut self, cost_ns: u64) {
        self.cost = 0.75 * self.cost + 0.25 * cost_ns as f64;
        let budget = self.budget * f64::from(1_u32 << self.backoff);
        if self.cost > budget && self.backoff < MAX_BACKOFF {
            self.backoff += 1;
        } else if self.cost < budget / 4.0 && self.backoff > 0 {
            self.backoff -= 1;
        }
    }
}

#[cfg(test)]
#[path = "scanner/tests.rs"]
mod tests;
