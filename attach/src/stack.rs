//! Giving memory of a thread's stack back.

use std::ptr;

/// Size of a page, and of the part below a stack's end that calls from here may need, bytes.
const PAGE: usize = 4 << 10;
const KEPT: usize = 4 * PAGE;
/// Bytes that are given back of the first thread's stack, at most.
const FIRST_THREAD: usize = 512 << 10;

/// Gives what is below the end of the calling thread's stack back to the host's kernel: a search of a
/// guest's kernel, or of a host's types, takes some 100 KB once. For threads that stay.
pub fn give_back_stack() {
    let here = 0u8;
    let end = ((&raw const here).addr() - KEPT) & !(PAGE - 1);
    // SAFETY: both return numbers.
    let is_first = unsafe { libc::gettid() == libc::getpid() };
    let start = if is_first { Some(end - FIRST_THREAD) } else { own_stack().filter(|start| *start < end) };
    let Some(start) = start else { return };
    // SAFETY: below the stack's end, and below what this call and its own calls use of it, nothing is stored.
    // A thread's stack begins where its attributes say. The host's kernel maps nothing else within 1 MiB
    // below the first thread's stack (stack_guard_gap, mm/mmap.c, Linux 6.1); where nothing is mapped it
    // reports an error, which changes nothing.
    unsafe {
        libc::madvise(ptr::without_provenance_mut(start), end - start, libc::MADV_DONTNEED);
    }
}

/// Returns the lowest address of the stack of a thread that is not the first one.
fn own_stack() -> Option<usize> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: fills the attributes of the calling thread, unless it returns an error.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut start, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are initialized, and are destroyed once.
    let found = unsafe {
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        found
    };
    (found == 0).then_some(start.addr())
}

#[cfg(test)]
mod tests {
    use testkit::resident_kb;

    use super::*;

    /// Touches that much of the stack.
    #[inline(never)]
    fn touch<const BYTES: usize>() -> u8 {
        let mut bytes = [1u8; BYTES];
        std::hint::black_box(&mut bytes);
        bytes[BYTES / 2]
    }

    #[test]
    fn what_a_thread_no_longer_uses_is_given_back_and_what_it_uses_stays() {
        let on_stack = [7u8; 3000];
        let address = on_stack.as_ptr().addr();
        assert_eq!(touch::<{ 256 << 10 }>(), 1);
        let before = resident_kb(address);
        give_back_stack();
        let after = resident_kb(address);
        assert!(before >= 256 && after + 200 <= before, "{before} KB, then {after} KB");
        assert!(std::hint::black_box(&on_stack).iter().all(|byte| *byte == 7));
        assert_eq!(touch::<{ 256 << 10 }>(), 1, "it can be used again");
    }
}
