//! Settings of the heap, so that it gives memory back.

/// Size from which on an allocation has its own mapping, and size of free memory at the end of the heap that
/// is given back, bytes.
#[cfg(target_env = "gnu")]
const AT_ONCE: libc::c_int = 256 << 10;

/// Has the C library give large allocations back to the host's kernel as soon as they are freed, as long as
/// vprof records.
///
/// glibc raises its own bound to the largest allocation that was ever freed (M_MMAP_THRESHOLD in mallopt(3)),
/// here a guest's kernel or initrd of 10 MB and more. From then on tables of some megabytes that are read and
/// dropped again leave holes in the heap. musl has a fixed bound of 128 KiB.
pub fn give_back_at_once() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers, and locks by itself.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, AT_ONCE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, AT_ONCE);
    }
}

/// Gives the free memory of the heap back to the host's kernel, where the C library can.
pub fn give_back_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, and locks by itself.
    unsafe {
        libc::malloc_trim(0);
    }
}
