//! Puts a Linux kernel into memory by the 64-bit boot protocol
//! (`Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol").
//!
//! ```text
//! 0x0000_7000  struct boot_params        RSI at entry
//! 0x0002_0000  command line
//! 0x000e_0000  ACPI tables
//! 0x000f_fff0  reset vector              for a Linux that restarts through "the BIOS"
//! 0x0010_0000  bzImage                   entered at +0x200; a vmlinux lies where it says
//! ...          room that the kernel unpacks itself into
//! end of low   initrd                    ends where low RAM or `initrd_addr_max` ends
//! ```

use std::io::Cursor;

use linux_loader::loader::bootparam::{
    E820_MAX_ENTRIES_ZEROPAGE, LOADED_HIGH, boot_e820_entry, boot_params, setup_header,
};
use linux_loader::loader::{BzImage, Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::check_command_line;
use super::cpu::{self, EntryState};
use super::image::{self, KernelImage};
use crate::acpi::{self, RESET_CONTROL, RESET_VALUE};
use crate::error::{KernelError, StartError};
use crate::memory::{
    ACPI_START, COMMAND_LINE, COMMAND_LINE_ROOM, HIGH_START, LOW_RAM_END, ONE_MIB, PAGE_TABLES, RESET_VECTOR,
    ZERO_PAGE,
};
use crate::x86::{OPCODE_HLT, PAGE};

/// Load address of a bzImage: the traditional one, for which the entry code makes room.
const KERNEL: u64 = ONE_MIB;
/// Offset of the 64-bit entry point of a bzImage from its load address.
const ENTRY_64: u64 = 0x200;
/// `type_of_loader`: a loader without an assigned number.
const UNASSIGNED_LOADER: u8 = 0xff;
/// Highest initrd address of kernels that do not say (boot protocol 2.02 and ELF images).
const INITRD_MAX: u64 = 0x37ff_ffff;
/// Longest command line of an x86 kernel (`COMMAND_LINE_SIZE` - 1, `asm/setup.h`).
pub(super) const ELF_COMMAND_LINE: usize = 2047;
/// e820 types (`asm/e820/types.h`).
const RAM: u32 = 1;
const RESERVED: u32 = 2;
const ACPI: u32 = 3;
/// `mov $RESET_VALUE, %al; mov $RESET_CONTROL, %dx; out %al, (%dx); 1: hlt; jmp 1b`
///
/// On a hardware-reduced platform Linux restarts through EFI if there is any, else by a jump here
/// (`reboot_init` and `native_machine_emergency_restart` in `arch/x86/kernel/reboot.c`, 6.1), and
/// never tries the reset register of the FADT.
const RESET_CODE: [u8; 9] = {
    let [low, high] = RESET_CONTROL.to_le_bytes();
    [0xb0, RESET_VALUE, 0xba, low, high, 0xee, OPCODE_HLT, 0xeb, 0xfd]
};
/// End of conventional memory on a PC.
const CONVENTIONAL_END: u64 = 0xa_0000;

/// Loads kernel, initrd, command line and tables, so that the first vCPU can enter the kernel.
pub(super) fn load(
    memory: &GuestMemoryMmap,
    kernel: &[u8],
    initrd: Option<&[u8]>,
    command_line: &str,
    vcpus: u8,
    second_serial: bool,
) -> Result<EntryState, StartError> {
    let loaded = load_kernel(memory, kernel)?;
    let mut header = loaded.header;
    write_command_line(memory, &mut header, command_line)?;
    if let Some(initrd) = initrd {
        write_initrd(memory, &mut header, initrd, loaded.end)?;
    }
    header.type_of_loader = UNASSIGNED_LOADER;
    let rsdp = acpi::write(memory, vcpus, second_serial)?;
    let mut params = boot_params { hdr: header, acpi_rsdp_addr: rsdp.0, ..Default::default() };
    for (start, end, kind) in e820(memory) {
        let used = usize::from(params.e820_entries);
        debug_assert!(used < E820_MAX_ENTRIES_ZEROPAGE);
        params.e820_table[used] = boot_e820_entry { addr: start, size: end - start, r#type: kind };
        params.e820_entries += 1;
    }
    let too_small = |_| too_small(memory, "boot data", PAGE_TABLES + 6 * PAGE);
    memory.write_obj(params, GuestAddress(ZERO_PAGE)).map_err(too_small)?;
    memory.write_slice(&RESET_CODE, GuestAddress(RESET_VECTOR)).map_err(too_small)?;
    cpu::write_tables(memory).map_err(too_small)?;
    Ok(EntryState { rip: loaded.entry, rsp: PAGE_TABLES, rsi: ZERO_PAGE, cpl: 0 })
}

/// A kernel in memory.
struct LoadedKernel {
    entry: u64,
    /// The end of what it takes while it starts.
    end: u64,
    header: setup_header,
}

fn load_kernel(memory: &GuestMemoryMmap, file: &[u8]) -> Result<LoadedKernel, StartError> {
    match image::recognize(file)? {
        KernelImage::BzImage(header) => {
            // The kernel unpacks itself to its preferred address or after its load address, whichever is
            // higher, and needs `init_size` from there.
            let end = (header.pref_address)
                .max(KERNEL)
                .saturating_add(u64::from(header.init_size))
                .max(KERNEL + file.len() as u64);
            check_room(memory, end)?;
            let at = Some(GuestAddress(KERNEL));
            let result = BzImage::load(memory, at, &mut Cursor::new(file), None);
            let result = loaded(result)?;
            let header = result.setup_header.unwrap_or(*header);
            Ok(LoadedKernel { entry: KERNEL + ENTRY_64, end, header })
        }
        KernelImage::Elf { start, end } => {
            if start < ONE_MIB {
                let what = format!("a segment starts at {start:#x}, below 1 MiB");
                return Err(KernelError::Damaged(what).into());
            }
            check_room(memory, end)?;
            let low = Some(GuestAddress(ONE_MIB));
            let result = loaded(Elf::load(memory, None, &mut Cursor::new(file), low))?;
            Ok(LoadedKernel { entry: result.kernel_load.0, end, header: elf_header() })
        }
    }
}

fn loaded(
    result: Result<KernelLoaderResult, linux_loader::loader::Error>,
) -> Result<KernelLoaderResult, StartError> {
    result.map_err(|error| KernelError::Damaged(error.to_string()).into())
}

/// Makes the setup header, which a vmlinux lacks.
fn elf_header() -> setup_header {
    setup_header {
        boot_flag: 0xaa55,
        header: 0x5372_6448,
        version: 0x020c,
        loadflags: LOADED_HIGH,
        kernel_alignment: 0x100_0000,
        ..Default::default()
    }
}

/// Returns the end of RAM below the hole.
fn low_end(memory: &GuestMemoryMmap) -> u64 {
    memory
        .iter()
        .map(|region| region.start_addr().0 + region.len())
        .filter(|end| *end < HIGH_START)
        .max()
        .unwrap_or(0)
}

fn too_small(memory: &GuestMemoryMmap, what: &'static str, need: u64) -> StartError {
    StartError::MemoryTooSmall { what, have: low_end(memory), need }
}

fn check_room(memory: &GuestMemoryMmap, end: u64) -> Result<(), StartError> {
    if end > low_end(memory) {
        return Err(too_small(memory, "the kernel", end));
    }
    Ok(())
}

fn write_command_line(
    memory: &GuestMemoryMmap,
    header: &mut setup_header,
    line: &str,
) -> Result<(), StartError> {
    check_command_line(line, longest_command_line(header))?;
    let mut bytes = line.as_bytes().to_vec();
    bytes.push(0);
    memory
        .write_slice(&bytes, GuestAddress(COMMAND_LINE))
        .map_err(|_| too_small(memory, "the command line", COMMAND_LINE + bytes.len() as u64))?;
    header.cmd_line_ptr = below_4_gib(COMMAND_LINE);
    Ok(())
}

/// Returns the length of the longest command line that a kernel with this setup header takes, bytes.
pub(super) fn longest_command_line(header: &setup_header) -> usize {
    let announced = match header.cmdline_size {
        0 => ELF_COMMAND_LINE,
        size => usize::try_from(size).unwrap_or(usize::MAX),
    };
    announced.min(COMMAND_LINE_ROOM - 1)
}

fn write_initrd(
    memory: &GuestMemoryMmap,
    header: &mut setup_header,
    initrd: &[u8],
    kernel_end: u64,
) -> Result<(), StartError> {
    if initrd.is_empty() {
        return Err(StartError::InitrdEmpty);
    }
    let length = initrd.len() as u64;
    let most = match header.initrd_addr_max {
        0 => INITRD_MAX,
        most => u64::from(most),
    };
    let no_room = || {
        let need = kernel_end.saturating_add(length.next_multiple_of(PAGE));
        too_small(memory, "the kernel with this initrd", need)
    };
    let end = low_end(memory).min(most.saturating_add(1));
    let start = end.checked_sub(length).ok_or_else(no_room)? / PAGE * PAGE;
    if start < kernel_end {
        return Err(no_room());
    }
    memory.write_slice(initrd, GuestAddress(start)).map_err(|_| no_room())?;
    header.ramdisk_image = below_4_gib(start);
    header.ramdisk_size = below_4_gib(length);
    Ok(())
}

/// Converts an address or size inside low RAM.
fn below_4_gib(value: u64) -> u32 {
    debug_assert!(value < HIGH_START);
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Returns the memory map: (start, end, type).
fn e820(memory: &GuestMemoryMmap) -> Vec<(u64, u64, u32)> {
    let mut map =
        vec![(0, LOW_RAM_END, RAM), (LOW_RAM_END, CONVENTIONAL_END, RESERVED), (ACPI_START, ONE_MIB, ACPI)];
    for region in memory.iter() {
        let start = region.start_addr().0.max(ONE_MIB);
        map.push((start, region.start_addr().0 + region.len(), RAM));
    }
    map
}

#[cfg(test)]
mod tests {
    use testkit::bz_image;

    use super::super::image::tests::elf_file;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(mib: usize) -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), mib << 20)]).unwrap()
    }

    fn params(memory: &GuestMemoryMmap) -> boot_params {
        memory.read_obj(GuestAddress(ZERO_PAGE)).unwrap()
    }

    #[test]
    fn a_bz_image_is_entered_at_its_64_bit_entry() {
        let memory = memory(64);
        let mut file = bz_image(4096);
        file[5 * 512] = 0xcc;
        let entry = load(&memory, &file, Some(&[7; 5000]), "console=ttyS0", 2, false).unwrap();
        assert_eq!((entry.rip, entry.rsi), (0x10_0200, ZERO_PAGE));
        let first: u8 = memory.read_obj(GuestAddress(KERNEL)).unwrap();
        assert_eq!(first, 0xcc, "the setup sectors are not part of the kernel");
        let params = params(&memory);
        let (line, rsdp) = (params.hdr.cmd_line_ptr, params.acpi_rsdp_addr);
        let mut text = [0; 14];
        memory.read_slice(&mut text, GuestAddress(u64::from(line))).unwrap();
        assert_eq!(&text, b"console=ttyS0\0");
        assert!((ACPI_START..ONE_MIB).contains(&rsdp));
        let (image, size) = (params.hdr.ramdisk_image, params.hdr.ramdisk_size);
        assert_eq!((u64::from(image), size), (64 * MIB - 8192, 5000));
        let byte: u8 = memory.read_obj(GuestAddress(u64::from(image) + 4999)).unwrap();
        assert_eq!(byte, 7);
    }

    #[test]
    fn the_reset_vector_writes_the_reset_register() {
        let memory = memory(64);
        load(&memory, &bz_image(4096), None, "", 64, false).unwrap();
        let mut code = [0; 9];
        memory.read_slice(&mut code, GuestAddress(0xf_fff0)).unwrap();
        assert_eq!(code, [0xb0, 0x06, 0xba, 0xf9, 0x0c, 0xee, 0xf4, 0xeb, 0xfd]);
    }

    #[test]
    fn a_vmlinux_is_entered_where_it_says() {
        let memory = memory(64);
        let entry = load(&memory, &elf_file(62, 64), None, "", 1, false).unwrap();
        assert_eq!(entry.rip, 0x100_0000);
        let header = params(&memory).hdr;
        let (loader, magic) = (header.type_of_loader, header.header);
        assert_eq!((loader, magic), (0xff, 0x5372_6448));
    }

    proptest::proptest! {
        #[test]
        fn damaged_kernels_are_loaded_or_refused(
            elf in proptest::bool::ANY,
            at in 0..0x280usize,
            noise in proptest::collection::vec(proptest::num::u8::ANY, 1..16),
        ) {
            let mut file = if elf { elf_file(62, 0x280) } else { bz_image(4096) };
            for (byte, random) in file.iter_mut().skip(at).zip(&noise) {
                *byte = *random;
            }
            let memory = memory(32);
            match load(&memory, &file, Some(&[1; 100]), "quiet", 1, false) {
                Ok(entry) => {
                    // What the kernel is given is inside its memory, wherever the file asks for it.
                    let header = params(&memory).hdr;
                    let (words, initrd, size) = (header.cmd_line_ptr, header.ramdisk_image, header.ramdisk_size);
                    proptest::prop_assert_eq!((entry.rsi, size), (ZERO_PAGE, 100));
                    proptest::prop_assert!(u64::from(words) < 32 * MIB && u64::from(initrd) + 100 <= 32 * MIB);
                }
                Err(error) => proptest::prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn the_map_covers_all_ram_once_and_nothing_else() {
        let pieces = [(GuestAddress(0), 64 << 20), (GuestAddress(HIGH_START), 32 << 20)];
        let memory = GuestMemoryMmap::from_ranges(&pieces).unwrap();
        let map = e820(&memory);
        assert!(map.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{map:x?}");
        assert_eq!(map[3], (ONE_MIB, 64 * MIB, RAM));
        assert_eq!(map[4], (HIGH_START, HIGH_START + 32 * MIB, RAM));
    }

    #[test]
    fn an_initrd_stays_below_the_kernels_limit() {
        let mut header = setup_header { initrd_addr_max: 0x1ff_ffff, ..Default::default() };
        write_initrd(&memory(64), &mut header, &[1; 100], MIB).unwrap();
        let image = header.ramdisk_image;
        assert_eq!(image, 0x1ff_f000);
    }

    #[test]
    fn what_does_not_fit_is_said_with_the_memory_it_takes() {
        let kernel = bz_image(4096);
        let error = load(&memory(8), &kernel, None, "", 1, false).unwrap_err();
        let need = 0x110_0000;
        assert!(matches!(error, StartError::MemoryTooSmall { what: "the kernel", need: n, .. } if n == need));
        let initrd = vec![0; 16 << 20];
        let error = load(&memory(32), &kernel, Some(&initrd), "", 1, false).unwrap_err();
        assert!(error.to_string().contains("initrd needs 33 MiB"), "{error}");
        let error = load(&memory(32), &kernel, Some(&[]), "", 1, false).unwrap_err();
        assert!(matches!(error, StartError::InitrdEmpty));
    }

    #[test]
    fn command_lines_that_the_kernel_would_cut_are_refused() {
        let kernel = bz_image(4096);
        let longest = "x".repeat(2047);
        assert!(load(&memory(32), &kernel, None, &longest, 1, false).is_ok());
        let error = load(&memory(32), &kernel, None, &"x".repeat(2048), 1, false).unwrap_err();
        assert!(matches!(error, StartError::CommandLineTooLong { length: 2048, most: 2047 }));
        let longest = |kernel: &[u8]| super::super::longest_command_line(kernel).unwrap();
        assert_eq!((longest(&kernel), longest(&elf_file(62, 64))), (2047, 2047));
        let mut short = kernel.clone();
        short[0x238..0x23c].copy_from_slice(&255_u32.to_le_bytes());
        assert_eq!(longest(&short), 255);
        let error = load(&memory(32), &kernel, None, "a\0b", 1, false).unwrap_err();
        assert!(matches!(error, StartError::CommandLineNul { at: 1 }));
    }
}
