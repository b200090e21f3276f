//! A device's thread: waits for kicks, commands and what comes from outside, takes requests off the queues,
//! answers.

use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

use super::link::{Command, Link};
use super::{BrokenQueue, Interrupts, RequestResult, VirtioDevice};

/// Requests of one queue that are served before the next queue has its turn.
const BURST: usize = 64;

/// A device and all that its thread needs.
pub(crate) struct Worker {
    /// The device.
    pub device: Box<dyn VirtioDevice>,
    /// Commands and kicks.
    pub link: Arc<Link>,
    /// Interrupts to the guest.
    pub interrupts: Arc<Interrupts>,
    /// The guest's memory.
    pub memory: GuestMemoryMmap,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("link", &self.link).finish_non_exhaustive()
    }
}

/// The queues that the driver set up, and what is left to do on them.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Empty while the device is idle.
    list: Vec<Option<Queue>>,
    /// Those whose first request waits for the device's source.
    waits: Vec<usize>,
    /// A queue has requests that nobody is going to kick for.
    more: bool,
}

/// Why a queue is not served any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It is empty, or a command waits.
    Nothing,
    /// Its first request waits for the device's source.
    Waits,
    /// It has had its turn.
    More,
}

impl Worker {
    /// Serves until [`Command::Stop`].
    pub(crate) fn run(mut self) {
        let mut queues = Queues::default();
        loop {
            self.wait(&queues);
            if self.turn(&mut queues).is_break() {
                return;
            }
        }
    }

    /// Runs pending work; breaks at [`Command::Stop`].
    pub(crate) fn turn(&mut self, queues: &mut Queues) -> ControlFlow<()> {
        match self.link.take() {
            Some(Command::Stop) => {
                self.abandon(queues);
                return ControlFlow::Break(());
            }
            Some(Command::Reset) => {
                self.abandon(queues);
                *queues = Queues::default();
                self.device.reset();
                self.link.reset_done();
            }
            Some(Command::Start(list)) => *queues = Queues { list, ..Queues::default() },
            None => {}
        }
        queues.waits.clear();
        queues.more = false;
        // After a start every queue is served, whether a kick has been seen or not: it may
        // have come before.
        for (index, slot) in queues.list.iter_mut().enumerate() {
            let _not_kicked = self.link.kicks.get(index).map(|kick| kick.read());
            let Some(queue) = slot else { continue };
            match self.serve(index, queue) {
                Ok(Left::Nothing) => {}
                Ok(Left::Waits) => queues.waits.push(index),
                Ok(Left::More) => queues.more = true,
                Err(BrokenQueue) => {
                    self.link.set_broken();
                    self.interrupts.config_changed();
                }
            }
        }
        if self.link.broken() {
            *queues = Queues::default();
        }
        // A queue that came later may have brought what an earlier one waits for.
        queues.more |= queues.waits.iter().any(|index| self.device.is_ready(*index));
        ControlFlow::Continue(())
    }

    /// Hands the device all requests that will not be answered.
    fn abandon(&mut self, queues: &mut Queues) {
        for (index, queue) in queues.list.iter_mut().enumerate() {
            // Nothing can be read from a broken ring.
            let chains = queue.as_mut().and_then(|queue| queue.iter(&self.memory).ok());
            chains.into_iter().flatten().for_each(|chain| self.device.abandon(index, &self.memory, chain));
        }
    }

    /// Sleeps until there is a command or, while the device is started, a kick or what a request waits for.
    fn wait(&self, queues: &Queues) {
        let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let kicks = self.link.kicks.iter().take(queues.list.len());
        let events = std::iter::once(&self.link.wake).chain(kicks).map(AsRawFd::as_raw_fd);
        let source =
            self.device.source().filter(|_| !queues.waits.is_empty()).map(|source| source.as_raw_fd());
        let mut fds: Vec<libc::pollfd> = events.chain(source).map(readable).collect();
        let patience = if queues.more { 0 } else { -1 };
        // SAFETY: `fds` is valid for that many entries, and its descriptors live in `link` and in
        // the device. A failed poll (EINTR, ENOMEM) is a spurious wake-up, which the caller tolerates.
        unsafe {
            libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, patience);
        }
    }

    /// Serves a queue until it is empty, has to wait, has had its turn, or a command waits.
    fn serve(&mut self, index: usize, queue: &mut Queue) -> Result<Left, BrokenQueue> {
        let mut served = 0;
        loop {
            queue.disable_notification(&self.memory).map_err(|_| BrokenQueue)?;
            while let Some(answer) = self.serve_one(index, queue)? {
                served += 1;
                match answer {
                    RequestResult::Waits => return Ok(Left::Waits),
                    RequestResult::Done(_) if self.link.interrupted() => return Ok(Left::Nothing),
                    RequestResult::Done(_) if served == BURST => return Ok(Left::More),
                    RequestResult::Done(_) => {}
                }
            }
            if !queue.enable_notification(&self.memory).map_err(|_| BrokenQueue)? {
                return Ok(Left::Nothing);
            }
        }
    }

    /// Serves the next request, if there is one.
    fn serve_one(&mut self, index: usize, queue: &mut Queue) -> Result<Option<RequestResult>, BrokenQueue> {
        let memory = &self.memory;
        let filled = queue.avail_idx(memory, Ordering::Acquire).map_err(|_| BrokenQueue)?;
        if filled.0 == queue.next_avail() {
            return Ok(None);
        }
        // No chain although the ring says that there is one: an index beyond the ring's size or
        // a ring outside of memory.
        let chain = queue.iter(memory).map_err(|_| BrokenQueue)?.next().ok_or(BrokenQueue)?;
        let head = chain.head_index();
        let link = &self.link;
        let served = self.device.serve(index, memory, chain, &|| link.interrupted())?;
        match served {
            RequestResult::Waits => queue.go_to_previous_position(),
            RequestResult::Done(_) if link.resetting() => return Ok(None),
            RequestResult::Done(written) => {
                queue.add_used(memory, head, written).map_err(|_| BrokenQueue)?;
                if queue.needs_notification(memory).map_err(|_| BrokenQueue)? {
                    self.interrupts.queue_used(index);
                }
            }
        }
        Ok(Some(served))
    }
}
