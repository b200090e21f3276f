//! State that a device's registers (on vCPU threads) and its worker thread share.
//!
//! A vCPU never waits for the worker: it leaves a [`Command`] and continues. A reset is complete when
//! [`Link::resetting`] returns false, which the guest sees as a status that reads 0, as the specification
//! (4.1.4.3.1) requires.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use virtio_queue::Queue;
use vmm_sys_util::eventfd::EventFd;

/// Next step of a worker. A later command replaces one that was not begun, except that nothing replaces
/// [`Command::Stop`].
#[derive(Debug)]
pub(crate) enum Command {
    /// Serve these queues; `None` where the driver did not set one up.
    Start(Vec<Option<Queue>>),
    /// Drop the queues and do not touch guest memory any more.
    Reset,
    /// End the thread.
    Stop,
}

/// The shared half of both sides.
#[derive(Debug)]
pub(crate) struct Link {
    command: Mutex<Option<Command>>,
    /// True while a command waits: a long request has to end.
    waiting: AtomicBool,
    resetting: AtomicBool,
    broken: AtomicBool,
    /// Wakes the worker for a command.
    pub wake: EventFd,
    /// Wakes the worker for a queue; KVM writes it (ioeventfd).
    pub kicks: Vec<EventFd>,
}

impl Link {
    /// Makes a link for a device with so many queues.
    pub(crate) fn new(queues: usize) -> io::Result<Self> {
        let event = || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
        Ok(Self {
            command: Mutex::new(None),
            waiting: AtomicBool::new(false),
            resetting: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            wake: event()?,
            kicks: (0..queues).map(|_| event()).collect::<io::Result<_>>()?,
        })
    }

    /// Leaves a command for the worker and wakes it.
    pub(crate) fn post(&self, command: Command) {
        if matches!(command, Command::Reset) {
            self.resetting.store(true, Ordering::Release);
        }
        let mut slot = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*slot, Some(Command::Stop)) {
            *slot = Some(command);
        }
        self.waiting.store(true, Ordering::Release);
        // A full counter is as readable as any other.
        let _full = self.wake.write(1);
    }

    /// Takes the command that waits.
    pub(crate) fn take(&self) -> Option<Command> {
        let mut slot = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let _nothing = self.wake.read();
        self.waiting.store(false, Ordering::Release);
        slot.take()
    }

    /// Returns true if a command waits, so that a request in progress should end.
    pub(crate) fn interrupted(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Records that the worker has dropped its queues.
    pub(crate) fn reset_done(&self) {
        self.broken.store(false, Ordering::Release);
        self.resetting.store(false, Ordering::Release);
    }

    /// Returns true from a reset's begin to its end.
    pub(crate) fn resetting(&self) -> bool {
        self.resetting.load(Ordering::Acquire)
    }

    /// Records that the device needs a reset.
    pub(crate) fn set_broken(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Returns true if the device needs a reset.
    pub(crate) fn broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Wakes the worker for a queue, for kicks that KVM did not turn into an event.
    pub(crate) fn kick(&self, queue: usize) {
        if let Some(event) = self.kicks.get(queue) {
            let _full = event.write(1);
        }
    }
}
