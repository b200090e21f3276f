//! virtio-vsock (specification 5.10): stream sockets between programs of the guest and of the host, without a
//! network.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use vm_memory::GuestMemoryMmap;

use super::{BrokenQueue, Chain, Identity, RequestResult, VirtioDevice};
use crate::config;
use crate::vsock::{Backend, HEADER, Header, MOST_DATA};

/// Buffers or packets that may wait, per direction.
const QUEUE: u16 = 256;
/// Buffers for events that may wait.
const EVENT_QUEUE: u16 = 16;
/// The queue of buffers for packets to the guest.
const RECEIVE: usize = 0;
/// The queue of the guest's packets; the third one has buffers for events, of which there is none (5.10.6.7).
const TRANSMIT: usize = 1;
/// Feature bit `VIRTIO_VSOCK_F_STREAM` (5.10.3).
const STREAM: u64 = 1 << 0;

/// The device.
#[derive(Debug)]
pub(crate) struct Vsock {
    cid: u64,
    /// `None` once it has failed: the guest's packets then go nowhere.
    backend: Option<Box<dyn Backend>>,
    data: Vec<u8>,
}

impl Vsock {
    /// Makes a device that is connected.
    pub(crate) fn new(vsock: config::Vsock) -> Self {
        Self { cid: vsock.cid.into(), backend: Some(vsock.backend), data: vec![0; MOST_DATA] }
    }

    /// Fills a buffer with the next packet.
    fn receive(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) -> Result<RequestResult, BrokenQueue> {
        let mut writer = chain.writer(memory).map_err(|_| BrokenQueue)?;
        let room =
            writer.available_bytes().checked_sub(HEADER).filter(|room| *room > 0).ok_or(BrokenQueue)?;
        let Some(backend) = &mut self.backend else { return Ok(RequestResult::Waits) };
        match backend.receive(&mut self.data[..room.min(MOST_DATA)]) {
            Ok(Some(header)) => {
                let data = self.data.get(..header.data()).ok_or(BrokenQueue)?;
                let written = writer.write_all(&header.to_bytes()).and_then(|()| writer.write_all(data));
                written.map_err(|_| BrokenQueue)?;
                u32::try_from(HEADER + data.len()).map(RequestResult::Done).map_err(|_| BrokenQueue)
            }
            Ok(None) => Ok(RequestResult::Waits),
            Err(_) => {
                self.backend = None;
                Ok(RequestResult::Waits)
            }
        }
    }

    /// Passes a packet on. What names another sender than this guest goes nowhere.
    fn transmit(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) -> Result<RequestResult, BrokenQueue> {
        let mut reader = chain.reader(memory).map_err(|_| BrokenQueue)?;
        let mut header = [0; HEADER];
        reader.read_exact(&mut header).map_err(|_| BrokenQueue)?;
        let header = Header::from_bytes(&header);
        // More than fits into it is more than the guest ever had credit for.
        let data = self.data.get_mut(..header.data()).ok_or(BrokenQueue)?;
        reader.read_exact(data).map_err(|_| BrokenQueue)?;
        if let Some(backend) = self.backend.as_mut().filter(|_| header.src_cid == self.cid) {
            match backend.send(&header, data) {
                Ok(true) => {}
                Ok(false) => return Ok(RequestResult::Waits),
                Err(_) => self.backend = None,
            }
        }
        Ok(RequestResult::Done(0))
    }

    /// Keeps a buffer for events forever. Outside changes are noticed also while no other buffer waits for
    /// them.
    fn notice(&mut self) -> RequestResult {
        if self.backend.as_mut().is_some_and(|backend| backend.notice().is_err()) {
            self.backend = None;
        }
        RequestResult::Waits
    }
}

impl VirtioDevice for Vsock {
    fn identity(&self) -> Identity {
        Identity {
            id: super::device_id(VIRTIO_ID_VSOCK),
            // Simple communication controller, other.
            class: [0, 0x80, 0x07],
            features: STREAM,
            // struct virtio_vsock_config: guest_cid (8).
            config: self.cid.to_le_bytes().to_vec(),
            queues: &[QUEUE, QUEUE, EVENT_QUEUE],
        }
    }

    fn serve(
        &mut self,
        queue: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        _: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        match queue {
            RECEIVE => self.receive(memory, chain),
            TRANSMIT => self.transmit(memory, chain),
            _ => Ok(self.notice()),
        }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.backend.as_ref().map(|backend| backend.descriptor())
    }

    fn is_ready(&self, queue: usize) -> bool {
        match (queue, &self.backend) {
            (RECEIVE, Some(backend)) => backend.can_receive(),
            (TRANSMIT, Some(backend)) => backend.can_send(),
            (TRANSMIT, None) => true,
            _ => false,
        }
    }

    fn reset(&mut self) {
        if let Some(backend) = &mut self.backend {
            backend.reset();
        }
    }
}
