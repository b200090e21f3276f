//! Control of a machine's vCPU threads: ending them, and pausing all of them.
//!
//! # Pausing
//!
//! ```text
//!  holder                                   each vCPU thread
//!  pause: PAUSE set, all kicked ──────────▶ KVM_RUN returns EINTR, pending I/O of the guest is complete
//!  waits until parked = running ◀────────── park: parked + 1
//!  changes guest memory                     waits
//!  PauseGuard dropped: PAUSE cleared ─────▶ parked - 1, KVM_RUN
//! ```
//!
//! A thread that ends is no longer counted as running, so a stop cannot block the holder. A vCPU thread may
//! be the holder. It counts as parked from the moment of its request, so two concurrent holders do not wait
//! for each other.
//!
//! The wait of other holders is bounded by a number of short waits and not by a time: CLOCK_MONOTONIC
//! advances while the process is stopped (SIGSTOP, a frozen control group), and no vCPU can park in that
//! time. A vCPU that must not enter the guest before it had the pause waits until the machine is stopped
//! ([`PauseLimit::Stop`]).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use crate::end::MachineEnd;
use crate::vcpu::kick::{self, KickTarget};

/// Request that every vCPU leaves KVM_RUN and ends.
const STOP: u8 = 1;
/// Request that every vCPU leaves KVM_RUN and parks.
const PAUSE: u8 = 2;

/// Duration of one wait of a holder.
const WAIT: Duration = Duration::from_millis(10);

/// Limit for pausing all vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PauseLimit {
    /// That time, counted in waits of [`WAIT`].
    Time(Duration),
    /// The request to stop the machine.
    Stop,
}

/// Remainder of a [`PauseLimit`].
struct PauseWaits {
    /// `None`: as many as it takes.
    left: Option<u128>,
}

impl PauseWaits {
    fn new(limit: PauseLimit) -> Self {
        let left = match limit {
            PauseLimit::Time(limit) => Some(limit.as_nanos().div_ceil(WAIT.as_nanos())),
            PauseLimit::Stop => None,
        };
        Self { left }
    }
}

/// State that all threads of a machine share.
#[derive(Debug)]
pub(crate) struct Control {
    /// Requests to every vCPU: [`STOP`], [`PAUSE`].
    requests: AtomicU8,
    end: Mutex<Option<MachineEnd>>,
    counts: Mutex<ThreadCounts>,
    changed: Condvar,
    /// vCPU threads that may be kicked, by vCPU.
    targets: Mutex<Vec<Option<KickTarget>>>,
    ended: EventFd,
}

/// Counts of vCPU threads.
#[derive(Debug)]
struct ThreadCounts {
    /// Threads that have not ended.
    running: usize,
    /// Threads among them that stay out of KVM_RUN as long as the machine is paused.
    parked: usize,
    /// The machine has a holder.
    paused: bool,
}

impl Control {
    /// Makes the control of a machine with that many vCPUs, all of which are going to run.
    pub(crate) fn new(vcpus: u8) -> io::Result<Self> {
        Ok(Self {
            requests: AtomicU8::new(0),
            end: Mutex::new(None),
            counts: Mutex::new(ThreadCounts { running: usize::from(vcpus), parked: 0, paused: false }),
            changed: Condvar::new(),
            targets: Mutex::new(vec![None; usize::from(vcpus)]),
            ended: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
        })
    }

    fn targets(&self) -> MutexGuard<'_, Vec<Option<KickTarget>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the calling thread as that vCPU's until the returned guard is dropped.
    pub(crate) fn register(&self, vcpu: u8) -> RunningGuard<'_> {
        if let Some(target) = self.targets().get_mut(usize::from(vcpu)) {
            *target = Some(KickTarget::current());
        }
        RunningGuard { control: self, vcpu }
    }

    fn counts(&self) -> MutexGuard<'_, ThreadCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a vCPU must call [`Control::park`] and check [`Control::stopping`] before it enters
    /// KVM_RUN.
    pub(crate) fn has_request(&self) -> bool {
        self.requests.load(Ordering::Acquire) != 0
    }

    /// Returns true once the machine is to end.
    pub(crate) fn stopping(&self) -> bool {
        self.requests.load(Ordering::Acquire) & STOP != 0
    }

    /// Ends the machine. The first reason counts.
    pub(crate) fn finish(&self, end: MachineEnd) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        self.requests.fetch_or(STOP, Ordering::Release);
        self.kick_all();
    }

    fn kick_all(&self) {
        for target in self.targets().iter().flatten() {
            // SAFETY: a thread removes its target before it ends, under the lock that is held here.
            unsafe { kick::send_stop(*target) };
        }
    }

    /// Pauses every vCPU, with all pending I/O complete, until the guard is dropped. `vcpu` is true on a
    /// vCPU's own thread, whose I/O must be complete as well.
    ///
    /// # Errors
    ///
    /// The number of vCPUs that did not leave KVM_RUN or their devices within `limit`. All vCPUs run again
    /// then. With [`PauseLimit::Stop`] the machine is to be stopped.
    pub(crate) fn pause(&self, vcpu: bool, limit: PauseLimit) -> Result<PauseGuard<'_>, usize> {
        let mut waits = PauseWaits::new(limit);
        let mut counts = self.counts();
        counts.parked += usize::from(vcpu);
        self.changed.notify_all();
        // There is one holder at a time.
        while counts.paused && self.may_wait(&waits) {
            counts = self.wait_for_change(counts, &mut waits);
        }
        if counts.paused {
            counts.parked -= usize::from(vcpu);
            return Err(counts.running.saturating_sub(counts.parked));
        }
        counts.paused = true;
        self.requests.fetch_or(PAUSE, Ordering::Release);
        self.kick_all();
        while counts.parked < counts.running && self.may_wait(&waits) {
            counts = self.wait_for_change(counts, &mut waits);
        }
        let missing = counts.running.saturating_sub(counts.parked);
        drop(counts);
        // Dropped on failure, which lets the vCPUs run again.
        let guard = PauseGuard { control: self, vcpu };
        if missing == 0 { Ok(guard) } else { Err(missing) }
    }

    /// Returns true if a holder may wait once more.
    fn may_wait(&self, waits: &PauseWaits) -> bool {
        waits.left.map_or_else(|| !self.stopping(), |left| left > 0)
    }

    /// Waits once, at most for [`WAIT`].
    fn wait_for_change<'a>(
        &self,
        counts: MutexGuard<'a, ThreadCounts>,
        waits: &mut PauseWaits,
    ) -> MutexGuard<'a, ThreadCounts> {
        let (counts, timeout) =
            self.changed.wait_timeout(counts, WAIT).unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            waits.left = waits.left.map(|left| left.saturating_sub(1));
        }
        counts
    }

    /// Waits as long as the machine is paused; returns true if it was. To be called by a vCPU thread that is
    /// out of KVM_RUN with no I/O pending.
    pub(crate) fn park(&self) -> bool {
        if self.requests.load(Ordering::Acquire) & PAUSE == 0 {
            return false;
        }
        let mut counts = self.counts();
        let waited = counts.paused;
        counts.parked += 1;
        self.changed.notify_all();
        while counts.paused {
            // The holder's own wait ends at the latest when the machine is stopped, and its guard ends the
            // pause when it is dropped.
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
        counts.parked -= 1;
        waited
    }

    /// Returns the reason of the end, once there is one.
    pub(crate) fn end(&self) -> Option<MachineEnd> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true once all vCPU threads have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.counts().running == 0
    }

    /// Returns a descriptor that is readable once all vCPU threads have ended.
    pub(crate) fn ended_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self`, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.ended.as_raw_fd()) }
    }

    /// Waits until all vCPU threads have ended; returns false if that took longer than `limit`.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        let start = Instant::now();
        while !self.has_ended() {
            let left = match limit.map(|limit| limit.saturating_sub(start.elapsed())) {
                None => -1,
                Some(Duration::ZERO) => return false,
                Some(left) => i32::try_from(left.as_millis().saturating_add(1)).unwrap_or(i32::MAX),
            };
            let mut ended = libc::pollfd { fd: self.ended.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the pointer is valid for one entry. A failed poll (EINTR) is tried again.
            unsafe {
                libc::poll(&raw mut ended, 1, left);
            }
        }
        true
    }
}

/// Registration of a running vCPU thread. Dropped last, also when the thread panics.
#[derive(Debug)]
pub(crate) struct RunningGuard<'a> {
    control: &'a Control,
    vcpu: u8,
}

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.control.finish(MachineEnd::Failed(format!("vCPU {}: its thread panicked", self.vcpu)));
        }
        if let Some(target) = self.control.targets().get_mut(usize::from(self.vcpu)) {
            *target = None;
        }
        let mut counts = self.control.counts();
        counts.running = counts.running.saturating_sub(1);
        let last = counts.running == 0;
        drop(counts);
        self.control.changed.notify_all();
        if last {
            let _full = self.control.ended.write(1);
        }
    }
}

/// Pause of all vCPUs, which lasts until the guard is dropped.
#[derive(Debug)]
pub(crate) struct PauseGuard<'a> {
    control: &'a Control,
    /// The holder is a vCPU thread, which counts as parked.
    vcpu: bool,
}

impl Drop for PauseGuard<'_> {
    fn drop(&mut self) {
        let mut counts = self.control.counts();
        counts.paused = false;
        counts.parked -= usize::from(self.vcpu);
        self.control.requests.fetch_and(!PAUSE, Ordering::Release);
        drop(counts);
        self.control.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let control = Control::new(1).unwrap();
        control.finish(MachineEnd::PowerOff);
        control.finish(MachineEnd::Stopped);
        assert_eq!(control.end(), Some(MachineEnd::PowerOff));
    }

    #[test]
    fn the_machine_has_ended_when_its_last_vcpu_has() {
        kick::install_handler().unwrap();
        let control = Control::new(2).unwrap();
        let first = control.register(0);
        let second = control.register(1);
        drop(first);
        assert!(!control.has_ended());
        assert!(!control.wait(Some(Duration::from_millis(5))));
        drop(second);
        assert!(control.has_ended());
        assert!(control.wait(None));
    }

    #[test]
    fn a_holder_gets_all_or_gives_up_in_time() {
        kick::install_handler().unwrap();
        let control = std::sync::Arc::new(Control::new(2).unwrap());
        assert_eq!(control.pause(false, PauseLimit::Time(Duration::from_millis(20))).unwrap_err(), 2);
        assert!(!control.has_request() && !control.park());
        let threads: Vec<_> = (0..2)
            .map(|vcpu| {
                let control = std::sync::Arc::clone(&control);
                std::thread::spawn(move || {
                    let _here = control.register(vcpu);
                    let mut parked = 0;
                    while !control.stopping() {
                        parked += usize::from(control.park());
                        std::thread::yield_now();
                    }
                    parked
                })
            })
            .collect();
        let limit = PauseLimit::Time(Duration::from_secs(20));
        for _ in 0..50 {
            let guard = control.pause(false, limit).unwrap();
            assert_eq!(control.counts().parked, 2);
            drop(guard);
        }
        control.finish(MachineEnd::Stopped);
        let parked: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(parked.iter().all(|&times| times > 0), "{parked:?}");
        // A machine that has ended is paused at once.
        drop(control.pause(false, limit).unwrap());
    }

    #[test]
    fn vcpus_that_hold_at_once_take_turns() {
        kick::install_handler().unwrap();
        let control = std::sync::Arc::new(Control::new(3).unwrap());
        let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let threads: Vec<_> = (0..3)
            .map(|vcpu| {
                let (control, inside) = (std::sync::Arc::clone(&control), std::sync::Arc::clone(&inside));
                std::thread::spawn(move || {
                    let _here = control.register(vcpu);
                    for _ in 0..50 {
                        let guard = control.pause(true, PauseLimit::Stop).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                        control.park();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(control.has_ended() && !control.has_request());
        let counts = control.counts();
        assert_eq!((counts.running, counts.parked, counts.paused), (0, 0, false));
    }

    #[test]
    fn a_panic_ends_the_machine() {
        kick::install_handler().unwrap();
        let control = std::sync::Arc::new(Control::new(1).unwrap());
        let shared = std::sync::Arc::clone(&control);
        let thread = std::thread::spawn(move || {
            let _here = shared.register(0);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(thread.join().is_err());
        assert!(control.has_ended());
        assert!(matches!(control.end(), Some(MachineEnd::Failed(reason)) if reason.contains("panicked")));
    }
}
