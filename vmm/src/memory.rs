//! Guest physical memory.
//!
//! ```text
//! 0x0_0000_0000  low RAM            boot data below 1 MiB, see the constants here
//! 0x0_c000_0000  hole               PCI window, IOAPIC, local APIC, KVM's own pages
//! 0x1_0000_0000  high RAM           what does not fit below the hole
//! ```

mod aligned;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

use crate::config::MAX_MEMORY;
use crate::error::StartError;
use crate::x86::PAGE;

/// Size of a huge page, bytes.
const HUGE_PAGE: u64 = 2 << 20;
/// Maximum end of low RAM.
pub(crate) const HOLE_START: u64 = 0xc000_0000;
/// Start of high RAM: directly after the first 4 GiB.
pub(crate) const HIGH_START: u64 = 1 << 32;
/// PCI memory window: from here ...
pub(crate) const PCI_WINDOW_START: u64 = HOLE_START;
/// ... to here (exclusive); the IOAPIC comes next.
pub(crate) const PCI_WINDOW_END: u64 = 0xfec0_0000;
/// Default address of the IOAPIC that KVM emulates (`arch/x86/kvm/ioapic.h`).
pub(crate) const IOAPIC: u32 = 0xfec0_0000;
/// Default address of the local APICs (Intel SDM vol. 3, 11.4.1).
pub(crate) const LOCAL_APIC: u32 = 0xfee0_0000;
/// Page for the identity map that KVM uses on old Intel processors; any unused page will do.
pub(crate) const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;
/// Three pages for the task state segment that KVM uses there.
pub(crate) const KVM_TSS: usize = 0xfffb_d000;

/// Global descriptor table at entry.
pub(crate) const GDT: u64 = 0x1000;
/// Task state segment at entry with its I/O permission bitmap, [`TASK_STATE_LENGTH`] bytes.
pub(crate) const TASK_STATE: u64 = 0x3000;
/// 64-bit TSS (0x68), one bit per port, and the byte of ones that must follow (Intel SDM vol. 1, 19.5.2).
pub(crate) const TASK_STATE_LENGTH: u32 = 0x68 + 0x2000 + 1;
/// `struct boot_params` ("zero page") for Linux.
pub(crate) const ZERO_PAGE: u64 = 0x7000;
/// Page tables at entry: PML4, PDPT and four page directories, one page each.
pub(crate) const PAGE_TABLES: u64 = 0x9000;
/// Kernel command line, at most [`COMMAND_LINE_ROOM`] bytes with its NUL.
pub(crate) const COMMAND_LINE: u64 = 0x2_0000;
/// Room for the command line, bytes.
pub(crate) const COMMAND_LINE_ROOM: usize = 0x1_0000;
/// End of the first range of RAM, as on a PC with an extended BIOS data area.
pub(crate) const LOW_RAM_END: u64 = 0x9_fc00;
/// ACPI tables, in the area where firmware puts them on a PC.
pub(crate) const ACPI_START: u64 = 0xe_0000;
/// Address at which a PC starts after reset in real mode, f000:fff0; the tables end here at the latest.
pub(crate) const RESET_VECTOR: u64 = 0xf_fff0;
/// The end of that area and start of "high" memory.
pub(crate) const ONE_MIB: u64 = 0x10_0000;

// Boot data is in order and below the tables; the windows are in the hole and in order.
const _: () = {
    assert!(TASK_STATE + TASK_STATE_LENGTH as u64 <= ZERO_PAGE);
    assert!(ZERO_PAGE + PAGE <= PAGE_TABLES);
    assert!(COMMAND_LINE + COMMAND_LINE_ROOM as u64 <= LOW_RAM_END);
    assert!(PCI_WINDOW_START >= HOLE_START && PCI_WINDOW_END <= IOAPIC as u64);
    assert!((LOCAL_APIC as u64) < KVM_IDENTITY_MAP);
    assert!(KVM_IDENTITY_MAP + PAGE <= KVM_TSS as u64);
    assert!(KVM_TSS as u64 + 3 * PAGE <= HIGH_START);
};

/// Returns the pieces of RAM of a machine with `bytes` of memory: (start, length), one or two.
pub(crate) fn ram(bytes: u64) -> Vec<(u64, u64)> {
    if bytes <= HOLE_START {
        vec![(0, bytes)]
    } else {
        vec![(0, HOLE_START), (HIGH_START, bytes - HOLE_START)]
    }
}

/// Returns RAM below the hole, bytes.
pub(crate) fn low_ram(bytes: u64) -> u64 {
    bytes.min(HOLE_START)
}

/// Checks the size and maps memory of that size. The host backs a page when it is first touched; huge pages
/// are reserved at once.
pub(crate) fn map(bytes: u64, huge_pages: bool) -> Result<GuestMemoryMmap, StartError> {
    if bytes == 0 || !bytes.is_multiple_of(PAGE) || bytes > MAX_MEMORY {
        return Err(StartError::MemorySize { asked: bytes });
    }
    let host = host_memory().map_err(StartError::host("its memory size"))?;
    if bytes > host {
        return Err(StartError::MemoryBeyondHost { asked: bytes, host });
    }
    let failed = |reason: String| StartError::MemoryMap { asked: bytes, reason };
    let mut ranges = Vec::with_capacity(2);
    for (start, length) in ram(bytes) {
        let length = usize::try_from(length).map_err(|error| failed(error.to_string()))?;
        ranges.push((GuestAddress(start), length));
    }
    let memory = if huge_pages { map_huge(bytes, &ranges)? } else { map_small(bytes, &ranges)? };
    // A core dump would hold the guest's secrets, and be as large as its memory.
    advise(&memory, libc::MADV_DONTDUMP).map_err(|error| failed(error.to_string()))?;
    if !huge_pages {
        // Large pages halve the cost of a nested page walk. A host that refuses loses speed, nothing else.
        drop(advise(&memory, libc::MADV_HUGEPAGE));
    }
    Ok(memory)
}

/// Maps memory in pages of 4 KiB that the host can join to large ones.
fn map_small(bytes: u64, ranges: &[(GuestAddress, usize)]) -> Result<GuestMemoryMmap, StartError> {
    let failed = |reason: String| StartError::MemoryMap { asked: bytes, reason };
    let mut regions = Vec::with_capacity(ranges.len());
    for (start, length) in ranges {
        let region = aligned::map(*length).map_err(|error| failed(error.to_string()))?;
        let region = GuestRegionMmap::new(region, *start);
        regions.push(region.ok_or_else(|| failed("it does not fit into the address space".to_owned()))?);
    }
    GuestMemoryMmap::from_regions(regions).map_err(|error| failed(error.to_string()))
}

/// Maps memory in huge pages that the host has reserved.
fn map_huge(bytes: u64, ranges: &[(GuestAddress, usize)]) -> Result<GuestMemoryMmap, StartError> {
    if !bytes.is_multiple_of(HUGE_PAGE) {
        return Err(StartError::HugePageSize { asked: bytes });
    }
    let refused = || StartError::HugePages { pages: bytes / HUGE_PAGE };
    // Without MAP_NORESERVE: too few pages are an error now and no fault later.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    let mut regions = Vec::with_capacity(ranges.len());
    for (start, length) in ranges {
        let region = MmapRegion::build(None, *length, libc::PROT_READ | libc::PROT_WRITE, flags)
            .map_err(|_| refused())?;
        let region = GuestRegionMmap::new(region, *start);
        regions.push(region.ok_or_else(refused)?);
    }
    GuestMemoryMmap::from_regions(regions).map_err(|_| refused())
}

/// Advises the host on all of the memory: on huge pages, or on core dumps.
fn advise(memory: &GuestMemoryMmap, advice: libc::c_int) -> std::io::Result<()> {
    for region in memory.iter() {
        // SAFETY: the range is exactly one mapping that `region` owns; neither advice changes what it holds.
        if unsafe { libc::madvise(region.as_ptr().cast(), region.size(), advice) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns RAM and swap of the host, bytes.
fn host_memory() -> std::io::Result<u64> {
    // SAFETY: sysinfo is plain data for which all zeroes is a valid value.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure that the pointer, valid for writes, points to.
    if unsafe { libc::sysinfo(&raw mut info) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let units = info.totalram.saturating_add(info.totalswap);
    Ok(units.saturating_mul(u64::from(info.mem_unit)))
}

/// Registers the memory with KVM: one slot per piece.
pub(crate) fn register(vm: &VmFd, memory: &GuestMemoryMmap) -> Result<(), StartError> {
    for (slot, region) in (0..).zip(memory.iter()) {
        let piece = kvm_userspace_memory_region {
            slot,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
            flags: 0,
        };
        // SAFETY: the mapping is as long as `memory_size` says, and the machine keeps a clone
        // of `memory` until its VM and all vCPUs are gone.
        unsafe { vm.set_user_memory_region(piece) }.map_err(StartError::kvm("register guest memory"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_fits_below_the_hole_is_one_piece() {
        assert_eq!(ram(64 << 20), [(0, 64 << 20)]);
        assert_eq!(ram(HOLE_START), [(0, HOLE_START)]);
    }

    #[test]
    fn no_core_dump_holds_guest_memory() {
        // One page more than a huge page, so that the mapping is not joined with another one by chance.
        let bytes = HUGE_PAGE + PAGE;
        let memory = map(bytes, false).expect("memory");
        let start = memory.iter().next().expect("a region").as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut inside = false;
        let flags = maps.lines().find_map(|line| {
            let range = line.split(' ').next()?.split_once('-');
            let ends = range.and_then(|(from, to)| {
                Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
            });
            if let Some((from, to)) = ends {
                inside = (from..to).contains(&start);
            }
            line.strip_prefix("VmFlags:").filter(|_| inside)
        });
        // "dd": do not include in core dumps (proc(5)).
        assert!(flags.expect("the mapping").split_whitespace().any(|flag| flag == "dd"));
    }

    #[test]
    fn the_rest_continues_at_4_gib() {
        assert_eq!(ram(HOLE_START + PAGE), [(0, HOLE_START), (HIGH_START, PAGE)]);
        let pieces = ram(MAX_MEMORY);
        assert_eq!(pieces.iter().map(|(_, length)| length).sum::<u64>(), MAX_MEMORY);
        assert_eq!(pieces.len(), 2);
    }

    #[test]
    fn odd_sizes_and_sizes_beyond_the_limit_are_refused() {
        for bytes in [0, 1, PAGE - 1, PAGE + 512, MAX_MEMORY + PAGE, u64::MAX] {
            assert!(
                matches!(map(bytes, false), Err(StartError::MemorySize { asked }) if asked == bytes),
                "{bytes}"
            );
        }
    }

    #[test]
    fn memory_is_aligned_whatever_its_size() {
        // Tests next to this one would map memory in between: it runs alone, in another process.
        const ALONE: &str = "VPROF_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            alone.args(["--exact", "memory::tests::memory_is_aligned_whatever_its_size"]).env(ALONE, "1");
            let output = alone.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        // Mappings of other sizes move what follows them.
        let sizes = [
            HUGE_PAGE,
            64 << 20,
            HUGE_PAGE + PAGE,
            5 * HUGE_PAGE + 7 * PAGE,
            HOLE_START + 3 * HUGE_PAGE + PAGE,
        ];
        let kept: Vec<_> = sizes.iter().cycle().take(24).map(|&bytes| (bytes, map(bytes, false))).collect();
        for (bytes, memory) in kept {
            for region in memory.unwrap().iter() {
                let offset = (region.as_ptr() as u64).wrapping_sub(region.start_addr().0) % HUGE_PAGE;
                assert_eq!(offset, 0, "{bytes} bytes, the part at {:#x}", region.start_addr().0);
            }
        }
    }

    #[test]
    fn huge_pages_are_there_or_it_is_said_how_to_get_them() {
        assert!(matches!(map(HUGE_PAGE + PAGE, true), Err(StartError::HugePageSize { .. })));
        match map(4 * HUGE_PAGE, true) {
            Ok(memory) => assert_eq!(memory.iter().map(|region| region.len()).sum::<u64>(), 4 * HUGE_PAGE),
            Err(error) => assert!(error.to_string().contains("echo 4 | sudo tee"), "{error}"),
        }
    }

    #[test]
    fn memory_beyond_the_host_is_refused_with_both_sizes() {
        let host = host_memory().unwrap();
        let asked = (host / PAGE + 1) * PAGE;
        if asked > MAX_MEMORY {
            return;
        }
        let message = map(asked, false).unwrap_err().to_string();
        assert!(message.contains("of RAM and swap"), "{message}");
    }
}
