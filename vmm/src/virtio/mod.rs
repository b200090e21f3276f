//! Virtio devices (specification: Virtual I/O Device, version 1.2).
//!
//! A device is a small file that implements [`VirtioDevice`]. [`transport`] makes it a PCI function that
//! vCPUs program; [`worker`] serves its queues on a separate thread, so that no vCPU waits for a disk. The
//! two share a [`link::Link`] and the [`Interrupts`], nothing else:
//!
//! ```text
//! vCPU threads ── registers ──> transport ── Link: start, reset ──> worker ── requests ──> device
//!      └────────── kick: ioeventfd, no exit to user space ────────────┘ │
//!      ^───────────────── MSI-X through KVM_SIGNAL_MSI ─────────────────┘
//! ```

pub(crate) mod block;
pub(crate) mod console;
mod disk;
pub(crate) mod link;
pub(crate) mod net;
pub(crate) mod ports;
mod registers;
pub(crate) mod rng;
pub(crate) mod transport;
pub(crate) mod worker;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use virtio_queue::DescriptorChain;
use vm_memory::GuestMemoryMmap;

use crate::pci::msix::Msix;

/// A request of the driver.
pub(crate) type Chain<'a> = DescriptorChain<&'a GuestMemoryMmap>;

/// The driver broke the protocol in a way that leaves no place for an answer. The device asks
/// for a reset and does nothing until it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BrokenQueue;

/// Identity of a device, as the guest sees it.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Device id (specification, chapter 5).
    pub id: u16,
    /// PCI programming interface, subclass and class.
    pub class: [u8; 3],
    /// Feature bits besides those of the transport.
    pub features: u64,
    /// Device configuration, which never changes.
    pub config: Vec<u8>,
    /// Largest size of each queue, powers of two.
    pub queues: &'static [u16],
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestResult {
    /// The request is done; the number of bytes written into the guest's buffers.
    Done(u32),
    /// The request needs something that has not come yet. It stays the first of its queue until
    /// [`VirtioDevice::source`] has something to read, or [`VirtioDevice::is_ready`].
    Waits,
}

/// One virtio device. Lives on its own thread.
pub(crate) trait VirtioDevice: Send {
    /// Returns the device's identity.
    fn identity(&self) -> Identity;

    /// Serves one request of a queue. A long request ends early once `interrupted` says so; its
    /// answer is then dropped.
    fn serve(
        &mut self,
        queue: usize,
        memory: &GuestMemoryMmap,
        chain: Chain<'_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RequestResult, BrokenQueue>;

    /// Returns a descriptor that becomes readable when something comes from outside. `None` for devices
    /// without an outside.
    fn source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns true if the first request of a queue would no longer wait, though the source may have nothing
    /// to read.
    fn is_ready(&self, queue: usize) -> bool {
        let _ = queue;
        false
    }

    /// Takes note of a request that is never answered, since the driver resets the device or the machine
    /// ends. By default that is the driver's loss.
    fn abandon(&mut self, queue: usize, memory: &GuestMemoryMmap, chain: Chain<'_>) {
        let _ = (queue, memory, chain);
    }

    /// Resets the device with its driver (specification 2.4), which no longer knows any requests in progress.
    fn reset(&mut self) {}
}

/// A device that has nothing to say to an interrupt: `VIRTIO_MSI_NO_VECTOR`.
pub(crate) const NO_VECTOR: u16 = 0xffff;
/// ISR status: a queue was used.
const ISR_QUEUE: u8 = 1;
/// ISR status: the configuration or the status changed.
const ISR_CONFIG: u8 = 2;

/// A device's ways to interrupt the guest.
#[derive(Debug)]
pub(crate) struct Interrupts {
    /// The function's MSI-X table.
    pub msix: Msix,
    isr: AtomicU8,
    config: AtomicU16,
    queues: Vec<AtomicU16>,
}

impl Interrupts {
    /// Makes interrupts without assigned vectors.
    pub(crate) fn new(msix: Msix, queues: usize) -> Arc<Self> {
        let none = || AtomicU16::new(NO_VECTOR);
        Arc::new(Self {
            msix,
            isr: AtomicU8::new(0),
            config: none(),
            queues: (0..queues).map(|_| none()).collect(),
        })
    }

    /// Interrupts the guest: requests of a queue are done.
    pub(crate) fn queue_used(&self, queue: usize) {
        self.raise(self.queues.get(queue), ISR_QUEUE);
    }

    /// Interrupts the guest: the device's status changed.
    fn config_changed(&self) {
        self.raise(Some(&self.config), ISR_CONFIG);
    }

    fn raise(&self, vector: Option<&AtomicU16>, isr: u8) {
        if !self.msix.enabled() {
            self.isr.fetch_or(isr, Ordering::AcqRel);
        } else if let Some(vector) = vector {
            // NO_VECTOR is beyond every table.
            self.msix.signal(usize::from(vector.load(Ordering::Acquire)));
        }
    }

    /// Serves the guest's read of the ISR status, which clears it.
    fn take_isr(&self) -> u8 {
        self.isr.swap(0, Ordering::AcqRel)
    }

    /// Returns the register of the configuration vector or of a queue's.
    fn vector(&self, queue: Option<u16>) -> Option<&AtomicU16> {
        match queue {
            None => Some(&self.config),
            Some(queue) => self.queues.get(usize::from(queue)),
        }
    }

    /// Serves the guest's assignment of a vector; a vector that does not exist reads back as none.
    fn assign(&self, queue: Option<u16>, vector: u16) {
        let known = usize::from(vector) < self.msix.vectors();
        if let Some(register) = self.vector(queue) {
            register.store(if known { vector } else { NO_VECTOR }, Ordering::Release);
        }
    }

    /// Returns the vector that [`Self::assign`] stored.
    fn assigned(&self, queue: Option<u16>) -> u16 {
        self.vector(queue).map_or(NO_VECTOR, |register| register.load(Ordering::Acquire))
    }

    /// Resets the vectors with the device: nothing is pending.
    fn reset(&self) {
        self.isr.store(0, Ordering::Release);
        self.config.store(NO_VECTOR, Ordering::Release);
        for queue in &self.queues {
            queue.store(NO_VECTOR, Ordering::Release);
        }
    }
}

/// Converts a device id of the bindings, which have 32-bit numbers.
const fn device_id(id: u32) -> u16 {
    assert!(id < 0x40);
    let [low, high, ..] = id.to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests;
