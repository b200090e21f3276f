//! Frames as words: what a walk at a tick leaves for the collector.
//!
//! ```text
//! frame    two words   address of the code object (even)
//!                      instruction, bytes from the code object << 32 | identity of the code object
//! thread   one word    the first one, if any: address of the runtime's state of the thread | 3
//! entry    one word    where all frames since the last entry, or since the start, run: address in the native
//!                      frame | 1; 4095 for an interpreter without such an address, 4093 for the outermost
//!                      native frame
//! failure  one word    the last one, if frames are missing: number of the reason << 1 | 1, below 4093
//! ```

use symbols::VirtAddr;

/// Frames of one walk, at most.
pub const MAX_FRAMES: usize = 512;
/// Lowest address: Linux maps nothing below (`vm.mmap_min_addr` is 65,536, SELinux' minimum
/// 4,096).
const LOWEST: u64 = 4096;
/// Word of [`EntryPlace::Interpreter`].
const INTERPRETER: u64 = LOWEST - 1;
/// Word of [`EntryPlace::Outermost`].
const OUTERMOST: u64 = LOWEST - 3;

/// Bits of the word of a thread.
const THREAD: u64 = 3;

/// Returns the word for the runtime's state of a thread, if it may be one.
pub fn thread_word(thread: VirtAddr) -> Option<u64> {
    (thread.0 >= LOWEST && thread.0 & THREAD == 0).then_some(thread.0 | THREAD)
}

/// Frame of a managed language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManagedFrame {
    /// Address of the code object.
    pub code: VirtAddr,
    /// Bytes from the code object to the instruction that the frame executes; `None` if that is not after
    /// the object's start, or 4 GiB and more.
    pub instruction: Option<u32>,
    /// Hash of those words of the code object that show another object at the same address.
    pub identity: u32,
}

/// Native frame that managed frames run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryPlace {
    /// The one that has this address on the stack.
    Address(u64),
    /// One of the interpreter's function: entries of this kind are in the order of its frames.
    Interpreter,
    /// The thread's first one: native code has called their functions before it entered the interpreter.
    Outermost,
}

/// A step of a walk, innermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagedStep {
    /// A frame.
    Frame(ManagedFrame),
    /// The frames since the last entry run in this native frame.
    Entry(EntryPlace),
    /// Outer frames are missing.
    Failure(WalkFailure),
    /// The runtime's state of the thread is at this address.
    Thread(VirtAddr),
}

/// Reason for missing frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WalkFailure {
    /// A page of a frame was not present, or a copy of the memory does not have it.
    #[error("memory of a frame is not present, or was not copied")]
    NotPresent,
    /// Two structures contradict each other.
    #[error("the runtime's structures contradict each other")]
    Inconsistent,
    /// There are more than [`MAX_FRAMES`] frames.
    #[error("more than 512 frames")]
    TooDeep,
    /// The buffer was full.
    #[error("the buffer was full")]
    NoRoom,
}

/// Reasons by their number.
const FAILURES: [WalkFailure; 4] =
    [WalkFailure::NotPresent, WalkFailure::Inconsistent, WalkFailure::TooDeep, WalkFailure::NoRoom];

/// Words of one walk, to be read.
#[derive(Debug, Clone, Copy)]
pub struct FrameWords<I>(I);

impl<I: Iterator<Item = u64>> FrameWords<I> {
    /// Returns the steps that `words` consist of.
    pub fn new(words: I) -> Self {
        Self(words)
    }
}

impl<I: Iterator<Item = u64>> Iterator for FrameWords<I> {
    type Item = ManagedStep;

    fn next(&mut self) -> Option<ManagedStep> {
        let first = self.0.next()?;
        if first < LOWEST {
            match first {
                INTERPRETER => return Some(ManagedStep::Entry(EntryPlace::Interpreter)),
                OUTERMOST => return Some(ManagedStep::Entry(EntryPlace::Outermost)),
                _ => {}
            }
            let number = usize::try_from(first >> 1).ok();
            let failure = number.and_then(|number| FAILURES.get(number).copied());
            return Some(ManagedStep::Failure(failure.unwrap_or(WalkFailure::Inconsistent)));
        }
        if first & THREAD == THREAD {
            return Some(ManagedStep::Thread(VirtAddr(first & !THREAD)));
        }
        if first & 1 == 1 {
            return Some(ManagedStep::Entry(EntryPlace::Address(first & !1)));
        }
        // A frame in two halves was cut where the buffer ended.
        let Some(second) = self.0.next() else { return Some(ManagedStep::Failure(WalkFailure::NoRoom)) };
        let [instruction, identity] = [second >> 32, second & 0xffff_ffff].map(|half| {
            // Both are halves of a word.
            u32::try_from(half).unwrap_or(u32::MAX)
        });
        Some(ManagedStep::Frame(ManagedFrame {
            code: VirtAddr(first),
            instruction: Some(instruction).filter(|&offset| offset != u32::MAX),
            identity,
        }))
    }
}

/// Returns the word of a walk that ends with this failure.
pub fn failure_word(failure: WalkFailure) -> u64 {
    let number = FAILURES.iter().position(|&other| other == failure).unwrap_or(0);
    (number as u64) << 1 | 1
}

/// Returns a hash of the words that identify a code object.
pub(crate) fn identity(words: impl IntoIterator<Item = u64>) -> u32 {
    let mut hash = 0_u64;
    for word in words {
        // Multiplication by 2^64 divided by the golden ratio spreads close addresses.
        hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    u32::try_from(hash & 0xffff_ffff).unwrap_or(0)
}

/// Writer of the words of one walk.
pub(crate) struct FrameWriter<P> {
    push: P,
    frames: usize,
}

impl<P: FnMut(u64) -> bool> FrameWriter<P> {
    /// Adds a frame.
    pub(crate) fn frame(
        &mut self,
        code: VirtAddr,
        instruction: VirtAddr,
        identity: u32,
    ) -> Result<(), WalkFailure> {
        if code.0 < LOWEST || code.0 & 1 == 1 {
            return Err(WalkFailure::Inconsistent);
        }
        if self.frames == MAX_FRAMES {
            return Err(WalkFailure::TooDeep);
        }
        self.frames += 1;
        let offset = instruction.offset_from(code).and_then(|offset| u32::try_from(offset).ok());
        let second = u64::from(offset.unwrap_or(u32::MAX)) << 32 | u64::from(identity);
        if (self.push)(code.0) && (self.push)(second) { Ok(()) } else { Err(WalkFailure::NoRoom) }
    }

    /// Adds the entry of the frames since the last one.
    pub(crate) fn entry(&mut self, place: EntryPlace) -> Result<(), WalkFailure> {
        let word = match place {
            EntryPlace::Address(at) if at < LOWEST || at & THREAD != 0 => {
                return Err(WalkFailure::Inconsistent);
            }
            EntryPlace::Address(at) => at | 1,
            EntryPlace::Interpreter => INTERPRETER,
            EntryPlace::Outermost => OUTERMOST,
        };
        if (self.push)(word) { Ok(()) } else { Err(WalkFailure::NoRoom) }
    }
}

/// Writes what `walk` finds, and its failure.
pub(crate) fn write<P: FnMut(u64) -> bool>(
    push: P,
    walk: impl FnOnce(&mut FrameWriter<P>) -> Result<(), WalkFailure>,
) {
    let mut writer = FrameWriter { push, frames: 0 };
    if let Err(failure) = walk(&mut writer) {
        // Without room for this word, the reader finds the end of a frame or an entry missing.
        (writer.push)(failure_word(failure));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the steps of a walk into a buffer of `room` words.
    fn steps(
        room: usize,
        walk: impl FnOnce(&mut FrameWriter<&mut dyn FnMut(u64) -> bool>) -> Result<(), WalkFailure>,
    ) -> Vec<ManagedStep> {
        let mut words = Vec::new();
        let mut push = |word| {
            let fits = words.len() < room;
            if fits {
                words.push(word);
            }
            fits
        };
        let push: &mut dyn FnMut(u64) -> bool = &mut push;
        write(push, walk);
        FrameWords::new(words.into_iter()).collect()
    }

    fn frame(code: u64, instruction: Option<u32>, identity: u32) -> ManagedStep {
        ManagedStep::Frame(ManagedFrame { code: VirtAddr(code), instruction, identity })
    }

    #[test]
    fn steps_come_back() {
        let found = steps(100, |out| {
            out.frame(VirtAddr(0x7f00_0000_1000), VirtAddr(0x7f00_0000_10c8), 7)?;
            out.entry(EntryPlace::Address(0x7fff_0000_0008))?;
            out.frame(VirtAddr(0x7f00_0000_2000), VirtAddr(0x1000), u32::MAX)?;
            out.entry(EntryPlace::Interpreter)?;
            out.entry(EntryPlace::Outermost)?;
            Err(WalkFailure::NotPresent)
        });
        assert_eq!(
            found,
            [
                frame(0x7f00_0000_1000, Some(0xc8), 7),
                ManagedStep::Entry(EntryPlace::Address(0x7fff_0000_0008)),
                frame(0x7f00_0000_2000, None, u32::MAX),
                ManagedStep::Entry(EntryPlace::Interpreter),
                ManagedStep::Entry(EntryPlace::Outermost),
                ManagedStep::Failure(WalkFailure::NotPresent),
            ]
        );
    }

    #[test]
    fn a_full_buffer_loses_outer_frames_and_says_so() {
        for room in 0..6 {
            let found = steps(room, |out| {
                for at in 1..=4 {
                    out.frame(VirtAddr(at << 12), VirtAddr(at << 12), 0)?;
                }
                out.entry(EntryPlace::Interpreter)
            });
            let frames = found.iter().filter(|step| matches!(step, ManagedStep::Frame(_))).count();
            assert_eq!(frames, room / 2);
            let cut = found.last() == Some(&ManagedStep::Failure(WalkFailure::NoRoom));
            assert_eq!(cut, room % 2 == 1, "{room}: the end of a frame is missing, or its entry");
        }
    }

    #[test]
    fn words_that_are_no_addresses_end_the_walk() {
        for code in [0, 7, 4095, 0x1_0001] {
            let found = steps(10, |out| out.frame(VirtAddr(code), VirtAddr(code), 0));
            assert_eq!(found, [ManagedStep::Failure(WalkFailure::Inconsistent)], "{code:#x}");
        }
        let deep =
            steps(10_000, |out| (0..1000).try_for_each(|_| out.frame(VirtAddr(0x1000), VirtAddr(0x1000), 0)));
        assert_eq!(deep.len(), MAX_FRAMES + 1);
        assert_eq!(deep.last(), Some(&ManagedStep::Failure(WalkFailure::TooDeep)));
    }
}
