//! Resident memory of this process without the guest's.

use std::fs;
use std::io;
use std::ops::Range;

use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress};

/// Returns the resident bytes of this process outside of the guest's memory.
///
/// # Errors
/// `/proc/self/smaps` can't be read.
pub(crate) fn beyond_guest(memory: &GuestMemoryMmap) -> io::Result<u64> {
    let guest: Vec<Range<u64>> = memory
        .iter()
        .filter_map(|region| {
            let start = region.get_host_address(MemoryRegionAddress(0)).ok()? as u64;
            Some(start..start.checked_add(region.len())?)
        })
        .collect();
    Ok(resident_outside(&fs::read_to_string("/proc/self/smaps")?, &guest))
}

/// Sums `Rss:` over the mappings of a `/proc/PID/smaps` (proc_pid_smaps(5)) that begin outside of the ranges.
fn resident_outside(smaps: &str, ranges: &[Range<u64>]) -> u64 {
    let mut outside = true;
    let mut kib = 0_u64;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, _)) = first.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            outside = !ranges.iter().any(|range| range.contains(&start));
        } else if outside && first == "Rss:" {
            let size = line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
            kib = kib.saturating_add(size.unwrap_or(0));
        }
    }
    kib.saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    #[test]
    fn mappings_of_the_guest_do_not_count() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nRss:                 4 kB\n\
                     3000-9000 rw-p 00000000 00:00 0 \nRss:                16 kB\n\
                     f000-10000 r-xp 00000000 08:01 7 /bin/true\nRss:                 4 kB\n";
        assert_eq!(resident_outside(smaps, std::slice::from_ref(&(0x3000..0x9000))), 8 * 1024);
        assert_eq!(resident_outside(smaps, &[]), 24 * 1024);
    }

    #[test]
    fn touching_guest_memory_changes_little() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 20)]).unwrap();
        for page in 0..(64 << 20) / 4096 {
            memory.write_obj(1_u8, GuestAddress(page * 4096)).unwrap();
        }
        assert!(beyond_guest(&memory).unwrap() < 48 << 20);
    }
}
