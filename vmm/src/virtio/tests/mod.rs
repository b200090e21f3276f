//! Transport, worker and devices together: [`Rig`] is a device with its thread, and the guest's side of
//! it. [`driver`] uses it as a guest's driver would, [`hostile`] as it should not.

mod console;
mod driver;
mod hostile;
mod network;
mod ports;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

use super::block::Block;
use super::link::{Command, Link};
use super::rng::Rng;
use super::transport::{BAR_SIZE, Doorbells, VirtioPci};
use super::worker::Worker;
use super::{Interrupts, VirtioDevice};
use crate::config::{Disk, DiskMode};
use crate::memory::PCI_WINDOW_START;
use crate::pci::PciDevice;
use crate::pci::config::{BAR0, COMMAND};
use crate::pci::msix::tests::Messages;
use crate::pci::msix::{MessageSink, Msix};

const MEMORY: u64 = 8 << 20;
const DESCRIPTORS: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x2_0000;
const USED: u64 = 0x3_0000;
/// Bytes from the tables and rings of a queue to those of the next one.
const QUEUE_STEP: u64 = 0x1000;
const BUFFERS: u64 = 0x10_0000;
const SIZE: u16 = 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Which doorbells hang where.
#[derive(Debug, Default)]
struct Bells(Mutex<Vec<u64>>);

impl Doorbells for Bells {
    fn attach(&self, address: u64, _: &EventFd) -> bool {
        self.0.lock().unwrap().push(address);
        true
    }
    fn detach(&self, address: u64, _: &EventFd) {
        self.0.lock().unwrap().retain(|bell| *bell != address);
    }
}

/// A device with its thread, and the guest's side of it.
struct Rig {
    pci: VirtioPci,
    memory: GuestMemoryMmap,
    messages: Arc<Messages>,
    bells: Arc<Bells>,
    link: Arc<Link>,
    thread: Option<JoinHandle<()>>,
    /// The queue that everything below is about, and how many there are.
    queue: u16,
    queues: u16,
    next: [u16; 6],
}

impl Rig {
    fn new(device: Box<dyn VirtioDevice>) -> Self {
        let size = usize::try_from(MEMORY).unwrap();
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)]).unwrap();
        let identity = device.identity();
        let queues = identity.queues.len();
        let link = Arc::new(Link::new(queues).unwrap());
        let messages = Arc::new(Messages::default());
        let bells = Arc::new(Bells::default());
        let sink: Arc<dyn MessageSink> = Arc::<Messages>::clone(&messages);
        let doorbells: Arc<dyn Doorbells> = Arc::<Bells>::clone(&bells);
        let interrupts = Interrupts::new(Msix::new(queues + 1, sink), queues);
        let worker = Worker {
            device,
            link: Arc::clone(&link),
            interrupts: Arc::clone(&interrupts),
            memory: memory.clone(),
        };
        let thread = std::thread::spawn(move || worker.run());
        let window = u32::try_from(PCI_WINDOW_START).unwrap();
        let pci = VirtioPci::new(&identity, window, Arc::clone(&link), interrupts, memory.clone(), doorbells);
        Self {
            pci,
            memory,
            messages,
            bells,
            link,
            thread: Some(thread),
            queue: 0,
            queues: u16::try_from(queues).unwrap(),
            next: [0; 6],
        }
    }

    fn disk(mode: DiskMode, sectors: u64) -> (Self, std::fs::File) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(sectors * 512).unwrap();
        let disk = Disk { file: file.try_clone().unwrap().into(), mode };
        (Self::new(Box::new(Block::new(3, disk).unwrap())), file)
    }

    fn read<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.pci.read_memory(offset, &mut data);
        data
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.pci.write_memory(offset, data);
    }

    fn status(&mut self) -> u8 {
        self.read::<1>(0x14)[0]
    }

    fn address(&mut self, offset: u64, address: u64) {
        let [low, high] = [address & 0xffff_ffff, address >> 32].map(|half| u32::try_from(half).unwrap());
        self.write(offset, &low.to_le_bytes());
        self.write(offset + 4, &high.to_le_bytes());
    }

    /// Performs the driver's initialization (specification 3.1.1), with MSI-X vector 0 for the configuration,
    /// and those after it for the queues.
    fn start(&mut self) {
        self.pci.write_config(COMMAND, &6u16.to_le_bytes());
        // Message control of the MSI-X capability, which is the first one.
        self.pci.write_config(0x42, &0x8000u16.to_le_bytes());
        for vector in 0..=u64::from(self.queues) {
            let entry = 0x4000 + vector * 16;
            self.write(entry, &0xfee0_0000u64.to_le_bytes());
            self.write(entry + 8, &(0x40 + u32::try_from(vector).unwrap()).to_le_bytes());
            self.write(entry + 12, &0u32.to_le_bytes());
        }
        self.write(0x14, &[1]);
        self.write(0x14, &[3]);
        self.write(0x08, &1u32.to_le_bytes());
        self.write(0x0c, &1u32.to_le_bytes());
        self.write(0x14, &[0x0b]);
        assert_eq!(self.status(), 0x0b, "features were accepted");
        self.write(0x10, &0u16.to_le_bytes());
        for queue in 0..self.queues {
            let offset = u64::from(queue) * QUEUE_STEP;
            self.write(0x16, &queue.to_le_bytes());
            self.write(0x18, &SIZE.to_le_bytes());
            self.write(0x1a, &(queue + 1).to_le_bytes());
            self.address(0x20, DESCRIPTORS + offset);
            self.address(0x28, AVAILABLE + offset);
            self.address(0x30, USED + offset);
            self.write(0x1c, &1u16.to_le_bytes());
        }
        self.write(0x14, &[0x0f]);
    }

    /// Selects a queue for the next calls.
    fn on(&mut self, queue: u16) -> &mut Self {
        self.queue = queue;
        self
    }

    /// Returns the address of a table or ring of the queue.
    fn ring_address(&self, start: u64) -> u64 {
        start + u64::from(self.queue) * QUEUE_STEP
    }

    fn next(&self) -> u16 {
        self.next[usize::from(self.queue)]
    }

    fn descriptor(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let at = self.ring_address(DESCRIPTORS) + u64::from(index) * 16;
        self.put_descriptor(at, address, length, flags, next);
    }

    /// Fills the table and the ring of the queue with these descriptors and heads of chains, whatever they
    /// say.
    fn scribble(&self, descriptors: &[(u64, u32, u16, u16)], heads: &[u16]) {
        for (index, (address, length, flags, next)) in (0..).zip(descriptors) {
            self.descriptor(index, *address, *length, *flags, *next);
        }
        for (slot, head) in (0u64..).zip(heads) {
            self.memory.write_obj(*head, GuestAddress(self.ring_address(AVAILABLE) + 4 + slot * 2)).unwrap();
        }
    }

    fn put_descriptor(&self, at: u64, address: u64, length: u32, flags: u16, next: u16) {
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(length, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    /// Makes descriptor `head` available and kicks.
    fn submit(&mut self, head: u16) {
        let next = self.next();
        let slot = self.ring_address(AVAILABLE) + 4 + u64::from(next % SIZE) * 2;
        self.memory.write_obj(head, GuestAddress(slot)).unwrap();
        self.next[usize::from(self.queue)] = next.wrapping_add(1);
        self.announce(next.wrapping_add(1));
    }

    fn announce(&mut self, index: u16) {
        self.memory.write_obj(index, GuestAddress(self.ring_address(AVAILABLE) + 2)).unwrap();
        self.write(0x3000 + u64::from(self.queue) * 4, &self.queue.to_le_bytes());
    }

    fn used(&self) -> u16 {
        self.memory.read_obj(GuestAddress(self.ring_address(USED) + 2)).unwrap()
    }

    /// Waits until the last request was answered; the number of bytes that the device wrote.
    fn answer(&mut self) -> u32 {
        let next = self.next();
        until(|| self.used() == next);
        let slot = self.ring_address(USED) + 4 + u64::from((next - 1) % SIZE) * 8;
        self.memory.read_obj(GuestAddress(slot + 4)).unwrap()
    }

    /// Makes a block request of header, data and status; returns the status.
    fn request(&mut self, kind: u32, sector: u64, data: u32, writable: bool) -> u8 {
        self.header(kind, sector);
        let flags = NEXT | if writable { WRITE } else { 0 };
        self.descriptor(0, BUFFERS, 16, NEXT, 1);
        self.descriptor(1, BUFFERS + 0x1000, data, flags, 2);
        self.descriptor(2, BUFFERS + 0x800, 1, WRITE, 0);
        self.submit(0);
        self.answer();
        self.memory.read_obj(GuestAddress(BUFFERS + 0x800)).unwrap()
    }

    fn header(&self, kind: u32, sector: u64) {
        self.memory.write_obj(u64::from(kind), GuestAddress(BUFFERS)).unwrap();
        self.memory.write_obj(sector, GuestAddress(BUFFERS + 8)).unwrap();
        self.memory.write_obj(0xee_u8, GuestAddress(BUFFERS + 0x800)).unwrap();
    }

    fn reset(&mut self) {
        self.write(0x14, &[0]);
        until(|| self.status() == 0);
        self.next = [0; 6];
        for queue in 0..self.queues {
            let offset = u64::from(queue) * QUEUE_STEP;
            self.memory.write_obj(0u32, GuestAddress(AVAILABLE + offset)).unwrap();
            self.memory.write_obj(0u32, GuestAddress(USED + offset)).unwrap();
        }
    }

    /// Expects that the device requests a reset, reports that once, and starts again.
    fn expect_broken(&mut self) {
        until(|| self.status() & 0x40 != 0);
        until(|| self.messages.0.lock().unwrap().contains(&(0xfee0_0000, 0x40)));
        self.messages.0.lock().unwrap().clear();
        self.reset();
        self.start();
    }

    /// Does the same as [`Self::expect_broken`], and expects that the disk works again.
    fn expect_broken_then_recover(&mut self) {
        self.expect_broken();
        assert_eq!(self.request(0, 0, 512, true), 0, "works again");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.link.post(Command::Stop);
        let thread = self.thread.take().unwrap();
        if !std::thread::panicking() {
            until(|| thread.is_finished());
        }
    }
}

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain");
        std::thread::sleep(Duration::from_micros(100));
    }
}
