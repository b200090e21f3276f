//! The lists' own thread: no vCPU waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use linux::{
    Kernel, PhysicalMemory, RunState, ScanResult, StackCopy, TaskListReader, TaskObservation, TaskSnapshot,
};
use vmm::monotonic_ns;

use super::{Change, MAX_BACKOFF, MOST_COST, Plan, ScanCost, ScanEvent, Seen, TaskScan};
use crate::exact::record::STACK_BYTES;
use crate::microstate::host::own_cpu_time;
use profile::clock::{ClockKind, Intervals};
use profile::rows::TaskState;

/// The stream of intervals: behind those of all vCPUs.
const STREAM: u8 = u8::MAX;
/// How often it is tried whether the guest's tasks can be read by now.
const PAUSE: Duration = Duration::from_millis(50);
/// Walks at one scan, at most: a list that changes under each of them makes the scan a missed one.
const WALKS: usize = 3;
/// Sights of a task whose stack is copied, at most: one that moves on each time is torn.
const SIGHTS: usize = 3;
/// Stacks that are copied at one scan, at most: 2 MiB. What others sleep for is read at the next scans.
const STACKS: usize = 256;

/// New tasks that are told of at one scan, at most: the collector reads who each of them is, while samples wait. The
/// others follow at the next scans.
const NEW: usize = 4096;

/// What is remembered of a task from one scan to the next.
#[derive(Debug)]
struct Known {
    task: TaskSnapshot,
    state: TaskState,
    switches: u64,
    saved_sp: u64,
    /// What it sleeps for was told.
    told: bool,
    /// Number of the walk that saw it last.
    seen: u64,
}

/// A task on the way over the list.
#[derive(Debug)]
struct Found {
    sight: TaskObservation,
    state: TaskState,
    stack: Option<Box<StackCopy>>,
}

/// Takes the lists.
pub(super) struct TaskScanner<M> {
    plan: Plan,
    kernel: Arc<Kernel>,
    memory: M,
    stop: Arc<AtomicBool>,
    told: SyncSender<ScanEvent>,
    known: HashMap<u64, Known>,
    walks: u64,
    bill: ScanCost,
}

impl<M: PhysicalMemory> TaskScanner<M> {
    pub(super) fn new(
        plan: Plan,
        (kernel, memory): (Arc<Kernel>, M),
        stop: Arc<AtomicBool>,
        told: SyncSender<ScanEvent>,
    ) -> Self {
        Self { plan, kernel, memory, stop, told, known: HashMap::new(), walks: 0, bill: ScanCost::default() }
    }

    /// Runs until it is stopped, or nobody listens any more.
    pub(super) fn run(mut self) {
        let Some(lists) = self.begin() else { return };
        let plan = &self.plan;
        let Some(mut intervals) = Intervals::new(ClockKind::Uniform, plan.hz, plan.seed, STREAM) else {
            return;
        };
        let from_ns = monotonic_ns();
        if self.told.send(ScanEvent::Begins(from_ns)).is_err() {
            return;
        }
        let mut pace = Pace::new(self.plan.hz);
        let mut before_ns = None;
        loop {
            let backoff = pace.backoff;
            intervals.set_rate(self.plan.hz / f64::from(1_u32 << backoff));
            // TaskScans are due at the sums of the intervals, whenever they come: lateness depends on what the guest does, and
            // must not move the clock. Those that are overdue already are left out.
            let due_ns = match before_ns {
                Some(before_ns) => intervals.next_due(before_ns, monotonic_ns()),
                None => from_ns.saturating_add(intervals.first_ns()),
            };
            before_ns = Some(due_ns);
            if !self.wait(due_ns) {
                return;
            }
            let (time_ns, before) = (monotonic_ns(), own_cpu_time().unwrap_or(0));
            let changes = self.scan(&lists);
            let cost = own_cpu_time().unwrap_or(0).saturating_sub(before);
            pace.note(cost);
            self.bill.cost_ns += cost;
            let Some(changes) = changes else {
                self.bill.missed += 1;
                continue;
            };
            let late = Duration::from_nanos(time_ns.saturating_sub(due_ns));
            let scan = TaskScan { time_ns, late, backoff, changes, bill: self.bill };
            // The collector takes several a round; while it does not, scans come later.
            if self.told.send(ScanEvent::TaskScan(scan)).is_err() {
                return;
            }
        }
    }

    /// Waits until the tasks can be read.
    fn begin(&self) -> Option<TaskListReader> {
        loop {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            // Published once the kernel has set up what the vCPUs run, which is when there are tasks.
            if self.plan.readers.get().is_some() {
                match self.kernel.task_list_reader(&self.memory) {
                    Ok(lists) => return Some(lists),
                    Err(reason) if reason.may_come() => {}
                    Err(reason) => {
                        // Nobody listens only when the run is over.
                        drop(self.told.send(ScanEvent::Missing(reason.to_string())));
                        return None;
                    }
                }
            }
            thread::park_timeout(PAUSE);
        }
    }

    /// Waits until `due_ns`; false when the lists ends before.
    fn wait(&self, due_ns: u64) -> bool {
        loop {
            if self.stop.load(Ordering::Acquire) {
                return false;
            }
            let left = due_ns.saturating_sub(monotonic_ns());
            if left == 0 {
                return true;
            }
            thread::park_timeout(Duration::from_nanos(left));
        }
    }

    /// What has changed by now; `None` where the list of tasks could not be followed to its end.
    fn scan(&mut self, lists: &TaskListReader) -> Option<Vec<Change>> {
        let mut found = Vec::with_capacity(self.known.len());
        for _ in 0..WALKS {
            found.clear();
            let (mut stacks, mut looks) = (STACKS, 0);
            let way = lists.walk(&self.memory, |sight| {
                looks += 1;
                found.extend(self.look(lists, sight, &mut stacks));
            });
            self.bill.looks += looks;
            self.bill.full += u64::from(way == ScanResult::Truncated);
            if way != ScanResult::Inconsistent {
                return Some(self.compare(found));
            }
        }
        None
    }

    /// What a task is doing, with the stack of a sleep that is new; `None` for one that does not live.
    fn look(&self, lists: &TaskListReader, sight: &TaskObservation, stacks: &mut usize) -> Option<Found> {
        let mut sight = *sight;
        for _ in 0..SIGHTS {
            let state = state(&sight, self.runs(&sight))?;
            let task = sight.state.task;
            let known = self.known.get(&task.task).is_some_and(|known| known.told && known.sleeps_as(&sight));
            let reader = self.plan.readers.get().and_then(|readers| readers.stacks.as_ref());
            let Some((reader, _)) = reader.filter(|_| sleeps(state) && !known && *stacks > 0) else {
                return Some(Found { sight, state, stack: None });
            };
            *stacks -= 1;
            let mut copy = StackCopy::with_room(STACK_BYTES);
            let copied = reader.copy_sleeping(&self.memory, task.sleeping(), 0, &mut copy);
            let after = lists.read(&self.memory, task.task)?;
            if same_sleep(&sight, &after) && !self.runs(&after) {
                return Some(Found { sight, state, stack: copied.map(|()| Box::new(copy)) });
            }
            sight = after;
        }
        Some(Found { sight, state: TaskState::Unknown, stack: None })
    }

    /// Whether the task is what a CPU runs. One that is just being switched from is so no more, but keeps its `on_cpu`
    /// until its CPU has left its stack (`finish_task`, kernel/sched/core.c).
    fn runs(&self, sight: &TaskObservation) -> bool {
        let Some(readers) = self.plan.readers.get().filter(|_| sight.on_cpu) else { return false };
        let current = |cpu| readers.current.read(&self.memory, usize::from(cpu))?.task;
        (0..self.plan.vcpus).any(|cpu| current(cpu).is_some_and(|task| task.task == sight.state.task.task))
    }

    /// Remembers what was found, and tells what is different from the scan before.
    fn compare(&mut self, found: Vec<Found>) -> Vec<Change> {
        self.walks += 1;
        let (mut changes, mut new) = (Vec::new(), 0);
        for Found { sight, state, stack } in found {
            if !self.known.contains_key(&sight.state.task.task) {
                new += 1;
                if new > NEW {
                    continue;
                }
            }
            self.bill.torn += u64::from(state == TaskState::Unknown);
            let task = sight.state.task;
            let before = self.known.get(&task.task);
            if let Some(other) = before.filter(|known| !is_same(&known.task, &task)) {
                changes.push(Change { task: other.task, seen: None });
            }
            let before = before.filter(|known| is_same(&known.task, &task));
            let same_sleep = before.is_some_and(|known| known.sleeps_as(&sight) && known.state == state);
            let same = before.is_some_and(|known| known.state == state && known.task == task);
            let told = stack.is_some() || same_sleep && before.is_some_and(|known| known.told);
            if !same || sleeps(state) && !same_sleep || stack.is_some() {
                changes.push(Change { task, seen: Some(Seen { state, same_sleep, stack }) });
            }
            let TaskObservation { switches, saved_sp, .. } = sight;
            self.known.insert(task.task, Known { task, state, switches, saved_sp, told, seen: self.walks });
        }
        self.bill.full += u64::from(new > NEW);
        let walk = self.walks;
        self.known.retain(|_, known| {
            let here = known.seen == walk;
            if !here {
                changes.push(Change { task: known.task, seen: None });
            }
            here
        });
        changes
    }
}

impl Known {
    /// Whether a task that sleeps has not run since.
    fn sleeps_as(&self, sight: &TaskObservation) -> bool {
        self.switches == sight.switches && self.saved_sp == sight.saved_sp
    }
}

/// Whether both are the same thread, under whatever name.
fn is_same(a: &TaskSnapshot, b: &TaskSnapshot) -> bool {
    (a.pid, a.tid, a.start_ns) == (b.pid, b.tid, b.start_ns)
}

/// Whether a task that was seen asleep has not been switched in between.
fn same_sleep(before: &TaskObservation, after: &TaskObservation) -> bool {
    let same = |of: fn(&TaskObservation) -> (u64, u64, u32)| of(before) == of(after);
    same(|sight| (sight.switches, sight.saved_sp, sight.state.state)) && !after.inconsistent
}

fn sleeps(state: TaskState) -> bool {
    matches!(state, TaskState::Sleep | TaskState::Disk | TaskState::Stopped)
}

/// What a task is doing; `None` for one that does not live any more.
fn state(sight: &TaskObservation, runs: bool) -> Option<TaskState> {
    Some(match sight.state.run_state() {
        RunState::Gone => return None,
        _ if sight.inconsistent => TaskState::Unknown,
        _ if runs => TaskState::Running,
        _ if sight.state.is_new() => TaskState::Runnable,
        RunState::Runnable => TaskState::Runnable,
        RunState::Interruptible => TaskState::Sleep,
        RunState::Uninterruptible => TaskState::Disk,
        RunState::Stopped => TaskState::Stopped,
        RunState::Zombie => TaskState::Zombie,
    })
}

/// How far apart scans are, so that the lists stays cheap.
#[derive(Debug)]
struct Pace {
    /// What a scan may cost at the plan's rate, ns.
    budget: f64,
    /// What scans cost lately, ns.
    cost: f64,
    backoff: u8,
}

impl Pace {
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
