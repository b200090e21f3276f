//! The guest's own books of CPU time, read again and again: of all processes every second, and of those that samples hit
//! with every batch, so that the last numbers of a process are from shortly before its end. What was there before vprof is
//! known by the first reading.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use linux::{CpuStat, CpuTime, Kernel, ProcessCpuTimes, TaskSnapshot};
use vmm::monotonic_ns;

use crate::memory::GuestMemory;
use profile::rows::{Batch, RusageRow, ThreadTimeRow};

/// Processes whose books are read with one batch, at most; the others wait until all are read.
const MOST_HIT: usize = 256;

/// Instances whose end is remembered, at most: beyond that all are forgotten.
const MOST_ENDED: usize = 65_536;

/// What all processes and CPUs kept at one moment.
#[derive(Debug)]
pub(crate) struct AllBooks {
    /// CLOCK_MONOTONIC ns.
    pub read_ns: u64,
    pub processes: Vec<ProcessCpuTimes>,
    pub cpus: Vec<CpuStat>,
}

/// Reads the books.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    guest: Option<(Arc<Kernel>, GuestMemory)>,
    /// Instances that were hit since the last batch.
    hit: HashMap<u32, TaskSnapshot>,
    /// Instances whose last books are known: what is read or told of them later is older, or another's.
    ended: HashSet<u32>,
    /// All books were read once.
    opened: bool,
    zero_ns: u64,
}

impl Ledger {
    /// Times are told from `zero_ns`, CLOCK_MONOTONIC.
    pub(crate) fn new(zero_ns: u64) -> Self {
        Self { zero_ns, ..Self::default() }
    }

    /// The books are those of this kernel.
    pub(crate) fn found(&mut self, kernel: Arc<Kernel>, memory: GuestMemory) {
        self.guest = Some((kernel, memory));
    }

    /// Their kernel runs no more.
    pub(crate) fn gone(&mut self) {
        self.guest = None;
        self.opened = false;
        self.hit.clear();
    }

    /// A sample has hit the instance.
    pub(crate) fn note(&mut self, instance: u32, task: &TaskSnapshot) {
        if self.hit.len() < MOST_HIT && self.opened && !self.has_ended(instance) {
            self.hit.insert(instance, *task);
        }
    }

    /// Takes note that all books were read. Returns whether it was the first time: what they say then is of a time that no
    /// sample has seen, and each later figure counts from it.
    pub(crate) fn open(&mut self) -> bool {
        !std::mem::replace(&mut self.opened, true)
    }

    /// Whether all books were read.
    pub(crate) fn is_open(&self) -> bool {
        self.opened
    }

    /// The last books of the instance are known.
    pub(crate) fn end(&mut self, instance: u32) {
        self.hit.remove(&instance);
        if self.ended.len() >= MOST_ENDED {
            self.ended.clear();
        }
        self.ended.insert(instance);
    }

    /// Whether the instance's last books are known.
    pub(crate) fn has_ended(&self, instance: u32) -> bool {
        self.ended.contains(&instance)
    }

    /// Reads the books of the instances that were hit since the last call, and returns which of them are still there.
    pub(crate) fn read_hit(&mut self, batch: &mut Batch) -> Vec<TaskSnapshot> {
        let mut there = Vec::new();
        let Some((kernel, memory)) = &self.guest else { return there };
        for (instance, task) in self.hit.drain() {
            let read_ns = monotonic_ns();
            // A process that is gone has left its last numbers; a kernel without books is told of when all are read.
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

/// Adds what a process kept at `time_ns` since the run's start, when it was `first` read or later.
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
    // A process with one thread has told everything, unless it gets more.
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
