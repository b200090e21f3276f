//! The collector's part of the census: starts its thread, and makes rows of what it tells.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linux::{Kernel, TaskSnapshot};
use vmm::monotonic_ns;

use super::taker::Taker;
use super::{Bill, Change, Moment, Plan, Seen, Told};
use crate::collector::resolver::Resolver;
use crate::exact::state::{Doing, Who};
use crate::memory::GuestMemory;
use profile::rows::Cause;
use profile::rows::State;
use profile::rows::{Batch, CensusMomentRow, CensusStateRow, EventRow};

/// Moments that wait for the collector, at most.
const WAITING: usize = 4;
/// How long the thread may take to end: its longest step is one walk over the list of tasks.
const LIMIT: Duration = Duration::from_secs(10);

/// The census as the collector sees it.
pub(crate) struct Notes {
    plan: Plan,
    thread: Option<(JoinHandle<()>, Arc<AtomicBool>, Receiver<Told>)>,
    /// What each task was last seen doing, by the address of its task_struct.
    doing: HashMap<u64, (Who, Doing)>,
    moments: u64,
    /// From the first to the last moment that counts, ns since the run's start.
    from_ns: Option<u64>,
    to_ns: u64,
    bill: Bill,
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notes").field("moments", &self.moments).finish_non_exhaustive()
    }
}

impl Notes {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            thread: None,
            doing: HashMap::new(),
            moments: 0,
            from_ns: None,
            to_ns: 0,
            bill: Bill::default(),
        }
    }

    /// The kernel was found: the census may begin.
    pub(crate) fn start(&mut self, kernel: Arc<Kernel>, memory: GuestMemory, batch: &mut Batch) {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, heard) = sync_channel(WAITING);
        let taker = Taker::new(self.plan.clone(), (kernel, memory), Arc::clone(&stop), told);
        match thread::Builder::new().name("census".to_owned()).spawn(move || taker.run()) {
            Ok(thread) => self.thread = Some((thread, stop, heard)),
            Err(error) => self.missing(&format!("no thread: {error}"), batch),
        }
    }

    /// Takes what the thread has told.
    pub(crate) fn step(&mut self, resolver: &mut Resolver, batch: &mut Batch) {
        let Some((thread, stop, heard)) = self.thread.take() else { return };
        loop {
            match heard.try_recv() {
                Ok(told) => self.hear(told, resolver, batch),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return self.bury(thread, batch),
            }
        }
        self.thread = Some((thread, stop, heard));
    }

    fn hear(&mut self, told: Told, resolver: &mut Resolver, batch: &mut Batch) {
        match told {
            Told::Begins(time_ns) => {
                let from_ns = time_ns.saturating_sub(self.plan.zero_ns);
                self.from_ns = Some(from_ns);
                batch.meta.push(("census_from_ns".to_owned(), from_ns.to_string()));
            }
            Told::Moment(moment) => self.moment(moment, resolver, batch),
            Told::Missing(reason) => self.missing(&reason, batch),
        }
    }

    fn moment(&mut self, moment: Moment, resolver: &mut Resolver, batch: &mut Batch) {
        self.moments += 1;
        self.bill = moment.bill;
        self.to_ns = moment.time_ns.saturating_sub(self.plan.zero_ns);
        batch.census_moments.push(CensusMomentRow {
            id: self.moments,
            time_ns: self.to_ns,
            late_ns: u64::try_from(moment.late.as_nanos()).unwrap_or(u64::MAX),
            stretch: moment.stretch,
        });
        for Change { task, seen } in moment.changes {
            match seen {
                Some(seen) => self.seen(&task, seen, moment.time_ns, resolver, batch),
                None => {
                    if let Some((who, _)) = self.doing.remove(&task.task) {
                        self.row(who, None, batch);
                    }
                }
            }
        }
    }

    /// A task does something else, or the same in another sleep.
    fn seen(
        &mut self,
        task: &TaskSnapshot,
        Seen { state, same_sleep, stack }: Seen,
        time_ns: u64,
        resolver: &mut Resolver,
        batch: &mut Batch,
    ) {
        let who = Who { instance: resolver.task(task, time_ns, batch), tid: task.tid };
        let before = self.doing.get(&task.task).copied();
        if let Some((other, _)) = before.filter(|(before, _)| *before != who) {
            self.row(other, None, batch);
        }
        let before = before.filter(|(before, _)| *before == who).map(|(_, doing)| doing);
        let doing = match (stack, before) {
            (Some(stack), _) => {
                let (stack, cause) = resolver.sleeping(&stack, task, time_ns, batch);
                Doing { state, cause, stack }
            }
            (None, Some(before)) if same_sleep && before.state == state => before,
            _ => Doing { state, cause: Cause::None, stack: 0 },
        };
        self.doing.insert(task.task, (who, doing));
        if before != Some(doing) {
            self.row(who, Some(doing), batch);
        }
    }

    fn row(&self, who: Who, doing: Option<Doing>, batch: &mut Batch) {
        let told = doing.unwrap_or_default();
        batch.census_states.push(CensusStateRow {
            instance: who.instance,
            tid: who.tid,
            moment: self.moments,
            state: doing.map(|doing| doing.state),
            cause: told.cause,
            stack: told.stack,
        });
    }

    /// The tasks that could run and had no CPU when they were last looked at.
    pub(crate) fn ready(&self) -> impl Iterator<Item = Who> {
        self.doing.values().filter(|(_, doing)| doing.state == State::Queue).map(|&(who, _)| who)
    }

    /// Sums up to now.
    pub(crate) fn flush(&self, batch: &mut Batch) {
        if self.from_ns.is_none() {
            return;
        }
        let Bill { cost_ns, looks, torn, missed, full } = self.bill;
        for (key, value) in [
            ("census_to_ns", self.to_ns),
            ("census_cost_ns", cost_ns),
            ("census_looks", looks),
            ("census_torn", torn),
            ("census_missed", missed),
            ("census_full", full),
        ] {
            batch.meta.push((key.to_owned(), value.to_string()));
        }
    }

    /// The machine has ended: takes what is left.
    pub(crate) fn close(&mut self, resolver: &mut Resolver, batch: &mut Batch) {
        let Some((thread, stop, heard)) = self.thread.take() else { return };
        stop.store(true, Ordering::Release);
        thread.thread().unpark();
        let until = Instant::now() + LIMIT;
        loop {
            match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(told) => self.hear(told, resolver, batch),
                Err(RecvTimeoutError::Disconnected) => return self.bury(thread, batch),
                Err(RecvTimeoutError::Timeout) => {
                    return self.missing(&format!("its thread did not end within {LIMIT:?}"), batch);
                }
            }
        }
    }

    /// The thread has ended: at the end of the run, by a reason that it has told, or by a panic.
    fn bury(&self, thread: JoinHandle<()>, batch: &mut Batch) {
        if thread.join().is_err() {
            self.missing("it failed unexpectedly", batch);
        }
    }

    fn missing(&self, reason: &str, batch: &mut Batch) {
        batch.meta.push(("census_missing".to_owned(), reason.to_owned()));
        let time_ns = monotonic_ns().saturating_sub(self.plan.zero_ns);
        let text = format!("no census of tasks: {reason}");
        batch.events.push(EventRow { time_ns, kind: "missing".to_owned(), text });
    }
}

impl Drop for Notes {
    /// Whatever becomes of the collector, the thread does not outlive it for long.
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
    use profile::rows::State;

    fn notes() -> Notes {
        Notes::new(Plan { hz: 10.0, seed: 0, vcpus: 1, readers: Arc::default(), zero_ns: 1_000 })
    }

    fn change(tid: i32, state: Option<State>, same_sleep: bool) -> Change {
        let task = TaskSnapshot {
            task: 0x1000 + tid.unsigned_abs() as u64 * 0x1000,
            tid,
            pid: 7,
            ..TaskSnapshot::default()
        };
        Change { task, seen: state.map(|state| Seen { state, same_sleep, stack: None }) }
    }

    fn rows(notes: &mut Notes, changes: Vec<Change>) -> Vec<(i32, u64, Option<State>)> {
        let (mut resolver, mut batch) = (Resolver::new(1_000), Batch::default());
        let time_ns = 2_000 + notes.moments * 100;
        let moment = Moment { time_ns, late: Duration::ZERO, stretch: 0, changes, bill: Bill::default() };
        notes.moment(moment, &mut resolver, &mut batch);
        assert_eq!(batch.census_moments.len(), 1);
        assert_eq!(batch.census_moments[0].time_ns, time_ns - 1_000);
        batch.census_states.iter().map(|row| (row.tid, row.moment, row.state)).collect()
    }

    #[test]
    fn a_row_is_a_change() {
        let mut notes = notes();
        let first = rows(
            &mut notes,
            vec![change(8, Some(State::Sleep), false), change(9, Some(State::Running), false)],
        );
        assert_eq!(first, [(8, 1, Some(State::Sleep)), (9, 1, Some(State::Running))]);
        // Another sleep of which no more is known than of the one before.
        assert_eq!(rows(&mut notes, vec![change(8, Some(State::Sleep), false)]), []);
        let third = rows(&mut notes, vec![change(8, Some(State::Disk), false), change(9, None, false)]);
        assert_eq!(third, [(8, 3, Some(State::Disk)), (9, 3, None)]);
        assert_eq!(rows(&mut notes, vec![change(9, None, false)]), [], "nobody knew it");
    }

    #[test]
    fn a_thread_with_other_ids_is_another_one() {
        let mut notes = notes();
        rows(&mut notes, vec![change(8, Some(State::Running), false)]);
        let mut exec = change(8, Some(State::Running), false);
        exec.task.tid = 7;
        assert_eq!(rows(&mut notes, vec![exec]), [(8, 2, None), (7, 2, Some(State::Running))]);
    }
}
