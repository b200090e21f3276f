//! The gate that keeps or drops samples, and the conditions that move it.

use std::time::Duration;

use guest_linux::TaskSnapshot;

use super::{ConditionState, ProgressDetector};
use display::clean;
use profile::conditions::{Condition, ConditionTimes, RunTrigger};
use profile::rows::{Batch, ConsoleRow};

/// Bytes of a console line that are checked, at most.
const LINE: usize = 4 << 10;

/// Reactions to conditions that were met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GateAction {
    /// Samples count from now on.
    Open(Condition),
    /// Samples no longer count; the run ends if the flag is true.
    Close(Condition, bool),
    /// The run ends: the condition was met.
    End(Condition),
    /// The run ends: the guest has made no progress for this long.
    Still(Duration),
    /// The run ends: the kernel has panicked and does nothing more.
    Panicked,
}

/// Numbers of the batch's rows that were already scanned.
#[derive(Debug, Default)]
struct ScannedRows {
    console: usize,
    events: usize,
    cgroups: usize,
    units: usize,
}

/// Awaited conditions, and the times at which conditions were met.
#[derive(Debug, Default)]
pub(crate) struct SamplingGate {
    closed: bool,
    start: Option<ConditionState>,
    stop: Option<(ConditionState, bool)>,
    until: Option<ConditionState>,
    /// Progress of the guest, if it is watched.
    progress: Option<ProgressDetector>,
    line: Vec<u8>,
    scanned: ScannedRows,
    pub(crate) seen: ConditionTimes,
}

impl SamplingGate {
    /// Returns true while samples are dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Awaits a condition. Returns true if samples are dropped from now until then. Ignores a condition that
    /// does not compile: [`Condition::check`] rejects it before.
    pub(crate) fn arm(&mut self, wait: RunTrigger, now_ns: u64) -> bool {
        let trigger = |condition| ConditionState::new(condition).ok();
        match wait {
            RunTrigger::Start(when) => {
                self.start = trigger(when);
                let closes = self.start.is_some() && !self.closed;
                self.closed |= closes;
                return closes;
            }
            RunTrigger::Stop { when, end } => {
                self.stop = trigger(when).map(|trigger| (trigger.counting_from(now_ns), end));
            }
            RunTrigger::Until(when) => self.until = trigger(when),
            RunTrigger::Still(limit) => self.progress = Some(ProgressDetector::new(limit, now_ns)),
        }
        false
    }

    /// Opens the gate on a user's request, without waiting for the start condition. Returns true if it was
    /// closed.
    pub(crate) fn open(&mut self, now_ns: u64) -> bool {
        self.start = None;
        if let Some((trigger, _)) = &mut self.stop {
            trigger.since_ns = now_ns;
        }
        std::mem::replace(&mut self.closed, false)
    }

    /// Returns true while a condition is awaited with which sampling begins.
    pub(crate) fn awaits_start(&self) -> bool {
        self.start.is_some()
    }

    /// Returns true if all tasks have to be listed often.
    pub(crate) fn needs_tasks(&self) -> bool {
        let stop = self.stop.as_ref().map(|(trigger, _)| trigger).filter(|_| !self.closed);
        let waits = self.start.iter().chain(stop).chain(&self.until);
        self.progress.is_some() || waits.into_iter().any(|trigger| trigger.condition.needs_tasks())
    }

    /// Returns the triggers that are active: the end of sampling is awaited only once sampling has begun.
    fn triggers(&mut self) -> impl Iterator<Item = &mut ConditionState> {
        let stop = self.stop.as_mut().map(|(trigger, _)| trigger).filter(|_| !self.closed);
        self.start.iter_mut().chain(stop).chain(&mut self.until)
    }

    /// Notes a task that ran.
    pub(crate) fn task(&mut self, task: &TaskSnapshot) {
        if let Some(progress) = &mut self.progress {
            progress.task(task);
        }
        self.triggers().for_each(|trigger| trigger.task(&task.process_comm));
    }

    /// Notes all tasks that exist.
    pub(crate) fn list(&mut self, tasks: &[TaskSnapshot]) {
        if let Some(progress) = &mut self.progress {
            tasks.iter().for_each(|task| progress.task(task));
        }
        for trigger in self.triggers() {
            tasks.iter().for_each(|task| trigger.task(&task.process_comm));
            trigger.listed(tasks.iter().any(|task| trigger.speaks_of(&task.process_comm)));
        }
    }

    /// Scans the rows of `batch` that are new since the last call.
    pub(crate) fn scan(&mut self, batch: &Batch) {
        let now = ScannedRows {
            console: batch.console.len(),
            events: batch.events.len(),
            cgroups: batch.cgroups.len(),
            units: batch.unit_events.len(),
        };
        let ScannedRows { console, events, cgroups, units } = std::mem::replace(&mut self.scanned, now);
        if let Some(progress) = &mut self.progress {
            progress.rows(
                batch.console.get(console..).unwrap_or_default(),
                batch.events.get(events..).unwrap_or_default(),
            );
        }
        if self.start.is_none() && self.stop.is_none() && self.until.is_none() && self.progress.is_none() {
            return;
        }
        for row in batch.console.get(console..).unwrap_or_default() {
            self.console(row);
        }
        for event in
            batch.events.get(events..).unwrap_or_default().iter().filter(|event| event.kind == "mark")
        {
            self.triggers().for_each(|trigger| trigger.mark(&event.text));
        }
        let units = batch.unit_events.get(units..).unwrap_or_default();
        if units.iter().any(|unit| unit.step == "finished") {
            self.triggers().for_each(ConditionState::started);
        }
        for group in batch.cgroups.get(cgroups..).unwrap_or_default() {
            self.triggers().for_each(|trigger| trigger.cgroup(&group.path));
        }
    }

    /// Notes the counts of exits and interrupts in `batch`.
    pub(crate) fn counted(&mut self, batch: &Batch) {
        if let Some(progress) = &mut self.progress {
            progress.counted(batch);
        }
    }

    /// Returns the time of the guest's last progress, ns since the run's start, if progress is watched.
    pub(crate) fn progress_ns(&self) -> Option<u64> {
        self.progress.as_ref().map(|progress| progress.last_ns)
    }

    /// Forgets the scanned rows of a batch that was written: the next one has other rows.
    pub(crate) fn forget_rows(&mut self) {
        self.scanned = ScannedRows::default();
    }

    fn console(&mut self, row: &ConsoleRow) {
        for part in row.bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(part.get(..room).unwrap_or(part));
            let line = clean::without_escape_sequences(&String::from_utf8_lossy(&self.line));
            let line = line.trim_end_matches(['\r', '\n']).to_owned();
            self.triggers().for_each(|trigger| trigger.line(&line));
            if let Some(progress) = &mut self.progress {
                progress.line(&line);
            }
            if part.ends_with(b"\n") {
                self.line.clear();
            }
        }
    }

    /// Returns the reactions that are due at `now_ns` since the run's start.
    pub(crate) fn decide(&mut self, now_ns: u64) -> Vec<GateAction> {
        let mut actions = Vec::new();
        if let Some(met) = self.start.take_if(|trigger| trigger.is_met(now_ns)) {
            self.seen.start_ns = Some(now_ns);
            self.open(now_ns);
            actions.push(GateAction::Open(met.condition));
        } else if !self.closed
            && let Some((met, end)) = self.stop.take_if(|(trigger, _)| trigger.is_met(now_ns))
        {
            self.seen.stop_ns = Some(now_ns);
            self.closed = true;
            actions.push(GateAction::Close(met.condition, end));
        }
        if let Some(met) = self.until.take_if(|trigger| trigger.is_met(now_ns)) {
            self.seen.until_ns = Some(now_ns);
            actions.push(GateAction::End(met.condition));
        }
        if let Some(still) = self.progress.as_mut().and_then(|progress| progress.still(now_ns))
            && self.seen.until_ns.is_none()
        {
            self.seen.still_ns = Some(now_ns);
            actions.push(GateAction::Still(still));
        }
        if self.progress.as_mut().is_some_and(ProgressDetector::take_panic) {
            actions.push(GateAction::Panicked);
        }
        actions
    }
}
