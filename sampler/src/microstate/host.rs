//! CPU times of a vCPU's thread, by the host's scheduler.

use std::fs::File;
use std::sync::Arc;

use vmm::{ThreadStatistics, ThreadTimes};

/// Reader of the times of one thread, for repeated use.
#[derive(Debug, Clone)]
pub(crate) enum ThreadReader {
    /// A thread of this process: its CPU clock and its scheduler statistics.
    Own(libc::clockid_t, Arc<File>),
    /// A thread of another process.
    Foreign(Arc<dyn ThreadStatistics>),
}

impl ThreadReader {
    /// Opens the reader of a thread of this process. `None` if the host does not count (`CONFIG_SCHED_INFO`).
    pub(crate) fn new(thread: i32) -> Option<Self> {
        let schedstat = File::open(format!("/proc/self/task/{thread}/schedstat")).ok()?;
        // MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED) of include/linux/posix-timers_types.h (Linux 6.12):
        // unlike the first number of schedstat, the clock is up to date while the thread runs.
        Some(Self::Own((!thread << 3) | 6, Arc::new(schedstat)))
    }

    /// Reads the times; `None` once the thread is gone.
    pub(crate) fn read(&self) -> Option<ThreadTimes> {
        match self {
            // The time waited first: what runs between the two readings then counts at least as run.
            Self::Own(clock, schedstat) => {
                let waited_ns = waited(schedstat)?;
                Some(ThreadTimes { run_ns: cpu_time(*clock)?, waited_ns })
            }
            Self::Foreign(statistics) => statistics.read(),
        }
    }
}

/// Returns the times of the calling thread.
pub(crate) fn own_times() -> Option<ThreadTimes> {
    Some(ThreadTimes { waited_ns: waited(&own_schedstat()?)?, run_ns: own_cpu_time()? })
}

/// Opens the scheduler's statistics of the calling thread, for [`waited`].
pub(crate) fn own_schedstat() -> Option<File> {
    File::open("/proc/thread-self/schedstat").ok()
}

/// Returns the CPU time of the calling thread, ns.
pub(crate) fn own_cpu_time() -> Option<u64> {
    cpu_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Reads the time waited so far, ns. Allocates nothing.
pub(crate) fn waited(schedstat: &File) -> Option<u64> {
    ThreadTimes::read(schedstat).map(|times| times.waited_ns)
}

/// Counts of a thread's switches and page faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadCounts {
    /// Times that the thread has left a CPU, to block or to wait.
    pub switches: u64,
    /// Times that the thread has waited for a page of memory to be read, the guest's or its own.
    pub faults: u64,
}

/// Returns the counts of the calling thread (getrusage(2), RUSAGE_THREAD); 0 if the host does not count.
pub(crate) fn own_counts() -> ThreadCounts {
    // SAFETY: rusage is plain data for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return ThreadCounts::default();
    }
    let count = |count| u64::try_from(count).unwrap_or(0);
    ThreadCounts {
        switches: count(usage.ru_nvcsw.saturating_add(usage.ru_nivcsw)),
        faults: count(usage.ru_majflt),
    }
}

fn cpu_time(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call; a clock of a thread that is gone is an error.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    let (seconds, ns) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Judged by the thread's own clock, which another process on this CPU does not move.
    #[test]
    fn running_counts_and_sleeping_does_not() {
        // SAFETY: has no preconditions.
        let thread = unsafe { libc::gettid() };
        let reader = ThreadReader::new(thread).expect("this host counts the times");
        let clock = || own_cpu_time().expect("this host has the clock");
        // Returns the CPU time by the reader, between two bounds by a clock that is read around it.
        let between = |work: &dyn Fn()| {
            let (outer, before) = (clock(), reader.read().expect("alive"));
            let inner = clock();
            work();
            let least = clock() - inner;
            let ran = reader.read().expect("alive").run_ns - before.run_ns;
            (least, ran, clock() - outer)
        };
        let (least, slept, most) = between(&|| std::thread::sleep(Duration::from_millis(50)));
        assert!((least..=most).contains(&slept), "{slept} ns in {least} to {most}");
        let spin = || {
            let start = clock();
            while clock() - start < 20_000_000 {
                std::hint::spin_loop();
            }
        };
        let (least, spun, most) = between(&spin);
        assert!(least >= 20_000_000 && (least..=most).contains(&spun), "{spun} ns in {least} to {most}");
        let read = reader.read().expect("alive");
        let own = own_times().expect("alive");
        assert!(own.run_ns >= read.run_ns && own.waited_ns >= read.waited_ns);
    }

    #[test]
    fn a_thread_that_is_gone_has_no_times() {
        let reader = std::thread::spawn(|| {
            // SAFETY: has no preconditions.
            ThreadReader::new(unsafe { libc::gettid() })
        });
        let reader = reader.join().expect("the thread ends").expect("it was alive");
        // The kernel takes a moment to reap it.
        let is_gone = || reader.read().is_none().then_some(());
        testkit::eventually("end of the thread", Duration::from_secs(5), is_gone);
        assert!(ThreadReader::new(-1).is_none());
    }
}
