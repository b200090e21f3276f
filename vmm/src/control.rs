//! How a machine ends or stands still: who says so, and who is told.
//!
//! # Standing still
//!
//! ```text
//!  holder                                  each vCPU thread
//!  hold: PAUSE set, all kicked ──────────▶ KVM_RUN returns EINTR, pending I/O of the guest is complete
//!  waits until parked = running ◀───────── park: parked + 1
//!  changes guest memory                    waits
//!  Held dropped: PAUSE cleared ──────────▶ parked - 1, KVM_RUN
//! ```
//!
//! A thread that ends counts no more, so a stop cannot hold up the holder. A vCPU thread may be the holder; it counts as
//! parked from the moment it asks, so that two that ask at once do not wait for each other. The wait is bounded.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use crate::End;
use crate::vcpu::kick::{self, Target};

/// Every vCPU is to leave KVM_RUN and end.
const STOP: u8 = 1;
/// Every vCPU is to leave KVM_RUN and park.
const PAUSE: u8 = 2;

/// Shared by all threads of a machine.
#[derive(Debug)]
pub(crate) struct Control {
    /// What is wanted of every vCPU.
    wanted: AtomicU8,
    end: Mutex<Option<End>>,
    still: Mutex<Still>,
    changed: Condvar,
    /// The vCPU threads that may be kicked.
    targets: Mutex<Vec<Option<Target>>>,
    ended: EventFd,
}

/// Who runs and who stands still.
#[derive(Debug)]
struct Still {
    /// vCPU threads that have not ended.
    running: usize,
    /// Those of them that stay out of KVM_RUN as long as it is held.
    parked: usize,
    held: bool,
}

impl Control {
    /// For a machine with that many vCPUs, all of which are going to run.
    pub(crate) fn new(vcpus: u8) -> io::Result<Self> {
        Ok(Self {
            wanted: AtomicU8::new(0),
            end: Mutex::new(None),
            still: Mutex::new(Still { running: usize::from(vcpus), parked: 0, held: false }),
            changed: Condvar::new(),
            targets: Mutex::new(vec![None; usize::from(vcpus)]),
            ended: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
        })
    }

    fn targets(&self) -> MutexGuard<'_, Vec<Option<Target>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread is that vCPU's until the returned value is dropped.
    pub(crate) fn attend(&self, vcpu: u8) -> Attendance<'_> {
        if let Some(target) = self.targets().get_mut(usize::from(vcpu)) {
            *target = Some(Target::current());
        }
        Attendance { control: self, vcpu }
    }

    fn still(&self) -> MutexGuard<'_, Still> {
        self.still.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when a vCPU must not enter KVM_RUN before it has called [`Control::park`] and looked at
    /// [`Control::stopping`].
    pub(crate) fn wants_something(&self) -> bool {
        self.wanted.load(Ordering::Acquire) != 0
    }

    /// True once the machine is to end.
    pub(crate) fn stopping(&self) -> bool {
        self.wanted.load(Ordering::Acquire) & STOP != 0
    }

    /// Ends the machine. The first reason counts.
    pub(crate) fn finish(&self, end: End) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        self.wanted.fetch_or(STOP, Ordering::Release);
        self.kick_all();
    }

    fn kick_all(&self) {
        for target in self.targets().iter().flatten() {
            // SAFETY: a thread takes its target out, under the lock that is held here, before
            // it ends.
            unsafe { kick::send_stop(*target) };
        }
    }

    /// Lets every vCPU stand still, all pending I/O complete, until the result is dropped. `vcpu` is true on a vCPU's own
    /// thread, whose I/O must be complete too.
    ///
    /// # Errors
    ///
    /// The number of vCPUs that did not leave KVM_RUN or their devices within `limit`. All run on then.
    pub(crate) fn hold(&self, vcpu: bool, limit: Duration) -> Result<Held<'_>, usize> {
        let start = Instant::now();
        let left = || limit.saturating_sub(start.elapsed());
        let mut still = self.still();
        still.parked += usize::from(vcpu);
        self.changed.notify_all();
        while still.held && !left().is_zero() {
            still = self.wait_for_change(still, left());
        }
        if still.held {
            still.parked -= usize::from(vcpu);
            return Err(still.running.saturating_sub(still.parked));
        }
        still.held = true;
        self.wanted.fetch_or(PAUSE, Ordering::Release);
        self.kick_all();
        while still.parked < still.running && !left().is_zero() {
            still = self.wait_for_change(still, left());
        }
        let missing = still.running.saturating_sub(still.parked);
        drop(still);
        let held = Held { control: self, vcpu };
        if missing == 0 { Ok(held) } else { Err(missing) }
    }

    fn wait_for_change<'a>(&self, still: MutexGuard<'a, Still>, limit: Duration) -> MutexGuard<'a, Still> {
        self.changed.wait_timeout(still, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Called by a vCPU thread that is out of KVM_RUN with no I/O pending: waits as long as somebody holds all vCPUs.
    /// True if it had to.
    pub(crate) fn park(&self) -> bool {
        if self.wanted.load(Ordering::Acquire) & PAUSE == 0 {
            return false;
        }
        let mut still = self.still();
        let waited = still.held;
        still.parked += 1;
        self.changed.notify_all();
        while still.held {
            // The holder's own wait is bounded, and it lets go when it is dropped.
            still = self.changed.wait(still).unwrap_or_else(PoisonError::into_inner);
        }
        still.parked -= 1;
        waited
    }

    /// How the machine ended, once it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True once no vCPU runs any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.still().running == 0
    }

    /// Readable once no vCPU runs any more.
    pub(crate) fn ended_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self`, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.ended.as_raw_fd()) }
    }

    /// Waits until no vCPU runs any more; false if that took longer than `limit`.
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

/// A vCPU thread's presence. Dropped last, also when the thread panics.
#[derive(Debug)]
pub(crate) struct Attendance<'a> {
    control: &'a Control,
    vcpu: u8,
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.control.finish(End::Failed(format!("vCPU {}: its thread panicked", self.vcpu)));
        }
        if let Some(target) = self.control.targets().get_mut(usize::from(self.vcpu)) {
            *target = None;
        }
        let mut still = self.control.still();
        still.running = still.running.saturating_sub(1);
        let last = still.running == 0;
        drop(still);
        self.control.changed.notify_all();
        if last {
            let _full = self.control.ended.write(1);
        }
    }
}

/// All vCPUs stand still as long as this lives.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    control: &'a Control,
    vcpu: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut still = self.control.still();
        still.held = false;
        still.parked -= usize::from(self.vcpu);
        self.control.wanted.fetch_and(!PAUSE, Ordering::Release);
        drop(still);
        self.control.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let control = Control::new(1).unwrap();
        control.finish(End::PowerOff);
        control.finish(End::Stopped);
        assert_eq!(control.end(), Some(End::PowerOff));
    }

    #[test]
    fn the_machine_has_ended_when_its_last_vcpu_has() {
        kick::install_handler().unwrap();
        let control = Control::new(2).unwrap();
        let first = control.attend(0);
        let second = control.attend(1);
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
        assert_eq!(control.hold(false, Duration::from_millis(20)).unwrap_err(), 2);
        assert!(!control.wants_something() && !control.park());
        let threads: Vec<_> = (0..2)
            .map(|vcpu| {
                let control = std::sync::Arc::clone(&control);
                std::thread::spawn(move || {
                    let _here = control.attend(vcpu);
                    let mut parked = 0;
                    while !control.stopping() {
                        parked += usize::from(control.park());
                        std::thread::yield_now();
                    }
                    parked
                })
            })
            .collect();
        let limit = Duration::from_secs(20);
        for _ in 0..50 {
            let held = control.hold(false, limit).unwrap();
            assert_eq!(control.still().parked, 2);
            drop(held);
        }
        control.finish(End::Stopped);
        let parked: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(parked.iter().all(|&times| times > 0), "{parked:?}");
        // A machine that has ended stands still.
        drop(control.hold(false, limit).unwrap());
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
                    let _here = control.attend(vcpu);
                    for _ in 0..50 {
                        let held = control.hold(true, Duration::from_secs(20)).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(held);
                        control.park();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(control.has_ended() && !control.wants_something());
        let still = control.still();
        assert_eq!((still.running, still.parked, still.held), (0, 0, false));
    }

    #[test]
    fn a_panic_ends_the_machine() {
        kick::install_handler().unwrap();
        let control = std::sync::Arc::new(Control::new(1).unwrap());
        let shared = std::sync::Arc::clone(&control);
        let thread = std::thread::spawn(move || {
            let _here = shared.attend(0);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(thread.join().is_err());
        assert!(control.has_ended());
        assert!(matches!(control.end(), Some(End::Failed(reason)) if reason.contains("panicked")));
    }
}
