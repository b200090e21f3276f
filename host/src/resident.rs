//! Memory that a process gives back to the host's kernel: a host may have many recorders, each of which needs
//! most of its memory only at its start.

use std::ptr;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// Time until free memory is given back for the first time: the guest's kernel is found by then.
const FIRST: Duration = Duration::from_secs(5);
/// Time between two times. Readings of the guest's tables use some ten MB for a moment.
const PERIOD: Duration = Duration::from_secs(60);

/// Size of a page, bytes.
const PAGE: usize = 4 << 10;

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

/// Has all threads take memory from one place, as each further place keeps free memory. For processes of
/// which there are many, and whose threads rarely allocate at the same time. Copies of the calling process
/// (fork) inherit it.
pub fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers, and locks by itself.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives memory back now and then until `run` ends: the heap's, the stack's of the thread that polls this,
/// the program's, and what `also` gives back.
pub async fn trimmed_while<T>(run: impl Future<Output = T>, also: impl Fn()) -> T {
    tokio::pin!(run);
    let mut times = interval_at(Instant::now() + FIRST, PERIOD);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            outcome = &mut run => return outcome,
            _ = times.tick() => {
                give_back_free();
                attach::give_back_stack();
                give_back_program();
                also();
            }
        }
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

/// Lets go the pages of the program's code and constants, of which a process uses a part again: other memory
/// is needed at the start. They stay in the host's page cache while it has room.
pub fn give_back_program() {
    unsafe extern "C" {
        // Begin and end of the program's code, with what is before it, by GNU ld and LLVM's lld (`info ld`,
        // "PROVIDE").
        static __executable_start: u8;
        static etext: u8;
    }
    let (start, end) = ((&raw const __executable_start).addr(), (&raw const etext).addr());
    let pages = |address: usize| address & !(PAGE - 1);
    let length = pages(end).saturating_sub(pages(start));
    // SAFETY: the range is of mappings of the program's file that nothing ever writes: relocations are in
    // other pages. A page that is used again has the file's bytes, as before.
    unsafe {
        libc::madvise(ptr::without_provenance_mut(pages(start)), length, libc::MADV_DONTNEED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_constants_are_there_again_when_they_are_used() {
        let text = ["names of kernels", "names of programs"].concat();
        let code = give_back_program as fn();
        let before = testkit::resident_kb(code as usize);
        give_back_program();
        let after = testkit::resident_kb(code as usize);
        assert!(after < before, "{before} KB, then {after} KB");
        assert_eq!(text, format!("names of {}names of {}", "kernels", "programs"));
    }
}
