//! The size of a profile that is being recorded.
//!
//! A guest decides how many different stacks, tasks and lines it has, and so how large its profile gets.
//! Beyond the limit samples continue, without what makes them large: new stacks are cut to their innermost
//! frame, and a frame or process gets a row once a sample is in it. Runs of tasks and calls of watched
//! functions end earlier: each have a part of the limit, and a fixed number of rows. What counts them
//! (`exact_runs` of table `meta`, table `trip`) continues.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use super::writer::companion;
use crate::rows::{Batch, EventRow, FrameRow, InstanceRow};

/// Rows that are held back, at most, of each table.
const HELD: usize = 1 << 18;

/// Rows of table `task_run`, at most: seven minutes of a guest that switches 10,000 times a second. Also of
/// table `trip_call`.
const RUNS: u64 = 1 << 22;
/// Sizes of such rows in the file, bytes: measured, rounded up.
const RUN_BYTES: u64 = 56;
const CALL_BYTES: u64 = 80;
/// Part of the profile's limit that each of these tables may take: a divisor.
const RUNS_PART: u64 = 4;

/// Rows that wait for a sample that refers to them.
#[derive(Debug)]
struct Held<R> {
    /// Rows up to this id were written before.
    last: u32,
    /// Later ones that were written.
    written: HashSet<u32>,
    rows: HashMap<u32, R>,
}

impl<R: Clone> Held<R> {
    fn new(last: u32) -> Self {
        Self { last, written: HashSet::new(), rows: HashMap::new() }
    }

    fn has(&self, id: u32) -> bool {
        id <= self.last || self.written.contains(&id)
    }

    /// Takes new rows; returns those to write: what `wanted` refers to, and changes of rows that are written.
    fn take(&mut self, new: &[R], id: impl Fn(&R) -> u32, wanted: impl Iterator<Item = u32>) -> Vec<R> {
        let mut due = Vec::new();
        let wanted: HashSet<u32> = wanted.collect();
        for row in new {
            if self.has(id(row)) {
                due.push(row.clone());
                continue;
            }
            if wanted.contains(&id(row)) {
                self.written.insert(id(row));
                due.push(row.clone());
                continue;
            }
            if self.rows.len() >= HELD {
                // The source of the ids has forgotten them by now, and gives new ones.
                self.rows.clear();
            }
            self.rows.insert(id(row), row.clone());
        }
        for id in wanted {
            if let Some(row) = self.rows.remove(&id) {
                self.written.insert(id);
                due.push(row);
            }
        }
        due
    }
}

/// Rows written before the limit.
#[derive(Debug)]
struct Beyond {
    last_stack: u32,
    last_host_stack: u32,
    frames: Held<FrameRow>,
    instances: Held<InstanceRow>,
}

/// Takes room for as many of `count` rows as there is. Returns their number.
fn take_room(left: &mut u64, count: usize) -> usize {
    let kept = count.min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= kept as u64;
    kept
}

/// The limit of a profile, and what is beyond it.
#[derive(Debug)]
pub(super) struct SizeLimit {
    bytes: u64,
    /// Largest ids that were written: stacks, frames, instances, stacks of the host.
    last: [u32; 4],
    beyond: Option<Beyond>,
    /// Runs of tasks and calls of watched functions that there is still room for.
    runs: u64,
    calls: u64,
}

impl SizeLimit {
    pub(super) fn new(bytes: u64) -> Self {
        let room = |row: u64| RUNS.min(bytes / RUNS_PART / row);
        Self { bytes, last: [0; 4], beyond: None, runs: room(RUN_BYTES), calls: room(CALL_BYTES) }
    }

    /// Returns what is written of a batch in its place, if that is less.
    pub(super) fn cut(&mut self, batch: &Batch) -> Option<Batch> {
        let mut cut = self.cut_stacks(batch);
        if self.beyond.is_some() {
            (self.runs, self.calls) = (0, 0);
        }
        let runs = take_room(&mut self.runs, batch.task_runs.len());
        if runs < batch.task_runs.len() {
            cut.get_or_insert_with(|| batch.clone()).task_runs.truncate(runs);
        }
        let calls = take_room(&mut self.calls, batch.trip_calls.len());
        if calls < batch.trip_calls.len() {
            cut.get_or_insert_with(|| batch.clone()).trip_calls.truncate(calls);
        }
        cut
    }

    /// Returns what is written instead of a batch beyond the limit: samples without what makes them
    /// large.
    fn cut_stacks(&mut self, batch: &Batch) -> Option<Batch> {
        let Some(beyond) = &mut self.beyond else {
            let [stack, frame, instance, host_stack] = &mut self.last;
            *stack = batch.stacks.iter().map(|row| row.id).fold(*stack, u32::max);
            *frame = batch.frames.iter().map(|row| row.id).fold(*frame, u32::max);
            *instance = batch.instances.iter().map(|row| row.id).fold(*instance, u32::max);
            *host_stack = batch.host_stacks.iter().map(|row| row.id).fold(*host_stack, u32::max);
            return None;
        };
        let mut cut = batch.clone();
        cut.stacks.clear();
        for row in &mut cut.samples {
            row.stack = row.stack.filter(|&stack| stack <= beyond.last_stack);
        }
        cut.host_stacks.clear();
        cut.host_frames.clear();
        for row in &mut cut.host_samples {
            row.stack = row.stack.filter(|&stack| stack <= beyond.last_host_stack);
        }
        for stack in cut
            .task_states
            .iter_mut()
            .map(|row| &mut row.stack)
            .chain(cut.task_scan_states.iter_mut().map(|row| &mut row.stack))
        {
            *stack = if *stack <= beyond.last_stack { *stack } else { 0 };
        }
        let left = cut.exit_sites.iter();
        let frames = cut.samples.iter().map(|row| row.frame).chain(left.clone().map(|row| row.frame));
        cut.frames = beyond.frames.take(&batch.frames, |row| row.id, frames);
        let running = cut.samples.iter().filter_map(|row| row.instance).chain(left.map(|row| row.instance));
        cut.instances = beyond.instances.take(&batch.instances, |row| row.id, running);
        cut.inlined.retain(|row| beyond.frames.has(row.frame));
        let known = |instance| instance == 0 || beyond.instances.has(instance);
        cut.threads.retain(|row| known(row.instance));
        cut.mappings.retain(|row| known(row.instance));
        cut.rusage.retain(|row| known(row.instance));
        cut.thread_times.retain(|row| known(row.instance));
        cut.task_states.retain(|row| known(row.instance));
        cut.task_lives.retain(|row| known(row.instance));
        cut.task_delays.retain(|row| known(row.instance));
        cut.task_scan_states.retain(|row| known(row.instance));
        cut.reaped.retain(|row| known(row.child) && known(row.parent));
        cut.wakeups.retain(|row| known(row.waker) && known(row.woken));
        cut.interrupt_times.retain(|row| known(row.instance));
        Some(cut)
    }

    /// Compares the profile's size with the limit after a batch. Returns the event when it is reached.
    pub(super) fn reached(&mut self, path: &Path, batch: &Batch) -> Option<EventRow> {
        let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        if self.beyond.is_some() || size(path).saturating_add(size(&companion(path, "-wal"))) < self.bytes {
            return None;
        }
        let [last_stack, frame, instance, last_host_stack] = self.last;
        let (frames, instances) = (Held::new(frame), Held::new(instance));
        self.beyond = Some(Beyond { last_stack, last_host_stack, frames, instances });
        let time_ns = batch.microstates.iter().map(|row| row.time_ns);
        let time_ns = time_ns.chain(batch.samples.iter().map(|row| row.time_ns)).max().unwrap_or_default();
        let text = format!(
            "the profile has reached its limit of {} (--max-size): from here on, stacks that are new are cut to the \
             innermost function, only processes that were sampled are listed, and runs of tasks (exact mode) and calls \
             of watched functions are only counted",
            display::units::bytes(self.bytes)
        );
        Some(EventRow { time_ns, kind: "missing".to_owned(), text })
    }
}
