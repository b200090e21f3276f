//! virtio-net (specification 5.1): one network card with a queue for each direction, without offloads.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;

use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP};
use vm_memory::GuestMemoryMmap;

use super::{BrokenQueue, Chain, Identity, RequestResult, VirtioDevice};
use crate::config::Network;
use crate::net::Backend;

/// Buffers or frames that may wait, per direction.
const QUEUE: u16 = 256;
/// The queue of buffers for frames from outside; the other one, 1, has the guest's frames.
const RECEIVE: usize = 0;
/// Bytes of `struct virtio_net_hdr` of a device of version 1 (5.1.6).
const HEADER: usize = 12;
/// A frame of 1500 bytes with its Ethernet header, which every receive buffer has to hold (5.1.6.3.1).
const FRAME: usize = 1514;
/// The longest frame that is moved: one with a VLAN tag.
const LONGEST: usize = FRAME + 4;

/// The header of a frame that nothing is known of but that it is whole: `num_buffers` is 1.
const PLAIN: [u8; HEADER] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// The card.
#[derive(Debug)]
pub(crate) struct Net {
    mac: [u8; 6],
    /// `None` once it has failed: the guest's frames then go nowhere.
    backend: Option<Box<dyn Backend>>,
    frame: Vec<u8>,
}

impl Net {
    /// Makes a card that is plugged in.
    pub(crate) fn new(network: Network) -> Self {
        // One byte more than the longest frame, to see which are longer.
        Self { mac: network.mac, backend: Some(network.backend), frame: vec![0; LONGEST + 1] }
    }

    /// Fills a buffer with the next frame that fits into it. Longer ones are dropped.
    fn receive(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        let mut writer = chain.writer(memory).map_err(|_| BrokenQueue)?;
        let room =
            writer.available_bytes().checked_sub(HEADER).filter(|room| *room >= FRAME).ok_or(BrokenQueue)?;
        let longest = room.min(LONGEST);
        while !interrupted() {
            let Some(backend) = &mut self.backend else { return Ok(RequestResult::Waits) };
            match backend.receive(&mut self.frame) {
                Ok(Some(length)) if length <= longest => {
                    let frame = self.frame.get(..length).ok_or(BrokenQueue)?;
                    writer
                        .write_all(&PLAIN)
                        .and_then(|()| writer.write_all(frame))
                        .map_err(|_| BrokenQueue)?;
                    return u32::try_from(HEADER + length).map(RequestResult::Done).map_err(|_| BrokenQueue);
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(RequestResult::Waits),
                Err(_) => self.backend = None,
            }
        }
        Ok(RequestResult::Waits)
    }

    /// Sends a frame on its way. What is longer than a frame can be goes nowhere, as on a real wire.
    fn transmit(&mut self, memory: &GuestMemoryMmap, chain: Chain<'_>) -> Result<RequestResult, BrokenQueue> {
        let mut reader = chain.reader(memory).map_err(|_| BrokenQueue)?;
        let mut header = [0; HEADER];
        reader.read_exact(&mut header).map_err(|_| BrokenQueue)?;
        let length = reader.available_bytes();
        if let Some(frame) = self.frame.get_mut(..length).filter(|frame| frame.len() <= LONGEST) {
            reader.read_exact(frame).map_err(|_| BrokenQueue)?;
            if self.backend.as_mut().is_some_and(|backend| backend.send(frame).is_err()) {
                self.backend = None;
            }
        }
        Ok(RequestResult::Done(0))
    }
}

impl VirtioDevice for Net {
    fn identity(&self) -> Identity {
        // struct virtio_net_config: mac (6), status (2).
        let mut config = self.mac.to_vec();
        let [up, ..] = VIRTIO_NET_S_LINK_UP.to_le_bytes();
        config.extend([up, 0]);
        Identity {
            id: super::device_id(VIRTIO_ID_NET),
            // Network controller, Ethernet.
            class: [0, 0, 0x02],
            features: 1 << VIRTIO_NET_F_MAC | 1 << VIRTIO_NET_F_STATUS,
            config,
            queues: &[QUEUE, QUEUE],
        }
    }

    fn serve(
        &mut self,
        queue: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue> {
        if queue == RECEIVE { self.receive(memory, chain, interrupted) } else { self.transmit(memory, chain) }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.backend.as_ref().map(|backend| backend.descriptor())
    }
}
