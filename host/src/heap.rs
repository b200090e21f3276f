//! Settings of the heap, so that it gives memory back.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// Time until free memory is given back for the first time: the guest's kernel is found by then.
const FIRST: Duration = Duration::from_secs(5);
/// Time between two times. Readings of the guest's tables use some ten MB for a moment.
const PERIOD: Duration = Duration::from_secs(60);

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

/// Gives free memory back now and then until `run` ends.
pub(crate) async fn trimmed_while<T>(run: impl Future<Output = T>) -> T {
    tokio::pin!(run);
    let mut times = interval_at(Instant::now() + FIRST, PERIOD);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            outcome = &mut run => return outcome,
            _ = times.tick() => give_back_free(),
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
