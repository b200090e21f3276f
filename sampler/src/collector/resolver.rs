//! From records to rows: identity, frame and mode of each sample. Knows no threads and no clock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use symbols::TaskSnapshot;

use super::frames::{Frames, Names};
use super::identity::Identities;
use super::mode::Classifier;
use crate::batch::{Batch, Mode, SampleRow};
use crate::record::Record;
use crate::text;

/// Kernel addresses are the upper half, whatever the number of page table levels.
const KERNEL_HALF: u64 = 1 << 63;

/// Samples of about a second, for the live line.
#[derive(Debug, Default)]
pub(crate) struct Window {
    samples: u64,
    busy: u64,
    processes: HashMap<u32, (u64, [u8; 16])>,
}

impl Window {
    /// All samples.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// The process with the most non-idle samples, and its share of them.
    #[expect(clippy::cast_precision_loss, reason = "a share of less than 2^53 samples")]
    pub(crate) fn top(&self) -> Option<(String, f64)> {
        let (_, (count, comm)) =
            self.processes.iter().max_by_key(|&(&id, &(count, _))| (count, u32::MAX - id))?;
        Some((text::comm(comm), *count as f64 / self.busy as f64))
    }
}

/// Resolves records.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    zero_ns: u64,
    identities: Identities,
    frames: Frames,
    classifier: Classifier,
    names: Option<Arc<dyn Names>>,
    window: Window,
    /// Time of the newest sample, CLOCK_MONOTONIC ns.
    latest_ns: u64,
    /// Who was there at the last census: pid, start, name.
    census: HashSet<(i32, u64, [u8; 16])>,
    /// CR3 and CR4.LA57 of the last kernel code that ran.
    pub(crate) candidate: Option<(u64, bool)>,
    /// An address was hit that may belong to a module loaded since.
    pub(crate) unknown_module: bool,
}

impl Resolver {
    pub(crate) fn new(zero_ns: u64) -> Self {
        Self { zero_ns, ..Self::default() }
    }

    /// Adds the sample's row to `batch`, and rows for what it is the first to mention.
    pub(crate) fn sample(&mut self, vcpu: u8, record: &Record, batch: &mut Batch) {
        let mode = self.classifier.classify(record);
        let task = record.current.and_then(|current| current.task);
        self.latest_ns = self.latest_ns.max(record.time_ns);
        let instance = task.map(|task| self.identities.resolve(&task, record.time_ns, &mut batch.instances));
        let frame = if mode == Mode::User {
            self.frames.user(record.rip, instance, &mut batch.frames)
        } else {
            self.kernel_frame(record, batch)
        };
        self.count(mode, instance, task.as_ref());
        batch.samples.push(SampleRow {
            vcpu,
            time_ns: record.time_ns.saturating_sub(self.zero_ns),
            late_ns: record.late_ns,
            mode,
            halted: record.halted,
            frame,
            rsp: record.rsp,
            cpl: record.cpl,
            cr3: record.cr3,
            interrupts_on: record.interrupts_on,
            preempt_count: record.current.map(|current| current.preempt_count),
            instance,
            tid: task.map(|task| task.tid),
            ..SampleRow::default()
        });
    }

    fn kernel_frame(&mut self, record: &Record, batch: &mut Batch) -> u32 {
        let before = batch.frames.len();
        let frame = self.frames.kernel(record.rip, self.names.as_deref(), &mut batch.frames);
        if record.rip & KERNEL_HALF != 0 {
            if record.long_mode {
                self.candidate = Some((record.cr3, record.five_level));
            }
            let outside = self.names.as_ref().is_some_and(|names| !names.in_image(record.rip));
            if outside && batch.frames[before..].iter().any(|row| row.symbol.is_none()) {
                self.unknown_module = true;
            }
        }
        frame
    }

    fn count(&mut self, mode: Mode, instance: Option<u32>, task: Option<&TaskSnapshot>) {
        self.window.samples += 1;
        if mode == Mode::Idle {
            return;
        }
        self.window.busy += 1;
        if let (Mode::User | Mode::Kernel, Some(instance), Some(task)) = (mode, instance, task) {
            let entry = self.window.processes.entry(instance).or_default();
            *entry = (entry.0 + 1, task.process_comm);
        }
    }

    /// The samples since the last call.
    pub(crate) fn take_window(&mut self) -> Window {
        std::mem::take(&mut self.window)
    }

    /// The kernel was found: frames get their names from now on, earlier ones get them now.
    pub(crate) fn kernel_found(&mut self, names: Arc<dyn Names>, batch: &mut Batch) {
        self.frames.name_unnamed(names.as_ref(), &mut batch.frames);
        self.names = Some(names);
    }

    /// Other modules are loaded.
    pub(crate) fn modules_changed(&mut self, names: Arc<dyn Names>, batch: &mut Batch) {
        self.frames.modules_changed(names.as_ref(), &mut batch.frames);
        self.names = Some(names);
    }

    /// Tasks that exist, sampled or not. They are read while the guest runs, so one alone may be half made or half gone:
    /// what two in a row say alike counts. By then all samples from before the first have been dealt with, too.
    pub(crate) fn census(&mut self, tasks: &[TaskSnapshot], batch: &mut Batch) {
        let sight = |task: &TaskSnapshot| (task.pid, task.start_ns, task.process_comm);
        for task in tasks {
            if task.pid != 0 {
                self.classifier.tasks_exist();
            }
            if self.census.contains(&sight(task)) {
                self.identities.resolve(task, self.latest_ns, &mut batch.instances);
            }
        }
        self.census = tasks.iter().map(sight).collect();
    }
}
