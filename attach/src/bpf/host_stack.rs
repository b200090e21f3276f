//! Stacks of vCPUs' threads in the host. In the guest, that is the way into the guest.
//!
//! ```text
//!  tick, thread on its CPU ────▶ program `tick` ─────▶ `ticked` ─┐
//!  thread leaves its CPU ──────▶ program `switched` ─▶ `left` ───┴▶ [`HostTick`] ──▶ queue ──▶ collector
//! ```
//!
//! A thread without a CPU is where it left it, so that its stack was taken then: a program cannot walk the
//! stack of another thread on every kernel.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::area::ArrayMapping;
use super::shared::{HOST_FRAMES, RawHostStack, RawHostStacks};

/// Ticks of a vCPU that the collector has not taken yet, at most: some seconds at 1,000 Hz, and 8 MiB.
const MOST_WAITING: usize = 4096;

/// Place of a vCPU's thread at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostState {
    /// In the guest, from which the tick has taken its CPU.
    Guest,
    /// In KVM, between two stays in the guest: the clock counts this as time in the guest.
    Kvm,
    /// The guest is halted, or has not been started.
    Halted,
    /// The thread waits for a CPU of the host, in KVM_RUN or in the VMM.
    Waiting,
    /// In the VMM, or in KVM_RUN for a page of the guest's memory.
    Vmm,
}

/// Tick of a vCPU's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTick {
    /// Time of the tick, CLOCK_MONOTONIC ns: that of its sample, if it has one.
    pub time_ns: u64,
    /// Place of the thread.
    pub state: HostState,
    /// The thread was on a CPU.
    pub on_cpu: bool,
    /// Its stack; `None` if it was not taken, or is a later one.
    pub stack: Option<HostStack>,
}

/// Stack of a thread: addresses, the innermost one first. The kernel's part begins with the functions that
/// have taken the stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostStack {
    /// In the host's kernel.
    pub kernel: Vec<u64>,
    /// In the VMM, by its frame pointers.
    pub user: Vec<u64>,
}

impl HostStack {
    /// Number of functions of each part, at most.
    pub const MOST: usize = HOST_FRAMES;
}

/// Stacks of a vCPU's thread in the array of stacks. The kernel writes them at any time, each word at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostStacksView<'a> {
    stacks: *const RawHostStacks,
    _area: &'a ArrayMapping<RawHostStacks>,
}

impl<'a> HostStacksView<'a> {
    pub(super) fn new(area: &'a ArrayMapping<RawHostStacks>, index: usize) -> Option<Self> {
        Some(Self { stacks: area.element(index)?, _area: area })
    }

    /// Returns the stack of the last tick that has found the thread on its CPU.
    pub(super) fn ticked(self) -> Option<HostStack> {
        // SAFETY: the stacks are in the mapping, aligned, and valid for all bit patterns.
        let stack = unsafe { read_whole(&raw const (*self.stacks).ticked) }?;
        Some(decoded(&stack))
    }

    /// Returns the stack with which the thread has left its CPU for the last time before `now_ns`; `None` if
    /// it has left it since.
    pub(super) fn left(self, now_ns: u64) -> Option<HostStack> {
        // SAFETY: as above.
        let stack = unsafe { read_whole(&raw const (*self.stacks).left) }?;
        (stack.time_ns <= now_ns).then(|| decoded(&stack))
    }
}

/// Reads a stack; `None` if there is none, or the kernel writes it.
///
/// # Safety
/// `stack` has to be readable and aligned.
unsafe fn read_whole(stack: *const RawHostStack) -> Option<RawHostStack> {
    // SAFETY: as the caller has promised; all bit patterns are valid.
    unsafe {
        let version = (&raw const (*stack).version).read_volatile();
        // x86 keeps the order of loads; this keeps the compiler's.
        fence(Ordering::Acquire);
        let read = stack.read_volatile();
        fence(Ordering::Acquire);
        let after = (&raw const (*stack).version).read_volatile();
        (version.is_multiple_of(2) && version == after && read.time_ns != 0).then_some(read)
    }
}

fn decoded(stack: &RawHostStack) -> HostStack {
    // An error of the kernel is below 0: there are no addresses then.
    let words = |bytes: i32, all: &[u64]| {
        let count = usize::try_from(bytes).unwrap_or(0) / size_of::<u64>();
        all.iter().copied().take(count).take_while(|address| *address != 0).collect()
    };
    HostStack { kernel: words(stack.kernel_bytes, &stack.kernel), user: words(stack.user_bytes, &stack.user) }
}

/// Ticks that wait for the collector.
#[derive(Debug, Default)]
pub(crate) struct HostQueue {
    ticks: VecDeque<HostTick>,
    lost: u64,
}

impl HostQueue {
    /// Adds a tick; the queue never grows beyond its limit.
    pub(super) fn push(&mut self, tick: HostTick) {
        if self.ticks.len() < MOST_WAITING {
            self.ticks.push_back(tick);
        } else {
            self.lost = self.lost.saturating_add(1);
        }
    }

    /// Takes the ticks, and the number of those for which there was no room.
    pub(super) fn take(&mut self) -> (Vec<HostTick>, u64) {
        (self.ticks.drain(..).collect(), std::mem::take(&mut self.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(version: u64, time_ns: u64, kernel_bytes: i32, user_bytes: i32) -> RawHostStack {
        let (mut kernel, mut user) = ([0; HOST_FRAMES], [0; HOST_FRAMES]);
        for (at, (kernel, user)) in (1..).zip(kernel.iter_mut().zip(&mut user)) {
            (*kernel, *user) = (at, 1000 + at);
        }
        RawHostStack { version, time_ns, kernel_bytes, user_bytes, kernel, user }
    }

    fn read(stack: &RawHostStack) -> Option<HostStack> {
        // SAFETY: a reference is readable and aligned.
        unsafe { read_whole(stack) }.map(|stack| decoded(&stack))
    }

    #[test]
    fn a_stack_has_what_the_kernel_has_written_and_no_more() {
        let stack = read(&raw(2, 5, 16, 8)).unwrap();
        assert_eq!((stack.kernel, stack.user), (vec![1, 2], vec![1001]));
        let mut gap = raw(2, 5, 32, 0);
        gap.kernel[2] = 0;
        assert_eq!(read(&gap).unwrap().kernel, [1, 2], "an address of 0 ends a stack");
        assert_eq!(read(&raw(3, 5, 16, 8)), None, "it is being written");
        assert_eq!(read(&raw(2, 0, 16, 8)), None, "none was taken");
    }

    #[test]
    fn lengths_that_no_kernel_returns_are_bounded() {
        for bytes in [i32::MIN, -14, -1, 7, 0] {
            assert_eq!(read(&raw(2, 5, bytes, bytes)), Some(HostStack::default()), "{bytes}");
        }
        for bytes in [i32::MAX, 8 * 127, 8 * 127 + 7, 8 * 128] {
            let stack = read(&raw(2, 5, bytes, bytes)).unwrap();
            assert_eq!((stack.kernel.len(), stack.user.len()), (HOST_FRAMES, HOST_FRAMES), "{bytes}");
        }
    }

    #[test]
    fn ticks_beyond_the_room_are_counted() {
        let mut queue = HostQueue::default();
        let tick = HostTick { time_ns: 1, state: HostState::Vmm, on_cpu: true, stack: None };
        (0..MOST_WAITING + 3).for_each(|_| queue.push(tick.clone()));
        let (ticks, lost) = queue.take();
        assert_eq!((ticks.len(), lost), (MOST_WAITING, 3));
        assert_eq!(queue.take(), (Vec::new(), 0));
    }
}
