//! Address ranges of devices, which give an exit the name of its device.

use crate::acpi::{RESET_CONTROL, SLEEP_CONTROL, SLEEP_STATUS};
use crate::bus::I8042;
use crate::machine::{COMMAND_PORT, EXIT_PORT};
use crate::memory::PCI_WINDOW_START;
use crate::pci::{CONFIG_ADDRESS, CONFIG_DATA};
use crate::probe::{PROBE_PORT, PROBE_PORTS};
use crate::serial::{COM_PORTS, COM1, COM2};
use crate::virtio::transport::BAR_SIZE;

/// Address space of a [`Region`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// I/O ports.
    Ports,
    /// Guest physical memory.
    Memory,
}

/// Range of addresses at which one device answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Name of the device.
    pub name: String,
    /// Address space of the range.
    pub space: Space,
    /// First address.
    pub first: u64,
    /// Last address.
    pub last: u64,
}

/// Returns all regions of a machine with these virtio devices, given in the order of their slots. Where two
/// regions overlap, the first one answers. A guest that moves a device's registers (Linux does not) moves
/// them out of its region.
pub(crate) fn machine_regions(devices: &[String]) -> Vec<Region> {
    let ports = |name: &str, first: u16, last: u16| Region {
        name: name.to_owned(),
        space: Space::Ports,
        first: first.into(),
        last: last.into(),
    };
    let mut list = vec![
        ports("serial port", COM1, COM1 + u16::from(COM_PORTS) - 1),
        ports("second serial port", COM2, COM2 + u16::from(COM_PORTS) - 1),
        ports("reset register", RESET_CONTROL, RESET_CONTROL),
        ports("PCI configuration", CONFIG_ADDRESS, CONFIG_DATA + 3),
        ports("power register", SLEEP_CONTROL, SLEEP_CONTROL),
        ports("power register", SLEEP_STATUS, SLEEP_STATUS),
        ports("keyboard controller", I8042, I8042),
        ports("exit port", EXIT_PORT, EXIT_PORT),
        ports("command port", COMMAND_PORT, COMMAND_PORT + 3),
        ports("probes", PROBE_PORT, PROBE_PORT + u16::from(PROBE_PORTS) - 1),
    ];
    list.extend(devices.iter().zip(0..).map(|(name, slot)| {
        let name = name.clone();
        let first = PCI_WINDOW_START + slot * u64::from(BAR_SIZE);
        Region { name, space: Space::Memory, first, last: first + u64::from(BAR_SIZE) - 1 }
    }));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(list: &[Region], space: Space, address: u64) -> Option<&str> {
        list.iter()
            .find(|r| r.space == space && (r.first..=r.last).contains(&address))
            .map(|r| r.name.as_str())
    }

    #[test]
    fn an_address_leads_to_its_device() {
        let list = machine_regions(&["disk 0", "disk 1", "rng"].map(str::to_owned));
        assert_eq!(name(&list, Space::Ports, 0x3f8), Some("serial port"));
        assert_eq!(name(&list, Space::Ports, 0x3ff), Some("serial port"));
        assert_eq!(name(&list, Space::Ports, 0x400), None);
        assert_eq!(name(&list, Space::Ports, 0xcf9), Some("reset register"));
        assert_eq!(name(&list, Space::Ports, 0xcfc), Some("PCI configuration"));
        assert_eq!(name(&list, Space::Memory, PCI_WINDOW_START), Some("disk 0"));
        assert_eq!(name(&list, Space::Memory, PCI_WINDOW_START + u64::from(BAR_SIZE)), Some("disk 1"));
        assert_eq!(name(&list, Space::Memory, PCI_WINDOW_START + 2 * u64::from(BAR_SIZE)), Some("rng"));
        assert_eq!(name(&list, Space::Memory, 0xfec0_0000), None);
    }
}
