//! A guest's driver that does what it likes: ports, PCI configuration, device registers, queues.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arbitrary::Arbitrary;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm::fuzz::Hardware;
use vmm::net::Stream;
use vmm::{Disk, DiskMode, Network, OUTPUT_PORTS, OutputPorts, PortReader};

use crate::input::{self, decode};

/// Bytes of guest memory.
const MEMORY: usize = 1 << 20;
/// Bytes of a device's window.
const WINDOW: u64 = 0x8000;
/// Bytes of the disk.
const DISK: u64 = 64 << 10;
/// Steps of a driver, at most.
const STEPS: usize = 200;
/// Addresses of the descriptors, rings and buffers of a driver that means well.
const DESCRIPTORS: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x2_0000;
const USED: u64 = 0x3_0000;
const BUFFERS: u64 = 0x4_0000;
/// Bytes from the table and rings of one queue to those of the next.
const QUEUE: u64 = 0x1000;
/// Number of queues of each device: disk, random numbers, network card, console, ports.
const DEVICE_QUEUES: [usize; DEVICES] = [1, 1, 2, 2, 6];
const DEVICES: usize = 5;
const QUEUES: usize = 6;

#[derive(Debug, Arbitrary)]
enum DriverStep {
    /// Sets one device up as the specification has it.
    Start(QueuePlace),
    /// A descriptor: index, address, length, flags, next.
    Descriptor(QueuePlace, u8, DescriptorAddress, u32, u16, u8),
    /// The header of a block request: type, sector.
    Header(u8, u32),
    /// A message about a port: id, event, value.
    Message(u8, u8, u8),
    /// The reader of a port has room for more.
    Room(bool, u16),
    /// Makes a head available, and notifies the device.
    Submit(QueuePlace, u8),
    /// Makes so many entries of the ring available at once.
    Announce(QueuePlace, u16),
    /// Writes a word into memory.
    Memory(u32, u64),
    /// Writes to a register of a device: offset, bytes, width.
    Register(QueuePlace, u16, u32, u8),
    /// Reads one.
    Read(u32, u8),
    /// Selects a configuration register and writes it: device, register, value, width.
    Config(u8, u8, u32, u8),
    /// Writes and reads a port.
    Port(u16, u32, u8),
    /// Something comes over the network: a frame of this length, or bytes as they are.
    Frame(u16),
    Cable([u8; 4]),
    /// Lets the devices work.
    Serve,
}

/// A device and one of its queues.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct QueuePlace(u8, u8);

impl QueuePlace {
    fn device(self) -> usize {
        usize::from(self.0) % DEVICES
    }

    /// Returns the queue's index.
    fn queue(self) -> usize {
        usize::from(self.1) % DEVICE_QUEUES[self.device()]
    }

    /// Returns the address of a table or ring of the queue.
    fn address(self, start: u64) -> u64 {
        start + self.queue() as u64 * QUEUE
    }
}

#[derive(Debug, Arbitrary)]
enum DescriptorAddress {
    Buffer(u16),
    Table(u16),
    Ring(bool, u16),
    Any(u64),
}

impl DescriptorAddress {
    fn address(&self) -> u64 {
        match *self {
            Self::Buffer(offset) => BUFFERS + u64::from(offset),
            Self::Table(offset) => DESCRIPTORS + u64::from(offset),
            Self::Ring(used, offset) => (if used { USED } else { AVAILABLE }) + u64::from(offset),
            Self::Any(address) => address,
        }
    }
}

/// Reader of the ports, with as much room as the input says.
#[derive(Debug)]
struct RoomyReader {
    room: Arc<[AtomicUsize; OUTPUT_PORTS]>,
    /// Never readable.
    event: UnixStream,
}

impl PortReader for RoomyReader {
    fn room(&self, port: usize, _: bool) -> usize {
        self.room[port].load(Ordering::Relaxed)
    }
    fn take(&mut self, port: usize, bytes: &[u8]) {
        let room = self.room[port].load(Ordering::Relaxed).checked_sub(bytes.len());
        let room = room.expect("no more is passed on than there is room for");
        self.room[port].store(room, Ordering::Relaxed);
    }
    fn lose(&mut self, _: usize, _: u64) {}
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
    fn acknowledge(&mut self) {}
}

struct GuestDriver {
    hardware: Hardware,
    room: Arc<[AtomicUsize; OUTPUT_PORTS]>,
    memory: GuestMemoryMmap,
    cable: UnixStream,
    next: [[u16; QUEUES]; DEVICES],
}

impl GuestDriver {
    fn put(&self, at: u64, bytes: &[u8]) {
        // Beyond memory there is nothing to be put.
        let _ = self.memory.write_slice(bytes, GuestAddress(at));
    }

    fn register(&mut self, place: QueuePlace, offset: u64, bytes: &[u8]) {
        self.hardware.write_memory(place.device() as u64 * WINDOW + offset, bytes);
    }

    fn config(&mut self, device: u8, register: u8, bytes: &[u8]) {
        let address = 1 << 31 | u32::from(device) << 11 | u32::from(register & 0xfc);
        self.hardware.write_port(0xcf8, &address.to_le_bytes());
        self.hardware.write_port(0xcfc + u16::from(register & 3), bytes);
        let mut back = [0; 4];
        self.hardware.read_port(0xcfc, &mut back);
    }

    fn start(&mut self, place: QueuePlace) {
        let device = u8::try_from(place.device() + 1).unwrap_or(0);
        self.config(device, 4, &6u16.to_le_bytes());
        self.config(device, 0x42, &0x8000u16.to_le_bytes());
        for (offset, bytes) in [(0x14, &[1][..]), (0x14, &[3]), (0x08, &[1, 0, 0, 0]), (0x0c, &[1, 0, 0, 0])]
        {
            self.register(place, offset, bytes);
        }
        self.register(place, 0x14, &[0x0b]);
        for queue in (0..6u8).map(|queue| QueuePlace(place.0, queue)).take(DEVICE_QUEUES[place.device()]) {
            let index = u16::try_from(queue.queue()).unwrap_or(0);
            self.register(place, 0x16, &index.to_le_bytes());
            self.register(place, 0x18, &16u16.to_le_bytes());
            self.register(place, 0x1a, &(index + 1).to_le_bytes());
            for (offset, address) in [(0x20, DESCRIPTORS), (0x28, AVAILABLE), (0x30, USED)] {
                let [a, b, c, d, ..] = queue.address(address).to_le_bytes();
                self.register(place, offset, &[a, b, c, d]);
                self.register(place, offset + 4, &[0; 4]);
            }
            self.register(place, 0x1c, &1u16.to_le_bytes());
        }
        self.register(place, 0x14, &[0x0f]);
        self.next[place.device()] = [0; QUEUES];
        self.hardware.serve();
    }

    fn announce(&mut self, place: QueuePlace, index: u16) {
        self.put(place.address(AVAILABLE) + 2, &index.to_le_bytes());
        self.register(place, 0x3000 + place.queue() as u64 * 4, &[0, 0]);
        self.hardware.serve();
    }

    /// Sends bytes from the other end; bytes without room are lost.
    fn cable(&mut self, bytes: &[u8]) {
        let _ = self.cable.write(bytes);
        self.hardware.serve();
    }

    fn step(&mut self, step: &DriverStep) {
        let width = |bytes: [u8; 4], choice: u8| bytes[..1 << (choice % 3)].to_vec();
        match step {
            DriverStep::Start(place) => self.start(*place),
            DriverStep::Descriptor(of, index, at, length, flags, next) => {
                let place = of.address(DESCRIPTORS) + u64::from(*index) * 16;
                self.put(place, &at.address().to_le_bytes());
                self.put(place + 8, &length.to_le_bytes());
                self.put(place + 12, &flags.to_le_bytes());
                self.put(place + 14, &u16::from(*next).to_le_bytes());
            }
            DriverStep::Header(kind, sector) => {
                self.put(BUFFERS, &u64::from(*kind).to_le_bytes());
                self.put(BUFFERS + 8, &u64::from(*sector).to_le_bytes());
            }
            DriverStep::Message(id, event, value) => {
                self.put(BUFFERS, &[*id, 0, 0, 0, *event, 0, *value, 0]);
            }
            DriverStep::Room(second, bytes) => {
                let room = &self.room[usize::from(*second)];
                room.store(usize::from(*bytes), Ordering::Relaxed);
                self.hardware.serve();
            }
            DriverStep::Submit(place, head) => {
                let next = &mut self.next[place.device()][place.queue()];
                let slot = place.address(AVAILABLE) + 4 + u64::from(*next % 16) * 2;
                *next = next.wrapping_add(1);
                let index = *next;
                self.put(slot, &u16::from(*head).to_le_bytes());
                self.announce(*place, index);
            }
            DriverStep::Announce(place, index) => self.announce(*place, *index),
            DriverStep::Memory(at, value) => self.put(u64::from(*at) % MEMORY as u64, &value.to_le_bytes()),
            DriverStep::Register(place, offset, value, choice) => {
                self.register(*place, u64::from(*offset), &width(value.to_le_bytes(), *choice));
                self.hardware.serve();
            }
            DriverStep::Read(offset, length) => {
                let mut bytes = vec![0; usize::from(*length % 9)];
                self.hardware.read_memory(u64::from(*offset), &mut bytes);
            }
            DriverStep::Config(device, register, value, choice) => {
                self.config(device % 7, *register, &width(value.to_le_bytes(), *choice));
            }
            DriverStep::Port(port, value, choice) => {
                let bytes = width(value.to_le_bytes(), *choice);
                self.hardware.write_port(*port, &bytes);
                self.hardware.read_port(*port, &mut bytes.clone());
            }
            DriverStep::Frame(length) => {
                let mut bytes = u32::from(*length).to_be_bytes().to_vec();
                bytes.resize(4 + usize::from(*length), 0x5a);
                self.cable(&bytes);
            }
            DriverStep::Cable(bytes) => self.cable(bytes),
            DriverStep::Serve => self.hardware.serve(),
        }
    }
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<(u8, Vec<DriverStep>)>(bytes) else { return };
    let (mode, steps) = input;
    let mode = match mode % 3 {
        0 => DiskMode::ReadWrite,
        1 => DiskMode::ReadOnly,
        _ => DiskMode::Snapshot,
    };
    let Ok(file) = tempfile::tempfile() else { return };
    let (Ok(()), Ok(view)) = (file.set_len(DISK), file.try_clone()) else { return };
    let Ok(memory) = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]) else { return };
    let Ok((ours, cable)) = UnixStream::pair() else { return };
    let (Ok(()), Ok(backend)) = (cable.set_nonblocking(true), Stream::new(ours)) else { return };
    let network = Network { mac: [2, 0, 0, 0, 0, 1], backend: Box::new(backend) };
    let disk = Disk { file: file.into(), mode };
    let Ok((event, _other)) = UnixStream::pair() else { return };
    let room = Arc::new([const { AtomicUsize::new(0) }; OUTPUT_PORTS]);
    let reader = RoomyReader { room: Arc::clone(&room), event };
    let ports = OutputPorts { names: ["first", "second"], reader: Box::new(reader) };
    let Some(hardware) = Hardware::new(disk, network, ports, &memory) else { return };
    let mut driver = GuestDriver { hardware, room, memory, cable, next: [[0; QUEUES]; DEVICES] };
    for step in steps.iter().take(STEPS) {
        driver.step(step);
    }
    assert_eq!(File::metadata(&view).map(|meta| meta.len()).ok(), Some(DISK), "a disk keeps its size");
    // Whatever was done, a reset makes devices that work.
    for device in 0..5 {
        driver.register(QueuePlace(device, 0), 0x14, &[0]);
        driver.hardware.serve();
    }
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
