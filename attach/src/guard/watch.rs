//! Detection of stops that do not end.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::heartbeat::{Heartbeat, held};
use crate::process::thread_file;

/// Interval between two checks of the stops, ms.
pub(super) const CHECK_MS: i32 = 50;
/// Number of checks in a row that find the same stop, before the guard ends the profiler. Checks are counted
/// instead of time: a guard that was frozen together with the profiler lets it continue.
const CHECKS: u32 = 6;
/// Time for which the guard lets a stop last, ms.
pub const HELD_LIMIT_MS: u32 = (CHECKS - 1) * CHECK_MS.unsigned_abs();
/// Maximum size of a thread's status, bytes. It has some 1,500.
const STATUS_MOST: usize = 4096;

/// Stops that the guard watches.
#[derive(Debug)]
pub(super) struct StopWatch {
    source: WatchedStops,
    detector: HangDetector,
}

/// Source of the stops that are in progress.
#[derive(Debug)]
enum WatchedStops {
    /// States of the threads, by the kernel.
    Threads(ThreadStates),
    /// The record of the profiler: vCPUs are stopped through a stub, or /proc hides the VMM from the guard
    /// (`hidepid`, proc(5)).
    Record(Heartbeat),
}

impl StopWatch {
    /// Watches the threads of `process`, as far as `tracer` stops them; without a process, the record.
    pub(super) fn new(process: Option<i32>, tracer: i32, record: Heartbeat) -> Self {
        let threads = process.map(|process| ThreadStates::new(process, tracer));
        let source = match threads.filter(ThreadStates::are_visible) {
            Some(threads) => WatchedStops::Threads(threads),
            None => WatchedStops::Record(record),
        };
        Self { source, detector: HangDetector::default() }
    }

    /// Checks all stops. Returns the duration of one that lasts too long, ms.
    pub(super) fn check(&mut self) -> Option<u32> {
        let checks = match &mut self.source {
            WatchedStops::Threads(threads) => self.detector.update(threads.stops()),
            WatchedStops::Record(record) => {
                self.detector.update(record.words().filter(|word| held(*word).is_some()))
            }
        };
        checks.map(|checks| checks.saturating_sub(1).saturating_mul(CHECK_MS.unsigned_abs()))
    }
}

/// Detector of stops that do not end.
#[derive(Debug, Default)]
struct HangDetector(Vec<(u64, u32)>);

impl HangDetector {
    /// Adds a check that found these stops, each with a number that no other stop has. Returns the number of
    /// checks in a row that found one of them, if they are enough.
    fn update(&mut self, stops: impl IntoIterator<Item = u64>) -> Option<u32> {
        let before = std::mem::take(&mut self.0);
        for stop in stops {
            let seen = before.iter().find(|(seen, _)| *seen == stop).map_or(0, |(_, checks)| *checks);
            self.0.push((stop, seen.saturating_add(1)));
        }
        let most = self.0.iter().map(|(_, checks)| *checks).max().filter(|checks| *checks >= CHECKS);
        if most.is_some() {
            // Once for each stop.
            self.0.clear();
        }
        most
    }
}

/// States of a process's threads, which are read again and again.
#[derive(Debug)]
struct ThreadStates {
    process: i32,
    tracer: i32,
    threads: HashMap<i32, ThreadState>,
}

impl ThreadStates {
    fn new(process: i32, tracer: i32) -> Self {
        Self { process, tracer, threads: HashMap::new() }
    }

    fn list(&self) -> Option<Vec<i32>> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.process)).ok()?;
        Some(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    fn are_visible(&self) -> bool {
        self.list().is_some_and(|threads| !threads.is_empty())
    }

    /// Returns the present stops by the tracer.
    fn stops(&mut self) -> Vec<u64> {
        // A process that has ended has none.
        let present = self.list().unwrap_or_default();
        self.threads.retain(|thread, _| present.contains(thread));
        let mut stops = Vec::new();
        for thread in present {
            let state = self.threads.entry(thread).or_insert_with(|| ThreadState::open(self.process, thread));
            if let Some(stop) = state.stop().filter(|stop| is_thread_of(self.tracer, stop.tracer)) {
                stops.push(u64::from(thread.cast_unsigned()) << 32 | stop.switches & 0xffff_ffff);
            }
        }
        stops
    }
}

/// Returns true if the process has this thread, or if its threads are not visible.
fn is_thread_of(process: i32, thread: i32) -> bool {
    let task = format!("/proc/{process}/task");
    !Path::new(&task).exists() || Path::new(&format!("{task}/{thread}")).exists()
}

/// Stop of a thread by a tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TracingStop {
    /// Thread that traces it.
    tracer: i32,
    /// Number of times that the thread has left its CPU by itself. Each stop is one.
    switches: u64,
}

impl TracingStop {
    /// Parses /proc/PID/task/TID/status (proc_pid_status(5)); `None` if no tracer has stopped the thread.
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim());
        if !field("State:")?.starts_with('t') {
            return None;
        }
        let tracer = field("TracerPid:")?.parse().ok()?;
        Some(Self { tracer, switches: field("voluntary_ctxt_switches:")?.parse().ok()? })
    }
}

/// Files of a thread, and its last state.
#[derive(Debug)]
struct ThreadState {
    /// Changes whenever the thread runs, and is read in a seventh of the time of its status. Not in every
    /// kernel.
    schedstat: Option<File>,
    status: Option<File>,
    ran: Option<Vec<u8>>,
    stop: Option<TracingStop>,
}

impl ThreadState {
    fn open(process: i32, thread: i32) -> Self {
        // A thread that has ended meanwhile has no stop.
        let open = |name| File::open(thread_file(process, thread, name)).ok();
        Self { schedstat: open("schedstat"), status: open("status"), ran: None, stop: None }
    }

    fn stop(&mut self) -> Option<TracingStop> {
        let ran = self.schedstat.as_ref().and_then(|file| read(file, 96));
        // To stop, a thread has to run. To continue, it has to wait for a CPU first.
        if self.stop.is_some() || ran.is_none() || ran != self.ran {
            // Before the status: a thread that runs meanwhile is read again.
            self.ran = ran;
            let status = self.status.as_ref().and_then(|file| read(file, STATUS_MOST));
            self.stop = status.and_then(|status| TracingStop::parse(&String::from_utf8_lossy(&status)));
        }
        self.stop
    }
}

fn read(file: &File, most: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; most];
    let length = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_stop_that_does_not_end_is_found_once() {
        let mut detector = HangDetector::default();
        for _ in 1..CHECKS {
            assert_eq!(detector.update([1]), None);
        }
        assert_eq!(detector.update([1]), Some(CHECKS));
        for stop in 2..100 {
            assert_eq!(detector.update([stop]), None, "each stop ends");
        }
        for _ in 0..100 {
            assert_eq!(detector.update([100]), None);
            assert_eq!(detector.update([]), None, "the thread was not stopped for a moment");
        }
    }

    #[test]
    fn only_a_stop_by_a_tracer_is_one() {
        let status = |state: &str| {
            format!(
                "Name:\tvcpu State:\nState:\t{state}\nTgid:\t7\nTracerPid:\t12\nvoluntary_ctxt_switches:\t815\n\
                 nonvoluntary_ctxt_switches:\t4711\n"
            )
        };
        let stop = TracingStop { tracer: 12, switches: 815 };
        assert_eq!(TracingStop::parse(&status("t (tracing stop)")), Some(stop));
        for state in ["T (stopped)", "R (running)", "S (sleeping)"] {
            assert_eq!(TracingStop::parse(&status(state)), None, "{state}");
        }
        assert_eq!(TracingStop::parse("State:\tt (tracing stop)\n"), None);
    }

    #[test]
    fn threads_are_known_by_their_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(is_thread_of(own, own) && !is_thread_of(own, 1) && is_thread_of(i32::MAX, 1));
        let record = Heartbeat::map(Heartbeat::new().unwrap().as_fd().try_clone_to_owned().unwrap()).unwrap();
        let mut watch = StopWatch::new(Some(own), own, record);
        assert!(matches!(watch.source, WatchedStops::Threads(_)));
        for _ in 0..CHECKS {
            assert_eq!(watch.check(), None, "no thread is stopped");
        }
    }
}
