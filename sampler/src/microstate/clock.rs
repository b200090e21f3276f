//! Clock of one vCPU's thread: one time stamp per change of state; the time goes to the state that ends.
//!
//! The thread writes, the collector reads, and neither waits. A version number shows a reader that a change
//! was in progress (a sequence lock with one writer, which never retries).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering, fence};

use vmm::{ThreadId, ThreadTimes};

use super::host::ThreadReader;

/// Activity of a vCPU's thread, as the thread itself knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// In KVM_RUN.
    Run,
    /// Serving an exit.
    Vmm,
    /// Reading a sample.
    Sampler,
    /// Held: the vCPU is paused.
    Paused,
}

impl ThreadState {
    const ALL: [Self; 4] = [Self::Run, Self::Vmm, Self::Sampler, Self::Paused];
}

/// Times in each state since the thread's start, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StateTimes {
    pub run: u64,
    pub vmm: u64,
    pub sampler: u64,
    pub paused: u64,
}

impl StateTimes {
    pub(crate) fn wall(&self) -> u64 {
        [self.vmm, self.sampler, self.paused].iter().fold(self.run, |sum, ns| sum.saturating_add(*ns))
    }
}

/// Clock of the thread's states. Its own cache line keeps the vCPUs from disturbing each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct StateClock {
    /// Odd while a change is in progress; 0 before the start.
    version: AtomicU64,
    state: AtomicU64,
    since_ns: AtomicU64,
    ns: [AtomicU64; ThreadState::ALL.len()],
    ended: AtomicU64,
    thread: AtomicI32,
    /// Process that the thread belongs to; 0 for this one.
    process: AtomicI32,
    /// Reader of the times of a thread of another process.
    foreign: OnceLock<ThreadReader>,
    /// The thread's times when its clock started.
    first: [AtomicU64; 2],
    /// The thread's times when it ended.
    last: [AtomicU64; 2],
}

/// Number of times that a reader retries during a change, which takes a few ns.
const TRIES: usize = 1_000;

impl StateClock {
    /// Starts the clock in state `Vmm`. Called once, on the vCPU's thread.
    pub(crate) fn start(&self, now_ns: u64, times: Option<ThreadTimes>) {
        // SAFETY: has no preconditions.
        let thread = unsafe { libc::gettid() };
        self.start_as(ThreadId { process: 0, thread }, now_ns, times);
    }

    /// Starts the clock of a thread of another process, whose times `reader` reads.
    pub(crate) fn start_of(&self, id: ThreadId, reader: Option<ThreadReader>, now_ns: u64) {
        let times = reader.as_ref().and_then(ThreadReader::read);
        if let Some(reader) = reader {
            // Set once: a clock is started once.
            drop(self.foreign.set(reader));
        }
        self.start_as(id, now_ns, times);
    }

    fn start_as(&self, ThreadId { process, thread }: ThreadId, now_ns: u64, times: Option<ThreadTimes>) {
        self.process.store(process, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
        let ThreadTimes { run_ns, waited_ns } = times.unwrap_or_default();
        self.first[0].store(run_ns, Ordering::Relaxed);
        self.first[1].store(waited_ns, Ordering::Relaxed);
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.state.store(ThreadState::Vmm as u64, Ordering::Relaxed);
        self.version.store(2, Ordering::Release);
    }

    /// Changes the state at `now_ns`. Only the vCPU's thread calls this.
    pub(crate) fn change(&self, to: ThreadState, now_ns: u64) {
        self.write(|| {
            let since_ns = self.since_ns.load(Ordering::Relaxed);
            let left = self.state.load(Ordering::Relaxed);
            if let Some(ns) = usize::try_from(left).ok().and_then(|left| self.ns.get(left)) {
                let spent = now_ns.saturating_sub(since_ns);
                ns.store(ns.load(Ordering::Relaxed).wrapping_add(spent), Ordering::Relaxed);
            }
            self.state.store(to as u64, Ordering::Relaxed);
            // A stamp that is older than the last one must not count time twice.
            self.since_ns.store(now_ns.max(since_ns), Ordering::Relaxed);
        });
    }

    /// Makes a change that readers see as a whole.
    #[inline]
    fn write(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Moves time that was counted as `Run`, at most `ns`, to `Sampler`. Only the vCPU's thread calls this.
    pub(crate) fn charge_to_sampler(&self, ns: u64) {
        let [run, sampler] = [ThreadState::Run, ThreadState::Sampler].map(|state| &self.ns[state as usize]);
        self.write(|| {
            let counted = run.load(Ordering::Relaxed);
            let moved = ns.min(counted);
            run.store(counted - moved, Ordering::Relaxed);
            sampler.store(sampler.load(Ordering::Relaxed).wrapping_add(moved), Ordering::Relaxed);
        });
    }

    /// Enters or leaves the paused state, unless the thread is there already. Only the vCPU's thread calls
    /// this.
    pub(crate) fn pause(&self, held: bool, now_ns: u64) {
        if held != (self.state.load(Ordering::Relaxed) == ThreadState::Paused as u64) {
            self.change(if held { ThreadState::Paused } else { ThreadState::Run }, now_ns);
        }
    }

    /// Ends the clock with the thread: time stops.
    pub(crate) fn end(&self, now_ns: u64, times: Option<ThreadTimes>) {
        if let Some(ThreadTimes { run_ns, waited_ns }) = times {
            self.last[0].store(run_ns, Ordering::Relaxed);
            self.last[1].store(waited_ns, Ordering::Relaxed);
        }
        self.change(ThreadState::Vmm, now_ns);
        self.ended.store(1, Ordering::Release);
    }

    /// Returns true if the thread belongs to another process.
    pub(crate) fn is_foreign(&self) -> bool {
        self.process.load(Ordering::Relaxed) != 0
    }

    /// Returns a reader of the thread's times, once the thread has started.
    pub(crate) fn reader(&self) -> Option<ThreadReader> {
        let thread = Some(self.thread.load(Ordering::Relaxed)).filter(|thread| *thread != 0)?;
        match self.process.load(Ordering::Relaxed) {
            0 => ThreadReader::new(thread),
            _ => self.foreign.get().cloned(),
        }
    }

    /// Returns the thread's times when its clock started.
    pub(crate) fn first(&self) -> ThreadTimes {
        ThreadTimes {
            run_ns: self.first[0].load(Ordering::Relaxed),
            waited_ns: self.first[1].load(Ordering::Relaxed),
        }
    }

    /// Returns the thread's times when it ended, once it has ended.
    pub(crate) fn last(&self) -> Option<ThreadTimes> {
        let ended = self.ended.load(Ordering::Acquire) != 0;
        ended.then(|| ThreadTimes {
            run_ns: self.last[0].load(Ordering::Relaxed),
            waited_ns: self.last[1].load(Ordering::Relaxed),
        })
    }

    /// Returns the time now (or of the thread's end), and the times in each state until then. `None` before
    /// the thread's start, and if the host stopped the thread in the middle of a change. `now` reads the
    /// clock inside of the retry loop, so that a reader that loses its CPU does not mix two times.
    pub(crate) fn read(&self, now: impl Fn() -> u64) -> Option<(u64, StateTimes)> {
        for _ in 0..TRIES {
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                return None;
            }
            let mut ns = ThreadState::ALL.map(|state| self.ns[state as usize].load(Ordering::Relaxed));
            let state = self.state.load(Ordering::Relaxed);
            let since_ns = self.since_ns.load(Ordering::Relaxed);
            let ended = self.ended.load(Ordering::Relaxed) != 0;
            let until_ns = if ended { since_ns } else { now().max(since_ns) };
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                let present = usize::try_from(state).ok().and_then(|state| ns.get_mut(state));
                if let Some(ns) = present {
                    *ns = ns.saturating_add(until_ns - since_ns);
                }
                let [run, vmm, sampler, paused] = ns;
                return Some((until_ns, StateTimes { run, vmm, sampler, paused }));
            }
            std::hint::spin_loop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn the_time_goes_to_the_state_that_is_left() {
        let clock = StateClock::default();
        assert_eq!(clock.read(|| 5), None);
        clock.start(100, None);
        clock.change(ThreadState::Run, 110);
        clock.change(ThreadState::Sampler, 150);
        clock.change(ThreadState::Paused, 153);
        clock.change(ThreadState::Run, 160);
        assert_eq!(clock.read(|| 170), Some((170, StateTimes { run: 50, vmm: 10, sampler: 3, paused: 7 })));
        assert_eq!(clock.last(), None);
        clock.end(200, Some(ThreadTimes { run_ns: 7, waited_ns: 8 }));
        let end = StateTimes { run: 80, vmm: 10, sampler: 3, paused: 7 };
        assert_eq!((clock.read(|| 1_000), end.wall()), (Some((200, end)), 100));
        assert_eq!(clock.last(), Some(ThreadTimes { run_ns: 7, waited_ns: 8 }));
    }

    #[test]
    fn time_that_is_charged_to_the_sampler_is_moved() {
        let clock = StateClock::default();
        clock.start(100, None);
        clock.change(ThreadState::Run, 100);
        clock.change(ThreadState::Sampler, 150);
        clock.charge_to_sampler(20);
        assert_eq!(clock.read(|| 153).map(|(_, times)| (times.run, times.sampler)), Some((30, 23)));
        clock.charge_to_sampler(31);
        assert_eq!(clock.read(|| 153).map(|(_, times)| (times.run, times.sampler)), Some((0, 53)));
    }

    #[test]
    fn a_stamp_that_goes_backwards_adds_nothing() {
        let clock = StateClock::default();
        clock.start(100, None);
        clock.change(ThreadState::Run, 200);
        clock.change(ThreadState::Vmm, 150);
        clock.change(ThreadState::Run, 210);
        assert_eq!(clock.read(|| 300).map(|(_, times)| times.wall()), Some(200));
    }

    /// However reader and writer meet, the sum is the time that has passed.
    #[test]
    fn a_reader_never_sees_half_a_change() {
        let clock = Arc::new(StateClock::default());
        let done = Arc::new(AtomicBool::new(false));
        clock.start(0, None);
        let (writing, stop) = (Arc::clone(&clock), Arc::clone(&done));
        let writer = std::thread::spawn(move || {
            let mut now = 0;
            while !stop.load(Ordering::Relaxed) {
                for state in ThreadState::ALL {
                    now += 7;
                    writing.change(state, now);
                }
            }
        });
        let mut seen = 0;
        while seen < 20_000 {
            // At a time before the last change nothing is added to what was counted.
            if let Some((until_ns, times)) = clock.read(|| 0) {
                assert_eq!(times.wall(), until_ns, "{times:?}");
                seen += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends");
    }
}
