//! Task-state sampling on the collector's side: starts the scanner's thread, and makes rows of its events.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use guest_linux::{Kernel, TaskSnapshot};
use vmm::monotonic_ns;

use super::scanner::TaskScanner;
use super::{ScanConfig, ScanCost, ScanEvent, TaskChange, TaskScan, TaskSighting};
use crate::event_thread::{EventThread, EventThreadError};
use crate::memory::GuestMemory;
use crate::resolve::resolver::SampleResolver;
use crate::task_state::{TaskActivity, TaskKey};
use crate::watch::Sleeper;
use profile::rows::TaskState;
use profile::rows::WaitReason;
use profile::rows::{Batch, EventRow, TaskScanRow, TaskScanStateRow};

/// Task-state sampling as the collector sees it.
pub(crate) struct TaskStateCollector {
    plan: ScanConfig,
    thread: Option<EventThread<ScanEvent>>,
    /// Last activity of each task, by the address of its task_struct.
    doing: HashMap<u64, (TaskKey, TaskActivity)>,
    /// Tasks in uninterruptible sleep, and the time of the scan that found the sleep first, CLOCK_MONOTONIC
    /// ns.
    blocked: HashMap<u64, (TaskKey, u64)>,
    scans: u64,
    /// From the first to the last scan that counts, ns since the run's start.
    from_ns: Option<u64>,
    to_ns: u64,
    cost: ScanCost,
}

impl fmt::Debug for TaskStateCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskStateCollector").field("scans", &self.scans).finish_non_exhaustive()
    }
}

impl TaskStateCollector {
    pub(crate) fn new(plan: ScanConfig) -> Self {
        Self {
            plan,
            thread: None,
            doing: HashMap::new(),
            blocked: HashMap::new(),
            scans: 0,
            from_ns: None,
            to_ns: 0,
            cost: ScanCost::default(),
        }
    }

    /// Starts the scanner: the kernel was found.
    pub(crate) fn start(&mut self, kernel: Arc<Kernel>, memory: GuestMemory, batch: &mut Batch) {
        let plan = self.plan.clone();
        let run = |stop, sender| TaskScanner::new(plan, kernel, memory, stop, sender).run();
        match EventThread::start("task-scanner", run) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => self.missing(&error.to_string(), batch),
        }
    }

    /// Takes the scanner's events.
    pub(crate) fn step(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        let Some(mut thread) = self.thread.take() else { return };
        let taken = thread.take(|event| self.take_event(event, resolver, batch));
        self.thread = Some(thread);
        self.report(taken, batch);
    }

    fn take_event(&mut self, event: ScanEvent, resolver: &mut SampleResolver, batch: &mut Batch) {
        match event {
            ScanEvent::Begins(time_ns) => {
                let from_ns = time_ns.saturating_sub(self.plan.zero_ns);
                self.from_ns = Some(from_ns);
                batch.meta.push(("task_scan_from_ns".to_owned(), from_ns.to_string()));
            }
            ScanEvent::TaskScan(scan) => self.scan(scan, resolver, batch),
            ScanEvent::Missing(reason) => self.missing(&reason, batch),
        }
    }

    fn scan(&mut self, scan: TaskScan, resolver: &mut SampleResolver, batch: &mut Batch) {
        self.scans += 1;
        self.cost = scan.cost;
        self.to_ns = scan.time_ns.saturating_sub(self.plan.zero_ns);
        batch.task_scans.push(TaskScanRow {
            id: self.scans,
            time_ns: self.to_ns,
            late_ns: u64::try_from(scan.late.as_nanos()).unwrap_or(u64::MAX),
            backoff: scan.backoff,
        });
        for TaskChange { task, seen } in scan.changes {
            match seen {
                Some(seen) => self.note(&task, seen, scan.time_ns, resolver, batch),
                None => {
                    self.blocked.remove(&task.task);
                    if let Some((who, _)) = self.doing.remove(&task.task) {
                        self.row(who, None, batch);
                    }
                }
            }
        }
    }

    /// Notes a task with another activity, or with the same in another sleep.
    fn note(
        &mut self,
        task: &TaskSnapshot,
        TaskSighting { state, same_sleep, stack }: TaskSighting,
        time_ns: u64,
        resolver: &mut SampleResolver,
        batch: &mut Batch,
    ) {
        let who = TaskKey { instance: resolver.task(task, time_ns, batch), tid: task.tid };
        let before = self.doing.get(&task.task).copied();
        if let Some((other, _)) = before.filter(|(before, _)| *before != who) {
            self.row(other, None, batch);
        }
        let before = before.filter(|(before, _)| *before == who).map(|(_, doing)| doing);
        let doing = match (stack, before) {
            (Some(stack), _) => {
                let (stack, wait_reason) = resolver.sleeping(&stack, task, time_ns, batch);
                TaskActivity { state, wait_reason, stack }
            }
            (None, Some(before)) if same_sleep && before.state == state => before,
            _ => TaskActivity { state, wait_reason: WaitReason::None, stack: 0 },
        };
        self.doing.insert(task.task, (who, doing));
        if state == TaskState::Disk {
            let known = self.blocked.get(&task.task).filter(|(before, _)| same_sleep && *before == who);
            let since_ns = known.map_or(time_ns, |(_, since_ns)| *since_ns);
            self.blocked.insert(task.task, (who, since_ns));
        } else {
            self.blocked.remove(&task.task);
        }
        if before != Some(doing) {
            self.row(who, Some(doing), batch);
        }
    }

    fn row(&self, who: TaskKey, doing: Option<TaskActivity>, batch: &mut Batch) {
        let activity = doing.unwrap_or_default();
        batch.task_scan_states.push(TaskScanStateRow {
            instance: who.instance,
            tid: who.tid,
            scan: self.scans,
            state: doing.map(|doing| doing.state),
            wait_reason: activity.wait_reason,
            stack: activity.stack,
        });
    }

    /// Returns the tasks that were runnable, but had no CPU, at the last scan.
    pub(crate) fn ready(&self) -> impl Iterator<Item = TaskKey> {
        self.doing.values().filter(|(_, doing)| doing.state == TaskState::Runnable).map(|&(who, _)| who)
    }

    /// Returns the tasks in uninterruptible sleep at the last scan.
    pub(crate) fn sleepers(&self) -> impl Iterator<Item = Sleeper> {
        let activity = |task: &u64| self.doing.get(task).map(|&(_, doing)| doing).unwrap_or_default();
        self.blocked.iter().map(move |(task, &(who, since_ns))| Sleeper {
            who,
            since_ns,
            activity: activity(task),
        })
    }

    /// Returns the number of scans so far.
    pub(crate) fn scans(&self) -> u64 {
        self.scans
    }

    /// Adds the sums up to now.
    pub(crate) fn flush(&self, batch: &mut Batch) {
        if self.from_ns.is_none() {
            return;
        }
        let ScanCost { cost_ns, tasks, inconsistent, missed, truncated } = self.cost;
        for (key, value) in [
            ("task_scan_to_ns", self.to_ns),
            ("task_scan_cost_ns", cost_ns),
            ("task_scan_tasks", tasks),
            ("task_scan_inconsistent", inconsistent),
            ("task_scan_missed", missed),
            ("task_scan_truncated", truncated),
        ] {
            batch.meta.push((key.to_owned(), value.to_string()));
        }
    }

    /// Ends the thread and takes its last events: the machine has ended.
    pub(crate) fn close(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.end(|event| self.take_event(event, resolver, batch));
        self.report(ended, batch);
    }

    fn report(&self, result: Result<(), EventThreadError>, batch: &mut Batch) {
        if let Err(error) = result {
            self.missing(&error.to_string(), batch);
        }
    }

    fn missing(&self, reason: &str, batch: &mut Batch) {
        batch.meta.push(("task_scan_missing".to_owned(), reason.to_owned()));
        let time_ns = monotonic_ns().saturating_sub(self.plan.zero_ns);
        let text = format!("task-state sampling stopped: {reason}");
        batch.events.push(EventRow { time_ns, kind: "missing".to_owned(), text });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use profile::rows::TaskState;

    fn collector() -> TaskStateCollector {
        TaskStateCollector::new(ScanConfig { hz: 10.0, seed: 0, readers: Arc::default(), zero_ns: 1_000 })
    }

    fn change(tid: i32, state: Option<TaskState>, same_sleep: bool) -> TaskChange {
        let task = TaskSnapshot {
            task: 0x1000 + tid.unsigned_abs() as u64 * 0x1000,
            tid,
            pid: 7,
            ..TaskSnapshot::default()
        };
        TaskChange { task, seen: state.map(|state| TaskSighting { state, same_sleep, stack: None }) }
    }

    fn rows(
        collector: &mut TaskStateCollector,
        changes: Vec<TaskChange>,
    ) -> Vec<(i32, u64, Option<TaskState>)> {
        let (mut resolver, mut batch) = (SampleResolver::new(1_000), Batch::default());
        let time_ns = 2_000 + collector.scans * 100;
        let scan = TaskScan { time_ns, late: Duration::ZERO, backoff: 0, changes, cost: ScanCost::default() };
        collector.scan(scan, &mut resolver, &mut batch);
        assert_eq!(batch.task_scans.len(), 1);
        assert_eq!(batch.task_scans[0].time_ns, time_ns - 1_000);
        batch.task_scan_states.iter().map(|row| (row.tid, row.scan, row.state)).collect()
    }

    #[test]
    fn a_row_is_a_change() {
        let mut collector = collector();
        let first = rows(
            &mut collector,
            vec![change(8, Some(TaskState::Sleep), false), change(9, Some(TaskState::Running), false)],
        );
        assert_eq!(first, [(8, 1, Some(TaskState::Sleep)), (9, 1, Some(TaskState::Running))]);
        // Another sleep of which nothing else is known than of the one before.
        assert_eq!(rows(&mut collector, vec![change(8, Some(TaskState::Sleep), false)]), []);
        let third =
            rows(&mut collector, vec![change(8, Some(TaskState::Disk), false), change(9, None, false)]);
        assert_eq!(third, [(8, 3, Some(TaskState::Disk)), (9, 3, None)]);
        assert_eq!(rows(&mut collector, vec![change(9, None, false)]), [], "nobody knew it");
    }

    #[test]
    fn a_thread_with_other_ids_is_another_one() {
        let mut collector = collector();
        rows(&mut collector, vec![change(8, Some(TaskState::Running), false)]);
        let mut exec = change(8, Some(TaskState::Running), false);
        exec.task.tid = 7;
        assert_eq!(rows(&mut collector, vec![exec]), [(8, 2, None), (7, 2, Some(TaskState::Running))]);
    }
}
