//! PCI bus: bus 0 of segment 0, accessed through configuration mechanism 1.
//!
//! [`config`] is one function's configuration space, [`msix`] its interrupts. The rest of a function
//! implements [`PciDevice`]. Memory windows (BARs) are below 4 GiB, see [`PCI_WINDOW_START`]. They are
//! assigned before the guest starts, as firmware would, and the guest may move them.

pub(crate) mod config;
pub(crate) mod msix;

use std::fmt::Debug;

use config::ConfigSpace;

use crate::memory::{PCI_WINDOW_END, PCI_WINDOW_START};

/// The address register of mechanism 1 (PCI 3.0, 3.2.2.3.2), 32 bits wide.
pub(crate) const CONFIG_ADDRESS: u16 = 0xcf8;
/// The data register, four ports.
pub(crate) const CONFIG_DATA: u16 = 0xcfc;
/// Devices a bus can hold.
const SLOTS: usize = 32;
/// Bit 31 of the address register: data accesses are configuration cycles.
const ENABLE: u32 = 1 << 31;

/// PCI function.
pub(crate) trait PciDevice: Send + Debug {
    /// Serves the guest's read of configuration space. `data` does not cross a 4-byte boundary.
    fn read_config(&mut self, offset: u8, data: &mut [u8]);
    /// Serves the guest's write to configuration space. `data` does not cross a 4-byte boundary.
    fn write_config(&mut self, offset: u8, data: &[u8]);
    /// Returns the start and length of the memory that the function answers now.
    fn window(&self) -> Option<(u64, u64)>;
    /// Serves the guest's read of that memory; `offset` counts from its start.
    fn read_memory(&mut self, offset: u64, data: &mut [u8]);
    /// Serves the guest's write to that memory; `offset` counts from its start.
    fn write_memory(&mut self, offset: u64, data: &[u8]);
}

/// 00:00.0, which Linux looks for before it trusts mechanism 1.
#[derive(Debug)]
struct HostBridge(ConfigSpace);

impl PciDevice for HostBridge {
    fn read_config(&mut self, offset: u8, data: &mut [u8]) {
        self.0.read(offset, data);
    }
    fn write_config(&mut self, offset: u8, data: &[u8]) {
        self.0.write(offset, data);
    }
    fn window(&self) -> Option<(u64, u64)> {
        None
    }
    fn read_memory(&mut self, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn write_memory(&mut self, _: u64, _: &[u8]) {}
}

/// The bus with its devices in the order of their slots.
#[derive(Debug)]
pub(crate) struct PciBus {
    address: u32,
    devices: Vec<Box<dyn PciDevice>>,
}

impl PciBus {
    /// Number of devices that fit besides the host bridge.
    pub(crate) const ROOM: usize = SLOTS - 1;

    /// Makes a bus with nothing but the host bridge.
    pub(crate) fn new() -> Self {
        let bridge = config::Identity {
            // QEMU's generic host bridge (pci.ids): no driver of Linux has a quirk for it.
            vendor: 0x1b36,
            device: 0x0008,
            class: [0x00, 0x00, 0x06],
            revision: 0,
            subsystem_vendor: 0,
            subsystem: 0,
        };
        Self { address: 0, devices: vec![Box::new(HostBridge(ConfigSpace::new(&bridge)))] }
    }

    /// Puts a device into the next free slot.
    pub(crate) fn add(&mut self, device: Box<dyn PciDevice>) {
        debug_assert!(self.devices.len() < SLOTS);
        self.devices.push(device);
    }

    /// Serves the guest's read of one of the eight ports of mechanism 1.
    pub(crate) fn read_port(&mut self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        if port == CONFIG_ADDRESS && data.len() == 4 {
            data.copy_from_slice(&self.address.to_le_bytes());
        } else if let Some((slot, offset)) = self.target(port, data.len())
            && let Some(device) = self.devices.get_mut(slot)
        {
            device.read_config(offset, data);
        }
    }

    /// Serves the guest's write to one of the eight ports of mechanism 1.
    pub(crate) fn write_port(&mut self, port: u16, data: &[u8]) {
        if port == CONFIG_ADDRESS
            && let Ok(bytes) = data.try_into()
        {
            self.address = u32::from_le_bytes(bytes) & (ENABLE | 0x00ff_fffc);
        } else if let Some((slot, offset)) = self.target(port, data.len())
            && let Some(device) = self.devices.get_mut(slot)
        {
            device.write_config(offset, data);
        }
    }

    /// Returns the slot and the register of an access to the data port, if it is a configuration cycle for
    /// function 0 of a device on bus 0.
    fn target(&self, port: u16, length: usize) -> Option<(usize, u8)> {
        let byte = port.checked_sub(CONFIG_DATA)?;
        let fits = usize::from(byte) + length <= 4 && matches!(length, 1 | 2 | 4);
        let [register, device_function, bus, _] = self.address.to_le_bytes();
        if !fits || self.address & ENABLE == 0 || bus != 0 || device_function & 7 != 0 {
            return None;
        }
        let offset = register | u8::try_from(byte).ok()?;
        Some((usize::from(device_function >> 3), offset))
    }

    /// Serves the guest's read of memory of the PCI window. Addresses without a device read as all ones.
    pub(crate) fn read_memory(&mut self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let Some((device, offset)) = self.owner(address, data.len()) {
            device.read_memory(offset, data);
        }
    }

    /// Serves the guest's write to memory of the PCI window.
    pub(crate) fn write_memory(&mut self, address: u64, data: &[u8]) {
        if let Some((device, offset)) = self.owner(address, data.len()) {
            device.write_memory(offset, data);
        }
    }

    fn owner(&mut self, address: u64, length: usize) -> Option<(&mut dyn PciDevice, u64)> {
        if !(PCI_WINDOW_START..PCI_WINDOW_END).contains(&address) {
            return None;
        }
        let end = address.checked_add(u64::try_from(length).ok()?)?;
        for device in &mut self.devices {
            if let Some((start, size)) = device.window()
                && address >= start
                && end <= start.saturating_add(size)
            {
                return Some((device.as_mut(), address - start));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(bus: &mut PciBus, address: u32) {
        bus.write_port(CONFIG_ADDRESS, &address.to_le_bytes());
    }

    #[test]
    fn linux_finds_mechanism_1_and_the_host_bridge() {
        let mut bus = PciBus::new();
        // The probe of arch/x86/pci/direct.c: a byte write that must not disturb the address.
        bus.write_port(0xcfb, &[1]);
        select(&mut bus, ENABLE);
        let mut address = [0; 4];
        bus.read_port(CONFIG_ADDRESS, &mut address);
        assert_eq!(u32::from_le_bytes(address), ENABLE);
        let mut class = [0; 2];
        select(&mut bus, ENABLE | 8);
        bus.read_port(CONFIG_DATA + 2, &mut class);
        assert_eq!(u16::from_le_bytes(class), 0x0600);
    }

    #[test]
    fn empty_slots_other_buses_and_other_functions_read_as_ones() {
        let mut bus = PciBus::new();
        for address in [ENABLE | 1 << 11, ENABLE | 1 << 16, ENABLE | 1 << 8, 0] {
            select(&mut bus, address);
            let mut vendor = [0; 4];
            bus.read_port(CONFIG_DATA, &mut vendor);
            assert_eq!(vendor, [0xff; 4], "{address:#x}");
        }
    }

    #[test]
    fn accesses_that_cross_a_register_are_ignored() {
        let mut bus = PciBus::new();
        select(&mut bus, ENABLE);
        let mut two = [0; 2];
        bus.read_port(CONFIG_DATA + 3, &mut two);
        assert_eq!(two, [0xff; 2]);
        let mut odd = [0; 3];
        bus.read_port(CONFIG_DATA, &mut odd);
        assert_eq!(odd, [0xff; 3]);
        bus.write_port(CONFIG_DATA, &[0; 9]);
    }
}
