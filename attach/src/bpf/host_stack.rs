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
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};

use guest_linux::{PT_REGS_WORDS, RED_ZONE, saved_registers};
use symbols::{Registers, StackMemory};

use super::area::ArrayMapping;
use super::shared::{HOST_FRAMES, RawHostStack, RawHostStacks};

/// Ticks of a vCPU that the collector has not taken yet, at most: a second at 1,000 Hz, and 13 MiB.
const MOST_WAITING: usize = 1024;

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

/// Stack of a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostStack {
    /// Addresses in the host's kernel, the innermost one first. It begins with the functions that have taken
    /// the stack.
    pub kernel: Vec<u64>,
    /// Stack of the VMM's code.
    pub user: VmmStack,
}

impl HostStack {
    /// Number of functions of each part, at most.
    pub const MOST: usize = HOST_FRAMES;
}

/// Copy of the stack of a VMM's code, with its registers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmmStack {
    /// Registers when the thread has entered the kernel.
    pub registers: Registers,
    /// The stack, from the red zone below RSP on.
    pub bytes: Vec<u8>,
}

impl VmmStack {
    fn new(saved: &[u64; PT_REGS_WORDS], bytes: &[u8]) -> Self {
        Self { registers: saved_registers(saved), bytes: bytes.to_vec() }
    }
}

impl StackMemory for VmmStack {
    fn read_u64(&self, at: u64) -> Option<u64> {
        let start = self.registers.rsp().wrapping_sub(RED_ZONE);
        let offset = usize::try_from(at.wrapping_sub(start)).ok()?;
        let word = self.bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
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
        let read = read_words(stack);
        fence(Ordering::Acquire);
        let after = (&raw const (*stack).version).read_volatile();
        (version.is_multiple_of(2) && version == after && read.time_ns != 0).then_some(read)
    }
}

/// Reads a stack word by word: `read_volatile` of all of it would be 5,000 instructions in a row.
///
/// # Safety
/// As [`read_whole`].
unsafe fn read_words(stack: *const RawHostStack) -> RawHostStack {
    const { assert!(size_of::<RawHostStack>().is_multiple_of(size_of::<u64>())) };
    let mut read = MaybeUninit::<RawHostStack>::uninit();
    let (from, to) = (stack.cast::<u64>(), read.as_mut_ptr().cast::<u64>());
    for word in 0..size_of::<RawHostStack>() / size_of::<u64>() {
        // SAFETY: the word is in the stack, which is readable and has the alignment of its first field.
        unsafe { to.add(word).write(from.add(word).read_volatile()) };
    }
    // SAFETY: all words are written, and all bit patterns are valid.
    unsafe { read.assume_init() }
}

fn decoded(stack: &RawHostStack) -> HostStack {
    // An error of the kernel is below 0: there are no addresses then.
    let count = usize::try_from(stack.kernel_bytes).unwrap_or(0) / size_of::<u64>();
    let kernel = stack.kernel.iter().copied().take(count).take_while(|address| *address != 0).collect();
    let bytes = usize::try_from(stack.user_bytes).unwrap_or(usize::MAX).min(stack.user.len());
    let user = VmmStack::new(&stack.registers, stack.user.get(..bytes).unwrap_or_default());
    HostStack { kernel, user }
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
    use super::super::shared::HOST_BYTES;
    use super::*;

    fn raw(version: u64, time_ns: u64, kernel_bytes: i32, user_bytes: u32) -> RawHostStack {
        let kernel = std::array::from_fn(|index| 1 + u64::try_from(index).unwrap());
        let registers = std::array::from_fn(|index| 1000 + u64::try_from(index).unwrap());
        let mut user = [0; HOST_BYTES];
        user[0] = 7;
        RawHostStack { version, time_ns, kernel_bytes, user_bytes, kernel, registers, user }
    }

    fn read(stack: &RawHostStack) -> Option<HostStack> {
        // SAFETY: a reference is readable and aligned.
        unsafe { read_whole(stack) }.map(|stack| decoded(&stack))
    }

    #[test]
    fn a_stack_has_what_the_kernel_has_written_and_no_more() {
        let stack = read(&raw(2, 5, 16, 9)).unwrap();
        assert_eq!((stack.kernel, stack.user.bytes.len()), (vec![1, 2], 9));
        let mut gap = raw(2, 5, 32, 0);
        gap.kernel[2] = 0;
        assert_eq!(read(&gap).unwrap().kernel, [1, 2], "an address of 0 ends a stack");
        assert_eq!(read(&raw(3, 5, 16, 8)), None, "it is being written");
        assert_eq!(read(&raw(2, 0, 16, 8)), None, "none was taken");
    }

    #[test]
    fn lengths_that_no_kernel_returns_are_bounded() {
        for bytes in [i32::MIN, -14, -1, 7, 0] {
            assert_eq!(read(&raw(2, 5, bytes, 0)).unwrap().kernel, [0; 0], "{bytes}");
        }
        for bytes in [i32::MAX, 8 * 127, 8 * 127 + 7, 8 * 128] {
            let stack = read(&raw(2, 5, bytes, u32::MAX)).unwrap();
            assert_eq!((stack.kernel.len(), stack.user.bytes.len()), (HOST_FRAMES, HOST_BYTES), "{bytes}");
        }
    }

    #[test]
    fn registers_have_the_places_of_the_kernels_structure() {
        let stack = read(&raw(2, 5, 0, 16)).unwrap().user;
        let Registers { gpr, rip } = stack.registers;
        // Of pt_regs: R15 is the first word, RBP the fifth, RAX the eleventh, RIP the 17th, RSP the 20th.
        assert_eq!((gpr[15], gpr[6], gpr[0], rip, gpr[7]), (1000, 1004, 1010, 1016, 1019));
        let word = |at: u64| stack.read_u64(at);
        assert_eq!((word(1019 - RED_ZONE), word(1019 - RED_ZONE + 8)), (Some(7), Some(0)));
        assert_eq!([word(1019 - RED_ZONE - 1), word(1019 - RED_ZONE + 9), word(u64::MAX)], [None; 3]);
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
