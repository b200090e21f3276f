//! The promise that a sample allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::{STYLES, styled};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread asks for.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter is a plain cell without a
// destructor, so touching it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above. Not left to the default, which would touch every page of a guest's RAM.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the pointer came from the system's allocator; the rest is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc`, that is from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations_of<T>(what: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.get();
    let result = what();
    (ALLOCATIONS.get() - before, result)
}

#[test]
fn the_counter_counts() {
    let (count, _) = allocations_of(|| std::hint::black_box(Box::new(1)));
    assert_eq!(count, 1);
}

#[test]
fn a_sample_allocates_nothing() {
    for style in STYLES {
        let (guest, kernel) = styled(style, |_| ());
        let reader = kernel.current_reader(&guest.memory).unwrap();
        let (count, current) = allocations_of(|| {
            [0, 1, 2, 1000].map(|cpu| std::hint::black_box(&reader).read(&guest.memory, cpu))
        });
        assert_eq!(count, 0);
        assert!(current[1].unwrap().task.is_some());
        assert_eq!(current[3], None);
    }
}

#[test]
fn a_copy_of_stacks_allocates_nothing() {
    let mut guest = crate::stack::tests::Guest::new();
    guest.fall_asleep();
    let mut copy = crate::StackCopy::new();
    for (cpl, rsp) in [(0, 0xffff_c900_0000_3e00), (3, 0x7fff_ffff_9000)] {
        let (count, ()) = allocations_of(|| guest.copy(cpl, rsp, false, std::hint::black_box(&mut copy)));
        assert_eq!(count, 0);
        assert!(!copy.is_empty());
    }
    let (count, _) = allocations_of(|| guest.sleeping(std::hint::black_box(&mut copy)));
    assert_eq!(count, 0);
    assert!(copy.user_root().is_some());
}
