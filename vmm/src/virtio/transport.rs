//! A virtio device as a PCI function (specification 4.1).
//!
//! BAR 0, [`BAR_SIZE`] bytes:
//!
//! ```text
//! 0x0000  common configuration     registers.rs
//! 0x1000  ISR status
//! 0x2000  device configuration     constant bytes
//! 0x3000  notify                   4 bytes per queue, ioeventfd
//! 0x4000  MSI-X table
//! 0x5000  MSI-X pending bits
//! ```

use std::fmt::Debug;
use std::sync::Arc;

use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use super::link::{Command, Link};
use super::registers::{self, Registers, Request};
use super::{BrokenQueue, Identity, Interrupts};
use crate::memory::{PCI_WINDOW_END, PCI_WINDOW_START};
use crate::pci::PciDevice;
use crate::pci::config::{self, ConfigSpace};
use crate::pci::msix;

/// Size of the memory window, bytes.
pub(crate) const BAR_SIZE: u32 = 0x8000;
const COMMON: u32 = 0x0000;
const ISR: u32 = 0x1000;
const DEVICE: u32 = 0x2000;
const NOTIFY: u32 = 0x3000;
const MSIX_TABLE: u32 = 0x4000;
const MSIX_PENDING: u32 = 0x5000;
/// Size of a part of the window, bytes: each has its own page.
const PART: u32 = 0x1000;
/// Bytes between the notify registers of two queues.
const NOTIFY_STEP: u32 = 4;

/// Vendor of all virtio functions.
const VENDOR: u16 = 0x1af4;
/// A modern device's id is this plus its virtio id (4.1.2.1).
const MODERN: u16 = 0x1040;
/// Vendor-specific capability, which virtio's structures use.
const VENDOR_CAPABILITY: u8 = 0x09;
/// `cfg_type` of the virtio capabilities (4.1.4).
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;
const CFG_ISR: u8 = 3;
const CFG_DEVICE: u8 = 4;
const CFG_PCI: u8 = 5;
/// In the capability of [`CFG_PCI`]: BAR number, offset, length, data window.
const ACCESS_BAR: u8 = 4;
const ACCESS_OFFSET: u8 = 8;
const ACCESS_LENGTH: u8 = 12;
const ACCESS_DATA: u8 = 16;

/// Turns writes to a guest physical address into events, without an exit to user space.
pub(crate) trait Doorbells: Send + Sync + Debug {
    /// Writes to `address` signal `event`. False if that is not possible; they then arrive as
    /// ordinary exits.
    fn attach(&self, address: u64, event: &EventFd) -> bool;
    /// Undoes [`Self::attach`].
    fn detach(&self, address: u64, event: &EventFd);
}

/// PCI function of a device: configuration space and the window of BAR 0.
#[derive(Debug)]
pub(crate) struct VirtioPci {
    config: ConfigSpace,
    device_config: Vec<u8>,
    registers: Registers,
    interrupts: Arc<Interrupts>,
    link: Arc<Link>,
    memory: GuestMemoryMmap,
    doorbells: Arc<dyn Doorbells>,
    /// Address of the window when the doorbells were attached, and the queues that have one.
    attached: Option<(u64, Vec<bool>)>,
    msix_capability: u8,
    access_capability: u8,
    /// The guest has asked for a reset that the worker has not done yet.
    resetting: bool,
}

impl VirtioPci {
    /// Makes a function whose window starts at `address`.
    pub(crate) fn new(
        identity: &Identity,
        address: u32,
        link: Arc<Link>,
        interrupts: Arc<Interrupts>,
        memory: GuestMemoryMmap,
        doorbells: Arc<dyn Doorbells>,
    ) -> Self {
        let mut config = ConfigSpace::new(&config::Identity {
            vendor: VENDOR,
            device: MODERN + identity.id,
            class: identity.class,
            revision: 1,
            subsystem_vendor: VENDOR,
            subsystem: MODERN + identity.id,
        });
        config.add_bar0(address, BAR_SIZE);
        let msix_capability = add_msix(&mut config, interrupts.msix.vectors());
        let access_capability = add_virtio(&mut config);
        Self {
            config,
            device_config: identity.config.clone(),
            registers: Registers::new(identity.features, identity.queues),
            interrupts,
            link,
            memory,
            doorbells,
            attached: None,
            msix_capability,
            access_capability,
            resetting: false,
        }
    }

    /// Returns the present address of the window, if it may answer there.
    fn place(&self) -> Option<u64> {
        let start = self.config.bar0()?;
        let end = start + u64::from(BAR_SIZE);
        (start >= PCI_WINDOW_START && end <= PCI_WINDOW_END).then_some(start)
    }

    /// Attaches the doorbells to where the window is now.
    fn follow_window(&mut self) {
        let place = self.place();
        if self.attached.as_ref().map(|(start, _)| *start) == place {
            return;
        }
        if let Some((start, rings)) = self.attached.take() {
            for (queue, event) in self.link.kicks.iter().enumerate() {
                if rings.get(queue) == Some(&true) {
                    self.doorbells.detach(notify_address(start, queue), event);
                }
            }
        }
        self.attached = place.map(|start| {
            let attach = |(queue, event)| self.doorbells.attach(notify_address(start, queue), event);
            (start, self.link.kicks.iter().enumerate().map(attach).collect())
        });
    }

    /// Takes note of a reset that the worker has finished.
    fn finish_reset(&mut self) {
        if self.resetting && !self.link.resetting() {
            self.resetting = false;
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.registers.reset();
        self.interrupts.reset();
    }

    fn write_common(&mut self, at: usize, data: &[u8]) {
        self.finish_reset();
        if self.resetting {
            return;
        }
        match self.registers.write(at, data, &self.interrupts) {
            Request::Nothing => {}
            Request::ResetIdle => self.reset(),
            Request::Reset => {
                self.resetting = true;
                self.link.post(Command::Reset);
            }
            Request::Start => match self.registers.queues(&self.memory) {
                Ok(queues) => self.link.post(Command::Start(queues)),
                Err(BrokenQueue) => {
                    self.link.set_broken();
                    self.interrupts.config_changed();
                }
            },
        }
    }

    /// Returns the part of BAR 0 that an access to the data window of the PCI configuration access capability
    /// (4.1.4.9) selects.
    fn access(&self, offset: u8) -> Option<(u64, usize)> {
        let at = self.access_capability;
        let mut bar = [0];
        self.config.read(at + ACCESS_BAR, &mut bar);
        let length = self.config.u32(at + ACCESS_LENGTH);
        let wanted = offset == at + ACCESS_DATA && bar[0] == 0 && matches!(length, 1 | 2 | 4);
        let start = u64::from(self.config.u32(at + ACCESS_OFFSET));
        Some((start, usize::try_from(length).ok()?)).filter(|_| wanted)
    }
}

impl PciDevice for VirtioPci {
    fn read_config(&mut self, offset: u8, data: &mut [u8]) {
        if let Some((start, length)) = self.access(offset) {
            let mut bytes = [0; 4];
            self.read_memory(start, &mut bytes[..length]);
            self.config.set(offset, &bytes);
        }
        self.config.read(offset, data);
    }

    fn write_config(&mut self, offset: u8, data: &[u8]) {
        self.config.write(offset, data);
        if let Some((start, length)) = self.access(offset) {
            let bytes = self.config.u32(offset).to_le_bytes();
            self.write_memory(start, &bytes[..length]);
        }
        let control = self.msix_capability + 2;
        if offset & !3 == control & !3 {
            self.interrupts.msix.set_control(self.config.u16(control));
        }
        self.follow_window();
    }

    fn window(&self) -> Option<(u64, u64)> {
        self.place().map(|start| (start, u64::from(BAR_SIZE)))
    }

    fn read_memory(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let Some((part, at)) = split(offset) else { return };
        match part {
            COMMON => {
                self.finish_reset();
                let image = self.registers.image(&self.interrupts, self.link.broken());
                copy(&image, at, data);
            }
            ISR if at == 0 => {
                if let [isr, ..] = data {
                    *isr = self.interrupts.take_isr();
                }
            }
            DEVICE => copy(&self.device_config, at, data),
            MSIX_TABLE => self.interrupts.msix.read_table(at, data),
            MSIX_PENDING => self.interrupts.msix.read_pending(at, data),
            _ => {}
        }
    }

    fn write_memory(&mut self, offset: u64, data: &[u8]) {
        let Some((part, at)) = split(offset) else { return };
        match part {
            COMMON => self.write_common(at, data),
            NOTIFY => self.link.kick(at / NOTIFY_STEP as usize),
            MSIX_TABLE => self.interrupts.msix.write_table(at, data),
            _ => {}
        }
    }
}

/// Returns the part of the window that contains an offset, and the offset in the part.
fn split(offset: u64) -> Option<(u32, usize)> {
    let offset = u32::try_from(offset).ok().filter(|offset| *offset < BAR_SIZE)?;
    Some((offset & !(PART - 1), usize::try_from(offset & (PART - 1)).ok()?))
}

/// Copies the bytes at `at`; nothing is written beyond the end.
fn copy(from: &[u8], at: usize, to: &mut [u8]) {
    for (byte, source) in to.iter_mut().zip(from.iter().skip(at)) {
        *byte = *source;
    }
}

/// Returns the notify register of a queue.
fn notify_address(window: u64, queue: usize) -> u64 {
    window + u64::from(NOTIFY) + queue as u64 * u64::from(NOTIFY_STEP)
}

/// Adds the MSI-X capability: table size, and the offsets of table and pending bits (BAR 0).
fn add_msix(config: &mut ConfigSpace, vectors: usize) -> u8 {
    let last = u16::try_from(vectors.saturating_sub(1)).unwrap_or(0x7ff) & 0x7ff;
    let mut body = last.to_le_bytes().to_vec();
    body.extend(MSIX_TABLE.to_le_bytes());
    body.extend(MSIX_PENDING.to_le_bytes());
    let at = config.add_capability(msix::CAPABILITY, &body);
    config.allow(at + 2, &(msix::ENABLE | msix::MASK_ALL).to_le_bytes());
    at
}

/// Adds the five virtio capabilities; returns the offset of the one for access through configuration space.
fn add_virtio(config: &mut ConfigSpace) -> u8 {
    // After id and link: cap_len, cfg_type, bar, id, padding[2], offset, length, more.
    let body = |kind: u8, offset: u32, length: u32, more: &[u8]| {
        let size = u8::try_from(16 + more.len()).unwrap_or(u8::MAX);
        let mut body = vec![size, kind, 0, 0, 0, 0];
        body.extend(offset.to_le_bytes());
        body.extend(length.to_le_bytes());
        body.extend(more);
        body
    };
    let common = u32::try_from(registers::LENGTH).unwrap_or(PART);
    config.add_capability(VENDOR_CAPABILITY, &body(CFG_COMMON, COMMON, common, &[]));
    let step = NOTIFY_STEP.to_le_bytes();
    config.add_capability(VENDOR_CAPABILITY, &body(CFG_NOTIFY, NOTIFY, PART, &step));
    config.add_capability(VENDOR_CAPABILITY, &body(CFG_ISR, ISR, 1, &[]));
    config.add_capability(VENDOR_CAPABILITY, &body(CFG_DEVICE, DEVICE, PART, &[]));
    let at = config.add_capability(VENDOR_CAPABILITY, &body(CFG_PCI, 0, 0, &[0; 4]));
    config.allow(at + ACCESS_BAR, &[0xff]);
    config.allow(at + ACCESS_OFFSET, &[0xff; 12]);
    at
}
