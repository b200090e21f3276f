//! virtio-console (specification 5.3) with one port, which Linux calls `hvc0`. A whole buffer is one kick,
//! where a serial port takes an exit for each byte.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use super::{BrokenQueue, Chain, Identity, RequestResult, VirtioDevice};
use crate::config;

/// Buffers that may wait, per direction.
const QUEUE: u16 = 64;
/// The queue of buffers for what is typed; the other one, 1, has the guest's output.
const RECEIVE: usize = 0;
/// Number of bytes that are moved at once; between two moves of a console a reset or a stop is noticed.
pub(super) const CHUNK: usize = 4 << 10;
/// Most bytes that wait for the guest.
const MOST_INPUT: usize = 64 << 10;

/// Returns the identity of a virtio-console with these features, so many ports and these queues.
pub(super) fn identity(features: u64, ports: usize, queues: &'static [u16]) -> Identity {
    // struct virtio_console_config: cols (2), rows (2), max_nr_ports (4), emerg_wr (4), each of which counts
    // only with its feature (5.3.4).
    let mut config = vec![0; 12];
    config[4..8].copy_from_slice(&u32::try_from(ports).unwrap_or(u32::MAX).to_le_bytes());
    Identity {
        id: super::device_id(VIRTIO_ID_CONSOLE),
        // Simple communication controller, other.
        class: [0, 0x80, 0x07],
        features,
        config,
        queues,
    }
}

/// Console input for the guest.
#[derive(Debug)]
pub(crate) struct Input {
    waiting: Mutex<VecDeque<u8>>,
    /// Readable after something was typed.
    event: EventFd,
}

impl Input {
    /// Makes an empty input.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let event = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(Arc::new(Self { waiting: Mutex::new(VecDeque::new()), event }))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes for the guest; returns how many were accepted.
    pub(crate) fn put(&self, bytes: &[u8]) -> usize {
        let mut waiting = self.lock();
        let taken = bytes.len().min(MOST_INPUT.saturating_sub(waiting.len()));
        waiting.extend(&bytes[..taken]);
        // A full counter is as readable as any other.
        let _full = self.event.write(1);
        taken
    }

    /// Moves the first bytes into `into`; how many those are.
    fn take(&self, into: &mut [u8]) -> usize {
        // First, so that what is typed from now on is not missed.
        let _nothing = self.event.read();
        // Reading from a queue in memory does not fail.
        self.lock().read(into).unwrap_or(0)
    }
}

/// The console.
#[derive(Debug)]
pub(crate) struct Console {
    output: config::Console,
    input: Arc<Input>,
    buffer: Vec<u8>,
}

impl Console {
    /// Makes a console whose output goes to `output`.
    pub(crate) fn new(output: config::Console, input: Arc<Input>) -> Self {
        Self { output, input, buffer: vec![0; CHUNK] }
    }

    fn receive(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) -> Result<RequestResult, BrokenQueue> {
        let mut writer = chain.writer(memory).map_err(|_| BrokenQueue)?;
        let room = writer.available_bytes().min(CHUNK);
        if room == 0 {
            return Err(BrokenQueue);
        }
        let taken = self.input.take(&mut self.buffer[..room]);
        if taken == 0 {
            return Ok(RequestResult::Waits);
        }
        writer.write_all(&self.buffer[..taken]).map_err(|_| BrokenQueue)?;
        u32::try_from(taken).map(RequestResult::Done).map_err(|_| BrokenQueue)
    }

    /// Serves the guest's output. A sink that fails loses the bytes, as a terminal that is switched off
    /// would.
    fn transmit(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        let mut reader = chain.reader(memory).map_err(|_| BrokenQueue)?;
        while reader.available_bytes() > 0 && !interrupted() {
            let length = reader.available_bytes().min(CHUNK);
            let chunk = &mut self.buffer[..length];
            reader.read_exact(chunk).map_err(|_| BrokenQueue)?;
            let _lost = self.output.0.write_all(chunk);
        }
        Ok(RequestResult::Done(0))
    }
}

impl VirtioDevice for Console {
    fn identity(&self) -> Identity {
        identity(0, 0, &[QUEUE, QUEUE])
    }

    fn serve(
        &mut self,
        queue: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        if queue == RECEIVE { self.receive(memory, chain) } else { self.transmit(memory, chain, interrupted) }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is the event's, which lives as long as this borrow of it.
        Some(unsafe { BorrowedFd::borrow_raw(self.input.event.as_raw_fd()) })
    }
}
