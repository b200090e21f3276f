//! Dispatch of I/O ports, and of memory addresses outside of RAM, to devices.
//!
//! ```text
//! 0x064        i8042 command     write 0xfe: reset
//! 0x0f4        EXIT_PORT         write: the machine ends with that value
//! 0x0f8        COMMAND_PORT      write: duration of the guest's command
//! 0x2f8-0x2ff  COM2, if the machine has one
//! 0x3f8-0x3ff  COM1
//! 0x600-0x601  ACPI sleep control and status
//! 0xcf8-0xcff  PCI configuration mechanism 1; a byte at 0xcf9 is the reset control register
//! 0xc000_0000  PCI window, to 0xfec0_0000
//! ```
//!
//! Addresses without a device read as ones, and writes to them have no effect, as on a PC.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::acpi::{self, RESET_CONTROL, SLEEP_CONTROL, SLEEP_STATUS};
use crate::end::MachineEnd;
use crate::machine::{COMMAND_PORT, EXIT_PORT};
use crate::pci::{CONFIG_ADDRESS, CONFIG_DATA, PciBus};
use crate::serial::{COM_PORTS, COM1, COM2, SerialPort};

/// Command and status port of the keyboard controller.
pub(crate) const I8042: u16 = 0x64;
/// Its command that pulses the processor's reset line.
const I8042_RESET: u8 = 0xfe;
/// Reset control register: the bit that does it.
const RESET_CPU: u8 = 1 << 2;
/// The last ports of three devices.
const COM1_LAST: u16 = COM1 + COM_PORTS as u16 - 1;
const COM2_LAST: u16 = COM2 + COM_PORTS as u16 - 1;
const CONFIG_LAST: u16 = CONFIG_DATA + 3;

/// All devices, as vCPUs see them.
#[derive(Debug)]
pub(crate) struct Bus {
    serial: SerialPort,
    second: Option<SerialPort>,
    pci: Mutex<PciBus>,
    /// Value that was written to [`COMMAND_PORT`].
    command_ns: AtomicU64,
}

impl Bus {
    /// Makes a bus with these devices.
    pub(crate) fn new(serial: SerialPort, second: Option<SerialPort>, pci: PciBus) -> Self {
        Self { serial, second, pci: Mutex::new(pci), command_ns: AtomicU64::new(0) }
    }

    /// Returns the duration of the guest's command by the guest's clock, ns, if the guest has reported it.
    pub(crate) fn command_ns(&self) -> Option<u64> {
        Some(self.command_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0)
    }

    /// Sends bytes to the guest's serial port; returns how many were accepted.
    pub(crate) fn console_input(&self, bytes: &[u8]) -> usize {
        self.serial.input(bytes)
    }

    /// Sends bytes to the second serial port; returns how many were accepted.
    pub(crate) fn second_input(&self, bytes: &[u8]) -> usize {
        self.second.as_ref().map_or(0, |port| port.input(bytes))
    }

    fn pci(&self) -> MutexGuard<'_, PciBus> {
        self.pci.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the guest's read of a port. The length of `data` is the width of the access, or for a string
    /// instruction the width times the count. Guests use string instructions only with COM1.
    pub(crate) fn read_port(&self, port: u16, data: &mut [u8]) {
        match port {
            COM1..=COM1_LAST => self.serial.read(offset(port, COM1), data),
            COM2..=COM2_LAST => match &self.second {
                Some(second) => second.read(offset(port, COM2), data),
                None => data.fill(0xff),
            },
            CONFIG_ADDRESS..=CONFIG_LAST => self.pci().read_port(port, data),
            // Status 0: the input buffer is empty, so a reset through it need not wait.
            I8042 | SLEEP_CONTROL | SLEEP_STATUS => data.fill(0),
            _ => data.fill(0xff),
        }
    }

    /// Serves the guest's write to a port. Returns the end of the machine, if the write causes it.
    pub(crate) fn write_port(&self, port: u16, data: &[u8]) -> Option<MachineEnd> {
        match (port, data) {
            (EXIT_PORT, [_] | [_, _] | [_, _, _, _]) => Some(MachineEnd::Exited(number(data))),
            (COMMAND_PORT, [_, _, _, _]) => {
                let old = self.command_ns.load(Ordering::Relaxed);
                self.command_ns.store((old << 32) | u64::from(number(data)), Ordering::Relaxed);
                None
            }
            (SLEEP_CONTROL, [value]) if acpi::is_power_off(*value) => Some(MachineEnd::PowerOff),
            (RESET_CONTROL, [value]) => (value & RESET_CPU != 0).then_some(MachineEnd::Reset),
            (I8042, [I8042_RESET]) => Some(MachineEnd::Reset),
            (COM1..=COM1_LAST, _) => {
                self.serial.write(offset(port, COM1), data);
                None
            }
            (COM2..=COM2_LAST, _) => {
                if let Some(second) = &self.second {
                    second.write(offset(port, COM2), data);
                }
                None
            }
            (CONFIG_ADDRESS..=CONFIG_LAST, _) => {
                self.pci().write_port(port, data);
                None
            }
            _ => None,
        }
    }

    /// Serves the guest's read of an address that is not RAM.
    pub(crate) fn read_memory(&self, address: u64, data: &mut [u8]) {
        self.pci().read_memory(address, data);
    }

    /// Serves the guest's write to an address that is not RAM.
    pub(crate) fn write_memory(&self, address: u64, data: &[u8]) {
        self.pci().write_memory(address, data);
    }
}

/// Returns a port's offset from a device's first port, of which there are at most eight.
fn offset(port: u16, first: u16) -> u8 {
    let [low, _] = port.wrapping_sub(first).to_le_bytes();
    low
}

/// Converts up to four bytes to a number.
fn number(data: &[u8]) -> u32 {
    data.iter().rev().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::Console;
    use crate::injected::InjectionTally;
    use vmm_sys_util::eventfd::EventFd;

    pub(crate) fn bus() -> Bus {
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let console = Console(Box::new(std::io::sink()));
        Bus::new(SerialPort::new(interrupt, InjectionTally::new("COM1"), console), None, PciBus::new())
    }

    #[test]
    fn the_exit_port_takes_every_width() {
        let bus = bus();
        assert_eq!(bus.write_port(EXIT_PORT, &[7]), Some(MachineEnd::Exited(7)));
        assert_eq!(bus.write_port(EXIT_PORT, &[1, 2]), Some(MachineEnd::Exited(0x201)));
        let all = bus.write_port(EXIT_PORT, &0xdead_beef_u32.to_le_bytes());
        assert_eq!(all, Some(MachineEnd::Exited(0xdead_beef)));
        assert_eq!(bus.write_port(EXIT_PORT, &[0; 3]), None);
    }

    #[test]
    fn the_command_port_takes_a_number_in_two_halves() {
        let bus = bus();
        assert_eq!(bus.command_ns(), None);
        for half in [0x12_u32, 0x3456_789a] {
            assert_eq!(bus.write_port(COMMAND_PORT, &half.to_le_bytes()), None);
        }
        assert_eq!(bus.write_port(COMMAND_PORT, &[1]), None);
        assert_eq!(bus.command_ns(), Some(0x12_3456_789a));
    }

    #[test]
    fn power_off_and_all_three_resets_end_the_machine() {
        let bus = bus();
        assert_eq!(bus.write_port(SLEEP_CONTROL, &[0x34]), Some(MachineEnd::PowerOff));
        assert_eq!(bus.write_port(SLEEP_CONTROL, &[0x30]), None);
        assert_eq!(bus.write_port(RESET_CONTROL, &[acpi::RESET_VALUE]), Some(MachineEnd::Reset));
        assert_eq!(bus.write_port(RESET_CONTROL, &[0x02]), None, "arms only");
        assert_eq!(bus.write_port(I8042, &[0xfe]), Some(MachineEnd::Reset));
        assert_eq!(bus.write_port(I8042, &[0xd1]), None);
    }

    #[test]
    fn the_reset_register_does_not_hide_the_config_address() {
        let bus = bus();
        assert_eq!(bus.write_port(CONFIG_ADDRESS, &0x8000_0000_u32.to_le_bytes()), None);
        let mut address = [0; 4];
        bus.read_port(CONFIG_ADDRESS, &mut address);
        assert_eq!(u32::from_le_bytes(address), 0x8000_0000);
    }

    #[test]
    fn a_second_serial_port_answers_where_there_is_one() {
        let port = || {
            let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
            SerialPort::new(interrupt, InjectionTally::new("COM"), Console(Box::new(std::io::sink())))
        };
        let bus = Bus::new(port(), Some(port()), PciBus::new());
        assert_eq!(bus.second_input(b"x"), 1);
        let mut data = [0];
        bus.read_port(COM2, &mut data);
        assert_eq!(data, *b"x");
        assert_eq!(bus.write_port(COM2, b"y"), None);
        assert_eq!(Bus::new(port(), None, PciBus::new()).second_input(b"x"), 0);
    }

    #[test]
    fn nobody_reads_as_ones() {
        let bus = bus();
        let mut data = [0; 4];
        for port in [0, 0x80, COM2, 0x3f7, 0x400, 0xcf7, 0xd00, 0xffff] {
            bus.read_port(port, &mut data);
            assert_eq!(data, [0xff; 4], "{port:#x}");
            assert_eq!(bus.write_port(port, &data), None);
        }
        for address in [0xc000_0000, 0xfec0_0000, 0x10_0000_0000, u64::MAX] {
            data.fill(0);
            bus.read_memory(address, &mut data);
            assert_eq!(data, [0xff; 4], "{address:#x}");
            bus.write_memory(address, &data);
        }
    }
}
