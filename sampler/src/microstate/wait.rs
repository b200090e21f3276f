//! Detection of ticks that were due while a vCPU's thread waited for a CPU of the host.
//!
//! A tick that was due in such a wait is served at the instruction where the thread had lost its CPU. The
//! tick shows nothing about the guest, whose time does not include the wait, however short the wait was.
//!
//! The scheduler updates `se.sum_exec_runtime` of a thread when the thread arrives on a CPU, and seldom again
//! before it leaves (kernel/sched/fair.c, Linux 6.12: `set_next_entity`, `update_curr`). The first number of
//! schedstat shows that field as it is; the thread's CPU clock shows its value now. The difference is the
//! time since the last update:
//!
//! ```text
//!        due          update (arrival)    exit  now
//!  ───────┼────────────────┼────────────────┼────┼──>
//!         └──── gap ───────┘└── CPU clock - sum ─┘
//! ```
//!
//! Without a gap, the thread has been on a CPU since `due`. With a gap, the thread has waited if its time
//! waited since the last tick accounts for the gap: an update by the scheduler's own tick may also fall
//! between `due` and the exit. A thread that has read a page from a disk was blocked in the gap, which no
//! time waited accounts for. Without this rule, a guest whose memory is swapped out would be sampled where it
//! touches that memory, for the length of the read.
//!
//! The timer of a busy host may come so late that the vCPU was halted when the tick was due, and has been
//! woken since. The thread then had no CPU for longer than there was between the last tick and the due time:
//!
//! ```text
//!   last tick     due          wake-up          exit
//!  ─────┼──────────┼──────────────┼──────────────┼──>
//!       └──── without a CPU ──────┘
//! ```

use std::fs::File;
use std::sync::Arc;

use super::host::{ThreadCounts, own_counts, own_cpu_time, own_schedstat, waited};
use statistics::clock::{TickHold, fell_into_wait};
use vmm::{ThreadStatistics, ThreadTimes, monotonic_ns};

/// Detector of ticks that were due in a wait.
#[derive(Debug, Default)]
pub(crate) enum WaitDetector {
    /// There is no thread, or the host does not count its waits.
    #[default]
    Unknown,
    /// The calling thread.
    Own(OwnThread),
    /// The thread of another process.
    Foreign(ForeignThread),
}

/// The calling thread, as of the last tick.
#[derive(Debug)]
pub(crate) struct OwnThread {
    schedstat: File,
    counts: ThreadCounts,
    /// Time waited, ns.
    waited_ns: u64,
    /// CLOCK_MONOTONIC less the thread's CPU time, ns, as of the last tick before which the thread had left
    /// its CPU.
    without_cpu_ns: u64,
    /// The last tick, CLOCK_MONOTONIC ns.
    last_ns: u64,
}

/// A thread of another process.
#[derive(Debug)]
pub(crate) struct ForeignThread {
    statistics: Arc<dyn ThreadStatistics>,
    /// Time waited when the thread was asked to stop, and the time of the request, ns.
    asked: Option<(u64, u64)>,
    /// The thread waits at the present tick, if that is known without the above.
    known: Option<bool>,
}

impl WaitDetector {
    /// Creates a detector for the calling thread.
    pub(crate) fn own() -> Self {
        own_schedstat().map_or(Self::Unknown, |schedstat| {
            let waited_ns = waited(&schedstat).unwrap_or(0);
            let last_ns = monotonic_ns();
            let without_cpu_ns = last_ns.saturating_sub(own_cpu_time().unwrap_or(0));
            Self::Own(OwnThread { schedstat, counts: own_counts(), waited_ns, without_cpu_ns, last_ns })
        })
    }

    /// Returns true if the detector is for the calling thread, and its waits are known.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Creates a detector for the thread with these scheduler statistics, if any.
    pub(crate) fn foreign(statistics: Option<Arc<dyn ThreadStatistics>>) -> Self {
        statistics.map_or(Self::Unknown, |statistics| {
            Self::Foreign(ForeignThread { statistics, asked: None, known: None })
        })
    }

    /// Notes that a thread of another process is about to be stopped, at `now_ns`. Its waits from then on
    /// belong to the tick.
    pub(crate) fn ask(&mut self, now_ns: u64) {
        if let Self::Foreign(thread) = self {
            thread.asked = thread.statistics.read().map(|times| (times.waited_ns, now_ns));
        }
    }

    /// Forgets the last request: the tick that it was for is over.
    pub(crate) fn forget_request(&mut self) {
        if let Self::Foreign(thread) = self {
            (thread.asked, thread.known) = (None, None);
        }
    }

    /// Notes that a thread of another process waits at the present tick, or does not, as the host's kernel
    /// itself has it.
    pub(crate) fn note(&mut self, waits: bool) {
        if let Self::Foreign(thread) = self {
            thread.known = Some(waits);
        }
    }

    /// Returns the pause of the clock if the thread waited at `due_ns`. The thread stopped at `stopped_ns`;
    /// both are CLOCK_MONOTONIC ns. Has to be called at every tick: the next tick is compared with the values
    /// read here.
    pub(crate) fn waited_at(&mut self, due_ns: u64, stopped_ns: u64) -> Option<TickHold> {
        match self {
            Self::Unknown => None,
            Self::Own(thread) => thread.waited_at(due_ns, stopped_ns),
            Self::Foreign(thread) => thread.waited(due_ns, stopped_ns),
        }
    }
}

impl OwnThread {
    fn waited_at(&mut self, due_ns: u64, stopped_ns: u64) -> Option<TickHold> {
        let last_ns = std::mem::replace(&mut self.last_ns, stopped_ns);
        let counts = own_counts();
        let before = std::mem::replace(&mut self.counts, counts);
        // The thread has not left its CPU since the last tick.
        if before.switches == counts.switches {
            return None;
        }
        // This order: reading the clock updates the other two.
        let ThreadTimes { run_ns: updated_ns, waited_ns } = ThreadTimes::read(&self.schedstat)?;
        let ran_ns = own_cpu_time()?;
        let now_ns = monotonic_ns();
        let without_cpu_ns = now_ns.saturating_sub(ran_ns);
        let off = OffCpu {
            arrived_ns: now_ns.saturating_sub(ran_ns.saturating_sub(updated_ns)),
            waited_ns: waited_ns.saturating_sub(std::mem::replace(&mut self.waited_ns, waited_ns)),
            absent_ns: without_cpu_ns
                .saturating_sub(std::mem::replace(&mut self.without_cpu_ns, without_cpu_ns)),
            faulted: before.faults != counts.faults,
        };
        off.includes(due_ns, last_ns).then(|| TickHold::since(off.arrived_ns))
    }
}

/// The times without a CPU of a thread between two ticks.
#[derive(Debug, Clone, Copy)]
struct OffCpu {
    /// Last arrival on a CPU, or a later update of the thread's times, CLOCK_MONOTONIC ns.
    arrived_ns: u64,
    /// Time ready to run, ns.
    waited_ns: u64,
    /// Time ready to run or blocked, ns.
    absent_ns: u64,
    /// The thread has waited for a page of memory.
    faulted: bool,
}

impl OffCpu {
    /// Returns true if the thread had no CPU at `due_ns`: it waited, it read a page, or it was blocked, since
    /// it was off its CPU for longer than there was between the last tick, at `last_ns`, and `due_ns`.
    fn includes(&self, due_ns: u64, last_ns: u64) -> bool {
        let blocked = || self.absent_ns > due_ns.saturating_sub(last_ns);
        fell_into_wait(self.arrived_ns, due_ns, self.waited_ns)
            || self.arrived_ns > due_ns && (self.faulted || blocked())
    }
}

impl ForeignThread {
    /// Returns the pause if the thread waited when it was asked to stop. Such a thread stops when it has a
    /// CPU again, and its time waited has grown by then.
    fn waited(&mut self, due_ns: u64, stopped_ns: u64) -> Option<TickHold> {
        let asked = self.asked.take();
        if let Some(waits) = self.known.take() {
            return waits.then(|| TickHold::since(stopped_ns));
        }
        let (before_ns, asked_ns) = asked?;
        let waited_ns = self.statistics.read()?.waited_ns.saturating_sub(before_ns);
        // A tick due now would be requested with the same delay as this one, when the thread runs again.
        let passed_ns = stopped_ns.saturating_sub(asked_ns.saturating_sub(due_ns));
        let held = TickHold { passed_ns, stood_ns: stopped_ns };
        fell_into_wait(stopped_ns, asked_ns, waited_ns).then_some(held)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    /// Pins the calling thread to the first CPU that it may use.
    fn pin() {
        let allowed = sched_getaffinity(Pid::from_raw(0)).expect("an affinity");
        let cpu = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)).expect("a CPU");
        let mut one = CpuSet::new();
        one.set(cpu).expect("a CPU's number");
        sched_setaffinity(Pid::from_raw(0), &one).expect("an allowed CPU");
    }

    /// Ticks are due at random times of a thread which shares its CPU with another one. Between two readings
    /// of the clock the thread either runs for well under 20 us or waits. In a virtual machine its CPU may
    /// also be stolen, which no count of waits includes.
    #[test]
    fn waits_and_running_are_distinguished_whatever_their_length() {
        let stop = Arc::new(AtomicBool::new(false));
        let rival = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                pin();
                while !stop.load(Ordering::Relaxed) {
                    // Short and long runs.
                    let until = monotonic_ns() + 300_000;
                    while monotonic_ns() < until {}
                    thread::sleep(std::time::Duration::from_micros(200));
                }
            })
        };
        let ticks = thread::spawn(|| {
            pin();
            let mut detector = WaitDetector::own();
            let (mut in_waits, mut right_in_waits, mut running, mut right_running) = (0, 0, 0, 0);
            let mut due_ns = monotonic_ns() + 1_000_000;
            let mut before_ns = monotonic_ns();
            while in_waits + running < 1_000 {
                let now_ns = monotonic_ns();
                if now_ns >= due_ns {
                    let held = detector.waited_at(due_ns, now_ns);
                    let waited = held.is_some();
                    assert!(
                        held.is_none_or(|held| held.passed_ns > due_ns && held.stood_ns == held.passed_ns)
                    );
                    match now_ns - before_ns {
                        0..20_000 => {
                            running += 1;
                            right_running += u32::from(!waited);
                        }
                        // An interrupt of the host, or a wait.
                        20_000..100_000 => {}
                        _ => {
                            in_waits += 1;
                            right_in_waits += u32::from(waited);
                        }
                    }
                    // 0.7 to 1.3 ms, in steps unrelated to the rival's.
                    due_ns = monotonic_ns() + 700_000 + (now_ns / 7) % 600_000;
                }
                before_ns = now_ns;
            }
            (in_waits, right_in_waits, running, right_running)
        });
        let (in_waits, right_in_waits, running, right_running) = ticks.join().expect("no panic");
        stop.store(true, Ordering::Relaxed);
        rival.join().expect("no panic");
        assert!(in_waits >= 100 && running >= 100, "{in_waits} and {running} ticks");
        assert!(right_in_waits * 100 >= in_waits * 85, "{right_in_waits} of {in_waits} in waits");
        assert!(right_running * 100 >= running * 85, "{right_running} of {running} on a CPU");
    }

    #[test]
    fn a_gap_needs_a_wait_that_accounts_for_it() {
        assert!(fell_into_wait(150, 100, 40));
        assert!(!fell_into_wait(150, 100, 20), "an update by the scheduler's tick");
        assert!(!fell_into_wait(100, 100, 40), "on a CPU since");
        assert!(!fell_into_wait(90, 100, 1_000), "a wait before it was due");
    }

    #[test]
    fn a_gap_after_a_page_was_read_or_a_halt_is_no_time_on_a_cpu() {
        let off = OffCpu { arrived_ns: 150, waited_ns: 0, absent_ns: 30, faulted: false };
        assert!(!off.includes(100, 70), "it can have been off its CPU before the tick was due");
        assert!(off.includes(100, 71), "not for all of that time");
        assert!(!OffCpu { arrived_ns: 90, ..off }.includes(100, 99), "on a CPU since");
        let off = OffCpu { faulted: true, ..off };
        assert!(off.includes(100, 0));
        assert!(!OffCpu { arrived_ns: 90, ..off }.includes(100, 0), "read before the tick was due");
        assert!(OffCpu { waited_ns: 40, faulted: false, ..off }.includes(100, 0));
    }

    /// A timer that expires late finds a vCPU busy which was halted when the tick was due.
    #[test]
    fn a_thread_that_slept_when_the_tick_was_due_was_not_on_a_cpu() {
        let mut detector = WaitDetector::own();
        let spin = |ns| {
            let until = monotonic_ns() + ns;
            while monotonic_ns() < until {}
        };
        // The vCPU's halt.
        let sleep = || thread::sleep(std::time::Duration::from_millis(20));
        detector.waited_at(monotonic_ns(), monotonic_ns());
        sleep();
        let due_ns = monotonic_ns() - 10_000_000;
        spin(5_000_000);
        let held = detector.waited_at(due_ns, monotonic_ns()).expect("it slept");
        assert!(held.passed_ns >= due_ns + 10_000_000, "up to the wake-up the clock runs");
        // A tick that is due after the sleep.
        let waited = own_waited();
        sleep();
        spin(5_000_000);
        let due_ns = monotonic_ns();
        // The scheduler's last tick is at most 10 ms ago, so that the gap before it is 15 ms or more.
        spin(25_000_000);
        let found = detector.waited_at(due_ns, monotonic_ns());
        // Another process may have taken the CPU meanwhile, or when the sleep ended.
        let other_ns = own_waited() - waited;
        assert!(found.is_none() || other_ns > 5_000_000, "{found:?}, {other_ns} ns without a CPU");
    }

    fn own_waited() -> u64 {
        waited(&own_schedstat().expect("this host counts")).expect("alive")
    }

    /// The calling thread, as if it were another process'.
    #[derive(Debug)]
    struct OwnStatistics(File);

    impl ThreadStatistics for OwnStatistics {
        fn read(&self) -> Option<ThreadTimes> {
            ThreadTimes::read(&self.0)
        }
    }

    #[test]
    fn a_foreign_thread_waits_from_the_request_on() {
        let schedstat = own_schedstat().expect("this host counts");
        let mut detector = WaitDetector::foreign(Some(Arc::new(OwnStatistics(schedstat))));
        assert_eq!(detector.waited_at(0, u64::MAX), None, "was not asked");
        // Another thread may take this CPU in between.
        let runs = (0..100).any(|_| {
            detector.ask(monotonic_ns());
            detector.waited_at(0, monotonic_ns()).is_none()
        });
        assert!(runs, "this thread runs");
        assert_eq!(WaitDetector::Unknown.waited_at(0, u64::MAX), None);
        detector.ask(monotonic_ns());
        detector.note(true);
        assert_eq!(detector.waited_at(0, 7), Some(TickHold::since(7)), "known");
        assert_eq!(detector.waited_at(0, 7), None, "of that tick only");
        // As if it had waited since a request that was served by no sample.
        if let WaitDetector::Foreign(thread) = &mut detector {
            thread.asked = Some((0, 1));
        }
        detector.forget_request();
        assert_eq!(detector.waited_at(0, 2), None, "not stopped for this tick");
    }
}
