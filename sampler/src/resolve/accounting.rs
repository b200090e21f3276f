//! Polling of the guest's own CPU accounting: of all processes every second, and of those that samples hit
//! with every batch, so that the last numbers of a process are from shortly before its end. The first reading
//! shows the times from before vprof.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use guest_linux::{Kernel, ProcessCpuTimes, TaskSnapshot};
use statistics::cpu_accounting::{CpuStat, CpuTime};
use vmm::monotonic_ns;

use crate::memory::GuestMemory;
use profile::rows::{Batch, RusageRow, ThreadTimeRow};

/// Processes whose accounting is read with one batch, at most; the others wait until all are read.
const MOST_HIT: usize = 256;

/// Ended instances that are remembered, at most: beyond that all are forgotten.
const MOST_ENDED: usize = 65_536;

/// Accounting of all processes and CPUs at one time.
#[derive(Debug)]
pub(crate) struct AccountingSnapshot {
    /// CLOCK_MONOTONIC ns.
    pub read_ns: u64,
    pub processes: Vec<ProcessCpuTimes>,
    pub cpus: Vec<CpuStat>,
}

/// Accounting poller.
#[derive(Debug, Default)]
pub(crate) struct AccountingPoller {
    guest: Option<(Arc<Kernel>, GuestMemory)>,
    /// Instances that were hit since the last batch.
    hit: HashMap<u32, TaskSnapshot>,
    /// Instances whose final accounting is known: later readings are older, or of another instance.
    ended: HashSet<u32>,
    /// The accounting of all processes was read once.
    opened: bool,
    zero_ns: u64,
}

impl AccountingPoller {
    /// Creates a poller; times count from `zero_ns`, CLOCK_MONOTONIC.
    pub(crate) fn new(zero_ns: u64) -> Self {
        Self { zero_ns, ..Self::default() }
    }

    /// Sets the kernel whose accounting is read.
    pub(crate) fn set_kernel(&mut self, kernel: Arc<Kernel>, memory: GuestMemory) {
        self.guest = Some((kernel, memory));
    }

    /// Stops the polling: the kernel no longer runs.
    pub(crate) fn stop(&mut self) {
        self.guest = None;
        self.opened = false;
        self.hit.clear();
    }

    /// Notes that a sample has hit the instance.
    pub(crate) fn note(&mut self, instance: u32, task: &TaskSnapshot) {
        if self.hit.len() < MOST_HIT && self.opened && !self.has_ended(instance) {
            self.hit.insert(instance, *task);
        }
    }

    /// Notes that the accounting of all processes was read. Returns true for the first time: those figures
    /// are from a time that no sample has seen, and each later figure counts from them.
    pub(crate) fn open(&mut self) -> bool {
        !std::mem::replace(&mut self.opened, true)
    }

    /// Returns true if the accounting of all processes was read.
    pub(crate) fn is_open(&self) -> bool {
        self.opened
    }

    /// Notes that the final accounting of the instance is known.
    pub(crate) fn end(&mut self, instance: u32) {
        self.hit.remove(&instance);
        if self.ended.len() >= MOST_ENDED {
            self.ended.clear();
        }
        self.ended.insert(instance);
    }

    /// Returns true if the instance's final accounting is known.
    pub(crate) fn has_ended(&self, instance: u32) -> bool {
        self.ended.contains(&instance)
    }

    /// Reads the accounting of the instances that were hit since the last call. Returns the tasks that still
    /// exist.
    pub(crate) fn read_hit(&mut self, batch: &mut Batch) -> Vec<TaskSnapshot> {
        let mut there = Vec::new();
        let Some((kernel, memory)) = &self.guest else { return there };
        for (instance, task) in self.hit.drain() {
            let read_ns = monotonic_ns();
            // A process that is gone has left its last numbers; a kernel without accounting is reported when
            // all are read.
            let Ok(Some(books)) = kernel.process_cpu_times_of(memory, task.task) else { continue };
            let same = (books.leader.pid, books.leader.start_ns) == (task.pid, task.start_ns);
            if same {
                process_rows(instance, read_ns.saturating_sub(self.zero_ns), &books, false, batch);
                there.push(task);
            }
        }
        there
    }
}

/// Adds the accounting of a process at `time_ns` since the run's start; `first` is true for the first
/// reading.
pub(crate) fn process_rows(
    instance: u32,
    time_ns: u64,
    books: &ProcessCpuTimes,
    first: bool,
    batch: &mut Batch,
) {
    let (user_ns, system_ns) = books.reported;
    let CpuTime { runtime_ns, run_delay_ns, voluntary, involuntary, .. } = books.time;
    batch.rusage.push(RusageRow {
        instance,
        first,
        time_ns,
        user_ns,
        system_ns,
        tick_user_ns: books.time.user_ns,
        tick_system_ns: books.time.system_ns,
        runtime_ns,
        run_delay_ns,
        voluntary,
        involuntary,
        children: books.children,
    });
    // The process's own row is complete if it has one thread, unless it gets more.
    if first || books.threads.len() > 1 {
        batch.thread_times.extend(books.threads.iter().map(|thread| ThreadTimeRow {
            instance,
            tid: thread.task.tid,
            first,
            time_ns,
            tick_user_ns: thread.time.user_ns,
            tick_system_ns: thread.time.system_ns,
            runtime_ns: thread.time.runtime_ns,
        }));
    }
}
