//! The memory that a thread has allocated, counted where that happens: what hostile tables are parsed into is
//! bounded by what it really takes ([`crate::names::SourceLines`]), not by a guess.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, which counts bytes for each thread. To be a program's `#[global_allocator]`;
/// without it [`allocated`] stays 0, and bounds that follow from it do not hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

/// Returns the bytes that the calling thread has allocated and not freed. Memory that goes from one thread to
/// another counts with the first and is taken off the second: only differences within a piece of work mean
/// something.
pub fn allocated() -> i64 {
    ALLOCATED.get()
}

fn count(bytes: usize, sign: i64) {
    // A size is at most isize::MAX (`Layout`), so it fits.
    ALLOCATED.set(ALLOCATED.get().wrapping_add(sign.wrapping_mul(bytes.cast_signed() as i64)));
}

// SAFETY: every call goes to the system's allocator unchanged and returns what that returns. The counter is a
// plain cell without a destructor that is set up at compile time, so touching it allocates nothing and works
// at any time of a thread's life.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as above. Not left to the default, which would touch every page of a guest's memory.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        // SAFETY: the pointer came from one of these functions, that is from the system's allocator; the rest
        // is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as for `realloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
