//! Ways in for the fuzz targets: what a guest does to devices, and what a kernel file does to the loader.
//! Nothing here needs KVM, and devices have no thread: they work when [`Hardware::serve`] says so.

use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

use crate::boot;
use crate::bus::Bus;
use crate::config::{self, Console, Disk, Network, Payload};
use crate::injected::InjectionTally;
use crate::memory::PCI_WINDOW_START;
use crate::pci::PciBus;
use crate::pci::msix::{MessageSink, Msix};
use crate::serial::SerialPort;
use crate::virtio::block::Block;
use crate::virtio::console::{self, Input};
use crate::virtio::link::Link;
use crate::virtio::net::Net;
use crate::virtio::ports::Ports;
use crate::virtio::rng::Rng;
use crate::virtio::transport::{BAR_SIZE, Doorbells, VirtioPci};
use crate::virtio::worker::{Queues, Worker};
use crate::virtio::{Interrupts, VirtioDevice};

/// Interrupts without a receiver, and doorbells that are ordinary exits.
#[derive(Debug)]
struct Unwired;

impl MessageSink for Unwired {
    fn send(&self, _: u64, _: u32) {}
}

impl Doorbells for Unwired {
    fn attach(&self, _: u64, _: &EventFd) -> bool {
        false
    }
    fn detach(&self, _: u64, _: &EventFd) {}
}

/// All devices of a machine with one disk, a network card, a virtio-console and ports, as its vCPUs reach
/// them.
#[derive(Debug)]
pub struct Hardware {
    bus: Bus,
    workers: Vec<(Worker, Queues)>,
}

impl Hardware {
    /// Devices over `memory`; `None` where the host refuses a descriptor or the disk.
    pub fn new(
        disk: Disk,
        network: Network,
        ports: config::OutputPorts,
        memory: &GuestMemoryMmap,
    ) -> Option<Self> {
        let mut pci = PciBus::new();
        let mut workers = Vec::new();
        let mut window = u32::try_from(PCI_WINDOW_START).ok()?;
        let input = Input::new().ok()?;
        input.put(b"typed");
        let console = console::Console::new(Console(Box::new(std::io::sink())), input);
        let devices: [Box<dyn VirtioDevice>; 5] = [
            Box::new(Block::new(0, disk).ok()?),
            Box::new(Rng),
            Box::new(Net::new(network)),
            Box::new(console),
            Box::new(Ports::new(ports)),
        ];
        for device in devices {
            let identity = device.identity();
            let queues = identity.queues.len();
            let link = Arc::new(Link::new(queues).ok()?);
            let interrupts = Interrupts::new(Msix::new(queues + 1, Arc::new(Unwired)), queues);
            let function = VirtioPci::new(
                &identity,
                window,
                Arc::clone(&link),
                Arc::clone(&interrupts),
                memory.clone(),
                Arc::new(Unwired),
            );
            pci.add(Box::new(function));
            workers.push((Worker { device, link, interrupts, memory: memory.clone() }, Queues::default()));
            window = window.checked_add(BAR_SIZE)?;
        }
        let serial = SerialPort::new(
            EventFd::new(libc::EFD_NONBLOCK).ok()?,
            InjectionTally::new("COM1"),
            Console(Box::new(std::io::sink())),
        );
        Some(Self { bus: Bus::new(serial, None, pci), workers })
    }

    /// Serves the guest's read of a port.
    pub fn read_port(&mut self, port: u16, data: &mut [u8]) {
        self.bus.read_port(port, data);
    }

    /// Serves the guest's write to a port; returns true if that ends the machine.
    pub fn write_port(&mut self, port: u16, data: &[u8]) -> bool {
        self.bus.write_port(port, data).is_some()
    }

    /// Serves the guest's read of memory that is not RAM; `offset` counts from the start of the PCI window.
    pub fn read_memory(&mut self, offset: u64, data: &mut [u8]) {
        self.bus.read_memory(PCI_WINDOW_START.wrapping_add(offset), data);
    }

    /// Serves the guest's write to memory that is not RAM.
    pub fn write_memory(&mut self, offset: u64, data: &[u8]) {
        self.bus.write_memory(PCI_WINDOW_START.wrapping_add(offset), data);
    }

    /// Runs every device's pending work.
    pub fn serve(&mut self) {
        for (worker, queues) in &mut self.workers {
            // No worker is ever requested to stop.
            let _goes_on = worker.turn(queues);
        }
    }
}

/// Puts a kernel, its initrd and its command line into memory of `bytes` bytes; whether that worked.
pub fn load(kernel: Vec<u8>, initrd: Option<Vec<u8>>, cmdline: String, bytes: usize) -> bool {
    let Ok(memory) = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes)]) else { return false };
    boot::load(&Payload::Linux { kernel, initrd, cmdline }, &memory, 2, false).is_ok()
}
