//! The devices on the PCI bus and their threads: disks first, so that they get the lowest slots,
//! then the random number generator, then what few machines have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use kvm_bindings::kvm_msi;
use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use sandbox::ThreadKind;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use crate::config::{Disk, Extra};
use crate::error::{StartError, WaitError};
use crate::injected::InjectionTally;
use crate::machine;
use crate::memory::PCI_WINDOW_START;
use crate::pci::PciBus;
use crate::pci::msix::{MessageSink, Msix};
use crate::vcpu::kick;
use crate::virtio::block::Block;
use crate::virtio::console::{self, Input};
use crate::virtio::link::{Command, Link};
use crate::virtio::net::Net;
use crate::virtio::ports::Ports;
use crate::virtio::rng::Rng;
use crate::virtio::transport::{BAR_SIZE, Doorbells, VirtioPci};
use crate::virtio::worker::Worker;
use crate::virtio::{Interrupts, VirtioDevice};

/// Most disks: every slot but those of the host bridge and of the devices below.
pub(crate) const MOST_DISKS: usize = PciBus::ROOM - 4;

/// KVM as what carries interrupts and doorbells.
#[derive(Debug)]
struct KvmWires {
    vm: Arc<VmFd>,
    tally: Arc<InjectionTally>,
}

impl MessageSink for KvmWires {
    fn send(&self, address: u64, data: u32) {
        let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
        let message = kvm_msi {
            address_lo: u32::from_le_bytes([a, b, c, d]),
            address_hi: u32::from_le_bytes([e, f, g, h]),
            data,
            ..Default::default()
        };
        // An address or vector that the guest made up goes nowhere, as on real hardware.
        let _undelivered = self.vm.signal_msi(message);
        self.tally.message(data);
    }
}

impl Doorbells for KvmWires {
    fn attach(&self, address: u64, event: &EventFd) -> bool {
        self.vm.register_ioevent(event, &IoEventAddress::Mmio(address), NoDatamatch).is_ok()
    }

    fn detach(&self, address: u64, event: &EventFd) {
        let _gone = self.vm.unregister_ioevent(event, &IoEventAddress::Mmio(address), NoDatamatch);
    }
}

/// The devices' threads. Dropping stops them.
#[derive(Debug)]
pub(crate) struct Devices {
    threads: Vec<(Arc<Link>, JoinHandle<()>)>,
    tallies: Vec<Arc<InjectionTally>>,
    names: Vec<String>,
    console: Option<Arc<Input>>,
    snapshots: Vec<Arc<AtomicBool>>,
}

impl Devices {
    /// Makes all devices, puts them on a bus and starts their threads.
    pub(crate) fn start(
        disks: Vec<Disk>,
        extra: Extra,
        vm: &Arc<VmFd>,
        memory: &GuestMemoryMmap,
    ) -> Result<(Self, PciBus), StartError> {
        if disks.len() > MOST_DISKS {
            return Err(StartError::Disks { asked: disks.len(), most: MOST_DISKS });
        }
        // The order gives the slots, and the guest names its disks by them.
        let mut snapshots = Vec::new();
        let mut list: Vec<(String, Box<dyn VirtioDevice>)> = Vec::new();
        for (index, disk) in disks.into_iter().enumerate() {
            let block = Block::new(index, disk).map_err(|reason| StartError::Disk { index, reason })?;
            snapshots.extend(block.full());
            list.push((format!("disk {index}"), Box::new(block)));
        }
        list.push(("rng".to_owned(), Box::new(Rng)));
        if let Some(network) = extra.network {
            list.push(("network".to_owned(), Box::new(Net::new(network))));
        }

        let mut input = None;
        if let Some(output) = extra.console {
            let input = input.insert(Input::new().map_err(StartError::host("an event descriptor"))?);
            list.push(("console".to_owned(), Box::new(console::Console::new(output, Arc::clone(input)))));
        }
        if let Some(ports) = extra.ports {
            list.push(("ports".to_owned(), Box::new(Ports::new(ports))));
        }

        let mut bus = PciBus::new();
        let mut devices =
            Self { threads: Vec::new(), tallies: Vec::new(), names: Vec::new(), console: input, snapshots };
        // The windows are consecutive: Linux keeps the addresses that it finds, which `regions` relies on.
        let mut window = u32::try_from(PCI_WINDOW_START).unwrap_or(u32::MAX);
        for (name, device) in list {
            let tally = InjectionTally::new(&name);
            devices.tallies.push(Arc::clone(&tally));
            devices.names.push(name.clone());
            let wires = Arc::new(KvmWires { vm: Arc::clone(vm), tally });
            devices.add(&mut bus, name, device, window, &wires, memory)?;
            window = window.saturating_add(BAR_SIZE);
        }
        Ok((devices, bus))
    }

    fn add(
        &mut self,
        bus: &mut PciBus,
        name: String,
        device: Box<dyn VirtioDevice>,
        window: u32,
        wires: &Arc<KvmWires>,
        memory: &GuestMemoryMmap,
    ) -> Result<(), StartError> {
        let identity = device.identity();
        let queues = identity.queues.len();
        let link = Arc::new(Link::new(queues).map_err(StartError::host("an event descriptor"))?);
        // One vector per queue and one for configuration changes.
        let messages: Arc<dyn MessageSink> = Arc::<KvmWires>::clone(wires);
        let doorbells: Arc<dyn Doorbells> = Arc::<KvmWires>::clone(wires);
        let interrupts = Interrupts::new(Msix::new(queues + 1, messages), queues);
        let worker = Worker {
            device,
            link: Arc::clone(&link),
            interrupts: Arc::clone(&interrupts),
            memory: memory.clone(),
        };
        let kind = if name.starts_with("disk") { ThreadKind::Disk } else { ThreadKind::Device };
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || {
                kick::mask_signals();
                sandbox::enter_thread(kind);
                worker.run();
            })
            .map_err(StartError::host("a device thread"))?;
        self.threads.push((Arc::clone(&link), thread));
        bus.add(Box::new(VirtioPci::new(&identity, window, link, interrupts, memory.clone(), doorbells)));
        Ok(())
    }

    /// Returns the devices' names, in the order of their slots.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Sends bytes to the virtio-console; returns how many were accepted, `None` without such a device.
    pub(crate) fn console_input(&self, bytes: &[u8]) -> Option<usize> {
        self.console.as_ref().map(|input| input.put(bytes))
    }

    /// Returns the counts of the devices' interrupts.
    pub(crate) fn tallies(&self) -> &[Arc<InjectionTally>] {
        &self.tallies
    }

    /// Stops all threads and joins them.
    pub(crate) fn stop(&mut self) -> Result<(), WaitError> {
        for (link, _) in &self.threads {
            link.post(Command::Stop);
        }
        let deadline = Instant::now() + machine::THREAD_LIMIT;
        let threads = std::mem::take(&mut self.threads).into_iter();
        let results: Vec<_> = threads.map(|(_, thread)| machine::join(thread, deadline)).collect();
        for result in results {
            // A panic of a device was printed when it happened; it holds nothing that must be returned.
            let _panic = result?;
        }
        Ok(())
    }
}

impl Devices {
    /// Returns true once after the first write to a snapshot that failed for want of room.
    pub(crate) fn take_snapshot_full(&self) -> bool {
        self.snapshots.iter().filter(|full| full.swap(false, Ordering::AcqRel)).count() > 0
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _hung = self.stop();
    }
}
