//! State that the threads of an attachment share: its end, pauses of the machine, events, and page tables.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vmm::ThreadId;
use vmm_sys_util::eventfd::EventFd;

use crate::memory::LastTables;

/// Reason for the end of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachmentEnd {
    /// [`crate::Attachment::stop`] was called. The machine continues to run.
    Detached,
    /// The VMM's process has ended.
    ProcessEnded,
    /// The threads of all vCPUs have ended, or the vCPUs' descriptors are closed, and the process continues:
    /// it executes another program, or has closed the machine.
    VcpusEnded,
    /// The guest was reset: all that is known of its kernel is stale.
    Reset,
    /// A vCPU was plugged in for which there is no room ([`crate::VcpuRoom::Present`]).
    Outgrown,
    /// The GDB stub has closed the connection, and the VMM's process continues, or is not visible.
    StubClosed,
    /// The GDB stub no longer answers.
    StubSilent,
}

/// Event of an attachment that is in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachEvent {
    /// The layout of the memory is proven; the text describes it.
    MemoryProven(String),
    /// The VMM has changed the memory, which the text describes.
    MemoryChanged(String),
    /// The profile lacks what the text says.
    Missing(String),
    /// The machine is paused.
    Paused(PauseCause),
    /// The machine runs again.
    Resumed,
    /// A vCPU was plugged in that can be profiled ([`crate::Attachment::adopt`]).
    Plugged(PluggedVcpu),
    /// A vCPU with this KVM number was plugged in, and cannot be profiled.
    NotAdopted(u32),
    /// The thread of the vCPU with this KVM number has ended, and the machine has not.
    Unplugged(u32),
}

/// vCPU that was plugged in during an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluggedVcpu {
    /// KVM's number.
    pub number: u32,
    /// Its place among the vCPUs of the attachment.
    pub(crate) index: usize,
    pub(crate) id: ThreadId,
}

/// Cause of a pause of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseCause {
    /// The VMM keeps every vCPU out of the guest.
    Vmm,
    /// A signal stopped the VMM's process.
    Signal,
}

/// State that the threads share.
#[derive(Debug)]
pub(crate) struct SharedState {
    over: AtomicBool,
    end: Mutex<Option<AttachmentEnd>>,
    /// vCPUs whose threads have not ended.
    left: AtomicUsize,
    pause: Mutex<Option<PauseCause>>,
    /// A sample has found a vCPU's thread in KVM_RUN since the last check.
    in_run: AtomicBool,
    /// Samples that lack memory which the host did not have in its own.
    pub(crate) swapped_out: AtomicU64,
    /// Page tables that a vCPU has used.
    pub(crate) tables: LastTables,
    events: Mutex<Vec<AttachEvent>>,
    ended: EventFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedState {
    /// Makes the state of an attachment to that many vCPU threads.
    pub(crate) fn new(vcpus: usize) -> io::Result<Self> {
        Ok(Self {
            over: AtomicBool::new(false),
            end: Mutex::new(None),
            left: AtomicUsize::new(vcpus),
            pause: Mutex::default(),
            in_run: AtomicBool::new(false),
            swapped_out: AtomicU64::new(0),
            tables: LastTables::default(),
            events: Mutex::default(),
            ended: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
        })
    }

    /// Returns true once every thread is to end.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends the attachment; the first reason counts.
    pub(crate) fn finish(&self, end: AttachmentEnd) {
        lock(&self.end).get_or_insert(end);
        self.over.store(true, Ordering::Release);
        // A full counter is readable as well.
        let _full = self.ended.write(1);
    }

    /// Returns the reason of the end.
    pub(crate) fn end(&self) -> AttachmentEnd {
        lock(&self.end).unwrap_or(AttachmentEnd::Detached)
    }

    /// Returns the cause of the present pause, if the machine is paused.
    pub(crate) fn pause(&self) -> Option<PauseCause> {
        *lock(&self.pause)
    }

    /// Sets the present pause, `None` if the machine runs; a change is an event.
    pub(crate) fn set_pause(&self, pause: Option<PauseCause>) {
        if std::mem::replace(&mut *lock(&self.pause), pause) != pause {
            self.report(pause.map_or(AttachEvent::Resumed, AttachEvent::Paused));
        }
    }

    /// Notes that a sample has found a vCPU's thread in KVM_RUN: the machine is neither paused nor closed.
    pub(crate) fn found_in_run(&self) {
        // Most samples leave the cache line as it is.
        if !self.in_run.load(Ordering::Relaxed) {
            self.in_run.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if [`Self::found_in_run`] was called since the last call of this.
    pub(crate) fn take_found_in_run(&self) -> bool {
        self.in_run.swap(false, Ordering::Relaxed)
    }

    /// Adds an event.
    pub(crate) fn report(&self, event: AttachEvent) {
        lock(&self.events).push(event);
    }

    /// Returns true if all vCPU threads have ended.
    pub(crate) fn has_no_vcpus(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Takes the events since the previous call.
    pub(crate) fn take_events(&self) -> Vec<AttachEvent> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Returns a descriptor that becomes readable at the end.
    pub(crate) fn ended_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self`, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.ended.as_raw_fd()) }
    }

    /// Records that there is one more thread of a vCPU.
    pub(crate) fn vcpu_added(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the thread of a vCPU has ended. The watcher finds out whether its process has ended as
    /// well.
    pub(crate) fn vcpu_ended(&self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_an_event_when_it_begins_and_when_it_ends() {
        let shared = SharedState::new(1).unwrap();
        shared.set_pause(None);
        shared.set_pause(Some(PauseCause::Vmm));
        shared.set_pause(Some(PauseCause::Vmm));
        assert_eq!(shared.pause(), Some(PauseCause::Vmm));
        shared.set_pause(Some(PauseCause::Signal));
        shared.set_pause(None);
        let paused = AttachEvent::Paused;
        let expected = [paused(PauseCause::Vmm), paused(PauseCause::Signal), AttachEvent::Resumed];
        assert_eq!(shared.take_events(), expected);
    }
}
