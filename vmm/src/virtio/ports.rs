//! virtio-console with named ports (specification 5.3, `VIRTIO_CONSOLE_F_MULTIPORT`), which carry the output
//! of a command. Linux makes `/dev/vportNpM` of each; no port is a console, so no getty and no kernel message
//! takes one.
//!
//! ```text
//! driver ── DEVICE_READY ───────────────> device
//!        <─────────── DEVICE_ADD of each port
//!        ── PORT_READY ─────────────────>
//!        <─── PORT_NAME, PORT_OPEN ──────         from here on the guest's programs can write
//! ```
//!
//! A port without room at its reader leaves the guest's buffers in the queue: the guest's writer then waits.
//! Bytes that are still there at the end of the machine were written before it, and are taken then.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;

use vm_memory::GuestMemoryMmap;

use super::console::{CHUNK, identity};
use super::{BrokenQueue, Chain, Identity, RequestResult, VirtioDevice};
use crate::config::{self, OUTPUT_PORTS, PortReader};

/// Buffers that may wait, per queue. Linux puts up to 32 KiB into one, and 64 KiB by splice (port_fops_write
/// and port_fops_splice_write, drivers/char/virtio_console.c): at most 2 MiB wait.
const QUEUE: u16 = 32;
/// The queues: input and output of port 0, control in both directions, input and output of each further port.
const QUEUES: [u16; 2 + 2 * OUTPUT_PORTS] = [QUEUE; 2 + 2 * OUTPUT_PORTS];
/// Feature bit `VIRTIO_CONSOLE_F_MULTIPORT` (5.3.3).
const MULTIPORT: u64 = 1 << 1;

/// Length of struct virtio_console_control: id (4), event (2), value (2) (5.3.6.2).
const MESSAGE: usize = 8;
/// Its events.
const DEVICE_READY: u16 = 0;
const DEVICE_ADD: u16 = 1;
const PORT_READY: u16 = 3;
const PORT_OPEN: u16 = 6;
const PORT_NAME: u16 = 7;

/// Purpose of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueUse {
    /// Buffers for a port's input, of which there is none.
    Input,
    /// Output of this port.
    Output(usize),
    /// Buffers for messages to the driver.
    ToDriver,
    /// Messages of the driver.
    FromDriver,
}

impl QueueUse {
    fn new(queue: usize) -> Self {
        match queue {
            1 => Self::Output(0),
            2 => Self::ToDriver,
            3 => Self::FromDriver,
            queue if queue % 2 == 0 => Self::Input,
            queue => Self::Output(queue / 2 - 1),
        }
    }
}

/// One port. What is to be said about it is a set, so that a driver that asks again and again fills nothing.
#[derive(Debug, Default)]
struct Port {
    name: &'static str,
    /// Events that the driver has not been sent yet, in this order.
    add: bool,
    named: bool,
    open: bool,
    /// Bytes of the first waiting buffer that were taken.
    taken: usize,
}

impl Port {
    fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    /// Takes the next message to the driver off the set: event, value, and text after it.
    fn next_message(&mut self) -> Option<(u16, u16, &'static str)> {
        if std::mem::take(&mut self.add) {
            Some((DEVICE_ADD, 0, ""))
        } else if std::mem::take(&mut self.named) {
            Some((PORT_NAME, 1, self.name))
        } else if std::mem::take(&mut self.open) {
            Some((PORT_OPEN, 1, ""))
        } else {
            None
        }
    }

    fn has_message(&self) -> bool {
        self.add || self.named || self.open
    }
}

/// The device.
#[derive(Debug)]
pub(crate) struct Ports {
    ports: [Port; OUTPUT_PORTS],
    reader: Box<dyn PortReader>,
    buffer: Vec<u8>,
}

impl Ports {
    /// Makes a device with these ports.
    pub(crate) fn new(ports: config::OutputPorts) -> Self {
        Self { ports: ports.names.map(Port::new), reader: ports.reader, buffer: vec![0; CHUNK] }
    }

    /// Sends the driver the next message.
    fn send(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) -> Result<RequestResult, BrokenQueue> {
        let mut messages = (0u32..).zip(&mut self.ports);
        let Some((id, (event, value, text))) =
            messages.find_map(|(id, port)| port.next_message().map(|message| (id, message)))
        else {
            return Ok(RequestResult::Waits);
        };
        let mut message = Vec::with_capacity(MESSAGE + text.len());
        message.extend(id.to_le_bytes());
        message.extend(event.to_le_bytes());
        message.extend(value.to_le_bytes());
        message.extend(text.as_bytes());
        let mut writer = chain.writer(memory).map_err(|_| BrokenQueue)?;
        // Fails where the buffer is shorter.
        writer.write_all(&message).map_err(|_| BrokenQueue)?;
        u32::try_from(message.len()).map(RequestResult::Done).map_err(|_| BrokenQueue)
    }

    /// Notes a message of the driver. Those about ports that do not exist, and about failures of the driver,
    /// have no answer.
    fn note(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) -> Result<RequestResult, BrokenQueue> {
        let mut message = [0; MESSAGE];
        let mut reader = chain.reader(memory).map_err(|_| BrokenQueue)?;
        reader.read_exact(&mut message).map_err(|_| BrokenQueue)?;
        let [a, b, c, d, e, f, g, h] = message;
        let id = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        match (u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h]), self.ports.get_mut(id)) {
            (DEVICE_READY, 1, _) => self.ports.iter_mut().for_each(|port| port.add = true),
            (PORT_READY, 1, Some(port)) => (port.named, port.open) = (true, true),
            _ => {}
        }
        Ok(RequestResult::Done(0))
    }

    /// Takes output of a port, as much as its reader has room for; `at_end` takes what the guest will not
    /// wait for. Returns true if that was all of the buffer.
    fn take(
        &mut self,
        port: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        at_end: bool,
    ) -> Result<bool, BrokenQueue> {
        let state = &mut self.ports[port];
        let mut whole = chain.reader(memory).map_err(|_| BrokenQueue)?;
        // The guest may have made the buffer shorter since.
        let mut rest = whole.split_at(state.taken).map_err(|_| BrokenQueue)?;
        while rest.available_bytes() > 0 {
            let length = rest.available_bytes().min(CHUNK).min(self.reader.room(port, at_end));
            if length == 0 {
                if at_end {
                    self.reader.lose(port, rest.available_bytes() as u64);
                }
                return Ok(false);
            }
            let chunk = &mut self.buffer[..length];
            rest.read_exact(chunk).map_err(|_| BrokenQueue)?;
            self.reader.take(port, chunk);
            state.taken += length;
        }
        state.taken = 0;
        Ok(true)
    }
}

impl VirtioDevice for Ports {
    fn identity(&self) -> Identity {
        identity(MULTIPORT, OUTPUT_PORTS, &QUEUES)
    }

    fn serve(
        &mut self,
        queue: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        _: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        self.reader.acknowledge();
        match QueueUse::new(queue) {
            QueueUse::Output(port) => {
                let all = self.take(port, memory, chain, false)?;
                Ok(if all { RequestResult::Done(0) } else { RequestResult::Waits })
            }
            QueueUse::ToDriver => self.send(memory, chain),
            QueueUse::FromDriver => self.note(memory, chain),
            // Waits forever.
            QueueUse::Input => Ok(RequestResult::Waits),
        }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reader.descriptor())
    }

    fn is_ready(&self, queue: usize) -> bool {
        match QueueUse::new(queue) {
            QueueUse::Output(port) => self.reader.room(port, false) > 0,
            QueueUse::ToDriver => self.ports.iter().any(Port::has_message),
            QueueUse::Input | QueueUse::FromDriver => false,
        }
    }

    fn abandon(&mut self, queue: usize, memory: &GuestMemoryMmap, chain: Chain<'_>) {
        if let QueueUse::Output(port) = QueueUse::new(queue) {
            // A buffer outside of memory has nothing to be taken.
            let _broken = self.take(port, memory, chain, true);
            // The next one is another buffer.
            self.ports[port].taken = 0;
        }
    }

    fn reset(&mut self) {
        for port in &mut self.ports {
            *port = Port::new(port.name);
        }
    }
}
