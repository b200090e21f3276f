//! A function's configuration space: 256 bytes, each bit read-only or writable.

/// Offsets of the header (PCI 3.0, 6.1).
pub(crate) const COMMAND: u8 = 0x04;
const STATUS: u8 = 0x06;
const REVISION: u8 = 0x08;
const CLASS: u8 = 0x09;
/// Base address register 0.
pub(crate) const BAR0: u8 = 0x10;
const SUBSYSTEM_VENDOR: u8 = 0x2c;
const SUBSYSTEM: u8 = 0x2e;
const CAPABILITIES: u8 = 0x34;
const INTERRUPT_LINE: u8 = 0x3c;
/// Command register: the function answers memory accesses.
pub(crate) const MEMORY_ENABLE: u16 = 1 << 1;
/// Command register bits that hold what is written: I/O, memory, bus master, INTx disable.
const COMMAND_BITS: u16 = 0x0407;
/// Status register: there is a list of capabilities.
const HAS_CAPABILITIES: u8 = 1 << 4;
/// Offset of the first capability: directly after the header.
const FIRST_CAPABILITY: u8 = 0x40;

/// Identity of a function, as the guest sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Programming interface, subclass, class: in the order of the bytes.
    pub class: [u8; 3],
    /// Revision id.
    pub revision: u8,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
}

/// The 256 bytes and which of their bits the guest may change.
#[derive(Debug)]
pub(crate) struct ConfigSpace {
    bytes: [u8; 256],
    writable: [u8; 256],
    /// Offset of the next capability.
    free: u8,
    /// Offset of the link to the next capability.
    link: u8,
}

impl ConfigSpace {
    /// Makes a type 0 header without BARs and capabilities.
    pub(crate) fn new(identity: &Identity) -> Self {
        let mut space =
            Self { bytes: [0; 256], writable: [0; 256], free: FIRST_CAPABILITY, link: CAPABILITIES };
        space.set(0, &identity.vendor.to_le_bytes());
        space.set(2, &identity.device.to_le_bytes());
        space.set(REVISION, &[identity.revision]);
        space.set(CLASS, &identity.class);
        space.set(SUBSYSTEM_VENDOR, &identity.subsystem_vendor.to_le_bytes());
        space.set(SUBSYSTEM, &identity.subsystem.to_le_bytes());
        space.allow(COMMAND, &COMMAND_BITS.to_le_bytes());
        space.allow(INTERRUPT_LINE, &[0xff]);
        space
    }

    /// Makes BAR 0 a 32-bit memory window of `size` bytes, a power of two of at least 16.
    pub(crate) fn add_bar0(&mut self, address: u32, size: u32) {
        debug_assert!(size.is_power_of_two() && size >= 16);
        self.set(BAR0, &address.to_le_bytes());
        // The guest learns the size from the bits that stay zero (PCI 3.0, 6.2.5.1).
        self.allow(BAR0, &(!(size - 1)).to_le_bytes());
    }

    /// Appends a capability: `body` follows the two bytes of id and link. Returns its offset.
    pub(crate) fn add_capability(&mut self, id: u8, body: &[u8]) -> u8 {
        let at = self.free;
        self.set(self.link, &[at]);
        self.set(at, &[id, 0]);
        self.set(at + 2, body);
        self.set(STATUS, &[HAS_CAPABILITIES]);
        self.link = at + 1;
        let length = u8::try_from(body.len() + 2).unwrap_or(u8::MAX);
        self.free = (at + length).next_multiple_of(4);
        at
    }

    /// Sets bytes whatever the guest may do to them. For building and for the device itself.
    pub(crate) fn set(&mut self, at: u8, bytes: &[u8]) {
        self.bytes[usize::from(at)..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Lets the guest change the bits that are set in `bits`.
    pub(crate) fn allow(&mut self, at: u8, bits: &[u8]) {
        self.writable[usize::from(at)..][..bits.len()].copy_from_slice(bits);
    }

    /// Serves the guest's read; bytes beyond the end are ones.
    pub(crate) fn read(&self, offset: u8, data: &mut [u8]) {
        let start = usize::from(offset);
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(start + index).copied().unwrap_or(0xff);
        }
    }

    /// Serves the guest's write; bits that it may not change keep their values.
    pub(crate) fn write(&mut self, offset: u8, data: &[u8]) {
        let start = usize::from(offset);
        let cells = self.bytes.iter_mut().zip(&self.writable).skip(start);
        for ((byte, mask), new) in cells.zip(data) {
            *byte = (*byte & !mask) | (new & mask);
        }
    }

    /// Returns a 16-bit register.
    pub(crate) fn u16(&self, at: u8) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Returns a 32-bit register.
    pub(crate) fn u32(&self, at: u8) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Returns the address of BAR 0, if the guest has enabled memory accesses.
    pub(crate) fn bar0(&self) -> Option<u64> {
        let on = self.u16(COMMAND) & MEMORY_ENABLE != 0;
        on.then(|| u64::from(self.u32(BAR0) & !0xf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        let mut space = ConfigSpace::new(&Identity {
            vendor: 0x1af4,
            device: 0x1042,
            class: [0, 0x80, 1],
            revision: 1,
            subsystem_vendor: 0x1af4,
            subsystem: 2,
        });
        space.add_bar0(0xc000_0000, 0x8000);
        space
    }

    #[test]
    fn identity_is_read_only() {
        let mut space = space();
        space.write(0, &[0; 4]);
        space.write(8, &[0xff; 4]);
        assert_eq!((space.u16(0), space.u16(2)), (0x1af4, 0x1042));
        assert_eq!(space.u32(8), 0x0180_0001);
    }

    #[test]
    fn the_size_of_a_bar_shows_when_ones_are_written() {
        let mut space = space();
        space.write(BAR0, &[0xff; 4]);
        assert_eq!(space.u32(BAR0), 0xffff_8000);
        space.write(BAR0, &0xd000_0000u32.to_le_bytes());
        assert_eq!(space.u32(BAR0), 0xd000_0000);
        space.write(BAR0 + 4, &[0xff; 4]);
        assert_eq!(space.u32(BAR0 + 4), 0, "there is no BAR 1");
    }

    #[test]
    fn a_bar_answers_only_while_memory_is_enabled() {
        let mut space = space();
        assert_eq!(space.bar0(), None);
        space.write(COMMAND, &MEMORY_ENABLE.to_le_bytes());
        assert_eq!(space.bar0(), Some(0xc000_0000));
    }

    #[test]
    fn capabilities_form_a_list() {
        let mut space = space();
        let first = space.add_capability(0x11, &[0; 10]);
        let second = space.add_capability(0x09, &[0; 14]);
        let mut at = [0];
        space.read(CAPABILITIES, &mut at);
        assert_eq!(at[0], first);
        assert_eq!(space.u16(first), u16::from_le_bytes([0x11, second]));
        assert_eq!(space.u16(second), 0x0009);
        assert_ne!(space.u16(STATUS) & u16::from(HAS_CAPABILITIES), 0);
    }

    #[test]
    fn accesses_at_the_very_end_stay_inside() {
        let mut space = space();
        let mut data = [0; 4];
        space.read(0xfe, &mut data);
        assert_eq!(data, [0, 0, 0xff, 0xff]);
        space.write(0xff, &[1, 2, 3, 4]);
    }
}
