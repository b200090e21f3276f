//! A device's thread: waits for kicks and commands, takes requests off the queues, answers.

use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

use super::link::{Command, Link};
use super::{Broken, Interrupts, VirtioDevice};

/// A device and all that its thread needs.
pub(crate) struct Worker {
    /// The device.
    pub device: Box<dyn VirtioDevice>,
    /// Commands and kicks.
    pub link: Arc<Link>,
    /// How to tell the guest.
    pub interrupts: Arc<Interrupts>,
    /// The guest's memory.
    pub memory: GuestMemoryMmap,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("link", &self.link).finish_non_exhaustive()
    }
}

/// The queues that the driver set up; empty while the device is idle.
pub(crate) type Queues = Vec<Option<Queue>>;

impl Worker {
    /// Serves until [`Command::Stop`].
    pub(crate) fn run(mut self) {
        let mut queues = Queues::new();
        loop {
            self.wait(&queues);
            if self.turn(&mut queues).is_break() {
                return;
            }
        }
    }

    /// Does what waits to be done; breaks at [`Command::Stop`].
    pub(crate) fn turn(&mut self, queues: &mut Queues) -> ControlFlow<()> {
        match self.link.take() {
            Some(Command::Stop) => return ControlFlow::Break(()),
            Some(Command::Reset) => {
                *queues = Queues::new();
                self.link.reset_done();
            }
            Some(Command::Start(new)) => *queues = new,
            None => {}
        }
        // After a start every queue is served, whether a kick has been seen or not: it may
        // have come before.
        for (index, slot) in queues.iter_mut().enumerate() {
            let _not_kicked = self.link.kicks.get(index).map(|kick| kick.read());
            if let Some(queue) = slot
                && self.serve(index, queue) == Err(Broken)
            {
                self.link.set_broken();
                self.interrupts.config_changed();
            }
        }
        if self.link.broken() {
            *queues = Queues::new();
        }
        ControlFlow::Continue(())
    }

    /// Sleeps until there is a command or, while the device is started, a kick.
    fn wait(&self, queues: &Queues) {
        let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let kicks = self.link.kicks.iter().take(queues.len());
        let mut fds: Vec<libc::pollfd> =
            std::iter::once(&self.link.wake).chain(kicks).map(|event| readable(event.as_raw_fd())).collect();
        // SAFETY: `fds` is valid for that many entries, and its descriptors live in `link`. A
        // failed poll (EINTR, ENOMEM) is a spurious wake-up, which the caller bears.
        unsafe {
            libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1);
        }
    }

    /// Serves a queue until it is empty or a command waits.
    fn serve(&mut self, index: usize, queue: &mut Queue) -> Result<(), Broken> {
        loop {
            queue.disable_notification(&self.memory).map_err(|_| Broken)?;
            while self.serve_one(index, queue)? {
                if self.link.interrupted() {
                    return Ok(());
                }
            }
            if !queue.enable_notification(&self.memory).map_err(|_| Broken)? {
                return Ok(());
            }
        }
    }

    /// Serves the next request, if there is one.
    fn serve_one(&mut self, index: usize, queue: &mut Queue) -> Result<bool, Broken> {
        let memory = &self.memory;
        let filled = queue.avail_idx(memory, Ordering::Acquire).map_err(|_| Broken)?;
        if filled.0 == queue.next_avail() {
            return Ok(false);
        }
        // No chain although the ring says that there is one: an index beyond the ring's size or
        // a ring outside of memory.
        let chain = queue.iter(memory).map_err(|_| Broken)?.next().ok_or(Broken)?;
        let head = chain.head_index();
        let link = &self.link;
        let written = self.device.serve(memory, chain, &|| link.interrupted())?;
        if link.resetting() {
            return Ok(false);
        }
        queue.add_used(memory, head, written).map_err(|_| Broken)?;
        if queue.needs_notification(memory).map_err(|_| Broken)? {
            self.interrupts.queue_used(index);
        }
        Ok(true)
    }
}
