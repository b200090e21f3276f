//! How a machine ends: who says so, and who is told.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use crate::End;
use crate::vcpu::kick::{self, Target};

/// Shared by all threads of a machine.
#[derive(Debug)]
pub(crate) struct Control {
    /// Every vCPU is to leave KVM_RUN and end.
    pub stopping: AtomicBool,
    end: Mutex<Option<End>>,
    /// The vCPU threads that may be kicked.
    targets: Mutex<Vec<Option<Target>>>,
    running: AtomicUsize,
    ended: EventFd,
}

impl Control {
    /// For a machine with that many vCPUs, all of which are going to run.
    pub(crate) fn new(vcpus: u8) -> io::Result<Self> {
        Ok(Self {
            stopping: AtomicBool::new(false),
            end: Mutex::new(None),
            targets: Mutex::new(vec![None; usize::from(vcpus)]),
            running: AtomicUsize::new(usize::from(vcpus)),
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

    /// Ends the machine. The first reason counts.
    pub(crate) fn finish(&self, end: End) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        self.stopping.store(true, Ordering::Release);
        for target in self.targets().iter().flatten() {
            // SAFETY: a thread takes its target out, under the lock that is held here, before
            // it ends.
            unsafe { kick::send_stop(*target) };
        }
    }

    /// How the machine ended, once it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True once no vCPU runs any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0
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
        if self.control.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _full = self.control.ended.write(1);
        }
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
