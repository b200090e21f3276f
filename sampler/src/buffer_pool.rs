//! Pool of stack buffers: samples carry them to the collector, which gives them back.
//!
//! ```text
//!            ┌── pool: some rounds of the collector, used again and again
//!  vCPU ◀────┤
//!            └── reserve: for a collector that is late; a buffer comes back without its memory
//! ```
//!
//! All buffers of a vCPU are parts of one mapping, which takes memory only where a stack was written. So the
//! pool may have far more buffers than are ever in use, and the memory of a late collector is given back
//! afterwards.

use bytes::BytesMut;
use guest_linux::StackCopy;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

/// Bytes of a page on x86-64.
const PAGE: usize = 4096;

/// The vCPU's end of the pool: buffers come out here.
#[derive(Debug)]
pub(crate) struct BufferPool {
    pool: Consumer<Box<StackCopy>>,
    reserve: Consumer<Box<StackCopy>>,
}

impl BufferPool {
    /// Takes an empty buffer; `None` if all are in use. Never allocates.
    pub(crate) fn take(&mut self) -> Option<Box<StackCopy>> {
        self.pool.pop().or_else(|_| self.reserve.pop()).ok()
    }
}

/// The collector's end of the pool: buffers go back here.
#[derive(Debug)]
pub(crate) struct BufferReturns {
    pool: Producer<Box<StackCopy>>,
    reserve: Producer<Box<StackCopy>>,
}

impl BufferReturns {
    /// Gives back a buffer: to the reserve, and without its memory, only while the pool is full.
    pub(crate) fn give_back(&mut self, stack: Box<StackCopy>) {
        if let Err(PushError::Full(mut stack)) = self.pool.push(stack) {
            // The pages read as zeroes when the buffer is used again.
            advise(stack.take_back(), libc::MADV_DONTNEED);
            // Pool and reserve together have room for all buffers.
            drop(self.reserve.push(stack));
        }
    }
}

/// Creates a pool of `pool` buffers with a reserve of `reserve` more.
pub(crate) fn buffer_pool(pool: usize, reserve: usize) -> (BufferPool, BufferReturns) {
    let (pool_in, pool_out) = RingBuffer::new(pool);
    let (reserve_in, reserve_out) = RingBuffer::new(reserve);
    let mut returns = BufferReturns { pool: pool_in, reserve: reserve_in };
    let count = pool.saturating_add(reserve);
    let mut room = BytesMut::zeroed(count.saturating_mul(StackCopy::BYTES).saturating_add(PAGE));
    // A huge page would take memory for 32 buffers at once; an allocator may have written the zeroes.
    advise(&mut room, libc::MADV_NOHUGEPAGE);
    advise(&mut room, libc::MADV_DONTNEED);
    // Each page belongs to one buffer only.
    drop(room.split_to(room.as_ptr().align_offset(PAGE).min(PAGE)));
    for _ in 0..count {
        let stack = Box::new(StackCopy::in_buffer(room.split_to(StackCopy::BYTES)));
        if let Err(PushError::Full(stack)) = returns.pool.push(stack) {
            // Pool and reserve together have room for all buffers.
            drop(returns.reserve.push(stack));
        }
    }
    (BufferPool { pool: pool_out, reserve: reserve_out }, returns)
}

/// Advises the host's kernel on the use of the whole pages of `bytes`.
fn advise(bytes: &mut [u8], advice: libc::c_int) {
    let skip = bytes.as_ptr().align_offset(PAGE);
    let Some(pages) = bytes.get_mut(skip..) else { return };
    let len = pages.len() / PAGE * PAGE;
    // SAFETY: the range is whole pages of private anonymous memory (an allocator's) inside of a slice that is
    // borrowed exclusively. The pages keep their bytes or become zeroes, so all bytes stay initialized. If
    // the call fails, nothing changes.
    unsafe {
        libc::madvise(pages.as_mut_ptr().cast(), len, advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident pages of the buffer of `stack`.
    fn resident(stack: &mut StackCopy) -> usize {
        let bytes = stack.take_back();
        let mut pages = [0_u8; StackCopy::BYTES / PAGE];
        // SAFETY: the buffer begins at a page and has as many pages as the vector has bytes.
        let done = unsafe { libc::mincore(bytes.as_mut_ptr().cast(), bytes.len(), pages.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn the_reserve_is_used_only_while_the_pool_is_empty() {
        let (mut out, mut returns) = buffer_pool(2, 3);
        let address = |stack: &StackCopy| std::ptr::from_ref(stack) as usize;
        let all: Vec<_> = std::iter::from_fn(|| out.take()).collect();
        let pool: Vec<_> = all[..2].iter().map(|stack| address(stack)).collect();
        assert_eq!(all.len(), 5);
        all.into_iter().for_each(|stack| returns.give_back(stack));
        // A collector that keeps up uses the same two again and again.
        for _ in 0..20 {
            let stack = out.take().expect("a buffer");
            assert!(pool.contains(&address(&stack)));
            returns.give_back(stack);
        }
        assert_eq!(std::iter::from_fn(|| out.take()).count(), 5, "none is lost");
    }

    #[test]
    fn only_the_pool_keeps_its_memory_after_a_hold_up() {
        let (mut out, mut returns) = buffer_pool(2, 30);
        let all: Vec<_> = std::iter::from_fn(|| out.take()).collect();
        for mut stack in all {
            assert_eq!(resident(&mut stack), 0, "a buffer that was never used takes no memory");
            stack.take_back()[..StackCopy::BYTES / 2].fill(1);
            assert_eq!(resident(&mut stack), 8);
            returns.give_back(stack);
        }
        let pages: usize = std::iter::from_fn(|| out.take()).map(|mut stack| resident(&mut stack)).sum();
        assert_eq!(pages, 2 * 8);
    }
}
