//! The ACPI tables: how the guest finds its processors, COM1, the PCI bus and the off switch.
//!
//! The platform is hardware-reduced (ACPI 6.5, 4.1): no SCI, no PM timer, no PIT or PIC needed,
//! and power-off is one write to the sleep control register. RSDP and XSDT lead to
//!
//! - FADT: sleep control and reset registers, both in I/O space,
//! - MADT: one local APIC per vCPU and the IOAPIC,
//! - DSDT: COM1, COM2 if there is one, the PCI host bridge and `_S5`.

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Name, Package, Path,
    ResourceTemplate, Scope, Zero,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace as Space, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::error::StartError;
use crate::memory::{
    ACPI_START, IOAPIC, LOCAL_APIC, ONE_MIB, PCI_WINDOW_END, PCI_WINDOW_START, RESET_VECTOR,
};
use crate::serial::{COM_PORTS, COM1, COM1_IRQ, COM2, COM2_IRQ};

/// I/O port of the sleep control register (ACPI 6.5, 4.8.3.7).
pub(crate) const SLEEP_CONTROL: u16 = 0x600;
/// I/O port of the sleep status register; reads as 0, no wake has happened.
pub(crate) const SLEEP_STATUS: u16 = 0x601;
/// I/O port of the reset register: the PC's reset control register.
pub(crate) const RESET_CONTROL: u16 = 0xcf9;
/// Value that the guest has to write there according to the FADT: full reset, hard.
pub(crate) const RESET_VALUE: u8 = 0x06;
/// Sleep type of soft-off in `_S5`.
const S5: u8 = 5;

const OEM: [u8; 6] = *b"VPROF ";
const OEM_TABLE: [u8; 8] = *b"VPROFVM ";
const OEM_REVISION: u32 = 1;
/// IA-PC boot flags (ACPI 6.5, 5.2.9.3): there is no VGA ...
const NO_VGA: u16 = 1 << 2;
/// ... and no CMOS clock. Bit 1 clear: no 8042 either.
const NO_CMOS_CLOCK: u16 = 1 << 5;

/// Returns true if this write to [`SLEEP_CONTROL`] is a request for soft-off: SLP_TYP in bits 4:2 and
/// SLP_EN in bit 5.
pub(crate) fn is_power_off(value: u8) -> bool {
    value & 0x20 != 0 && (value >> 2) & 7 == S5
}

/// Writes all tables and returns the address of the RSDP.
pub(crate) fn write(
    memory: &GuestMemoryMmap,
    vcpus: u8,
    second_serial: bool,
) -> Result<GuestAddress, StartError> {
    let mut place = TableWriter { memory, next: ACPI_START };
    let dsdt = place.put(&dsdt(second_serial))?;
    let fadt = place.put(&bytes(&fadt(dsdt)))?;
    let madt = place.put(&bytes(&madt(vcpus)))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt.0);
    xsdt.add_entry(madt.0);
    let xsdt = place.put(&bytes(&xsdt))?;
    place.put(&bytes(&Rsdp::new(OEM, xsdt.0)))
}

/// Puts tables one after the other into the ACPI area.
struct TableWriter<'a> {
    memory: &'a GuestMemoryMmap,
    next: u64,
}

impl TableWriter<'_> {
    fn put(&mut self, table: &[u8]) -> Result<GuestAddress, StartError> {
        let at = GuestAddress(self.next);
        // The RSDP must be at a multiple of 16 (ACPI 6.5, 5.2.5.1); other tables may be.
        let end = (self.next + table.len() as u64).next_multiple_of(16);
        let too_small = || StartError::MemoryTooSmall {
            what: "the set of ACPI tables",
            have: crate::memory::low_ram(vm_memory::GuestMemoryBackend::last_addr(self.memory).0 + 1),
            need: end.max(ONE_MIB),
        };
        if end > RESET_VECTOR {
            return Err(too_small());
        }
        self.memory.write_slice(table, at).map_err(|_| too_small())?;
        self.next = end;
        Ok(at)
    }
}

/// Returns a table as it is in memory.
fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// Returns a byte-wide register in I/O space.
fn io_register(port: u16) -> GAS {
    GAS::new(Space::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(port))
}

fn fadt(dsdt: GuestAddress) -> impl Aml {
    let mut builder = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt.0)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::Wbinvd);
    builder.iapc_boot_arch = (NO_VGA | NO_CMOS_CLOCK).into();
    builder.reset_reg = io_register(RESET_CONTROL);
    builder.reset_value = RESET_VALUE;
    builder.sleep_control_reg = io_register(SLEEP_CONTROL);
    builder.sleep_status_reg = io_register(SLEEP_STATUS);
    builder.finalize()
}

fn madt(vcpus: u8) -> MADT {
    let controller = LocalInterruptController::Address(LOCAL_APIC);
    let mut madt = MADT::new(OEM, OEM_TABLE, OEM_REVISION, controller);
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, IOAPIC, 0));
    madt
}

/// Returns a serial port as a device of this name.
fn serial(name: &str, number: u8, ports: u16, interrupt: u32) -> Vec<u8> {
    let ports = IO::new(ports, ports, 1, COM_PORTS);
    let interrupt = Interrupt::new(true, true, false, false, interrupt);
    let resources = ResourceTemplate::new(vec![&ports, &interrupt]);
    let id = Name::new(Path::new("_HID"), &EISAName::new("PNP0501"));
    let uid = Name::new(Path::new("_UID"), &number);
    let crs = Name::new(Path::new("_CRS"), &resources);
    bytes(&Device::new(Path::new(name), vec![&id, &uid, &crs]))
}

/// Bytes of a table that are made already.
struct FinishedTable(Vec<u8>);

impl Aml for FinishedTable {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

/// Returns the namespace: `\_SB.COM1`, `\_SB.COM2`, `\_SB.PCI0` and `\_S5`.
fn dsdt(second_serial: bool) -> Vec<u8> {
    let mut sdt = Sdt::new(*b"DSDT", 36, 6, OEM, OEM_TABLE, OEM_REVISION);
    let mut serials = serial("COM1", 0, COM1, COM1_IRQ);
    if second_serial {
        serials.extend(serial("COM2", 1, COM2, COM2_IRQ));
    }
    let serials = FinishedTable(serials);

    let bus = AddressSpace::new_bus_number(0u16, 0u16);
    let config_ports = IO::new(0xcf8, 0xcf8, 1, 8);
    let window = AddressSpace::new_memory(
        AddressSpaceCacheable::NotCacheable,
        true,
        window_address(PCI_WINDOW_START),
        window_address(PCI_WINDOW_END - 1),
        None,
    );
    let pci_resources = ResourceTemplate::new(vec![&bus, &config_ports, &window]);
    let pci_id = Name::new(Path::new("_HID"), &EISAName::new("PNP0A03"));
    let pci_uid = Name::new(Path::new("_UID"), &Zero {});
    let pci_bus = Name::new(Path::new("_BBN"), &Zero {});
    let pci_crs = Name::new(Path::new("_CRS"), &pci_resources);
    let pci = Device::new(Path::new("PCI0"), vec![&pci_id, &pci_uid, &pci_bus, &pci_crs]);

    Scope::new(Path::new("\\_SB_"), vec![&serials, &pci]).to_aml_bytes(&mut sdt);
    let off = Package::new(vec![&S5]);
    Name::new(Path::new("\\_S5_"), &off).to_aml_bytes(&mut sdt);
    sdt.update_checksum();
    sdt.as_slice().to_vec()
}

/// Converts an address of the PCI window, which is below 4 GiB.
fn window_address(address: u64) -> u32 {
    const { assert!(PCI_WINDOW_END <= u32::MAX as u64) };
    u32::try_from(address).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap()
    }

    fn table(memory: &GuestMemoryMmap, at: u64) -> Vec<u8> {
        let length: u32 = memory.read_obj(GuestAddress(at + 4)).unwrap();
        let mut bytes = vec![0; length as usize];
        memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    fn pointer(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn every_table_is_reachable_and_adds_up_to_zero() {
        let memory = memory();
        let rsdp_at = write(&memory, 3, false).unwrap();
        assert_eq!(rsdp_at.0 % 16, 0);
        let mut rsdp = [0; 36];
        memory.read_slice(&mut rsdp, rsdp_at).unwrap();
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));

        let xsdt = table(&memory, pointer(&rsdp, 24));
        assert_eq!((&xsdt[..4], sum(&xsdt)), (&b"XSDT"[..], 0));
        let fadt = table(&memory, pointer(&xsdt, 36));
        assert_eq!((&fadt[..4], sum(&fadt)), (&b"FACP"[..], 0));
        let madt = table(&memory, pointer(&xsdt, 44));
        assert_eq!((&madt[..4], sum(&madt)), (&b"APIC"[..], 0));
        let dsdt = table(&memory, pointer(&fadt, 140));
        assert_eq!((&dsdt[..4], sum(&dsdt)), (&b"DSDT"[..], 0));
    }

    #[test]
    fn a_second_serial_port_is_in_the_namespace_only_if_there_is_one() {
        let has = |dsdt: &[u8], name: &[u8]| dsdt.windows(4).any(|window| window == name);
        assert!(has(&dsdt(false), b"COM1") && !has(&dsdt(false), b"COM2"));
        assert!(has(&dsdt(true), b"COM1") && has(&dsdt(true), b"COM2"));
        assert_eq!(sum(&dsdt(true)), 0);
    }

    #[test]
    fn the_fadt_names_the_sleep_and_reset_registers() {
        let fadt = bytes(&fadt(GuestAddress(0)));
        assert_eq!(fadt.len(), 276);
        // Offsets of ACPI 6.5, table 5.9.
        let flags = u32::from_le_bytes(fadt[112..116].try_into().unwrap());
        assert_ne!(flags & (1 << 20), 0, "hardware-reduced");
        assert_ne!(flags & (1 << 10), 0, "reset register");
        assert_eq!((fadt[116], pointer(&fadt, 120)), (1, u64::from(RESET_CONTROL)));
        assert_eq!(fadt[128], RESET_VALUE);
        assert_eq!((fadt[244], pointer(&fadt, 248)), (1, u64::from(SLEEP_CONTROL)));
        assert_eq!((fadt[256], pointer(&fadt, 260)), (1, u64::from(SLEEP_STATUS)));
    }

    #[test]
    fn the_madt_lists_every_vcpu() {
        for vcpus in [1, 2, 64] {
            let madt = bytes(&madt(vcpus));
            assert_eq!(madt.len(), 44 + usize::from(vcpus) * 8 + 12);
            let last = &madt[44 + usize::from(vcpus - 1) * 8..][..8];
            assert_eq!(last, [0, 8, vcpus - 1, vcpus - 1, 1, 0, 0, 0]);
        }
    }

    #[test]
    fn soft_off_is_the_only_sleep_that_ends_the_machine() {
        assert!(is_power_off(0x34));
        for value in [0x00, 0x14, 0x20, 0x30, 0x2c] {
            assert!(!is_power_off(value), "{value:#x}");
        }
    }

    #[test]
    fn memory_that_ends_before_the_acpi_area_is_too_small() {
        let tiny = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x8_0000)]).unwrap();
        assert!(matches!(write(&tiny, 1, false), Err(StartError::MemoryTooSmall { .. })));
    }
}
