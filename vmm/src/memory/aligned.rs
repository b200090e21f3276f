//! Mappings whose address is a multiple of the huge page size.
//!
//! KVM maps guest memory in large pages only if its address in this process and its guest physical address
//! have the same offset in a large page (`kvm_alloc_memslot_metadata`, arch/x86/kvm/x86.c, Linux 6.1). Linux
//! before 6.7 aligns no anonymous mapping, and Linux 6.13 none whose size is not a multiple of the huge page
//! size.
//!
//! vm-memory unmaps what it has mapped itself, at an address that the kernel chooses. The kernel places a
//! mapping directly below the lowest one (or directly above the highest one, in the legacy layout of the
//! address space). So a filler of the missing length, there for a moment, moves the next mapping to an
//! aligned address.

use std::ptr::{self, NonNull};

use vm_memory::MmapRegion;
use vm_memory::mmap::MmapRegionError;

use super::HUGE_PAGE;

/// Number of attempts: another thread may map memory in between.
const ATTEMPTS: usize = 8;

/// Reserved part of the address space without memory, unmapped when dropped.
struct Filler {
    start: NonNull<libc::c_void>,
    length: usize,
}

impl Filler {
    /// Reserves exactly this part, if nothing is there.
    fn reserve(start: usize, length: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let wanted = ptr::with_exposed_provenance_mut(start);
        // SAFETY: with MAP_FIXED_NOREPLACE no mapping is replaced, and a kernel that does not know it (before
        // 4.17) takes the address as a hint.
        let mapped = unsafe { libc::mmap(wanted, length, libc::PROT_NONE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let filler = Self { start: NonNull::new(mapped)?, length };
        (mapped == wanted).then_some(filler)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // SAFETY: the part was mapped by `reserve`, and nobody else has its address.
        unsafe {
            libc::munmap(self.start.as_ptr(), self.length);
        }
    }
}

/// Maps `length` bytes at an aligned address. If the address space does not allow that, at another one: the
/// guest is slower then, nothing else.
pub(super) fn map(length: usize) -> Result<MmapRegion, MmapRegionError> {
    const HUGE: usize = 2 << 20;
    const { assert!(HUGE as u64 == HUGE_PAGE) };
    let mut region = MmapRegion::new(length)?;
    for attempt in 0..ATTEMPTS {
        let start = region.as_ptr().expose_provenance();
        let below = start % HUGE;
        // No large page fits into less.
        if below == 0 || length < HUGE {
            break;
        }
        // Its place is free when the filler is reserved.
        drop(region);
        let _filler = if attempt % 2 == 0 {
            Filler::reserve(start + length - below, below)
        } else {
            Filler::reserve(start, HUGE - below)
        };
        region = MmapRegion::new(length)?;
    }
    Ok(region)
}
