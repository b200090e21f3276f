//! Task-state sampling on the collector's side: starts the scanner's thread, and makes rows of its events.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linux::{Kernel, TaskSnapshot};
use vmm::monotonic_ns;

use super::scanner::TaskScanner;
use super::{ScanConfig, ScanCost, ScanEvent, TaskChange, TaskScan, TaskSighting};
use crate::memory::GuestMemory;
use crate::resolve::resolver::SampleResolver;
use crate::task_state::{TaskActivity, TaskKey};
use profile::rows::TaskState;
use profile::rows::WaitReason;
use profile::rows::{Batch, EventRow, TaskScanRow, TaskScanStateRow};

/// Scans that wait for the collector, at most.
const WAITING: usize = 4;
/// Time that the thread may take to end: its longest step is one walk over the list of tasks.
const LIMIT: Duration = Duration::from_secs(10);

/// Task-state sampling as the collector sees it.
pub(crate) struct TaskStateCollector {
    plan: ScanConfig,
    thread: Option<(JoinHandle<()>, Arc<AtomicBool>, Receiver<ScanEvent>)>,
    /// Last activity of each task, by the address of its task_struct.
    doing: HashMap<u64, (TaskKey, TaskActivity)>,
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
            scans: 0,
            from_ns: None,
            to_ns: 0,
            cost: ScanCost::default(),
        }
    }

    /// Starts the scanner: the kernel was found.
    pub(crate) fn start(&mut self, kernel: Arc<Kernel>, memory: GuestMemory, batch: &mut Batch) {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = sync_channel(WAITING);
        let scanner = TaskScanner::new(self.plan.clone(), kernel, memory, Arc::clone(&stop), sender);
        match thread::Builder::new().name("task-scanner".to_owned()).spawn(move || scanner.run()) {
            Ok(thread) => self.thread = Some((thread, stop, receiver)),
            Err(error) => self.missing(&format!("cannot start its thread: {error}"), batch),
        }
    }

    /// Takes the scanner's events.
    pub(crate) fn step(&mut self, resolver: &mut SampleResolver, batch: &mut Batch) {
        let Some((thread, stop, receiver)) = self.thread.take() else { return };
        loop {
            match receiver.try_recv() {
                Ok(event) => self.take_event(event, resolver, batch),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return self.join(thread, batch),
            }
        }
        self.thread = Some((thread, stop, receiver));
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
        let Some((thread, stop, receiver)) = self.thread.take() else { return };
        stop.store(true, Ordering::Release);
        thread.thread().unpark();
        let until = Instant::now() + LIMIT;
        loop {
            match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => self.take_event(event, resolver, batch),
                Err(RecvTimeoutError::Disconnected) => return self.join(thread, batch),
                Err(RecvTimeoutError::Timeout) => {
                    return self.missing(&format!("its thread did not end within {LIMIT:?}"), batch);
                }
            }
        }
    }

    /// Joins the thread: it has ended with the run, for a reason that it reported, or by a panic.
    fn join(&self, thread: JoinHandle<()>, batch: &mut Batch) {
        if thread.join().is_err() {
            self.missing("its thread failed unexpectedly", batch);
        }
    }

    fn missing(&self, reason: &str, batch: &mut Batch) {
        batch.meta.push(("task_scan_missing".to_owned(), reason.to_owned()));
        let time_ns = monotonic_ns().saturating_sub(self.plan.zero_ns);
        let text = format!("task-state sampling stopped: {reason}");
        batch.events.push(EventRow { time_ns, kind: "missing".to_owned(), text });
    }
}

impl Drop for TaskStateCollector {
    /// Stops the thread: it must not outlive the collector for long, whatever happens to the collector.
    fn drop(&mut self) {
        if let Some((thread, stop, _)) = &self.thread {
            stop.store(true, Ordering::Release);
            thread.thread().unpark();
        }
    }
}

#[cfg(test)]
mod tests {
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
