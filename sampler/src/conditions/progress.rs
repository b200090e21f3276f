//! Detection of a guest that makes no progress.

use std::time::Duration;

use guest_linux::TaskSnapshot;

use profile::rows::{Batch, ConsoleRow, EventRow, ExitRow, InjectedRow};

/// Kinds of events that show progress of the guest, or that progress was impossible: vprof itself was
/// stopped.
const EVENTS: [&str; 5] = ["init", "kernel", "command", "mark", "stopped"];
/// Name prefix of work queues' threads: an idle guest starts and ends them, too (kernel/workqueue.c, Linux
/// 6.12).
const WORKER: &[u8] = b"kworker/";
/// Last line of a panic, from a kernel that neither resets nor starts another one (kernel/panic.c, Linux 5.10
/// to 6.12).
const PANIC_ENDS: &str = "---[ end Kernel panic - not syncing";
/// Device of output that is not a console's (`vprof run IMAGE -- CMD`).
const OUTPUT: &str = "second serial port";

/// Detector of a guest's progress. Signs of progress are console output, a new process, a request that a disk
/// has answered, output of the guest's command, and an exit of a new kind.
#[derive(Debug)]
pub(crate) struct ProgressDetector {
    limit: Option<Duration>,
    /// Time of the last sign, ns since the run's start.
    pub(crate) last_ns: u64,
    seen: bool,
    /// Start of the youngest process, ns since the guest's boot.
    youngest_ns: Option<u64>,
    /// The highest row id of an exit so far: a higher one is a new kind of exit.
    exit: u32,
    /// Interrupts of disks so far.
    disk: u64,
    /// The limit was reported.
    reported: bool,
    /// The kernel has panicked and does nothing more.
    panicked: bool,
}

impl ProgressDetector {
    /// Creates a detector that watches from `now_ns` since the run's start.
    pub(crate) fn new(limit: Option<Duration>, now_ns: u64) -> Self {
        Self {
            limit,
            last_ns: now_ns,
            seen: false,
            youngest_ns: None,
            exit: 0,
            disk: 0,
            reported: false,
            panicked: false,
        }
    }

    /// Notes a task that exists.
    pub(crate) fn task(&mut self, task: &TaskSnapshot) {
        let worker = task.kernel_thread && task.process_comm.starts_with(WORKER);
        if !worker && self.youngest_ns.is_none_or(|youngest| task.start_ns > youngest) {
            self.youngest_ns = Some(task.start_ns);
            self.seen = true;
        }
    }

    /// Notes new rows.
    pub(crate) fn rows(&mut self, console: &[ConsoleRow], events: &[EventRow]) {
        self.seen |= !console.is_empty() || events.iter().any(|event| EVENTS.contains(&event.kind.as_str()));
    }

    /// Notes a line of the console, complete or not.
    pub(crate) fn line(&mut self, line: &str) {
        self.panicked |= line.contains(PANIC_ENDS);
    }

    /// Returns true once when the kernel has panicked and does nothing more.
    pub(crate) fn take_panic(&mut self) -> bool {
        std::mem::take(&mut self.panicked)
    }

    /// Notes counts of exits and interrupts.
    pub(crate) fn counted(&mut self, batch: &Batch) {
        let Batch { exits, injected, .. } = batch;
        let exit = exits.iter().map(|row| row.id).max().unwrap_or(0);
        // The batch has only rows whose counts have grown.
        let is_output = |row: &ExitRow| row.reason == "port write" && row.device.as_deref() == Some(OUTPUT);
        let is_disk = |row: &&InjectedRow| row.device.starts_with("disk");
        let disk = injected.iter().filter(is_disk).fold(0_u64, |sum, row| sum.saturating_add(row.count));
        self.seen |= exit > self.exit || exits.iter().any(is_output) || disk > self.disk;
        (self.exit, self.disk) = (self.exit.max(exit), self.disk.max(disk));
    }

    /// Returns how long the guest has made no progress, if that is at least the limit; once per run.
    pub(crate) fn still(&mut self, now_ns: u64) -> Option<Duration> {
        if std::mem::take(&mut self.seen) {
            self.last_ns = now_ns;
        }
        let still = Duration::from_nanos(now_ns.saturating_sub(self.last_ns));
        let over = self.limit.is_some_and(|limit| still >= limit) && !self.reported;
        self.reported |= over;
        over.then_some(still)
    }
}
