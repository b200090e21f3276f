//! Whether the guest still comes further.

use std::time::Duration;

use linux::TaskSnapshot;

use profile::rows::{Batch, ConsoleRow, EventRow, ExitRow, InjectedRow};

/// Events that show that the guest went on, or could not: vprof itself was stopped meanwhile.
const EVENTS: [&str; 5] = ["init", "kernel", "command", "mark", "stopped"];
/// Work queues make and end these in a guest that does nothing (kernel/workqueue.c, Linux 6.12).
const WORKER: &[u8] = b"kworker/";
/// What a kernel that neither resets nor starts another one says last of its panic (kernel/panic.c, Linux 5.10 to 6.12).
const PANIC_ENDS: &str = "---[ end Kernel panic - not syncing";
/// The device of output that is no console's (`vprof run IMAGE -- CMD`).
const OUTPUT: &str = "second serial port";

/// What a guest that comes further leaves: console output, a process that was not there before, a request that its disk
/// has answered, output of its command, an exit of a kind that was not seen before.
#[derive(Debug)]
pub(crate) struct Going {
    limit: Option<Duration>,
    /// The last sign, ns since the run's start.
    pub(crate) last_ns: u64,
    seen: bool,
    /// Start of the youngest process, ns since the guest's boot.
    youngest_ns: Option<u64>,
    /// The newest kind of exit.
    exit: u32,
    /// Interrupts of disks.
    disk: u64,
    /// The limit was told.
    told: bool,
    /// The kernel has panicked and does nothing any more.
    panicked: bool,
}

impl Going {
    /// From `now_ns` since the run's start on.
    pub(crate) fn new(limit: Option<Duration>, now_ns: u64) -> Self {
        Self {
            limit,
            last_ns: now_ns,
            seen: false,
            youngest_ns: None,
            exit: 0,
            disk: 0,
            told: false,
            panicked: false,
        }
    }

    /// A task is there.
    pub(crate) fn task(&mut self, task: &TaskSnapshot) {
        let worker = task.kernel_thread && task.process_comm.starts_with(WORKER);
        if !worker && self.youngest_ns.is_none_or(|youngest| task.start_ns > youngest) {
            self.youngest_ns = Some(task.start_ns);
            self.seen = true;
        }
    }

    /// New rows.
    pub(crate) fn rows(&mut self, console: &[ConsoleRow], events: &[EventRow]) {
        self.seen |= !console.is_empty() || events.iter().any(|event| EVENTS.contains(&event.kind.as_str()));
    }

    /// A line of the console, as far as it has come.
    pub(crate) fn line(&mut self, line: &str) {
        self.panicked |= line.contains(PANIC_ENDS);
    }

    /// True once, when the kernel has panicked and waits for nothing.
    pub(crate) fn take_panic(&mut self) -> bool {
        std::mem::take(&mut self.panicked)
    }

    /// Exits and interrupts were counted.
    pub(crate) fn counted(&mut self, batch: &Batch) {
        let Batch { exits, injected, .. } = batch;
        let exit = exits.iter().map(|row| row.id).max().unwrap_or(0);
        // Only those are told that have come again.
        let is_output = |row: &ExitRow| row.reason == "port write" && row.device.as_deref() == Some(OUTPUT);
        let is_disk = |row: &&InjectedRow| row.device.starts_with("disk");
        let disk = injected.iter().filter(is_disk).fold(0_u64, |sum, row| sum.saturating_add(row.count));
        self.seen |= exit > self.exit || exits.iter().any(is_output) || disk > self.disk;
        (self.exit, self.disk) = (self.exit.max(exit), self.disk.max(disk));
    }

    /// At `now_ns`: how long the guest has come no further, where that is as long as it may be; once.
    pub(crate) fn still(&mut self, now_ns: u64) -> Option<Duration> {
        if std::mem::take(&mut self.seen) {
            self.last_ns = now_ns;
        }
        let still = Duration::from_nanos(now_ns.saturating_sub(self.last_ns));
        let over = self.limit.is_some_and(|limit| still >= limit) && !self.told;
        self.told |= over;
        over.then_some(still)
    }
}
